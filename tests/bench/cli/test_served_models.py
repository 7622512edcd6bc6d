"""Commands with models behind a URL: equal scores, stored vectors, servers that change."""

import json
import os
import signal
import time

import numpy as np
import pytest

from bench.evaluation.encoding import PREFLIGHT_DOCUMENTS
from bench.result_store.result import RESULT_FILE, load
from retrievers.encoders.endpoint import BATCH_TEXTS
from retrievers.encoders.preflight import ENCODED_ALONE
from retrievers.encoders.tokens import probe_texts
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from tests.support.collections import files_below, finish, write_collection
from tests.support.embedding_server import Reply, serve_model, serving
from tests.support.processes import wait_until
from tests.support.tiny_checkpoints import write_card

pytest.importorskip("openai", reason="needs openai: pip install openai")
KEY = "secret-of-tests"
CONNECTIONS = 16


@pytest.fixture
def data(tmp_path):
    return write_collection(tmp_path / "tiny")


@pytest.fixture
def server(monkeypatch):
    """A hashing model behind a URL."""
    monkeypatch.setenv("BENCH_API_KEY", KEY)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.01)
    with serving(serve_model(open_encoder(resolve_model("hashing")))) as served:
        yield served


def result_of(bench, model, collection="tiny"):
    return load(bench.results(collection, model) / RESULT_FILE).record


def test_a_served_model_has_the_scores_of_its_checkpoint_and_its_key_is_never_stored(
    bench, data, server
):
    url, app = server
    served = ("run", data, "--model", url, "hashing", "--endpoint-model", "org/served")
    done = bench(*served)
    assert done.code == 0, done.stderr
    ours, theirs = result_of(bench, "hashing"), result_of(bench, "served")
    assert ours.measures == theirs.measures
    assert ours.run_sha256 == theirs.run_sha256
    assert theirs.recipe.options["endpoint"] == url.removeprefix("http://")
    assert app.requests[0].headers["authorization"] == f"Bearer {KEY}"
    stored = {path: path.read_bytes() for path in files_below(bench.place)}
    assert KEY not in done.stdout + done.stderr
    assert not [path for path, content in stored.items() if KEY.encode() in content]
    before = len(app.texts)
    again = bench(*served, "--recompute")
    assert again.code == 0, again.stderr
    assert app.texts[before:] == ["dimension", *probe_texts()]
    assert result_of(bench, "served").run_sha256 == theirs.run_sha256
    assert "served" in bench("cache").stdout
    assert bench("run", data, *served[2:], "--dry-run", "--recompute").code == 0


def test_a_server_that_changed_is_refused_until_its_vectors_are_removed(bench, data, server):
    url, app = server
    served = ("run", data, "--model", url, "--endpoint-model", "served")
    assert bench(*served).code == 0
    files, encode = files_below(bench.place), app.encode
    app.encode = lambda texts: encode([text[:40] for text in texts])
    done = bench(*served, "--recompute", "--set", "query_prompt=query: ")
    assert done.code == 5
    assert "the server of served changed" in done.stderr
    assert files_below(bench.place) == files
    assert bench("work", data, *served[2:]).code == 5
    assert bench("cache", "--prune", "served").code == 0
    assert bench(*served, "--recompute").code == 0


@pytest.mark.slow
def test_norms_that_contradict_the_recipe_are_refused_before_anything_is_stored(
    bench, data, server, tmp_path
):
    url, app = server
    served = ("run", data, "--model", url, "--endpoint-model", "m", "--name")
    dot = write_card(tmp_path / "dot.toml", checkpoint="none", pooling="cls")
    done = bench(*served, "normalised", "--like", dot)
    assert (done.code, "dot.toml does not normalise its vectors" in done.stderr) == (2, True)
    encode = app.encode
    app.encode = lambda texts: encode(texts) * [[2 + len(text) % 5] for text in texts]
    done = bench(*served, "raw")
    assert (done.code, "by cosine or by inner product" in done.stderr) == (2, True)
    assert not [path for path in files_below(bench.place) if "vectors" in path.parts]
    assert bench(*served, "as-dot", "--like", dot).code == 0
    card = {"kind": "endpoint", "url": url, "endpoint_model": "m"}
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"name": "c", **card}.items()]
    (tmp_path / "c.toml").write_text("\n".join([*lines, 'title = "c"', 'similarity = "dot"']))
    assert bench("run", data, "--model", tmp_path / "c.toml").code == 0


def in_another_order(app):
    encode = app.encode
    app.encode = lambda texts: encode(texts)[np.argsort([len(text) for text in texts])]


def with_the_last_request(app):
    encode, last = app.encode, [np.zeros(1)]

    def with_the_last(texts):
        vectors = encode(texts) + 0.5 * last[0]
        last[0] = encode(texts[-1:])[0]
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    app.encode = with_the_last


def with_an_index_twice(app):
    def spoil(entries, request):
        if set(request.texts) & {*probe_texts(), "dimension"} or len(entries) < 2:
            return entries
        return [entries[0], entries[0], *entries[2:]]

    app.change = spoil


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (in_another_order, "returned in another order than the texts"),
        (with_the_last_request, "its vector depends on more than its text"),
        (with_an_index_twice, "whose indices are not"),
    ],
)
def test_a_server_whose_answers_are_wrong_is_refused(bench, data, server, spoil, problem):
    url, app = server
    spoil(app)
    done = bench("run", data, "--model", url, "--endpoint-model", "m")
    assert done.code in (2, 5), done.stdout  # the probe may have changed already
    assert problem in done.stderr
    assert not bench.out.exists()
    assert not [path for path in files_below(bench.cache) if path.suffix == ".f32"]


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda app, spoiled: setattr(app, "before", spoiled), "answered 413: too long"),
        (lambda app, spoiled: setattr(app, "change", spoiled), "returned a vector of zeros"),
    ],
)
def test_a_document_without_a_usable_vector_is_named_by_its_id(bench, server, spoil, problem):
    url, app = server
    documents = {f"d{i}": ("", f"document number {i}") for i in range(400)}
    place = bench.place / "many"
    many = write_collection(place, documents, {"q": "number 7"}, {("q", "d7"): 1})

    def spoiled(*given):
        *entries, request = given
        if "document number 377" not in request.texts:
            return entries[0] if entries else None
        if not entries:
            return Reply(413, {"error": {"message": "too long"}})
        row = request.texts.index("document number 377")
        entries[0][row]["embedding"] = np.zeros_like(entries[0][row]["embedding"])
        return entries[0]

    spoil(app, spoiled)
    done = bench("run", many, "--model", url, "--endpoint-model", "m")
    assert done.code == 2
    assert "document d377: m at 127.0.0.1" in done.stderr
    assert problem in done.stderr
    assert "the text is 'document number 377'" in done.stderr


@pytest.mark.slow
def test_a_kill_repeats_at_most_one_batch_per_connection(bench, tmp_path, server):
    url, app = server
    count = 4_000
    documents = {f"d{i}": ("", f"document number {i}") for i in range(count)}
    data = write_collection(tmp_path / "many", documents, {"q": "number 7"}, {("q", "d7"): 1})
    app.delay_s = lambda request: 0.1
    words = ("work", data, "--model", url, "--endpoint-model", "m")
    process = bench.start(*words)
    wait_until(lambda: len(set(app.texts)) >= count / 2, process)
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    time.sleep(0.3)
    assert len(set(app.texts)) < count
    app.delay_s = lambda request: 0.0
    assert bench(*words).code == 0
    sent = [text for text in app.texts if text.startswith("document")]
    assert len(set(sent)) == count
    preflight = PREFLIGHT_DOCUMENTS + ENCODED_ALONE
    assert len(sent) - count - preflight <= CONNECTIONS * BATCH_TEXTS


def test_a_server_that_fails_in_the_middle_keeps_what_was_encoded(bench, data, server):
    url, app = server
    documents = {f"d{i}": ("", f"document number {i}") for i in range(2_000)}
    many = write_collection(data / "many", documents, {"q": "number 7"}, {("q", "d7"): 1})
    broken = Reply(500, {"error": {"message": "CUDA error"}})
    app.before = lambda request: broken if "document number 1999" in request.texts else None
    words = ("work", many, "--model", url, "--endpoint-model", "m")
    done = bench(*words)
    assert (done.code, "answered 500: CUDA error" in done.stderr) == (2, True), done.stderr
    app.before, before = lambda request: None, len(app.texts)
    assert bench(*words).code == 0
    assert len(app.texts) - before <= len(probe_texts()) + 1 + CONNECTIONS * BATCH_TEXTS


@pytest.mark.slow
def test_an_index_and_workers_use_a_server(bench, data, server, tmp_path):
    url, _ = server
    use = ("--model", url, "--endpoint-model", "m")
    folder = tmp_path / "index"
    places = ("--out", folder, "--cache-dir", bench.cache)
    done = bench("index", data, *use, "--index", "HNSW8", *places)
    assert done.code == 0, done.stderr
    assert bench("run", data, *use, "--index", folder).code == 0
    assert np.isfinite(next(iter(result_of(bench, "m").measures.values())))
    assert bench("cache", "--prune", "m").code == 0
    assert bench("run", data, *use, "--workers", 2, "--recompute").code == 0
