"""The fingerprint changes with everything that can change a vector, and with nothing else."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from retrievers.models.recipe import AdapterIdentity, Prompts, Recipe, Role, Stage

BASE = Recipe(
    model="tiny",
    kind="transformer",
    dim=8,
    checkpoint="some/model",
    revision="main",
    files={"model.safetensors": "aa", "tokenizer.json": "bb"},
    pooling="cls",
)
NAMES = ("model", "checkpoint", "revision", "query_checkpoint", "query_revision")
CHANGES: dict[str, Any] = {
    "kind": "hashing",
    "dim": 9,
    "files": {"model.safetensors": "aa", "tokenizer.json": "cc"},
    "query_files": {"model.safetensors": "aa"},
    "pooling": "mean",
    "stages": (Stage("dense", "key:head", 8),),
    "normalize": True,
    "similarity": "cos",
    "title_join": "pair",
    "segment_ids": False,
    "max_query_tokens": 32,
    "max_document_tokens": 128,
    "truncation_side": "left",
    "lower_case": True,
    "prompts": Prompts(query="q: "),
    "dataset_prompts": {"beir/quora": Prompts()},
    "adapter": AdapterIdentity("peft", {"adapter_model.safetensors": "dd"}),
    "backend": "onnx",
    "dtype": "bfloat16",
    "store_dtype": "float16",
    "encoder": "package.module:Class",
    "options": {"dim": 8},
}


def test_every_field_is_either_a_name_or_changes_the_fingerprint() -> None:
    assert set(CHANGES) | set(NAMES) == set(Recipe.__struct_fields__)


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_the_fingerprint_changes_with(field: str) -> None:
    changed = msgspec.structs.replace(BASE, **{field: CHANGES[field]})
    assert changed.fingerprint != BASE.fingerprint


def test_a_field_that_came_later_leaves_the_fingerprints_of_stored_vectors() -> None:
    stored = "4319425ac17446dd4cd4fa0a1c4c2ededd536c4c3672ea57b6e02fe9d603d6e7"
    assert BASE.fingerprint == stored


@pytest.mark.parametrize("field", NAMES)
def test_a_copy_of_the_same_files_under_another_name_is_the_same_model(field: str) -> None:
    assert msgspec.structs.replace(BASE, **{field: "x"}).fingerprint == BASE.fingerprint


def test_fingerprints_of_stored_results_and_vectors_stay_what_they_are() -> None:
    """As commit b01a6c1 gives them."""
    changed = msgspec.structs.replace(
        BASE,
        prompts=Prompts(query="q: "),
        max_query_tokens=32,
        query_files={"model.safetensors": "cc"},
        adapter=AdapterIdentity("peft", {"adapter_model.safetensors": "dd"}),
    )
    assert BASE.fingerprint == "4319425ac17446dd4cd4fa0a1c4c2ededd536c4c3672ea57b6e02fe9d603d6e7"
    assert changed.fingerprint == "9fae11a5dc632409c6a04d38835b60fa81c67e0cb34831f48e112fc6c7d49115"


def test_without_files_the_checkpoint_is_what_tells_models_apart() -> None:
    first = msgspec.structs.replace(BASE, files={}, checkpoint="a")
    assert msgspec.structs.replace(first, checkpoint="b").fingerprint != first.fingerprint


def test_a_third_party_encoder_is_told_apart_by_its_checkpoint() -> None:
    first = msgspec.structs.replace(BASE, encoder="package.module:Class", checkpoint="a")
    assert msgspec.structs.replace(first, checkpoint="b").fingerprint != first.fingerprint


def test_the_order_of_files_does_not_matter() -> None:
    turned = msgspec.structs.replace(BASE, files=dict(reversed(BASE.files.items())))
    assert turned.fingerprint == BASE.fingerprint


def test_the_fingerprint_is_the_same_in_another_process() -> None:
    code = (
        "import msgspec, sys; from retrievers.models.recipe import Recipe; "
        "print(msgspec.json.decode(sys.stdin.read(), type=Recipe).fingerprint)"
    )
    text = msgspec.json.encode(BASE).decode()
    done = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == BASE.fingerprint


ONLY_QUERIES = {
    "max_query_tokens": 32,
    "prompts": Prompts(query="q: "),
    "query_files": {"model.safetensors": "cc"},
}
ONLY_DOCUMENTS = {
    "max_document_tokens": 128,
    "prompts": Prompts(document="d: "),
    "title_join": "pair",
}
NO_SIDE = {"dataset_prompts": {"beir/quora": Prompts(query="q: ")}}
NOT_BOTH = {*ONLY_QUERIES, *ONLY_DOCUMENTS, *NO_SIDE, "encoder"}


def sides_changed(changes: dict[str, Any], base: Recipe = BASE) -> set[str]:
    changed = msgspec.structs.replace(base, **changes)
    roles: tuple[Role, Role] = ("document", "query")
    return {role for role in roles if changed.side(role).fingerprint != base.side(role).fingerprint}


@pytest.mark.parametrize("field", sorted(set(CHANGES) - NOT_BOTH))
def test_what_is_not_known_to_change_one_side_only_changes_both(field: str) -> None:
    assert sides_changed({field: CHANGES[field]}) == {"document", "query"}


@pytest.mark.parametrize(
    ("changes", "sides"),
    [
        *(({field: value}, {"query"}) for field, value in ONLY_QUERIES.items()),
        *(({field: value}, {"document"}) for field, value in ONLY_DOCUMENTS.items()),
        *(({field: value}, set()) for field, value in NO_SIDE.items()),
    ],
    ids=lambda value: next(iter(value), ""),
)
def test_what_changes_one_side_leaves_the_other(changes: dict[str, Any], sides: set[str]) -> None:
    assert sides_changed(changes) == sides


def test_documents_of_an_untied_model_do_not_change_its_queries() -> None:
    untied = msgspec.structs.replace(BASE, query_files={"model.safetensors": "cc"})
    assert sides_changed({"files": {"model.safetensors": "dd"}}, untied) == {"document"}


def test_both_sides_of_a_third_partys_encoder_are_the_whole_recipe() -> None:
    other = msgspec.structs.replace(BASE, encoder="package.module:Class")
    for changes in (ONLY_QUERIES, ONLY_DOCUMENTS, NO_SIDE):
        assert sides_changed(changes, other) == {"document", "query"}


def test_a_recipe_without_prompts_and_with_one_length_is_its_own_side() -> None:
    assert {BASE.side(role).fingerprint for role in ("document", "query")} == {BASE.fingerprint}


@pytest.mark.parametrize("role", ["document", "query"])
def test_a_side_is_its_own_side(role: Role) -> None:
    recipe = msgspec.structs.replace(BASE, **{**ONLY_DOCUMENTS, **ONLY_QUERIES, **NO_SIDE})
    assert recipe.side(role).side(role) == recipe.side(role)


@pytest.mark.parametrize(
    ("dataset", "query"),
    [
        ("beir/cqadupstack/tex", "tex: "),
        ("beir/cqadupstack/unix", "forum: "),
        ("beir/quora", ""),
        ("beir/scifact", "default: "),
        ("beir/cqadupstacks", "default: "),
    ],
)
def test_the_most_specific_prompt_wins(dataset: str, query: str) -> None:
    recipe = msgspec.structs.replace(
        BASE,
        prompts=Prompts(query="default: ", document="d: "),
        dataset_prompts={
            "beir/cqadupstack": Prompts(query="forum: "),
            "beir/cqadupstack/tex": Prompts(query="tex: "),
            "beir/quora": Prompts(),
        },
    )
    resolved = recipe.for_dataset(dataset)
    assert resolved.prompts.query == query
    assert resolved.dataset_prompts == {}


def test_datasets_with_the_same_prompts_share_a_fingerprint() -> None:
    recipe = msgspec.structs.replace(BASE, dataset_prompts={"beir/quora": Prompts(query="q: ")})
    scifact, nfcorpus = recipe.for_dataset("beir/scifact"), recipe.for_dataset("beir/nfcorpus")
    assert scifact.fingerprint == nfcorpus.fingerprint == BASE.fingerprint
    assert recipe.for_dataset("beir/quora").fingerprint != scifact.fingerprint
