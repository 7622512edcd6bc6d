"""The rules of a collection on a run: self-matches, depth, measures, protocol."""

import types
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluation.judging import (
    apply_protocol,
    judge,
    resolve_measures,
    score_run,
)
from bench.evaluation.pipeline import OpenDataset
from bench.evaluation.runs import Run
from datasets_cfg.catalogue import Metadata
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from datasets_cfg.readers.reader import Document, Qrels, Queries
from foundation.errors import BenchError

IDS = ["a", "b", "c", "é", "10", "9"]
rows = st.lists(
    st.tuples(st.sampled_from(IDS), st.sampled_from(IDS), st.sampled_from([0.0, 0.5, 1.0])),
    unique_by=lambda row: row[:2],
)
QRELS = Qrels(("a", "a", "b"), ("b", "c", "a"), np.array([1, 0, 2], dtype=np.int32))
NO_QRELS = Qrels((), (), np.empty(0, dtype=np.int32))


def dataset_of(*, qrels=QRELS, answers=None, documents=(), folder=Path(), **metadata) -> Dataset:
    """A collection without files, save for the corpus it is given."""
    names = tuple(answers or qrels.queries())
    queries = Queries(names, tuple(f"text of {name}" for name in names))
    reader = types.SimpleNamespace()
    declared = Metadata(name="own/tiny", layout="beir", **metadata)
    dataset = Dataset(declared, queries, qrels, answers, reader, folder)
    if documents:
        dataset.__dict__["corpus"] = Corpus.build(documents, folder / "corpus")
    return dataset


def run_of(found: list[tuple[str, str, float]]) -> Run:
    queries, documents, scores = zip(*found, strict=True) if found else ((), (), ())
    return Run.from_rows(queries, documents, scores)


def slowly_retrieved(run: Run, exclude_self: bool, depth: int) -> dict[str, list[str]]:
    kept = {}
    for query, documents, _ in run.rankings():
        others = [doc for doc in documents if not (exclude_self and doc == query)]
        kept[query] = others[:depth]
    return kept


@given(rows, st.booleans(), st.integers(1, 7))
def test_self_matches_go_before_the_cut_so_that_the_depth_stays(found, exclude_self, depth):
    run = run_of(found)
    cut = apply_protocol(run, dataset_of(exclude_self=exclude_self), depth)
    expected = slowly_retrieved(run, exclude_self, depth)
    assert {query: documents for query, documents, _ in cut.rankings()} == expected
    assert cut.query_ids == run.query_ids


OWN = {"main_measure": "nDCG@10", "measures": ("R@100",)}
SHALLOW = {"main_measure": "RR@10", "depth": 10}


@pytest.mark.parametrize(
    ("collection", "wanted", "depth", "measures"),
    [
        ({**OWN, "measures": ("R@5", "nDCG@10")}, None, None, ("nDCG@10", "R@5")),
        (OWN, ["MRR@10", "RR@10"], None, ("nDCG@10", "RR@10")),  # two names of one
        (OWN, ["AP", "RR", "R@100"], 100, ("nDCG@10", "AP", "RR", "R@100")),
        (OWN, ["P@9", "AP"], 9, ("P@9", "AP")),  # the main measure is beyond the depth
        (OWN, ["P@9", "AP"], 10, ("nDCG@10", "P@9", "AP")),
        (SHALLOW, ["P@10"], None, ("RR@10", "P@10")),
    ],
)
def test_the_main_measure_comes_first_where_the_depth_allows_it(
    collection, wanted, depth, measures
):
    assert resolve_measures(dataset_of(**collection), wanted, depth) == measures


@pytest.mark.parametrize(
    ("collection", "wanted", "depth", "beyond", "deepest"),
    [
        (OWN, None, 5, "R@100", 100),
        (OWN, [], 5, "nDCG@10", 10),
        (OWN, ["P@20", "AP(rel=2)@60"], 50, "AP(rel=2)@60", 60),
        (SHALLOW, ["P@11"], None, "P@11", 11),
    ],
)
def test_a_measure_of_more_documents_than_are_retrieved_is_refused(
    collection, wanted, depth, beyond, deepest
):
    with pytest.raises(BenchError) as error:
        resolve_measures(dataset_of(**collection), wanted, depth)
    assert f"{beyond} on " in str(error.value)
    assert f"needs {deepest} documents per query, and the depth is {depth or 10}" in str(
        error.value
    )
    assert f"--depth {deepest}," in error.value.hint


def test_the_first_measure_replaces_a_main_measure_that_needs_judgements(questions):
    metadata = msgspec.structs.replace(questions.metadata, main_measure="nDCG@10")
    without = replace(questions, metadata=metadata)
    assert resolve_measures(without, ["Success@5"], None) == ("Success@5",)
    with pytest.raises(BenchError, match="nDCG@10 needs judgements"):
        resolve_measures(without, None, None)


def test_fewer_than_ten_documents_have_no_share_of_judged_ones_among_the_first_ten():
    run = run_of([("a", "a", 1.0), ("a", "b", 0.5)])
    for depth, judged in ((9, False), (10, True)):
        _, quality = score_run(dataset_of(), run, ["nDCG@5"], depth)
        assert (quality["judged_at_10"] is not None) == judged


@pytest.fixture
def questions(tmp_path):
    """A collection judged by answer strings: DPR's form."""
    return dataset_of(
        qrels=NO_QRELS,
        answers={"0": ("Paris",), "1": ("no such words",)},
        documents=[Document("1", "", "Lyon."), Document("2", "Paris", "It is paris, in France.")],
        folder=tmp_path,
        main_measure="Success@20",
        measures=("Success@1", "RR@20"),
        depth=100,
    )


@pytest.mark.parametrize("measure", ["nDCG@10", "R@100", "AP", "P@5", "Judged@10"])
def test_measures_that_need_judgements_are_refused_where_answers_decide(measure, questions):
    with pytest.raises(BenchError, match="judged by answer strings") as error:
        resolve_measures(questions, [measure], None)
    assert measure in str(error.value)
    assert "Success@k" in error.value.hint


def test_answers_judge_what_was_retrieved(questions):
    run = run_of([("0", "1", 2.0), ("0", "2", 1.0), ("1", "2", 1.0)])
    names = resolve_measures(questions, None, None)
    scores, quality = score_run(questions, run, names, depth=100)
    assert scores.query_ids == ("0", "1")
    assert scores.values["Success@20"].tolist() == [1.0, 0.0]
    assert scores.values["Success@1"].tolist() == [0.0, 0.0]
    assert scores.values["RR@20"].tolist() == [0.5, 0.0]
    assert quality["judged_at_10"] is None


def test_a_document_missing_from_the_corpus_is_named_when_answers_are_judged(questions):
    run = run_of([("0", "2", 2.0), ("0", "elsewhere", 1.0)])
    with pytest.raises(BenchError, match=r"1 of 2 documents .* not in the corpus.* 'elsewhere'"):
        judge(questions, run)


def test_a_view_shows_judged_documents_and_tie_bounds():
    run = run_of([("a", "b", 1.0), ("a", "x", 1.0), ("b", "a", 1.0)])
    scores, quality = score_run(dataset_of(), run, ["RR@10"], 10)
    # ties fall by id: x stands before b
    assert scores.values["RR@10"].tolist() == [0.5, 1.0]
    assert (quality["tie_low"], quality["tie_high"]) == (0.75, 1.0)
    judged_of_a, judged_of_b = 1 / 2, 1 / 1
    assert quality["judged_at_10"] == pytest.approx((judged_of_a + judged_of_b) / 2)


def test_a_protocol_holds_the_metadata_and_contents_of_the_collection():
    dataset = dataset_of(version="v2", split="dev", title_track="title", exclude_self=True)
    protocol = OpenDataset(dataset, official=False).protocol(77, with_corpus=False)
    assert msgspec.to_builtins(protocol) == {
        "collection": "own/tiny",
        "version": "v2",
        "split": "dev",
        "title_track": "title",
        "corpus_sha256": "",
        "queries_sha256": dataset.queries_sha256,
        "qrels_sha256": dataset.qrels_sha256,
        "exclude_self": True,
        "depth": 77,
        "official": False,
    }
