"""``score``: a run file is scored by judgements alone, wherever the documents are."""

import shutil
from pathlib import Path

import pytest

from bench.result_store.result import load
from tests.support.collections import Bench, write_collection


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
        assert "not in the corpus" not in done.stderr
    places = ("--results", bench.out, "--cache-dir", bench.cache)
    done = bench("compare", "one", "other", "--changed", "1", "--resamples", "99", *places)
    assert done.code == 0, done.stderr
    assert "lift of a wing" in done.stdout


def test_documents_of_a_run_that_the_collection_lacks_are_counted(tmp_path: Path) -> None:
    bench, folder = Bench(tmp_path), write_collection(tmp_path / "tiny")
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1 0.5 t\nq1 Q0 gone 2 0.4 t\nq1 Q0 no 3 0.3 t\n")
    done = bench("score", tmp_path / "run.trec", "--dataset", folder)
    assert done.code == 0, done.stderr
    assert "note: tiny: 2 of 3 documents of the run are not in the corpus" in done.stderr
