"""Search systems in the terminal: a server over HTTP is evaluated, decided upon and killed."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from bench.result_store.result import load
from tests.support.collections import SIXTY, SIXTY_DOCUMENTS, Bench, write_collection

CLIENT = """
import json, urllib.parse, urllib.request

class Client:
    version = "7"

    def search(self, queries, k):
        return [self.ask(query, k) for query in queries]

    def ask(self, query, k):
        words = urllib.parse.urlencode({{"q": query, "k": k}})
        with urllib.request.urlopen("{url}?" + words) as answer:
            return json.load(answer)

prod = Client()

def make():
    return Client()

def function(queries, k):
    return [[name for name, score in ranking] for ranking in prod.search(queries, k)]
"""
METADATA = 'main_measure = "RR@10"\nmeasures = ["R@5"]\ndepth = 10\n'


@dataclass
class Engine:
    """SQLite's full-text search behind HTTP."""

    asked: Counter[str] = field(default_factory=Counter)
    delay_s: float = 0.0
    page: bytes = b""

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.db = sqlite3.connect(":memory:", check_same_thread=False)
        self.db.execute("create virtual table docs using fts5(id unindexed, body)")
        rows = [(name, text) for name, (_, text) in SIXTY_DOCUMENTS.items()]
        self.db.executemany("insert into docs values (?, ?)", rows)

    def search(self, query: str, k: int) -> list[list[object]]:
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        sql = "select id, -bm25(docs) from docs where docs match ? order by bm25(docs) limit ?"
        with self.lock:
            self.asked[query] += 1
            return [list(row) for row in self.db.execute(sql, (words, k))]


@contextmanager
def serve(engine: Engine) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            typed = parse_qs(urlsplit(self.path).query)
            time.sleep(engine.delay_s)
            found = json.dumps(engine.search(typed["q"][0], int(typed["k"][0]))).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(engine.page or found)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def place(tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.chdir(tmp_path)
    write_collection(tmp_path / "mine", *SIXTY, metadata=METADATA)
    with serve(engine) as url:
        Path("search.py").write_text(CLIENT.format(url=url), encoding="utf-8")
        yield Bench(tmp_path)


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


def test_a_system_that_answers_html_ends_the_run_in_its_own_words(place, engine, monkeypatch):
    monkeypatch.setattr("bench.evaluation.asking.PAUSES_S", (0.0, 0.0, 0.0))
    engine.page = b"<html>503 busy</html>"
    done = place(*RUN, "search.py:prod")
    assert done.code == 2
    assert "prod failed 3 times on query 'q00': JSONDecodeError: Expecting value" in done.stderr
    assert "Repeat the command" in done.stderr


def test_a_system_that_hangs_ends_the_run(place, engine, monkeypatch):
    monkeypatch.setattr("bench.evaluation.asking.PAUSES_S", (0.0, 0.0, 0.0))
    engine.delay_s = 2.0
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


@pytest.mark.slow
def test_every_query_that_was_answered_is_asked_once_in_spite_of_kills(place, engine):
    engine.delay_s, kills = 0.02, 4
    words = [sys.executable, "-m", "bench", *RUN, "search.py:prod"]
    words += ["--results", "out", "--cache-dir", "cache"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    for _ in range(kills):
        before = engine.asked.total()
        started = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
        while engine.asked.total() < before + 20:  # ten are asked each time
            assert started.poll() is None
            time.sleep(0.005)
        started.send_signal(signal.SIGKILL)
        started.wait()
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    often = [query for query, times in engine.asked.items() if times > 2]
    assert len(engine.asked) == 60
    assert len(often) == 10
    in_flight = sum(times - 1 for query, times in engine.asked.items() if query not in often)
    assert in_flight <= kills  # one at each kill, whose answer nobody received
