"""Encoders behind a URL: servers of OpenAI's embeddings API."""

import asyncio
import copy
import os
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any
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
FLOAT32_MAX = float(np.finfo(np.float32).max)
OWN_OPTIONS = ("endpoint", "endpoint_model")  # options of a recipe that are not sent

# A server is the same if its vectors of the probe differ by these squared distances at most,
# relative to twice their squared lengths. For vectors of equal length this is 1 - cosine. For
# MiniLM, batches of other sizes give 8e-6 and 4e-5 in bfloat16, and int8 weights 2e-3 and 2e-2.
MEDIAN_DRIFT, LARGEST_DRIFT = 5e-4, 5e-3

HINT = (
    "Check the server, its URL (which ends in /v1), --endpoint-model, and the key in "
    f"{KEY_VARIABLE}. Then repeat the command: stored vectors are not encoded again."
)


class RefusedError(BenchError):
    """A server refused a text."""


class _Entry(msgspec.Struct):
    index: int
    embedding: list[Annotated[float, msgspec.Meta(ge=-FLOAT32_MAX, le=FLOAT32_MAX)]]


class _Answer(msgspec.Struct):
    data: list[_Entry]


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
        self._api = import_package("openai", problem, "pip install 'retrieval-bench[served]'")
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise BenchError(f"{KEY_VARIABLE} has unprintable characters", "Set it again.")
        self.recipe, self._model, self._key = recipe, card.endpoint_model, key
        self._name = f"{self._model} at {urlsplit(card.url).netloc}"
        self._client = self._api.AsyncOpenAI(
            base_url=card.url, api_key=key or "none", timeout=ATTEMPT_S, max_retries=FIRST_RETRIES
        )
        self._connections = asyncio.Semaphore(card.connections)

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
            BenchError: the server refuses the texts, does not answer, or returns other vectors than
                one for each text, of the recipe's dimension and finite.
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
        """Return the vectors of one batch, which is halved as long as the server refuses it."""
        try:
            async with self._connections, asyncio.timeout(DEADLINE_S):
                answer = await self._client.embeddings.with_raw_response.create(
                    model=self._model, input=texts, encoding_format="float", extra_body=fields
                )
        except self._api.APIStatusError as error:
            body, half = error.body, len(texts) // 2
            if error.status_code in REFUSED and half:
                parts = texts[:half], texts[half:]
                return np.concatenate([await self._request(p, fields, advance) for p in parts])
            stated = body.get("message", body) if isinstance(body, dict) else body
            kind = RefusedError if error.status_code in REFUSED else BenchError
            raise self._error(f"answered {error.status_code}: {stated}", kind) from None
        except TimeoutError:
            raise self._error(f"gave no answer in {DEADLINE_S:g} s") from None
        except self._api.APIConnectionError as error:
            raise self._error(f"does not answer: {first_line(error.__cause__ or error)}") from None
        self._client.max_retries = RETRIES
        vectors = self._read(answer.content, len(texts))
        advance(len(texts))
        return vectors

    def _read(self, content: bytes, count: int) -> Float32Array:
        """Return the vectors of an answer in the order of their indices, float32 ``(n, dim)``."""
        try:
            data = msgspec.json.decode(content, type=_Answer).data
            vectors = {entry.index: np.array(entry.embedding, np.float32) for entry in data}
        except (msgspec.DecodeError, ValueError) as error:
            start = f"its answer begins {content[:80].decode(errors='replace')!r}"
            problem = f"returned no vectors of finite float32 numbers: {error}; {start}"
            raise self._error(problem) from None
        if sorted(entry.index for entry in data) != list(range(count)):
            indices = f"whose indices are not 0 to {count - 1}"
            raise self._error(f"returned {len(data)} vectors for {count} texts, {indices}")
        dims = sorted(set(map(len, vectors.values())))
        if 0 in dims:
            raise self._error("returned an empty vector")
        if dims != [self.recipe.dim or dims[0]]:
            several = ", ".join(map(str, dims))
            raise self._error(f"returned vectors of {several} dimensions, not {self.recipe.dim}")
        return np.stack([vectors[index] for index in range(count)])

    def _error(self, problem: str, kind: type[BenchError] = BenchError) -> BenchError:
        """Return an error on one line and without the key."""
        plain = problem.replace(self._key, "***") if self._key else problem
        return kind(f"{self._name} {' '.join(plain.split())[:300]}", HINT)


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
