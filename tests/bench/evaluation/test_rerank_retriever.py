"""Reranked rankings, compared with sorting and with `CrossEncoder.rank`."""

import json
import random
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import CrossEncoder

from bench.evaluation.asking import Response
from bench.evaluation.rerank_retriever import PAIRS, rerank
from bench.evaluation.runs import Run
from bench.runner.workspace import Workspace
from foundation.errors import BenchError
from retrievers.models.resolve import resolve_model
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import WORDS, Bench, write_collection
from tests.support.pipelines import (
    TRUSTED,
    ranked,
    run_of,
    write_cross_encoder,
    write_rerank,
    write_reranker,
)
from tests.support.processes import wait_until

SCORE = st.floats(-(2.0**100), 2.0**100, width=32)


@pytest.fixture(name="mine", scope="module")
def make_collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty documents and six queries in the words of the tiny checkpoints."""
    folder, draw = tmp_path_factory.mktemp("collections") / "mine", random.Random(3)
    documents = {
        f"d{number:02}": (
            " ".join(draw.choices(WORDS, k=number % 3)),
            " ".join(draw.choices(WORDS, k=draw.randint(3, 12))),
        )
        for number in range(40)
    }
    queries = {f"q{number}": " ".join(draw.sample(WORDS[:7], 3)) for number in range(6)}
    write_collection(folder, documents, queries, {(query, "d01"): 1 for query in queries})
    return folder


@pytest.fixture(name="workspace")
def make_workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "cache", device="cpu")


@pytest.mark.parametrize("title_join", ["space", "none"])
@pytest.mark.parametrize("depth", [7, 40])
def test_a_folder_ranks_as_cross_encoder_rank_does(workspace, tmp_path, mine, depth, title_join):
    folder = write_cross_encoder(tmp_path / "cross")
    card = write_rerank(tmp_path, "cross", depth=depth, title_join=title_join)
    first, found = (ranked(run_of(workspace, model, mine, 40)) for model in ("bm25", card))
    library = CrossEncoder(str(folder), device="cpu")
    dataset = workspace.open(str(mine)).dataset
    ids, titles, texts = (column.to_pylist() for column in dataset.corpus.table.columns)
    documents = dict(zip(ids, zip(titles, texts, strict=True), strict=True))
    for query, text in zip(dataset.queries.ids, dataset.queries.texts, strict=True):
        pairs = [documents[each] for each in first[query][:depth]]
        joined = [f"{a} {b}".strip() if title_join == "space" else b for a, b in pairs]
        order = [each["corpus_id"] for each in library.rank(text, joined)]
        assert found[query] == [first[query][row] for row in order] + first[query][depth:]


def rankings(draw: st.DrawFn) -> tuple[Run, dict[str, Response], int]:
    """Rankings, scores of some of their documents, and a depth."""
    rows, pairs = [], {}
    for query in ("q1", "q2", "q3"):
        names = draw(st.lists(st.sampled_from("abcdefghij"), unique=True, min_size=1))
        rows += [(query, name, draw(st.integers(-3, 3))) for name in names]
        scored = draw(st.lists(st.sampled_from(names), unique=True))
        scores = [draw(SCORE) for _ in scored]
        if scored:
            pairs[query] = Response(query, len(scored), 0.1, scored, scores)
    return Run.from_rows(*map(list, zip(*rows, strict=True))), pairs, draw(st.integers(1, 12))


def reranked_by_sorting(ids: list[str], scores: Mapping[str, float], depth: int) -> list[str]:
    first = [each for each in ids[:depth] if each in scores]
    best = sorted(first, key=lambda each: (np.float32(scores[each]), each), reverse=True)
    return best + [each for each in ids if each not in first]


@given(st.composite(rankings)())
def test_no_document_enters_or_leaves_and_others_follow_in_their_order(drawn):
    run, pairs, depth = drawn
    found = ranked(rerank(run, pairs, depth))
    for query, ids, _ in run.rankings():
        scored = pairs.get(query)
        scores = dict(zip(scored.ids, scored.scores or (), strict=True)) if scored else {}
        assert found[query] == reranked_by_sorting(ids, scores, depth)


def stored_pairs(workspace: Workspace) -> list[tuple[str, str]]:
    (path,) = (workspace.cache_dir / PAIRS).glob("*.jsonl")
    last = {line["query"]: line for line in map(json.loads, path.read_text("utf-8").splitlines())}
    return [(query, each) for query, line in last.items() for each in line["ids"]]


def write_counting_reranker(folder: Path) -> Path:
    """A reranker that writes each text that it scores into a file, which is returned."""
    seen = folder / "seen.txt"
    write_reranker(
        folder,
        f"open({str(seen)!r}, 'a').writelines(f'{{query}} | {{text}}\\n' for text in texts)\n"
        "    return [hash(text) % 97 for text in texts]",
    )
    return seen


def test_a_pair_is_scored_once_for_all_depths_and_models(workspace, tmp_path, mine):
    seen = write_counting_reranker(tmp_path)
    for name, fields in {
        "five": {"depth": 5},
        "nine": {"depth": 9},
        "fused": {"depth": 9, "model": "bm25+hashing"},
    }.items():
        run_of(workspace, write_rerank(tmp_path, "own.py:score", name, **fields), mine)
    lines = seen.read_text("utf-8").splitlines()
    pairs = stored_pairs(workspace)
    assert len(lines) == len(pairs) == len(set(pairs)) > 6 * 9


def test_the_text_of_a_document_is_part_of_its_score(workspace, tmp_path, mine):
    write_reranker(tmp_path, "return [float(len(text)) for text in texts]")
    card = write_rerank(tmp_path, "own.py:score", depth=5)
    run_of(workspace, card, mine)
    write_collection(
        tmp_path / "mine", {"d01": ("", "alpha stone")}, {"q0": "alpha"}, {("q0", "d01"): 1}
    )
    run_of(workspace, card, tmp_path / "mine")
    write_reranker(tmp_path, "return [1.0 for text in texts]")
    run_of(workspace, card, mine)
    assert len(list((workspace.cache_dir / PAIRS).glob("*.jsonl"))) == 3


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("return [float('nan')] * len(texts)", "returned nan for text 1"),
        ("return [1.0] * (len(texts) - 1)", "returned 3 scores for 4 texts"),
        ("return [[1.0, 2.0]] * len(texts)", "returned 4 x 2 scores for 4 texts"),
        ("return None", "returned nan for text|returned 1 scores for 4 texts"),
        ("return [None] * len(texts)", "returned nan for text 1"),
        ("return ['high'] * len(texts)", "not an array of numbers"),
        ("raise SystemExit('no key')", "failed: SystemExit: no key"),
        ("return len(texts) / 0", "failed: ZeroDivisionError"),
    ],
)
def test_a_reranker_that_fails_is_one_error_with_the_query(
    workspace, tmp_path, mine, body, problem
):
    write_reranker(tmp_path, body)
    with pytest.raises(BenchError, match=problem) as raised:
        run_of(workspace, write_rerank(tmp_path, "own.py:score", depth=4), mine)
    assert "own.py:score on query 'q0'" in str(raised.value)


def test_pairs_before_a_failure_are_kept(workspace, tmp_path, mine):
    queries = workspace.open(str(mine)).dataset.queries
    body = f"assert query != {queries.texts[3]!r}; return [1.0] * len(texts)"
    card = write_rerank(tmp_path, write_reranker(tmp_path, body), depth=4)
    with pytest.raises(BenchError, match="query 'q3'"):
        run_of(workspace, card, mine)
    assert len(stored_pairs(workspace)) == 3 * 4


@pytest.mark.slow
def test_a_killed_command_loses_no_pair(tmp_path, mine):
    seen = write_counting_reranker(tmp_path)
    path = tmp_path / "own.py"
    source = path.read_text("utf-8")
    path.write_text(f"import time\n{source.replace('return', 'time.sleep(.5); return')}", "utf-8")
    card = write_rerank(tmp_path, "own.py:score", depth=5)
    bench = Bench(tmp_path)
    command = ("run", str(mine), "--model", card, "--trust-code")
    process = bench.start(*command)
    wait_until(lambda: seen.exists() and seen.read_text("utf-8").count("\n") >= 15, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finished = bench(*command)
    assert finished.code == 0, finished.stderr
    lines = seen.read_text("utf-8").splitlines()
    asked_twice = len(lines) - len(set(lines))
    assert len(set(lines)) == 6 * 5
    assert asked_twice <= 5  # the query in flight


@pytest.mark.parametrize(
    ("write", "problem"),
    [(tiny.write_bert, "lacks weights"), (partial(write_cross_encoder, labels=3), "has 3 scores")],
    ids=["no head", "several scores"],
)
def test_a_folder_that_is_no_cross_encoder_is_refused(workspace, tmp_path, mine, write, problem):
    write(tmp_path / "cross")
    with pytest.raises(BenchError, match=problem):
        run_of(workspace, write_rerank(tmp_path, "cross"), mine)


def test_weights_and_depth_identify_a_reranking_and_its_place_does_not(workspace, tmp_path):
    prints = []
    for name, seed, depth in (("a", 0, 9), ("b", 0, 9), ("c", 1, 9), ("d", 0, 8)):
        write_cross_encoder(tmp_path / name, seed=seed)
        card = write_rerank(tmp_path, name, f"card{name}", depth=depth)
        prints.append(workspace.load(card).recipe.fingerprint)
    assert prints[0] == prints[1]
    assert len({*prints}) == 3


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"model": ""}, "needs model and reranker"),
        ({"reranker": ""}, "needs model and reranker"),
        ({"model": "reranked.toml"}, "reranked.toml is a member of itself"),
        ({"model": "hashnig"}, "no folder 'hashnig'"),
        ({"reranker": "no/such/folder"}, "there is no folder"),
        ({"reranker": "own.py"}, "is not path/to/file.py:NAME"),
        ({"depth": 0}, "depth is 0"),
        ({"pooling": "cls"}, "pooling does not apply to kind"),
        ({"title_join": "sep"}, "title_join of a reranker is space or none"),
        ({"k": 10}, 'k does not apply .* but to kind = "fusion"'),
        ({"models": ["bm25", "hashing"]}, 'models does not apply .* but to kind = "fusion"'),
    ],
)
def test_a_card_that_cannot_rerank_is_one_error(tmp_path, fields, problem):
    write_reranker(tmp_path, "return texts")
    stated = {"reranker": "own.py:score", **fields}
    card = write_rerank(tmp_path, str(stated.pop("reranker")), **stated)
    with pytest.raises(BenchError, match=problem):
        resolve_model(card, TRUSTED)


def test_code_runs_only_if_it_is_allowed(tmp_path):
    card = write_rerank(tmp_path, write_reranker(tmp_path, "return texts"))
    with pytest.raises(BenchError, match="reranked runs own"):
        resolve_model(card)


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ("other = 3", "does not define Own"),
        ("class Own:\n    name = 'x'", r"has no rerank\(query, texts\)"),
        ("Own = 3", r"has no rerank\(query, texts\)"),
        ("class One:\n    rerank = None\nOwn = One()", r"has no rerank\(query, texts\)"),
    ],
)
def test_what_does_not_rerank_is_refused(workspace, tmp_path, mine, definition, problem):
    (tmp_path / "own.py").write_text(definition, encoding="utf-8")
    with pytest.raises(BenchError, match=problem):
        run_of(workspace, write_rerank(tmp_path, "own.py:Own", depth=4), mine)


def test_an_object_with_rerank_and_a_column_of_scores_is_read(workspace, tmp_path, mine):
    body = "return [[-len(text)] for text in texts]"
    code = f"class Own:\n    def rerank(self, query, texts):\n        {body}\n"
    (tmp_path / "own.py").write_text(code, encoding="utf-8")
    (tmp_path / "other").mkdir()
    write_reranker(tmp_path / "other", "return [-len(t) for t in texts]")
    found = run_of(workspace, write_rerank(tmp_path, "own.py:Own", depth=9), mine)
    other = write_rerank(tmp_path, "other/own.py:score", "other", depth=9)
    assert ranked(found) == ranked(run_of(workspace, other, mine))
