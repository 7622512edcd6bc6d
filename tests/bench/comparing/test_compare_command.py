"""``compare`` from results that ``run`` and ``score`` stored, as a user meets it."""

import io
import json
import shutil
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.cli.commands.deciding import compare
from bench.evaluation.run_files import encode_trec
from bench.evaluation.runs import Run
from bench.evaluation.scoring import parse_measure
from bench.result_store.result import load
from foundation.errors import BenchError
from tests.support.collections import QRELS, QUERIES, Bench, options, write_collection, write_qrels

DEFAULTS = {"resamples": 199}
GOOD = {"q1": ["d1", "d2"], "q2": ["d9", "d10"], "q3": ["d10"]}
BAD = {"q1": ["d2", "d10", "d1"], "q2": ["d10", "d1", "d9"], "q3": ["d1", "d10"]}


@dataclass(frozen=True)
class Place:
    """A collection, two run files, and the results of two models."""

    bench: Bench
    collection: Path
    good: Path
    bad: Path

    def compare(self, *names: object, cache: Path | None = None, **changes: object) -> str:
        """What the command prints."""
        known = {
            **DEFAULTS,
            "results": self.bench.out,
            "data_dir": self.collection.parent,
            "cache_dir": cache or self.bench.cache,
        }
        out = io.StringIO()
        with redirect_stdout(out):
            assert compare(*options("compare", *names, **{**known, **changes})) == 0
        return out.getvalue()

    def document(self, *names: object, **options: object) -> dict:
        return json.loads(self.compare(*names, json=True, **options))


def write_ranking(path: Path, ranking: dict[str, list[str]]) -> Path:
    rows = [(query, doc, -rank) for query, docs in ranking.items() for rank, doc in enumerate(docs)]
    queries, docs, scores = zip(*rows, strict=True)
    path.write_bytes(encode_trec(Run.from_rows(queries, docs, scores), "test"))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    folder = tmp_path_factory.mktemp("compare")
    found = Place(
        Bench(folder),
        write_collection(folder / "tiny"),
        write_ranking(folder / "good.trec", GOOD),
        write_ranking(folder / "bad.trec.gz", BAD),
    )
    done = found.bench("run", found.collection, "--model", "hashing", "bm25")
    assert done.code == 0, done.stderr
    return found


def row(document: dict, pair: int = 0) -> dict:
    (found,) = document["comparisons"][pair]["collections"]
    return found


def test_means_are_those_that_the_run_stored(place):
    found = row(place.document("bm25", "hashing"))
    for mean, model in (("mean_a", "bm25"), ("mean_b", "hashing")):
        assert found[mean] == load(place.bench.results("tiny", model)).record.measures["nDCG@10"]
    assert found["paired"]["difference"] == pytest.approx(found["mean_a"] - found["mean_b"])
    assert (found["on"], found["queries"], found["measure"]) == ("tiny", 3, "nDCG@10")


def test_run_files_are_scored_by_the_collection_and_compared_with_stored_results(place):
    found = place.document(place.good, place.bad, "bm25", dataset=str(place.collection))
    pairs = [(one["a"], one["b"]) for one in found["comparisons"]]
    assert pairs == [("good", "bad"), ("good", "bm25"), ("bad", "bm25")]
    good_bad = row(found)
    assert good_bad["paired"]["wins"] == 3
    assert good_bad["paired"]["p"] == 2 / 2**3


def test_the_queries_that_changed_most_show_texts_relevant_documents_and_both_rankings(place):
    found = place.document(place.bad, place.good, dataset=str(place.collection), changed=2)
    (changes,) = found["changed"]
    assert (changes["changed"], changes["without"], len(changes["queries"])) == (3, "", 2)
    gains = [query["score_a"] - query["score_b"] for query in changes["queries"]]
    assert gains == sorted(gains)
    for query in changes["queries"]:
        name = query["query_id"]
        assert query["text"] == QUERIES[name]
        grades = {doc: grade for (one, doc), grade in QRELS.items() if one == name}
        relevant = {doc for doc, grade in grades.items() if grade > 0}
        assert {one["doc_id"] for one in query["documents"]} == {*relevant, *BAD[name], *GOOD[name]}
        assert {one["doc_id"] for one in query["documents"][: len(relevant)]} == relevant
        for document in query["documents"]:
            assert document["grade"] == grades.get(document["doc_id"])
            for rank, ranking in (("rank_a", BAD), ("rank_b", GOOD)):
                docs = ranking[name]
                wanted = docs.index(document["doc_id"]) + 1 if document["doc_id"] in docs else None
                assert document[rank] == wanted


def test_of_many_relevant_documents_the_highest_grades_and_best_ranks_are_shown(place, tmp_path):
    documents = {f"d{number:02}": ("", f"text {number}") for number in range(14)}
    grades = {("q1", doc): 2 if doc == "d13" else 1 for doc in documents if doc != "d00"}
    collection = write_collection(tmp_path / "many", documents, {"q1": "a query"}, grades)
    top = ["d00", "d12", "d05"]
    files = [
        write_ranking(tmp_path / "one.trec", {"q1": top}),
        write_ranking(tmp_path / "two.trec", {"q1": ["d05", "d07"]}),
    ]
    found = place.document(*files, dataset=str(collection), changed=1)
    (query,) = found["changed"][0]["queries"]
    shown = [one["doc_id"] for one in query["documents"]]
    judged = ["d13", "d05", "d07", "d12", "d01", "d02", "d03", "d04", "d06", "d08"]
    assert shown == [*judged, "d00"]
    assert query["documents"][1]["text"] == "text 5"


def test_without_the_collection_ids_are_shown_with_the_reason(place, tmp_path):
    elsewhere = {"changed": 5, "data_dir": tmp_path, "cache": tmp_path / "another cache"}
    found = place.document("bm25", "hashing", **elsewhere)
    (changes,) = found["changed"]
    assert "tiny is not on this machine" in changes["without"]
    for query in changes["queries"]:
        assert query["text"] is None
        assert {(one["grade"], one["text"]) for one in query["documents"]} == {(None, "")}
    assert "ids only" in place.compare("bm25", "hashing", **elsewhere)


def test_texts_of_another_version_of_the_collection_are_not_shown(place, tmp_path, monkeypatch):
    write_collection(tmp_path / "tiny")
    write_qrels(tmp_path / "tiny", {**QRELS, ("q1", "d9"): 1})
    monkeypatch.chdir(tmp_path)
    (changes,) = place.document("bm25", "hashing", changed=1, cache=tmp_path)["changed"]
    assert "is not the one that was evaluated" in changes["without"]
    (changes,) = place.document("bm25", "hashing", changed=1)["changed"]
    assert changes["without"] == ""


def test_a_folder_names_the_collection_that_has_its_name(place, tmp_path):
    found = row(place.document("bm25", "hashing", on=[str(place.collection)]))
    assert found["on"] == "tiny"
    other = write_collection(tmp_path / "other")
    with pytest.raises(BenchError, match=f"there are no results on other, .* {other}") as error:
        place.compare("bm25", "hashing", on=[str(other)])
    assert error.value.hint == f"Run `python -m bench run {other} --model MODEL`."


def test_successive_trainings_have_backward_and_forward_transfer(place, tmp_path):
    shutil.copytree(place.bench.out, tmp_path / "results")
    other = write_collection(tmp_path / "other")
    models = ("--model", "hashing", "bm25")
    done = Bench(tmp_path)("run", other, *models, "--results", tmp_path / "results")
    assert done.code == 0, done.stderr
    known = {"results": tmp_path / "results", "json": True}
    found = json.loads(place.compare("hashing", "bm25", sequence=["tiny", "other"], **known))
    assert (found["base"], found["trained"]) == ("", ["tiny", "other"])
    (row,) = found["backward"]["rows"]
    assert (row["on"], row["a"], row["b"]) == ("tiny", "bm25", "hashing")
    found = json.loads(place.compare("hashing", "bm25", sequence=["other"], **known))
    assert (found["base"], found["backward"]) == ("hashing", None)


def test_real_runs_of_others_are_compared_with_the_scores_that_trec_eval_gives(
    bench_data, tmp_path
):
    files = [bench_data / f"runs/dl19.{name}.trec" for name in ("tas-b", "bm25")]
    found = Place(Bench(tmp_path), tmp_path / "none", *files).document(
        *files, dataset="msmarco/dl19", data_dir=bench_data / "msmarco-sample", resamples=9_999
    )
    one = row(found)
    assert (one["mean_a"], one["mean_b"]) == pytest.approx((0.721033, 0.505831), abs=5e-7)
    assert one["verdict"] == "a"
    assert one["paired"]["low"] > 0
    assert parse_measure(one["measure"]).name == "nDCG@10"
