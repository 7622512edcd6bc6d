"""Encoders behind HTTP servers with OpenAI's embeddings API, such as vLLM, TEI and Ollama.

A background thread runs the requests, several at a time. Requests that fail with a lost connection,
a timeout, status 408, 409, 429 or 5xx are repeated with growing pauses, or after the pause that
the server states. A batch that a server refuses as too large is halved.

Reference: https://platform.openai.com/docs/api-reference/embeddings
"""

import asyncio
import base64
import copy
import importlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np

from foundation.arrays import Float32Array
from foundation.errors import BenchError, DriftError, first_line
from foundation.printable import format_count
from retrievers.encoders.protocol import Callback, Encoder, PhaseTimer, join_documents
from retrievers.models.recipe import CONNECTIONS, Option, Prompts, Recipe, Role

BATCH_TEXTS = 128
BATCH_CHARACTERS = 200_000  # safe for OpenAI's limit of 300,000 tokens and TEI's of 2 MB
SHARDS_IN_FLIGHT = 3  # with one being written, as many texts as 8 connections have in batches
ATTEMPT_S, DEADLINE_S = 120.0, 600.0  # limits of one attempt, and of all attempts
RETRIES, FIRST_RETRIES = 10, 3  # 1 minute; the first request fails early if no server runs
TOO_LARGE = (400, 413, 422)
KEY_VARIABLE = "BENCH_API_KEY"
OPENAI_HOST, OPENAI_VARIABLE = "api.openai.com", "OPENAI_API_KEY"
OWN_OPTIONS = ("endpoint", "endpoint_model")  # options of a recipe that are not sent

# A server is the same if its vectors of the probe have these cosine distances at most. The noise of
# bfloat16 with batches of other sizes is below; other weights, pooling or prompts are above.
MEDIAN_DRIFT, LARGEST_DRIFT = 1e-3, 1e-2
MAX_LENGTH_DRIFT = 0.05  # relative difference of vector lengths
PROBE_SENTENCES = (
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "In 1905, Albert Einstein published four papers; one explained Brownian motion.",
    "What are the symptoms of vitamin B12 deficiency in adults over 65?",
    "def add(a, b):\n    return a + b  # sums two numbers",
    "Statins lower LDL cholesterol (p < 0.001, 95% CI 1.2–3.4).",
    "Où se trouve la bibliothèque? Sie ist gleich neben dem Café.",
    "Прибыль компании выросла на 12 % в третьем квартале.",
    "東京は日本の首都で、世界最大の都市圏の一つである。",
    "how to reset a router to factory settings",
    "The court held that the contract was void for want of consideration.",
    "URGENT!!! Meeting moved to 3:30 PM -- see https://example.org/agenda?id=42",
    "Quantum entanglement does not permit communication faster than light.",
    "Preheat the oven to 180 °C and bake the bread for forty minutes.",
    "mRNA vaccines encode the spike protein of SARS-CoV-2.",
    "Shares fell 3.7% after the bank's earnings missed expectations.",
    "to be or not to be that is the question",
)
PROBE_TEXTS = (
    *PROBE_SENTENCES,
    *(text.upper() for text in PROBE_SENTENCES),
    *(" ".join(PROBE_SENTENCES[i:] + PROBE_SENTENCES[:i])[:600] for i in range(16)),
    *(" ".join(text.split()[:3]) for text in PROBE_SENTENCES),
)


class EndpointEncoder(Encoder):
    """Encoder behind a URL. It can be used from several threads.

    Vectors have unit length if the recipe says so; otherwise they are as the server sends them.

    Args:
        recipe: recipe of kind ``endpoint``. Its options hold ``endpoint_model``, the model's name
            on the server, and further fields of each request; ``query.NAME`` and ``document.NAME``
            are fields of requests in one role. A dimension of 0 accepts vectors of any dimension.
        url: address up to ``/v1``.
        connections: largest number of requests at a time.

    Attributes:
        timer: counts the tokens that the server reports.

    Raises:
        BenchError: the package ``openai`` is not installed.
    """

    def __init__(self, recipe: Recipe, url: str, connections: int = CONNECTIONS) -> None:
        self.recipe, self.timer = recipe, PhaseTimer()
        self._client = _Client(url, str(recipe.options["endpoint_model"]), connections, self.timer)

    @property
    def server(self) -> "EndpointEncoder":
        """This encoder without prompts and scaling: all recipes of one server share it."""
        return self._with_recipe(
            msgspec.structs.replace(
                self.recipe,
                prompts=Prompts(),
                dataset_prompts={},
                title_join="space",
                normalize=False,
                similarity="dot",
                store_dtype="float32",
            )
        )

    def for_dataset(self, name: str) -> "EndpointEncoder":
        """Return this encoder with the prompts of dataset ``name`` and the same connections."""
        return self._with_recipe(self.recipe.for_dataset(name))

    def encode_queries(self, texts: Sequence[str], advance: Callback | None = None) -> Float32Array:
        """Encode ``texts`` as queries, float32 ``(n, dim)``.

        ``advance`` gets the number of texts at the end.

        Raises:
            BenchError: the server refuses the texts, does not answer, or returns other vectors than
                one for each text, of the recipe's dimension and finite.
        """
        prompt = self.recipe.prompts.query
        return self._prepare("query", [prompt + text for text in texts])(advance)

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Callback | None = None
    ) -> Float32Array:
        """Encode ``titles`` with ``texts``, float32 ``(n, dim)``.

        ``advance`` gets the number of documents at the end.

        Raises:
            BenchError: as for `encode_queries`.
        """
        return self.prepare_documents(titles, texts)(advance)

    def prepare_documents(self, titles: Sequence[str], texts: Sequence[str]) -> "PendingVectors":
        """Return a function that encodes ``titles`` with ``texts``, and can be launched before."""
        return self._prepare("document", join_documents(self.recipe, titles, texts))

    def _prepare(self, role: Role, texts: list[str]) -> "PendingVectors":
        options = self.recipe.options
        fields = {
            name.removeprefix(f"{role}."): value
            for name, value in options.items()
            if name not in OWN_OPTIONS and ("." not in name or name.startswith(f"{role}."))
        }
        return PendingVectors(self, lambda: self._client.start(texts, fields, self.dim), len(texts))

    def scale(self, vectors: Float32Array) -> Float32Array:
        """Return ``vectors``, scaled to unit length if the recipe says so."""
        if not self.recipe.normalize:
            return vectors
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        scaled: Float32Array = vectors / np.where(lengths == 0, 1, lengths)
        return scaled

    def _with_recipe(self, recipe: Recipe) -> "EndpointEncoder":
        other = copy.copy(self)
        other.recipe = recipe
        return other


class PendingVectors:
    """Texts of a shard. `launch` requests their vectors, and a call waits for them.

    Attributes:
        in_flight: number of shards to launch before the first is called.
    """

    in_flight = SHARDS_IN_FLIGHT

    def __init__(
        self, encoder: EndpointEncoder, start: Callable[[], Future[Float32Array]], count: int
    ) -> None:
        """Prepare ``count`` texts of ``encoder``, which ``start`` requests."""
        self._encoder, self._start, self._count = encoder, start, count
        self._future: Future[Float32Array] | None = None

    def launch(self) -> None:
        """Send the requests without waiting."""
        self._future = self._start()

    def __call__(self, advance: Callback | None = None) -> Float32Array:
        """Return the vectors, float32 ``(n, dim)``. ``advance`` counts texts."""
        vectors = self._encoder.scale((self._future or self._start()).result())
        if advance:
            advance(self._count)
        return vectors


class _Entry(msgspec.Struct):
    """A vector in an answer: base64 of little-endian float32, or a list of numbers."""

    index: int
    embedding: str | list[float]


class _Usage(msgspec.Struct):
    """Tokens of a request."""

    total_tokens: int = 0


class _Answer(msgspec.Struct):
    """Body of an answer with status 200."""

    data: list[_Entry]
    usage: _Usage | None = None


class _Client:
    """Requests to one model of one server, in a thread with an event loop."""

    def __init__(self, url: str, model: str, connections: int, timer: PhaseTimer) -> None:
        self._api = _import_openai()
        host = urlsplit(url).netloc
        self._model, self._name, self._timer = model, f"{model} at {host}", timer
        self._key = _read_key(host)
        self._openai = self._api.AsyncOpenAI(
            base_url=url,
            api_key=self._key or "none",
            timeout=ATTEMPT_S,
            max_retries=FIRST_RETRIES,
        )
        self._connections = asyncio.Semaphore(connections)
        self._most, self._format, self._dim = BATCH_TEXTS, "base64", 0
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def start(
        self, texts: Sequence[str], fields: Mapping[str, Option], dim: int
    ) -> Future[Float32Array]:
        """Request the vectors of ``texts``, with further ``fields`` in each request."""
        return asyncio.run_coroutine_threadsafe(self._encode_all(texts, fields, dim), self._loop)

    async def _encode_all(
        self, texts: Sequence[str], fields: Mapping[str, Option], dim: int
    ) -> Float32Array:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._encode(batch, fields, dim))
                    for batch in _split(texts, self._most)
                ]
        except ExceptionGroup as errors:  # the group has cancelled the other requests
            raise errors.exceptions[0] from None
        if not tasks:
            return np.empty((0, dim), np.float32)
        return np.concatenate([task.result() for task in tasks])

    async def _encode(
        self, texts: list[str], fields: Mapping[str, Option], dim: int
    ) -> Float32Array:
        try:
            async with self._connections:
                content = await self._post(texts, fields)
        except self._api.APIStatusError as error:
            reason = self._describe(error)
            refused = error.status_code in TOO_LARGE
            if refused and "encoding_format" in reason and self._format == "base64":
                self._format = "float"
                return await self._encode(texts, fields, dim)
            if refused and len(texts) > 1:
                half = 1 << (len(texts) - 1).bit_length() - 1  # a power of 2 below
                self._most = min(self._most, half)
                parts = [await self._encode(some, fields, dim) for some in _split(texts, half)]
                return np.concatenate(parts)
            size = format_count(len(texts[0]), "character", "characters")
            characters = f" for a text of {size}" if refused else ""
            raise BenchError(
                f"{self._name} answered {error.status_code}{characters}: {reason}",
                _hint(error.status_code),
            ) from None
        except (self._api.APIConnectionError, TimeoutError) as error:
            late = isinstance(error, TimeoutError)
            cause = (
                f"no success in {DEADLINE_S:g} s" if late else first_line(error.__cause__ or error)
            )
            raise BenchError(
                f"{self._name} does not answer: {self._hide_key(cause)}",
                "Start the server or correct the URL, and repeat the command: stored vectors are "
                "not encoded again.",
            ) from None
        if self._openai.max_retries != RETRIES:
            self._openai = self._openai.with_options(max_retries=RETRIES)
        return self._read(content, len(texts), dim)

    async def _post(self, texts: list[str], fields: Mapping[str, Option]) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            answer = await self._openai.embeddings.with_raw_response.create(
                model=self._model, input=texts, encoding_format=self._format, extra_body=fields
            )
        content: bytes = answer.content
        return content

    def _read(self, content: bytes, count: int, dim: int) -> Float32Array:
        """Return the vectors of an answer in the order of their indices, float32 ``(n, dim)``."""
        try:
            answer = msgspec.convert(json.loads(content), _Answer)
            vectors = {entry.index: _decode(entry.embedding) for entry in answer.data}
        except (ValueError, msgspec.ValidationError) as error:
            raise self._wrong_answer(f"something else than vectors: {first_line(error)}") from None
        found = sorted(entry.index for entry in answer.data)
        if found != list(range(count)):
            odd = sorted({i for i in found if found.count(i) > 1} | ({*found} ^ {*range(count)}))
            raise self._wrong_answer(
                f"{len(found)} vectors for {count} texts: missing, extra or repeated are the "
                f"indices {', '.join(map(str, odd[:5]))}"
            )
        dims = {len(vector) for vector in vectors.values()}
        dim = dim or self._dim or min(dims)
        if dims != {dim}:
            raise self._wrong_answer(
                f"vectors of {', '.join(map(str, sorted(dims)))} dimensions instead of {dim}"
            )
        self._dim = dim
        stacked = np.stack([vectors[row] for row in range(count)])
        if not np.isfinite(stacked).all():
            raise self._wrong_answer("NaN or infinite numbers")
        self._timer.count("tokens", answer.usage.total_tokens if answer.usage else 0)
        return stacked

    def _wrong_answer(self, what: str) -> BenchError:
        return BenchError(
            f"{self._name} returned {self._hide_key(what)}",
            "Correct the server and repeat the command: nothing of this answer was stored.",
        )

    def _describe(self, error: Any) -> str:
        """Return the server's message, shortened and without the key."""
        body = error.body
        if isinstance(body, dict):
            body = body.get("message") or body
        return self._hide_key(" ".join(str(body).split()))[:300]

    def _hide_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def check_same_server(name: str, then: Float32Array, now: Float32Array) -> None:
    """Raise if two lists of vectors of the probe come from different models.

    Args:
        name: name of the model.
        then: stored vectors, float32 ``(64, dim)``.
        now: vectors of today.

    Raises:
        DriftError: the median or largest cosine distance is above `MEDIAN_DRIFT` or
            `LARGEST_DRIFT`, or a length changed by more than `MAX_LENGTH_DRIFT`.
    """
    lengths = np.linalg.norm(then, axis=1), np.linalg.norm(now, axis=1)
    products = np.einsum("ij,ij->i", then, now, dtype=np.float64)
    distances = 1 - products / np.maximum(lengths[0] * lengths[1], np.finfo(np.float32).tiny)
    longer = float(np.abs(lengths[1] / np.maximum(lengths[0], 1e-30) - 1).max())
    median, largest = float(np.median(distances)), float(distances.max())
    if median > MEDIAN_DRIFT or largest > LARGEST_DRIFT or longer > MAX_LENGTH_DRIFT:
        raise DriftError(
            f"the server of {name} changed: cosine distances of its vectors of {len(now)} fixed "
            f"texts from the stored ones are up to {largest:.2g} (median {median:.2g}), and their "
            f"lengths differ by up to {longer:.0%}",
            f"Start the former server; or remove its vectors: `python -m bench cache --prune {name}"
            "`; or keep both with a card of your own that states another `revision`.",
        )


def _import_openai() -> Any:
    try:
        return importlib.import_module("openai")
    except ImportError as error:
        raise BenchError(
            "models behind a URL need the package openai", "pip install 'retrieval-bench[served]'"
        ) from error


def _read_key(host: str) -> str:
    """Return the key of a server from the environment, or "".

    Raises:
        BenchError: it has characters that no key has, such as a line break in the middle.
    """
    known = os.environ.get(OPENAI_VARIABLE, "") if host == OPENAI_HOST else ""
    key = (os.environ.get(KEY_VARIABLE) or known).strip()
    if not (key.isascii() and (key + "x").isprintable()):
        raise BenchError(f"the key in {KEY_VARIABLE} has unprintable characters", "Set it again.")
    return key


def _split(texts: Sequence[str], most: int) -> Iterator[list[str]]:
    """Yield batches in order. An empty text is sent as a space, since OpenAI refuses it."""
    batch: list[str] = []
    for text in texts:
        size = sum(map(len, batch)) + len(text)
        if batch and (len(batch) == most or size > BATCH_CHARACTERS):
            yield batch
            batch = []
        batch.append(text or " ")
    if batch:
        yield batch


def _decode(embedding: str | list[float]) -> Float32Array:
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4").astype(np.float32)
    return np.array(embedding, np.float32)


def _hint(status: int) -> str:
    """Return the advice for an HTTP status."""
    if status in (401, 403):
        return f"Set the environment variable {KEY_VARIABLE} to the key of this server."
    if status == 404:
        return "Check the URL, which ends in /v1, and --endpoint-model."
    if status in TOO_LARGE:
        return (
            "Check --endpoint-model; for long texts, let the server cut them (TEI: "
            "--auto-truncate; vLLM: a card with options = { truncate_prompt_tokens = -1 })."
        )
    return "Repeat the command later: stored vectors are not encoded again."
