"""Search systems in the terminal: a client is evaluated, decided upon and killed."""

import os
from collections import Counter
from pathlib import Path

import pytest

from bench.result_store.result import load
from tests.support.collections import ROOT, SIXTY, Bench, write_collection
from tests.support.processes import wait_until

# Counts common words; writes down every query, waits, and reads a page as JSON.
CLIENT = """
import json, pathlib, time

here = pathlib.Path(__file__).parent
lines = (here / "mine/corpus.jsonl").read_text().splitlines()
texts = {row["_id"]: set(row["text"].split()) for row in map(json.loads, lines)}

class Client:
    version = "7"

    def search(self, queries, k):
        return [self.ask(query, k) for query in queries]

    def ask(self, query, k):
        with (here / "asked.txt").open("a") as file:
            file.write(query + "\\n")
        time.sleep(float((here / "delay.txt").read_text()))
        json.loads((here / "page.txt").read_text())
        words = set(query.split())
        scores = {name: len(words & text) for name, text in texts.items()}
        best = sorted(scores, key=lambda name: (scores[name], name), reverse=True)
        return [(name, scores[name]) for name in best[:k]]

prod = Client()

def make():
    return Client()

def function(queries, k):
    return [[name for name, score in ranking] for ranking in prod.search(queries, k)]
"""
METADATA = 'main_measure = "RR@10"\nmeasures = ["R@5"]\ndepth = 10\n'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    write_collection(tmp_path / "mine", *SIXTY, metadata=METADATA)
    for name, text in (("search.py", CLIENT), ("delay.txt", "0"), ("page.txt", "{}")):
        Path(name).write_text(text, encoding="utf-8")
    return Bench(tmp_path)


RUN = ("run", "mine", "--trust-code", "--model")


def test_an_object_a_class_a_factory_and_a_function_are_one_system(place):
    names = ("prod", "Client", "make", "function")
    done = place(*RUN, *(f"search.py:{name}" for name in names))
    assert done.code == 0, done.stderr
    results = [load(place.results("mine", name)).record for name in names]
    assert len({str(result.measures) for result in results}) == 1
    assert {result.recipe.kind for result in results} == {"system"}
    assert results[0].recipe.options["version"] == "7"
    assert "median" in done.stdout
    assert done.stdout.count("(1 at once)") == 4
    assert done.stderr.count("states no version") == 1


def test_code_of_a_system_is_trusted_first(place):
    done = place("run", "mine", "--model", "search.py:prod")
    assert done.code == 2
    assert "--trust-code" in done.stderr


def test_a_system_is_compared_checked_listed_judged_and_exported(place):
    assert place(*RUN, "search.py:prod", "bm25", "--concurrency", "4").code == 4  # not for bm25
    assert place(*RUN, "bm25").code == 0
    out = ("--results", "out", "--resamples", "199")
    done = place("compare", "prod", "bm25", *out)
    assert done.code == 0, done.stderr
    assert "mine: latency of prod: median" in done.stdout
    assert "(4 at once)" in done.stdout
    for words in (
        ("check", "search.py:prod", "--baseline", "bm25", "--on", "mine", "--trust-code"),
        ("check", "bm25", "--baseline", "prod", "--on", "mine"),
    ):
        done = place(*words, *out, "--margin", ".1")
        assert done.code == 0, done.stdout + done.stderr
    done = place("leaderboard", "--results", "out")
    assert "prod" in done.stdout
    assert place("judge", "export", "prod", "bm25", "--on", "mine", "--results", "out").code == 0
    assert place("export", "prod", "--out", "runs", "--results", "out").code == 0
    done = place("score", "runs/prod/mine.trec.gz", "--dataset", "mine", "--name", "again")
    assert done.code == 0
    again, prod = (load(place.results("mine", name)).record for name in ("again", "prod"))
    assert again.measures == prod.measures


def test_commands_of_vectors_and_options_of_other_kinds_are_refused(place):
    for words in (
        ("index", "mine", "--model", "search.py:prod", "--index", "Flat", "--out", "index"),
        ("deploy", "search.py:prod", "--on", "mine"),
        ("work", "mine", "--model", "search.py:prod"),
    ):
        done = place(*words, "--trust-code")
        assert done.code == 2, words
        assert "prod makes no vectors" in done.stderr
    for option, value in (("index", "HNSW8"), ("dimensions", "8"), ("precision", "int8")):
        done = place(*RUN, "search.py:make", f"--{option}", value)
        assert done.code == 2
        assert f"--{option} cannot be set for make, which is a search system" in done.stderr
    Path("some.trec").write_text("q00 Q0 d00 1 1 t\n")
    assert place(*RUN, "bm25").code == 0
    words = ("check", "some.trec", "--baseline", "bm25", "--on", "mine", "--results", "out")
    assert "--concurrency 2 has no effect" in place(*words, "--concurrency", "2").stderr


def test_a_system_that_answers_html_ends_the_run_in_its_own_words(place, monkeypatch):
    monkeypatch.setattr("bench.evaluation.asking.PAUSES_S", (0.0, 0.0, 0.0))
    Path("page.txt").write_text("<html>503 busy</html>")
    done = place(*RUN, "search.py:prod")
    assert done.code == 2
    assert "prod failed 3 times on query 'q00': JSONDecodeError: Expecting value" in done.stderr
    assert "Repeat the command" in done.stderr


def test_a_system_that_hangs_ends_the_run(place, monkeypatch):
    monkeypatch.setattr("bench.evaluation.asking.PAUSES_S", (0.0, 0.0, 0.0))
    Path("delay.txt").write_text("2.0")
    done = place(*RUN, "search.py:prod", "--timeout", "0.1s")
    assert done.code == 2
    assert "TimeoutError: no response in 0.1 s" in done.stderr


def test_passages_of_a_run_file_count_for_their_documents(place):
    lines = [
        f"q00 Q0 d{row:02}#{part} 1 {9 - row}.{part} t\n" for row in range(5) for part in "123"
    ]
    Path("chunks.trec").write_text("".join(lines))
    Path("whole.trec").write_text("".join(f"q00 Q0 d{row:02} 1 {9 - row} t\n" for row in range(5)))
    done = place("score", "chunks.trec", "--dataset", "mine", "--passages", "#")
    assert done.code == 0, done.stderr
    assert (
        "15 passages, with '#' in their ids, are of 5 documents: 5 to 5 for a query" in done.stderr
    )
    place("score", "whole.trec", "--dataset", "mine")
    chunks, whole = (load(place.results("mine", name)).record for name in ("chunks", "whole"))
    assert chunks.measures == whole.measures
    assert chunks.measures["RR@10"] > 0
    raw = place("score", "chunks.trec", "--dataset", "mine")
    assert raw.code == 2, raw.stdout  # no document of the collection
    assert "15 passages" in chunks.preflight["run_file"]


def asked() -> Counter[str]:
    path = Path("asked.txt")
    return Counter(path.read_text().splitlines() if path.exists() else ())


@pytest.mark.slow
def test_every_query_that_was_answered_is_asked_once_in_spite_of_kills(place):
    kills = 2
    Path("delay.txt").write_text("0.02")
    words = (*RUN, "search.py:prod", "--results", "out", "--cache-dir", "cache")
    for _ in range(kills):
        before = asked().total()
        started = place.start(*words, cwd=place.place, env={**os.environ, "PYTHONPATH": str(ROOT)})
        wait_until(lambda before=before: asked().total() >= before + 20, started)  # ten each time
        started.kill()
        started.communicate()
    done = place(*words)
    assert done.code == 0, done.stderr
    often = [query for query, times in asked().items() if times > 2]
    assert len(asked()) == 60
    assert len(often) == 10
    in_flight = sum(times - 1 for query, times in asked().items() if query not in often)
    assert in_flight <= kills  # one at each kill, whose answer nobody received
