"""``score``: a run file is scored by judgements alone, wherever the documents are."""

import shutil
from pathlib import Path

import pytest

from bench.evaluation.run_files import read_run_file
from bench.result_store.result import load
from tests.support.collections import SIXTY, Bench, write_collection


@pytest.mark.parametrize(
    ("year", "files", "expected"),
    [
        ("19", ("queries.dl19.judged.tsv", "qrels.dl19-passage.txt"), 0.721033),
        ("20", ("queries.dl20.judged.tsv", "qrels.dl20-passage.txt"), 0.685361),
    ],
)
def test_a_run_of_trec_dl_needs_its_judgements_and_no_passage(
    year: str, files: tuple[str, ...], expected: float, tmp_path: Path, bench_data: Path
) -> None:
    bench, folder = Bench(tmp_path), tmp_path / "data" / "msmarco"
    folder.mkdir(parents=True)
    for name in files:
        shutil.copy(bench_data / "msmarco-sample" / name, folder)
    run = bench_data / "runs" / f"dl{year}.tas-b.trec"
    places = ("--data-dir", tmp_path / "data")
    done = bench("score", run, "--dataset", f"msmarco/dl{year}", *places)
    assert done.code == 0, done.stderr
    result = load(bench.results(f"msmarco/dl{year}", f"dl{year}.tas-b")).record
    assert result.measures["nDCG@10"] == pytest.approx(expected, abs=5e-7)
    assert result.protocol.official
    assert result.documents is None

    other = bench_data / "runs" / f"dl{year}.bm25.trec"
    arguments = (run, other, "--dataset", f"msmarco/dl{year}", *places, "--cache-dir", bench.cache)
    done = bench("compare", *arguments, "--resamples", "99")
    assert done.code == 0, done.stderr


def test_documents_are_not_requested_without_judgements(tmp_path: Path, bench_data: Path) -> None:
    bench, run = Bench(tmp_path), bench_data / "runs" / "dl19.tas-b.trec"
    done = bench("score", run, "--dataset", "msmarco/dl19")
    assert done.code == 2
    assert "msmarco-test2019-queries.tsv" in done.stderr
    assert "collectionandqueries" not in done.stderr


def test_a_folder_that_was_scored_is_remembered(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    folder = write_collection(tmp_path / "far" / "away" / "tiny")
    for name, document in (("one", "d1"), ("other", "d2")):
        (tmp_path / f"{name}.trec").write_text(f"q1 Q0 {document} 1 0.5 t\n")
        done = bench("score", tmp_path / f"{name}.trec", "--dataset", folder)
        assert done.code == 0, done.stderr
        assert "documents of the run" not in done.stderr
    places = ("--results", bench.out, "--cache-dir", bench.cache)
    done = bench("compare", "one", "other", "--changed", "1", "--resamples", "99", *places)
    assert done.code == 0, done.stderr
    assert "lift of a wing" in done.stdout


NOTES = {
    "q1 Q0 d1 1 0.5 t\nq9 Q0 d1 1 0.5 t\n": "1 of 2 queries, such as 'q9', are not in this split",
    "q1 Q0 d1 1 0.5 t\nq1 Q0 gone 2 0.4 t\nq1 Q0 no 3 0.3 t\n": (
        "2 of the 3 documents of the run run.trec are not in tiny: 'gone', 'no'"
    ),
    "q1 Q0 d1 1 0.5 t\n": "no query has more than 1 document, fewer than nDCG@10",
    "q1 Q0 d1 1 0.1 t\nq1 Q0 d2 2 0.4 t\n": "scores rise from rank to rank in every query",
    "q1 Q0 d1 1 0.9 t\n": "2 of 3 queries of tiny have no document",
}
REFUSED = {
    "q1 Q0 row1 1 0.5 t\nq1 Q0 row2 2 0.4 t\n": "are not in tiny: the run run.trec has 'row1'",
    "q9 Q0 d1 1 0.5 t\n": "no query of the run run.trec is in tiny",
    "\n": "the file is empty",
}


@pytest.mark.parametrize(("lines", "said"), [*NOTES.items(), *REFUSED.items()])
def test_score_compare_and_check_say_the_same_of_a_run_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lines: str, said: str
) -> None:
    bench = Bench(tmp_path)
    folder = write_collection(tmp_path / "tiny")
    assert bench("run", folder, "--model", "bm25").code == 0
    file = tmp_path / "run.trec"
    file.write_text(lines)
    places = ("--results", bench.out, "--cache-dir", bench.cache)
    on = ("--baseline", "bm25", "--on", folder)
    words = (
        ("score", file, "--dataset", folder, "--name", "run.trec"),
        ("compare", file, "bm25", "--dataset", folder, "--resamples", 99, *places),
        ("check", file, *on, "--resamples", 199, *places),
    )
    refused = lines in REFUSED
    for each in words:
        caplog.clear()
        done = bench(*each)
        assert (done.code == 2) is refused, done.stderr
        assert said in (done.stderr if refused else caplog.text)
    assert refused or said in " ".join(done.stdout.split())  # warnings are part of the verdict


@pytest.mark.parametrize(
    "lines",
    [
        "q1 Q0 d2 2 0.1 t\nq1 Q0 d1 1 0.4 t\n",  # the best last
        "q1 Q0 d1 0 0.1 t\nq1 Q0 d2 0 0.4 t\n",  # no ranks
        "q1 Q0 d1 - 0.1 t\nq1 Q0 d2 - 0.4 t\n",
        "q1 Q0 d1 1 0.1 t\nq1 Q0 d2 2 0.4 t\nq2 Q0 d1 1 0.4 t\nq2 Q0 d2 2 0.1 t\n",
    ],
)
def test_scores_that_do_not_rise_in_every_query_are_not_called_distances(
    tmp_path: Path, lines: str
) -> None:
    (tmp_path / "run.trec").write_text(lines)
    assert read_run_file(tmp_path / "run.trec").assumption == ""


def test_a_scored_run_is_a_candidate_by_name(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    folder = write_collection(tmp_path / "tiny", *SIXTY)
    assert bench("run", folder, "--model", "bm25").code == 0
    places = ("--results", bench.out, "--cache-dir", bench.cache)
    assert bench("export", "bm25", "--out", tmp_path / "runs", "--results", bench.out).code == 0
    (run,) = (tmp_path / "runs").rglob("*.trec.gz")
    assert bench("score", run, "--dataset", folder, "--name", "theirs").code == 0
    gate = ("--baseline", "bm25", "--resamples", 199, *places)
    by_name = bench("check", "theirs", *gate)
    by_file = bench("check", run, *gate)
    assert (by_name.code, by_file.code) == (3, 3), by_name.stderr  # too few queries for the margin
    assert "theirs" in by_name.stdout
    assert "60 queries" in by_name.stdout
    refused = bench("check", "theirs", *gate, "--dtype", "bfloat16")
    assert (refused.code, "no effect on the scored run theirs" in refused.stderr) == (2, True)
    elsewhere = bench("check", "theirs", *gate, "--on", "beir/scifact")
    assert elsewhere.code == 2
    assert "theirs has no result on beir/scifact" in elsewhere.stderr
