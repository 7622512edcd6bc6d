"""Encoders behind a URL: servers of OpenAI's embeddings API."""

import asyncio
import base64
import copy
import json
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np

from foundation.arrays import Float32Array
from foundation.errors import BenchError, DriftError, first_line, import_package
from retrievers.encoders.preflight import UNIT_TOLERANCE
from retrievers.encoders.protocol import Callback, Encoder, join_documents, scale_to_unit
from retrievers.models.card import Card, Recipe, Role

BATCH_TEXTS = 32  # TEI's limit
BATCH_CHARACTERS = 200_000  # safe for OpenAI's limit of 300,000 tokens and TEI's of 2 MB
ATTEMPT_S, DEADLINE_S = 300.0, 900.0  # limits of one attempt, and of all attempts
RETRIES, FIRST_RETRIES = 10, 3  # 1 minute; the first request fails early if no server runs
REFUSED = (400, 413, 422)  # status of a request that is too large or malformed
KEY_VARIABLE = "BENCH_API_KEY"
SHOWN = 60  # characters of a text in a message
OWN_OPTIONS = ("endpoint", "endpoint_model")  # options of a recipe that are not sent

# A server is the same if its vectors of the probe differ by these squared distances at most,
# relative to twice their squared lengths. For vectors of equal length this is 1 - cosine. For
# MiniLM, batches of other sizes give 8e-6 and 4e-5 in bfloat16, and int8 weights 2e-3 and 2e-2.
MEDIAN_DRIFT, LARGEST_DRIFT = 5e-4, 5e-3

HINT = (
    "Check the server, its URL (which ends in /v1), --endpoint-model, and the key in "
    f"{KEY_VARIABLE}. Then repeat the command: stored vectors are not encoded again."
)


logger = logging.getLogger(__name__)


class TextError(BenchError):
    """A server gave no usable vector of one text.

    ``text`` is the text as it is encoded, with its prompt.
    """

    text = ""


class RefusedError(TextError):
    """A server refused a text."""


class _Entry(msgspec.Struct):
    index: int
    embedding: list[float | None] | str  # base64 of float32


class _Answer(msgspec.Struct):
    data: list[_Entry]


@dataclass
class _Habits:
    """What is known of a server from its answers, for all encoders of it.

    Attributes:
        accepted: largest number of texts in a request that it accepted.
        refused: smallest number of texts, above 1, in a request that it refused.
        is_unit: whether its vectors have had length 1 so far.
        has_told: whether a zero vector of an empty text was reported.
    """

    accepted: int = 0
    refused: int = BATCH_TEXTS + 1
    is_unit: bool = False
    has_told: bool = False

    def size_of_requests(self, count: int) -> int:
        """Return into how large requests ``count`` texts are split.

        If more texts were accepted once than refused, their number was not the reason.
        """
        return self.accepted if count >= self.refused > self.accepted > 0 else count


class EndpointEncoder(Encoder):
    """Encoder behind a URL. Threads can share it.

    Vectors have unit length if the recipe says so; otherwise they are as the server sends them.

    Args:
        recipe: recipe of kind ``endpoint``. Its options hold ``endpoint_model``, the model's name
            on the server, and further fields of each request; ``query.NAME`` and ``document.NAME``
            are fields of requests in one role. A dimension of 0 accepts vectors of any dimension.
        card: its card, with the URL and the largest number of requests at a time.

    Raises:
        BenchError: the package ``openai`` is not installed, or the key has unprintable characters.
    """

    def __init__(self, recipe: Recipe, card: Card) -> None:
        problem = "models behind a URL need the package openai"
        self._api = import_package(
            "openai", problem, "Run `pip install 'retrieval-bench[served]'`."
        )
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise BenchError(f"{KEY_VARIABLE} has unprintable characters", "Set it again.")
        self.recipe, self._model, self._key = recipe, card.endpoint_model, key
        self._name = f"{self._model} at {urlsplit(card.url).netloc}"
        self._client = self._api.AsyncOpenAI(
            base_url=card.url, api_key=key or "none", timeout=ATTEMPT_S, max_retries=FIRST_RETRIES
        )
        self._connections = asyncio.Semaphore(card.connections)
        self._habits = _Habits()

    @property
    def server(self) -> "EndpointEncoder":
        """This encoder without prompts and scaling, which all recipes of a server share."""
        names = ("model", "kind", "dim", "revision", "options")
        return self._with_recipe(Recipe(**{name: getattr(self.recipe, name) for name in names}))

    def with_dimension(self) -> "EndpointEncoder":
        """Return this encoder with a dimension, which is that of a vector from the server."""
        if self.recipe.dim:
            return self
        dim = self.encode_queries(["dimension"]).shape[1]
        return self._with_recipe(msgspec.structs.replace(self.recipe, dim=dim))

    def for_dataset(self, name: str) -> "EndpointEncoder":
        """Return this encoder with the prompts of dataset ``name`` and the same connections."""
        return self._with_recipe(self.recipe.for_dataset(name))

    def _with_recipe(self, recipe: Recipe) -> "EndpointEncoder":
        other = copy.copy(self)
        other.recipe = recipe
        return other

    def encode_queries(self, texts: Sequence[str], advance: Callback | None = None) -> Float32Array:
        """Encode ``texts`` as queries, float32 ``(n, dim)``. ``advance`` counts texts.

        Raises:
            TextError: the server refuses a text, or returns a vector of it that is not finite, that
                is zero although the text is not empty, or whose length is not 1 as of the others.
            BenchError: the server does not answer, or returns other vectors than one for each text,
                of the recipe's dimension.
        """
        prompt = self.recipe.prompts.query
        return self._encode("query", [prompt + text for text in texts], advance)

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Callback | None = None
    ) -> Float32Array:
        """Encode ``titles`` with ``texts``, float32 ``(n, dim)``; see `encode_queries`."""
        return self._encode("document", join_documents(self.recipe, titles, texts), advance)

    def _encode(self, role: Role, texts: list[str], advance: Callback | None) -> Float32Array:
        fields = {
            name.removeprefix(f"{role}."): value
            for name, value in self.recipe.options.items()
            if name not in OWN_OPTIONS and ("." not in name or name.startswith(f"{role}."))
        }
        requests = self._request_all(texts, fields, advance or (lambda count: None))
        vectors = asyncio.run_coroutine_threadsafe(requests, _event_loop()).result()
        return scale_to_unit(vectors) if self.recipe.normalize else vectors

    async def _request_all(
        self, texts: list[str], fields: dict[str, Any], advance: Callback
    ) -> Float32Array:
        """Request vectors in batches. The first failure cancels the others, and is raised."""
        try:
            async with asyncio.TaskGroup() as group:
                requests = [self._request(batch, fields, advance) for batch in _split(texts)]
                tasks = list(map(group.create_task, requests))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        empty = np.empty((0, self.recipe.dim), np.float32)
        return np.concatenate([task.result() for task in tasks]) if tasks else empty

    async def _request(
        self, texts: list[str], fields: dict[str, Any], advance: Callback
    ) -> Float32Array:
        """Return the vectors of one batch, in smaller requests if the server refuses it."""
        habits, count = self._habits, len(texts)
        async with self._connections:
            size = habits.size_of_requests(count)  # learned while this one waited
            content = await self._send(texts, fields) if size == count else None
        if content is not None:
            habits.accepted = max(habits.accepted, count)
            vectors = self._read(content, texts)
            advance(count)
            return vectors
        if size == count:
            habits.refused, size = min(habits.refused, count), (count + 1) // 2
        parts = [texts[start : start + size] for start in range(0, count, size)]
        return np.concatenate([await self._request(part, fields, advance) for part in parts])

    async def _send(self, texts: list[str], fields: dict[str, Any]) -> bytes | None:
        """Return the answer to one request, or None if the server refuses several texts."""
        answer = await self._post({"model": self._model, "input": texts, **fields})
        if isinstance(answer, bytes):
            return answer
        if len(texts) > 1:
            return None
        raise self._text_error(answer, texts[0], RefusedError)

    async def _post(self, body: dict[str, Any]) -> bytes | str:
        """Return the content of an answer, or in words how the server refuses its texts."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                content = await self._client.post("/embeddings", cast_to=bytes, body=body)
        except self._api.APIStatusError as error:
            stated = error.body.get("message", error.body) if isinstance(error.body, dict) else ""
            problem = f"answered {error.status_code}: {stated or error.body}"
            if error.status_code in REFUSED:
                return problem
            raise self._error(problem) from None
        except TimeoutError:
            raise self._error(f"gave no answer in {DEADLINE_S:g} s") from None
        except self._api.APIConnectionError as error:
            raise self._error(f"does not answer: {first_line(error.__cause__ or error)}") from None
        self._client.max_retries = RETRIES
        return bytes(content)

    def _read(self, content: bytes, texts: list[str]) -> Float32Array:
        """Return the vectors of an answer in the order of their indices, float32 ``(n, dim)``."""
        try:
            data = _decode(content).data
            vectors = {entry.index: _read_vector(entry.embedding) for entry in data}
        except (msgspec.MsgspecError, ValueError) as error:
            start = f"its answer begins {content[:80].decode(errors='replace')!r}"
            raise self._error(f"returned no vectors: {error}; {start}") from None
        if sorted(entry.index for entry in data) != list(range(len(texts))):
            indices = f"whose indices are not 0 to {len(texts) - 1}"
            raise self._error(f"returned {len(data)} vectors for {len(texts)} texts, {indices}")
        dims = sorted(set(map(len, vectors.values())))
        if 0 in dims:
            raise self._error("returned an empty vector")
        if dims != [self.recipe.dim or dims[0]]:
            several = ", ".join(map(str, dims))
            raise self._error(f"returned vectors of {several} dimensions, not {self.recipe.dim}")
        rows = np.stack([vectors[index] for index in range(len(texts))])
        self._check(texts, rows)
        return rows

    def _check(self, texts: list[str], vectors: Float32Array) -> None:
        """Raise if a vector is not finite or zero, or has another length than the others.

        An empty text may have a zero vector, which is reported once.
        """
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
        is_unit = np.abs(lengths - 1) <= UNIT_TOLERANCE
        is_blank = np.array([not text.strip() for text in texts])
        unusable = {
            "that is not finite": ~np.isfinite(lengths),
            "of zeros": (lengths == 0) & ~is_blank,
        }
        others = ~is_unit & (lengths != 0)
        self._habits.is_unit |= 2 * int(is_unit.sum()) > len(texts) > 1
        if self._habits.is_unit and not self.recipe.normalize:
            unusable["whose length is not 1, as that of the others is"] = others
        for what, found in unusable.items():
            if found.any():
                row = int(found.argmax())
                value = f" (length {lengths[row]:.3g})" if "length" in what else ""
                raise self._text_error(f"returned a vector {what}{value}", texts[row])
        if (lengths == 0).any() and not self._habits.has_told:
            self._habits.has_told = True
            logger.warning("%s: an empty text has a vector of zeros", self._name)

    def _error(self, problem: str) -> BenchError:
        return BenchError(self._plain(problem), HINT)

    def _text_error(self, problem: str, text: str, kind: type[TextError] = TextError) -> TextError:
        """Return the error about one text, which it names."""
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
        error = kind(f"{self._plain(problem)}; the text is {shown!r}", HINT)
        error.text = text
        return error

    def _plain(self, problem: str) -> str:
        """Return a problem of this server on one line and without the key."""
        plain = problem.replace(self._key, "***") if self._key else problem
        return f"{self._name} {' '.join(plain.split())[:300]}"


def _decode(content: bytes) -> _Answer:
    """Decode an answer. Python's parser also reads NaN, which is no JSON."""
    try:
        return msgspec.json.decode(content, type=_Answer)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        try:
            return msgspec.convert(json.loads(content), _Answer)
        except ValueError:
            raise error from None


def _read_vector(embedding: list[float | None] | str) -> Float32Array:
    """Return a vector of decimal numbers, or of float32 in base64."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4").astype(np.float32)
    with np.errstate(over="ignore"):  # infinite, and refused with its text
        return np.array(embedding, np.float64).astype(np.float32)


def check_norms(recipe: Recipe, vectors: Float32Array, like: str | None) -> None:
    """Raise if the norms of a server's vectors contradict their use.

    Args:
        recipe: how the server's model is used.
        vectors: as the server sends them, float32 ``(n, dim)``.
        like: card that states the recipe; None if nobody stated it.

    Raises:
        BenchError: vectors to be compared by inner product are normalised, or nobody stated how
            vectors of several lengths are compared.
    """
    norms = np.linalg.norm(vectors, axis=1)
    norms = norms[norms > 0]  # of texts that are not empty
    is_unit = bool((np.abs(norms - 1) <= UNIT_TOLERANCE).all())
    if recipe.normalize or is_unit != bool(like):
        return
    if like:
        problem = f"{like} does not normalise its vectors, and those of the server have length 1"
        raise BenchError(problem, "Start the server without normalisation, or leave --like out.")
    raise BenchError(
        f"the vectors of {recipe.model} have lengths from {norms.min():.3g} to {norms.max():.3g}, "
        "and nothing states whether to compare them by cosine or by inner product",
        "Add --like minilm (cosine) or --like retromae (inner product), or write a card.",
    )


def check_same_server(name: str, then: Float32Array, now: Float32Array) -> None:
    """Raise if two lists of vectors of the probe come from different models.

    Args:
        name: name of the model.
        then: stored vectors, float32 ``(64, dim)``.
        now: vectors of today.

    Raises:
        DriftError: the median or largest difference is above `MEDIAN_DRIFT` or `LARGEST_DRIFT`.
    """
    squares = np.maximum((then**2).sum(axis=1), 1e-30)
    distances = ((then - now) ** 2).sum(axis=1) / squares / 2
    median, largest = float(np.median(distances)), float(distances.max())
    if median > MEDIAN_DRIFT or largest > LARGEST_DRIFT:
        raise DriftError(
            f"the server of {name} changed: its vectors of {len(now)} fixed texts differ from the "
            f"stored ones by up to {largest:.2g} (median {median:.2g})",
            f"Start the former server; or remove its vectors: `python -m bench cache --prune {name}"
            "`; or keep both with a card of your own that states another `revision`.",
        )


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this process's requests, which a background thread runs."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def _split(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield batches in order. An empty text is sent as a space, since OpenAI refuses it."""
    batch: list[str] = []
    for text in texts:
        size = sum(map(len, batch)) + len(text)
        if batch and (len(batch) == BATCH_TEXTS or size > BATCH_CHARACTERS):
            yield batch
            batch = []
        batch.append(text or " ")
    if batch:
        yield batch
