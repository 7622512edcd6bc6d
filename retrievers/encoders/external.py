"""Encoders that others run: a user's Python objects, and servers behind a URL.

Python objects are recognised, in this order: a `SentenceTransformer` (``encode_query`` and
``encode_document``), a model of beir (``encode_queries`` and ``encode_corpus``), an object with
``encode_queries`` of texts and ``encode_documents`` of titles and texts, and a callable that maps a
list of texts to an array. Named models become such objects: a folder that sentence-transformers
loads, and a name in a user's file. A hashing encoder serves tests and documentation.

Servers have OpenAI's embeddings API.
"""

import asyncio
import copy
import hashlib
import inspect
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Annotated, Any, get_args
from urllib.parse import urlsplit

import msgspec
import numpy as np

from foundation.arrays import Float32Array
from foundation.errors import BenchError, DriftError, first_line, import_package, wrap_errors
from foundation.sources import load_name
from retrievers.encoders.preflight import UNIT_TOLERANCE
from retrievers.encoders.protocol import Callback, Encoder, join, join_documents, scale_to_unit
from retrievers.models.card import Card, Dtype, Prompts, Recipe, Role, Similarity
from retrievers.models.read_settings import POOLING, check_similarity
from retrievers.models.resolve import Model

BATCH = 256  # texts for one call of a user's function
PROBE = "probe"
SENTENCE = "sentence_embedding"
FIX_ENCODER = "Fix the encoder and run again; stored vectors are not encoded again."

# Fields of a recipe that an object does not state.
SHARED = ("prompts", "checkpoint", "revision", "files", "encoder", "options", "store_dtype")

EncodeQueries = Callable[[list[str]], Any]
EncodeDocuments = Callable[[list[str], list[str]], Any]


def check_vectors(array: Any, rows: int, dim: int, name: str) -> Float32Array:
    """Return the array of a user's encoder as float32 ``(rows, dim)``.

    Args:
        array: a NumPy array, a torch tensor, or a list of either.
        rows: number of texts that were encoded.
        dim: dimension of the vectors.
        name: the encoder's name in messages.

    Raises:
        BenchError: it is not an array, has a different shape, or has NaN or infinite values.
    """
    vectors = convert_vectors(array)
    if vectors.shape != (rows, dim):
        problem = f"{name} returned an array of shape {vectors.shape} for {rows} texts"
        raise BenchError(problem, f"Return one row of {dim} numbers for each text.")
    if not np.isfinite(vectors).all():
        raise BenchError(f"{name} returned NaN or infinite numbers")
    return np.ascontiguousarray(vectors)


@dataclass
class PythonEncoder(Encoder):
    """An encoder made of two functions. Vectors get unit length if the similarity is cosine.

    Attributes:
        recipe: recipe of kind ``python``, whose options hold the fingerprint that the user gave.
        name: the user's name for the object and its type, for messages.
        queries: function from texts to an array ``(n, dim)``.
        documents: function from titles and texts to an array ``(n, dim)``.
    """

    recipe: Recipe
    name: str
    queries: EncodeQueries
    documents: EncodeDocuments

    def for_dataset(self, name: str) -> "PythonEncoder":
        """Return this encoder for the dataset ``name``. An object has no prompts by dataset."""
        return replace(self, recipe=self.recipe.for_dataset(name))

    def encode_queries(self, texts: Sequence[str], advance: Callback | None = None) -> Float32Array:
        """Encode ``texts`` as queries, float32 ``(n, dim)``.

        Raises:
            BenchError: the function fails, or returns a different shape, NaN or infinite numbers.
        """
        return self._encode(self.queries, [texts], advance)

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Callback | None = None
    ) -> Float32Array:
        """Encode ``titles`` with ``texts``; see `encode_queries`."""
        return self._encode(self.documents, [titles, texts], advance)

    def _encode(
        self, function: Callable[..., Any], columns: list[Sequence[str]], advance: Callback | None
    ) -> Float32Array:
        """Call the function on batches of ``columns``, its arguments for all texts."""
        count = len(columns[0])
        vectors = np.zeros((count, self.dim), np.float32)
        for start in range(0, count, BATCH):
            batch = [list(column[start : start + BATCH]) for column in columns]
            with wrap_errors(f"{self.name} failed", FIX_ENCODER):
                array = function(*batch)
            rows = len(batch[0])
            vectors[start : start + rows] = check_vectors(array, rows, self.dim, self.name)
            if advance:
                advance(rows)
        return scale_to_unit(vectors) if self.recipe.similarity == "cos" else vectors


@dataclass
class CountingEncoder(PythonEncoder):
    """A SentenceTransformer, whose tokenizer counts tokens so that truncated texts are noticed."""

    tokenizer: Any = None

    def count_query_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each query in ``texts`` before truncation."""
        return self._count([self.recipe.prompts.query + text for text in texts])

    def count_document_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> list[int]:
        """Count the tokens of ``titles`` with ``texts`` before truncation."""
        prompt = self.recipe.prompts.document
        return self._count([prompt + text for text in join_titles(titles, texts)])

    def _count(self, texts: list[str]) -> list[int]:
        ids = self.tokenizer(texts, truncation=False, verbose=False)["input_ids"] if texts else []
        return [len(text) for text in ids]


def wrap_encoder(
    encoder: Any, name: str, fingerprint: str | None = None, similarity: Similarity | None = None
) -> tuple[Model, PythonEncoder]:
    """Wrap a Python object as a model with its encoder.

    Args:
        encoder: object of one of the kinds in this module's docstring.
        name: name of the model in results.
        fingerprint: string that changes whenever the vectors do, such as a hash of weights and
            settings. Stored vectors are found by it. None: vectors are not stored, and no other
            object counts as the same model.
        similarity: ``dot`` or ``cos``. None: as a SentenceTransformer states, otherwise ``dot``.

    Raises:
        BenchError: the object does not encode, fails on a probe, or returns another shape than one
            row for each text.
    """
    queries, documents = _find_functions(encoder)
    own_similarity = getattr(encoder, "similarity_fn_name", None)
    own_similarity = getattr(own_similarity, "value", own_similarity)  # of an Enum
    if similarity is None and not (own_similarity == "euclidean" and _ends_at_length_1(encoder)):
        check_similarity(name, own_similarity)
    is_cosine = own_similarity in ("cosine", "euclidean")
    stated: Similarity = similarity or ("cos" if is_cosine else "dot")
    settings = _read_settings(encoder)
    own = getattr(encoder, "parameters", None)
    parameters = own() if hasattr(encoder, "encode_query") and callable(own) else ()
    label = f"{name} ({getattr(encoder, '__qualname__', type(encoder).__name__)})"
    with wrap_errors(f"{label} failed", FIX_ENCODER):
        probe = convert_vectors(queries([PROBE]))
    if probe.ndim != 2 or len(probe) != 1:
        problem = f"{label} returned an array of shape {probe.shape} for one text"
        raise BenchError(problem, "An encoder takes a list of texts and returns one row for each")
    recipe = Recipe(
        model=name,
        kind="python",
        dim=probe.shape[1],
        normalize=stated == "cos",
        similarity=stated,
        options={"fingerprint": fingerprint or f"unknown-{uuid.uuid4().hex}"},
        **settings,
    )
    card = Card(
        name=name,
        title=name,
        kind="python",
        parameters=sum(tensor.numel() for tensor in parameters),
        normalize=stated == "cos",
        similarity=stated,
    )
    tokenizer = _find_tokenizer(encoder) if settings else None
    if tokenizer is None:
        return Model(card, recipe), PythonEncoder(recipe, label, queries, documents)
    return Model(card, recipe), CountingEncoder(recipe, label, queries, documents, tokenizer)


def _ends_at_length_1(encoder: Any) -> bool:
    """Return whether a SentenceTransformer's vectors have length 1, so that distances rank so."""
    *_, last = encoder
    names = {getattr(last, f"module_{side}_name", SENTENCE) for side in ("input", "output")}
    is_whole = getattr(encoder, "truncate_dim", None) is None
    return is_whole and type(last).__name__ == "Normalize" and names == {SENTENCE}


def _read_settings(encoder: Any) -> dict[str, Any]:
    """Return the settings that a SentenceTransformer states; none for other objects."""
    length = getattr(encoder, "max_seq_length", None)
    if not (isinstance(length, int) and hasattr(encoder, "encode_query")):
        return {}
    modes = [getattr(module, "pooling_mode", "") for module in encoder]
    prompts = getattr(encoder, "prompts", None) or {}
    dtype = str(getattr(encoder, "dtype", "")).removeprefix("torch.")
    return {
        "pooling": next((POOLING[mode] for mode in modes if mode in POOLING), "unknown"),
        "max_query_tokens": length,
        "max_document_tokens": length,
        "truncation_side": getattr(_find_tokenizer(encoder), "truncation_side", "right"),
        "dtype": dtype if dtype in get_args(Dtype) else "unknown",
        "prompts": Prompts(prompts.get("query") or "", prompts.get("document") or ""),
    }


def _find_tokenizer(encoder: Any) -> Any:
    """Return the transformers tokenizer of a SentenceTransformer, or None."""
    tokenizer = getattr(encoder, "tokenizer", None)
    return tokenizer if hasattr(tokenizer, "num_special_tokens_to_add") else None


def convert_vectors(array: Any) -> Float32Array:
    """Convert ``array``, as `check_vectors` describes it, to a float32 NumPy array."""
    if isinstance(array, list | tuple) and array and hasattr(array[0], "detach"):
        array = [row.detach().float().cpu().numpy() for row in array]
    if hasattr(array, "detach"):
        array = array.detach().float().cpu().numpy()
    try:
        return np.asarray(array, dtype=np.float32)
    except (TypeError, ValueError) as error:
        problem = f"an encoder returned {type(array).__name__}, not an array of numbers: {error}"
        raise BenchError(problem, "Return an array of shape (texts, dimension).") from error


def _find_functions(encoder: Any) -> tuple[EncodeQueries, EncodeDocuments]:
    if hasattr(encoder, "encode_query") and hasattr(encoder, "encode_document"):
        return (
            lambda texts: encoder.encode_query(texts, show_progress_bar=False),
            lambda titles, texts: encoder.encode_document(
                join_titles(titles, texts), show_progress_bar=False
            ),
        )
    if hasattr(encoder, "encode_queries") and hasattr(encoder, "encode_corpus"):
        return (
            lambda texts: encoder.encode_queries(texts, batch_size=len(texts)),
            lambda titles, texts: encoder.encode_corpus(
                [{"title": title, "text": text} for title, text in zip(titles, texts, strict=True)],
                batch_size=len(texts),
            ),
        )
    if hasattr(encoder, "encode_queries") and hasattr(encoder, "encode_documents"):
        return encoder.encode_queries, encoder.encode_documents
    if callable(encoder):
        return encoder, lambda titles, texts: encoder(join_titles(titles, texts))
    raise BenchError(
        f"{type(encoder).__name__} does not encode",
        "Pass a SentenceTransformer, an object with encode_queries and encode_documents or "
        "encode_corpus, or a function from a list of texts to an array.",
    )


def join_titles(titles: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Join titles and texts as ``(title + " " + text).strip()``, as beir does."""
    return [join("space", "", title, text)[0] for title, text in zip(titles, texts, strict=True)]


def open_object(model: Model, device: str) -> PythonEncoder:
    """Open the encoder of a resolved model of kind ``python``, whose recipe gets its dimension.

    Args:
        model: result of `resolve_model`.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        BenchError: the folder cannot be loaded or lacks weights, the file does not define an
            encoder, or it returns another shape than one row for each text.
    """
    stated = model.recipe
    if model.document is None:
        made, similarity = _make_object(model.card.encoder, device), None
    else:
        from retrievers.encoders.library import load_folder

        made, similarity = load_folder(model, device), stated.similarity
        model.check_unchanged()
    _, encoder = wrap_encoder(made, model.card.name, similarity=similarity)
    shared = {name: getattr(stated, name) for name in SHARED}
    encoder.recipe = msgspec.structs.replace(encoder.recipe, **shared)
    return encoder


def _make_object(encoder: str, device: str) -> Any:
    """Return the encoder that ``file.py:Name`` is, or the one it creates when called without
    arguments. A parameter ``device`` gets the device.
    """
    path, _, name = encoder.rpartition(":")
    made, arguments = load_name(path, name), dict[str, str]()
    is_made = not (inspect.isclass(made) or inspect.isfunction(made))
    with wrap_errors(f"{name} failed", FIX_ENCODER):
        parameters = {} if is_made else {**inspect.signature(made).parameters}
    if "device" in parameters:
        from retrievers.encoders.device import pick_device

        arguments["device"] = str(pick_device(device))
    elif device not in ("auto", "cpu"):
        raise BenchError(f"{name} has no parameter device for {device}", "Leave out --device.")
    needed = {each.name for each in parameters.values() if each.default is each.empty}
    if is_made or (inspect.isfunction(made) and needed - {"device"}):
        return made
    with wrap_errors(f"{name} failed", FIX_ENCODER):
        return made(**arguments)


_WORD = re.compile(r"\w+")
_NO_WORDS = [""]


class HashingEncoder(Encoder):
    """Counts of words, hashed to ``dim`` signed features and scaled to unit length.

    Weinberger et al., Feature Hashing for Large Scale Multitask Learning, 2009. The hash is
    BLAKE2b, so vectors are equal on every machine. A text without words, or whose words cancel out,
    has the vector of the empty word.
    """

    def __init__(self, recipe: Recipe) -> None:
        if recipe.kind != "hashing" or not recipe.normalize or set(recipe.options) - {"dim"}:
            problem = f"{recipe.model} is not a recipe of the hashing encoder"
            raise BenchError(problem, 'Use kind = "hashing", normalize = true and the option dim.')
        self.recipe = recipe

    def for_dataset(self, name: str) -> "HashingEncoder":
        """Return this encoder with the prompts of dataset ``name``."""
        return HashingEncoder(self.recipe.for_dataset(name))

    def encode_queries(self, texts: Sequence[str], advance: Callback | None = None) -> Float32Array:
        """Encode ``texts`` as queries to unit vectors."""
        texts = [self.recipe.prompts.query + text for text in texts]
        return self._encode(texts, self.recipe.max_query_tokens, advance)

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Callback | None = None
    ) -> Float32Array:
        """Encode ``titles`` with ``texts`` to unit vectors."""
        texts = join_documents(self.recipe, titles, texts)
        return self._encode(texts, self.recipe.max_document_tokens, advance)

    def count_query_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the words of each query in ``texts`` before truncation."""
        prompt = self.recipe.prompts.query
        return [len(_WORD.findall(prompt + text)) for text in texts]

    def count_document_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> list[int]:
        """Count the words of ``titles`` with ``texts`` before truncation."""
        return [len(_WORD.findall(text)) for text in join_documents(self.recipe, titles, texts)]

    def _encode(
        self, texts: Sequence[str], max_words: int | None, advance: Callback | None
    ) -> Float32Array:
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            words = _WORD.findall(text.lower())[:max_words]
            vectors[row] = self._vector(words)
            if advance:
                advance(1)
        return vectors

    def _vector(self, words: Sequence[str]) -> Float32Array:
        counts = np.zeros(self.dim, np.float32)
        for word in words or _NO_WORDS:
            place, sign = _hash(word)
            counts[place % self.dim] += sign
        if not counts.any():
            return self._vector(_NO_WORDS)
        return counts / np.linalg.norm(counts)


@lru_cache(maxsize=1 << 16)
def _hash(word: str) -> tuple[int, int]:
    """Hash ``word`` to a number below 2^63 and a sign, which come from different bits."""
    number = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")
    return number >> 1, 1 if number & 1 else -1


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
