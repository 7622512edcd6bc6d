"""The fingerprint changes with everything that can change a vector, and with nothing else.

Those of the shipped cards are as commit c7af70d gives them: stored vectors hang on them. A card
that is added need not be pinned here; one that is here must keep its fingerprint.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from retrievers.models.card import AdapterIdentity, Compression, Prompts, Recipe, Role, Stage
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings

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
    "backend": "int8-calibrated",
    "dtype": "bfloat16",
    "store_dtype": "float16",
    "encoder": "file.py:Class",
    "options": {"dim": 8},
    "compression": Compression(dimensions=4),
}


def test_every_field_is_either_a_name_or_changes_the_fingerprint() -> None:
    assert set(CHANGES) | set(NAMES) == set(Recipe.__struct_fields__)


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_the_fingerprint_changes_with(field: str) -> None:
    changed = msgspec.structs.replace(BASE, **{field: CHANGES[field]})
    assert changed.fingerprint != BASE.fingerprint


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


@pytest.mark.parametrize("changes", [{"files": {}}, {"encoder": "file.py:Class"}])
def test_without_files_the_checkpoint_distinguishes_models(
    changes: dict[str, Any],
) -> None:
    first = msgspec.structs.replace(BASE, **changes)
    assert msgspec.structs.replace(first, checkpoint="b").fingerprint != first.fingerprint


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
NO_SIDE = {
    "dataset_prompts": {"beir/quora": Prompts(query="q: ")},
    "compression": Compression(precision="int8", rescore=40),
}
NOT_BOTH = {*ONLY_QUERIES, *ONLY_DOCUMENTS, *NO_SIDE, "encoder"}


def sides_changed(changes: dict[str, Any], base: Recipe = BASE) -> set[str]:
    changed = msgspec.structs.replace(base, **changes)
    roles: tuple[Role, Role] = ("document", "query")
    return {role for role in roles if changed.side(role).fingerprint != base.side(role).fingerprint}


@pytest.mark.parametrize("field", sorted(set(CHANGES) - NOT_BOTH))
def test_unclassified_fields_change_both_sides(field: str) -> None:
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
def test_a_change_of_one_side_keeps_the_fingerprint_of_the_other(
    changes: dict[str, Any], sides: set[str]
) -> None:
    assert sides_changed(changes) == sides


def test_documents_of_an_untied_model_do_not_change_its_queries() -> None:
    untied = msgspec.structs.replace(BASE, query_files={"model.safetensors": "cc"})
    assert sides_changed({"files": {"model.safetensors": "dd"}}, untied) == {"document"}


def test_both_sides_of_a_users_encoder_are_the_whole_recipe() -> None:
    other = msgspec.structs.replace(BASE, encoder="file.py:Class")
    for changes in (ONLY_QUERIES, ONLY_DOCUMENTS, NO_SIDE):
        assert sides_changed(changes, other) == {"document", "query"}


@pytest.mark.parametrize("role", ["document", "query"])
def test_a_side_of_a_recipe_is_its_own_side(role: Role) -> None:
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


WIDTH = 768
FILES = {"config.json": "aa", "model.safetensors": "bb", "tokenizer.json": "cc"}
PINNED = {
    "8d3550921ba39027": "ance",
    "0f08b1040f69ecaa": "ance-pyserini",
    "4b6aaaf94b810f99": (
        "bert cocondenser-marco cocondenser-wiki condenser cotmae deberta "
        "retromae retromae-msmarco retromae-pretrained roberta tas-b"
    ),
    "77f41708fe608c97": "bge-base",
    "c35bd8bfef348ab8": "cocondenser-ft cotmae-msmarco-ft",
    "62bea9ba0d2c1ef5": "contriever contriever-msmarco",
    "ebe10a2dfa532868": "diffcse simcse",
    "a1661fc8decc3ca8": "gtr-base gtr-large gtr-xl gtr-xxl",
    "6e19d95c813b15d5": "laprador",
    "77796e79b76305ac": "minilm",
    "7dd3ccf991a7ec5e": "retromae-msmarco-distill retromae-msmarco-ft",
    "411c51dc429813ec": "simcse-sup",
}
SETTINGS = {
    "retromae dtype=bfloat16": "8312ae0be32f5e4a",
    "retromae store_dtype=float16": "4e44797e9e5d9494",
    "retromae query_prompt=q:": "3c7bb5b3bfb6b709",
    "bge-base query_prompt=q:": "02ff1a8f46ef87e1",
    "gtr-base max_query_tokens=32 max_document_tokens=100": "8ed0ac499a349837",
}


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that resolving reads, and stages as ANCE and GTR have them."""
    folder = tmp_path_factory.mktemp("stand-in")
    config = {"model_type": "bert", "hidden_size": WIDTH, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    stage = {"out_features": WIDTH, "dimension": WIDTH}
    identity = {"activation_function": "torch.nn.modules.linear.Identity"}
    for place in ("", "2_Dense", "3_LayerNorm"):
        (folder / place).mkdir(exist_ok=True)
        if place:
            (folder / place / "config.json").write_text(json.dumps(stage | identity))
        save_file({"w": np.zeros(1, np.float32)}, folder / place / "model.safetensors")
    return folder


def fingerprint(recipe: Recipe) -> str:
    """First digits of the fingerprint, with files that do not depend on this machine."""
    return msgspec.structs.replace(recipe, files=FILES).fingerprint[:16]


@pytest.mark.parametrize(
    ("card", "pinned"), [(card, key) for key, cards in PINNED.items() for card in cards.split()]
)
def test_the_fingerprint_of_a_shipped_card_stays(stand_in: Path, card: str, pinned: str) -> None:
    assert fingerprint(resolve_model(str(stand_in), ModelSettings(like=card)).recipe) == pinned


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_fingerprint_of_a_setting_stays(stand_in: Path, settings: str) -> None:
    card, *pairs = settings.split()
    given = dict(pair.split("=") for pair in pairs)
    numbers = {key: int(value) for key, value in given.items() if value.isdigit()}
    model = resolve_model(str(stand_in), ModelSettings(like=card, **(given | numbers)))  # type: ignore[arg-type]
    assert fingerprint(model.recipe) == SETTINGS[settings]


@pytest.mark.parametrize(
    ("changes", "pinned"),
    [
        ({"backend": "int8-calibrated"}, "0634020b0243dc3c"),
        ({"adapter": AdapterIdentity("peft", {"a": "dd"})}, "48cf643cfc028275"),
        ({"adapter": AdapterIdentity("routed", {"a": "dd"})}, "cd458cdccd532a64"),
    ],
)
def test_the_fingerprint_with_a_back_end_or_an_adapter_stays(
    stand_in: Path, changes: dict[str, Any], pinned: str
) -> None:
    recipe = resolve_model(str(stand_in), ModelSettings(like="retromae")).recipe
    assert fingerprint(msgspec.structs.replace(recipe, **changes)) == pinned
