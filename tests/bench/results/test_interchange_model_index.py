"""Model cards of the Hub: huggingface_hub reads what is written, and what it writes is read."""

from pathlib import Path

import pytest
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.results.interchange.claimed import Claimed
from bench.results.interchange.model_index import card_file, claims_of
from bench.results.result import Stored
from foundation.errors import BenchError
from tests.support.leaderboards import protocol_of, result_of

SCORES = st.floats(0, 1)


def stored(**by_collection: dict[str, float]) -> dict[str, Stored]:
    names = {name: name.replace("_", "/", 1) for name in by_collection}
    return {
        names[name]: Stored(Path("nowhere"), result_of("words", names[name], measures=measures))
        for name, measures in by_collection.items()
    }


def card(folder: Path, content: bytes | str, name: str = "README.md") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@settings(deadline=None)
@given(ndcg=SCORES, recall=SCORES, own=SCORES)
def test_scores_come_back_as_they_were(ndcg, recall, own, tmp_path_factory):
    measures = {"nDCG@10": ndcg, "R@100": recall}
    results = stored(beir_scifact=measures, mine={"AP(rel=2)": own})
    path = card(tmp_path_factory.mktemp("card"), card_file("words", results))
    assert list(claims_of(path, "", "")) == [
        Claimed(model="words", collection="beir/scifact", measures=measures, source="model card"),
        Claimed(model="words", collection="mine", measures={"AP(rel=2)": own}, source="model card"),
    ]


def test_huggingface_hub_reads_each_score_with_its_data_set():
    results = stored(beir_scifact={"nDCG@10": 1 / 3, "R@100": 0.1 + 0.2})
    data = ModelCard(card_file("words", results).decode()).data
    assert data.model_name == "words"
    found = {
        (one.dataset_type, one.dataset_name, one.dataset_split, one.metric_type): one.metric_value
        for one in data.eval_results
    }
    assert found == {
        ("mteb/scifact", "SciFact", "test", "ndcg_at_10"): 1 / 3,
        ("mteb/scifact", "SciFact", "test", "recall_at_100"): 0.1 + 0.2,
    }
    assert data.eval_results[0].dataset_args["depth"] == 1000


def test_a_changed_collection_does_not_take_the_name_of_the_published_one():
    changed = protocol_of("beir/scifact", official=False)
    result = result_of("words", "beir/scifact", protocol=changed)
    data = ModelCard(card_file("words", {"beir/scifact": Stored(Path("x"), result)}).decode()).data
    assert data.eval_results[0].dataset_type == "beir/scifact"
    assert data.eval_results[0].dataset_args["official"] is False


def theirs(**changes) -> EvalResult:
    fields = {
        "task_type": "Retrieval",
        "dataset_type": "mteb/scifact",
        "dataset_name": "MTEB SciFact",
        "dataset_config": "default",
        "dataset_split": "test",
        "metric_type": "ndcg_at_10",
        "metric_value": 64.508,
        **changes,
    }
    return EvalResult(**fields)


def written(folder: Path, *entries: EvalResult) -> Path:
    data = ModelCardData(model_name="someone-words", eval_results=list(entries))
    return card(folder, f"---\n{data.to_yaml()}\n---\n# About\n\n---\nmore\n")


def test_percent_and_shares_are_told_apart_by_data_set(tmp_path):
    path = written(
        tmp_path,
        theirs(),
        theirs(metric_type="recall_at_1", metric_value=0.5),
        theirs(
            dataset_type="nq",
            dataset_name="NQ",
            metric_type="cosine_ndcg@10",
            metric_value=0.5,
        ),
    )
    found = {one.collection: one.measures for one in claims_of(path, "", "")}
    assert found == {
        "beir/scifact": {"nDCG@10": 64.508 / 100, "R@1": 0.5 / 100},
        "beir/nq": {"nDCG@10": 0.5},
    }


def test_the_source_in_the_card_is_kept_unless_another_is_typed(tmp_path):
    path = written(tmp_path, theirs(source_url="https://example.org", source_name="A paper"))
    assert [one.source for one in claims_of(path, "", "")] == ["A paper"]
    assert [one.source for one in claims_of(path, "", "me")] == ["me"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"dataset_type": "mteb/sts12", "dataset_name": "MTEB STS12"}, "is no collection here"),
        ({"dataset_split": "train"}, "is of split train, and not of test"),
        ({"metric_type": "main_score"}, "has no score that is known here"),
        ({"metric_value": "64.5 ± 0.2"}, "has no score that is known here"),
        ({"metric_value": True}, "has no score that is known here"),
        ({"metric_value": float("nan")}, "has no score that is known here"),
    ],
)
def test_what_has_no_place_is_left_out_with_a_reason(changes, why, tmp_path):
    (said,) = claims_of(written(tmp_path, theirs(**changes)), "", "")
    assert isinstance(said, str)
    assert why in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no model-index"),
        ("# no block at all", "has no model-index"),
        ("---\nlicense: mit\n---\n", "has no model-index"),
        ("---\nmodel-index: none\n---\n", "has no model-index"),
        ("---\nmodel-index: [1]\n---\n", "is not as the Hub defines it"),
        ("---\nmodel-index:\n- name: x\n---\n", "is not as the Hub defines it"),
        ("---\n{: [\n---\n", "is not a model card"),
        (b"---\n\xff\n---\n", "is not a model card"),
        ("---\n" + "[" * 5000 + "\n---\n", "is not a model card"),
        ("---\nvalue: " + "9" * 5000 + "\n---\n", "is not a model card"),
        ("---\ndate: 2026-99-99\n---\n", "is not a model card"),
    ],
)
def test_a_card_without_scores_is_refused_by_name(content, message, tmp_path):
    with pytest.raises(BenchError, match=message) as error:
        list(claims_of(card(tmp_path, content), "", ""))
    assert "README.md" in str(error.value)


def test_a_score_above_a_hundred_is_refused(tmp_path):
    with pytest.raises(BenchError, match="not from 0 to 1"):
        list(claims_of(written(tmp_path, theirs(metric_value=640.0)), "", ""))


def test_a_yaml_file_needs_no_fences(tmp_path):
    block = card_file("words", stored(beir_scifact={"nDCG@10": 0.5})).decode().strip("-\n")
    (claim,) = claims_of(card(tmp_path, block, "index.yaml"), "", "")
    assert claim.measures == {"nDCG@10": 0.5}


def test_a_card_runs_nothing(tmp_path):
    evil = '---\nmodel-index: !!python/object/apply:os.system ["touch evil"]\n---\n'
    with pytest.raises(BenchError, match="is not a model card"):
        list(claims_of(card(tmp_path, evil), "", ""))
