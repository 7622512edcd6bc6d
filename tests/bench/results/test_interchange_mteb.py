"""mteb's files: what is exported is imported unrounded, and everything else is said."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.results.interchange.claimed import Claimed
from bench.results.interchange.mteb_results import (
    META_FILE,
    claims_of,
    mteb_files,
    task_document,
    why_not,
)
from bench.results.result import Stored
from foundation.errors import BenchError
from tests.support.leaderboards import protocol_of, recipe_of, result_of

SCORES = st.floats(0, 1)
NAME = "someone/words"


def files_of(tmp_path: Path, files: dict[str, bytes]) -> list[Path]:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return [tmp_path / name for name in files if not name.endswith(META_FILE)]


@given(ndcg=SCORES, recall=SCORES)
def test_scores_come_back_as_they_were(ndcg, recall, tmp_path_factory):
    measures = {"nDCG@10": ndcg, "R@100": recall}
    stored = {
        name: Stored(Path("nowhere"), result_of("words", name, measures=measures))
        for name in ("beir/scifact", "beir/msmarco")
    }
    paths = files_of(tmp_path_factory.mktemp("out"), mteb_files(NAME, stored))
    found = [one for path in paths for one in claims_of(path, "", "")]
    assert found == [
        Claimed(model=NAME, collection=name, measures=measures, source="a file in mteb's format")
        for name in stored
    ]


def test_a_file_has_what_mteb_asks_for():
    measures = {"nDCG@10": 1 / 3, "RR@10": 0.25, "AP(rel=2)": 0.125}
    document = task_document(result_of("words", "beir/msmarco", measures=measures))
    assert document["task_name"] == "MSMARCO"
    assert len(document["dataset_revision"]) == 40
    assert document["scores"] == {
        "dev": [
            {
                "ndcg_at_10": 1 / 3,
                "mrr_at_10": 0.25,
                "main_score": 1 / 3,
                "hf_subset": "default",
                "languages": ["eng-Latn"],
            }
        ]
    }


def test_files_lie_below_the_models_name_and_revision():
    recipe = recipe_of("words", revision="abc")
    stored = {
        "beir/scifact": Stored(Path("nowhere"), result_of("words", "beir/scifact", recipe=recipe))
    }
    files = mteb_files(NAME, stored)
    assert list(files) == ["someone__words/abc/model_meta.json", "someone__words/abc/SciFact.json"]
    assert json.loads(files["someone__words/abc/model_meta.json"]) == {
        "name": NAME,
        "revision": "abc",
    }


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (result_of("words", "stdlib-code"), "no such task"),
        (result_of("words", "beir/scifact", measures={"R@100": 0.5}), r"has no nDCG@10"),
        (
            result_of(
                "words", "beir/scifact", protocol=protocol_of("beir/scifact", official=False)
            ),
            "not the published collection",
        ),
        (
            result_of("words", "beir/scifact", protocol=protocol_of("beir/scifact", split="train")),
            "not the published collection and split",
        ),
    ],
)
def test_a_result_that_is_not_of_mteb_s_task_says_why(result, why):
    assert why in why_not(result)


def test_a_published_collection_may_be_exported():
    assert why_not(result_of("words", "beir/scifact")) == ""


def document(**changes) -> dict:
    """As mteb 2.26 writes it, in short."""
    row = {
        "ndcg_at_10": 0.12407,
        "recall_at_100": 0.3,
        "nauc_ndcg_at_10_max": -0.5,
        "main_score": 0.12407,
        "hf_subset": "default",
        "languages": ["eng-Latn"],
        "mteb_version": "2.26.24",
    }
    return {
        "dataset_revision": "d56462d0e63a25450459c4f213e49ffdb866f7f9",
        "task_name": "SciFact",
        "mteb_version": "2.26.24",
        "scores": {"train": [{**row, "ndcg_at_10": 0.9}], "test": [row]},
        "evaluation_time": 2.5,
        "kg_co2_emissions": None,
        "date": "2026-01-01T00:00:00Z",
        "evaluation_phases": [{"name": "load", "start": 0.0, "end": 1.0}],
        **changes,
    }


def written(tmp_path: Path, content: object) -> Path:
    (path,) = files_of(tmp_path, {"someone__words/abc/SciFact.json": json.dumps(content).encode()})
    return path


def test_the_split_of_the_collection_counts_and_only_known_measures(tmp_path):
    (claim,) = claims_of(written(tmp_path, document()), "", "")
    assert claim == Claimed(
        model="someone/words",
        collection="beir/scifact",
        measures={"nDCG@10": 0.12407, "R@100": 0.3},
        source="mteb 2.26.24",
    )


def test_model_and_source_that_are_typed_go_first(tmp_path):
    (claim,) = claims_of(written(tmp_path, document()), "minilm", "its paper")
    assert (claim.model, claim.source) == ("minilm", "its paper")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"task_name": "STS12"}, "STS12 is no collection here"),
        ({"scores": {"train": []}}, "no score of split test"),
        ({"scores": {"test": [{"main_score": 0.5, "hf_subset": "default"}]}}, "no score of split"),
        ({"scores": {"test": [{"hf_subset": "en"}, {"hf_subset": "de"}]}}, "no score of split"),
    ],
)
def test_what_has_no_place_is_left_out_with_a_reason(changes, why, tmp_path):
    (said,) = claims_of(written(tmp_path, document(**changes)), "", "")
    assert isinstance(said, str)
    assert why in said


@pytest.mark.parametrize("value", [1.5, -0.1, 64.5])
def test_a_score_out_of_range_is_refused(value, tmp_path):
    rows = {"test": [{"ndcg_at_10": value, "hf_subset": "default"}]}
    with pytest.raises(BenchError, match=r"SciFact\.json: nDCG@10 is .*, and not from 0 to 1"):
        list(claims_of(written(tmp_path, document(scores=rows)), "", ""))


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"task_name": "SciFact", "scores": 1}', b"\xff", b"[" * 100_000],
)
def test_a_file_that_is_not_of_mteb_is_refused_by_name(content, tmp_path):
    path = tmp_path / "SciFact.json"
    path.write_bytes(content)
    with pytest.raises(BenchError, match=r"SciFact\.json") as error:
        list(claims_of(path, "words", ""))
    assert "mteb 1.11 and later" in error.value.hint


def test_a_file_that_nothing_names_needs_a_model(tmp_path):
    path = tmp_path / "SciFact.json"
    path.write_bytes(msgspec.json.encode(document()))
    with pytest.raises(BenchError, match="says of which model it is") as error:
        list(claims_of(path, "", ""))
    assert "--model" in error.value.hint
