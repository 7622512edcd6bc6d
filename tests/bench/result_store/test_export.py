"""``export``: run files score as the results that they are of."""

import pytest

from bench.requests.outcomes import ExitCode
from bench.result_store.result import load
from tests.support.collections import DOCUMENTS, QRELS, QUERIES, write_collection


@pytest.mark.parametrize("exclude_self", [False, True])
def test_an_exported_run_scores_as_its_result_and_is_not_written_over(
    bench, tmp_path, exclude_self
):
    metadata = f"exclude_self = {str(exclude_self).lower()}\n"
    folder = write_collection(tmp_path / "tiny", metadata=metadata)
    assert bench("run", folder, "--model", "hashing").code == 0
    export = ("export", "hashing", "--results", bench.out, "--out", tmp_path / "runs")
    run = tmp_path / "runs" / "hashing" / "tiny.trec.gz"
    assert bench(*export).stdout.strip() == str(run)
    assert bench("score", run, "--dataset", folder, "--name", "back").code == 0
    measured, back = (load(bench.results("tiny", name)).record for name in ("hashing", "back"))
    assert back.measures == measured.measures
    assert bench(*export).code == 0
    run.write_text("mine")
    done = bench(*export)
    assert done.code == ExitCode.BAD_INPUT
    assert "exists already, with different content" in done.stderr
    assert run.read_text() == "mine"


def test_ids_with_spaces_are_evaluated_and_not_exported(bench, tmp_path):
    queries = {f"{id_} 1": text for id_, text in QUERIES.items()}
    qrels = {(f"{query} 1", document): grade for (query, document), grade in QRELS.items()}
    folder = write_collection(tmp_path / "tiny", DOCUMENTS, queries, qrels)
    assert bench("run", folder, "--model", "bm25").code == 0
    exported = bench("export", "bm25", "--results", bench.out, "--out", tmp_path / "runs")
    assert exported.code == ExitCode.BAD_INPUT
    assert "cannot be written to a TREC run file" in exported.stderr
    assert not list((tmp_path / "runs").rglob("*.gz"))


def test_a_mixture_of_recipes_is_not_exported(bench, tmp_path):
    tiny, other = write_collection(tmp_path / "tiny"), write_collection(tmp_path / "other")
    assert bench("run", tiny, "--model", "hashing").code == 0
    short = ("--model", "hashing", "--set", "max_document_tokens=3")
    assert bench("run", other, *short).code == 0
    export = ("export", "--results", bench.out, "--out", tmp_path / "runs")
    refused = bench(*export, "hashing")
    assert refused.code == ExitCode.BAD_INPUT
    assert not (tmp_path / "runs").exists()
    name = "hashing@max_document_tokens=3"
    assert f"'{name}'" in refused.stderr
    assert bench(*export, name).code == 0
    assert [path.name for path in (tmp_path / "runs").rglob("*.gz")] == ["other.trec.gz"]
    elsewhere = bench(*export, name, "--on", "beir/scifact")
    assert elsewhere.code == ExitCode.BAD_INPUT
    assert "has no results on these collections" in elsewhere.stderr
