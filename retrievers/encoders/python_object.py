"""Encoders made of a user's Python objects, and a hashing encoder for tests and documentation.

These objects are recognised, in this order: a `SentenceTransformer` (``encode_query`` and
``encode_document``), a model of beir (``encode_queries`` and ``encode_corpus``), an encoder of
mteb 2 (``mteb_model_meta`` and ``encode`` over batches), and a callable that maps a list of texts
to an array.
"""

import hashlib
import importlib
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, get_args

import numpy as np

from foundation.arrays import Float32Array
from foundation.errors import BenchError, first_line
from retrievers.encoders.protocol import (
    Callback,
    Encoder,
    join,
    join_documents,
    scale_to_unit,
)
from retrievers.models.card import Card, Dtype, Prompts, Recipe, Similarity
from retrievers.models.read_settings import POOLING
from retrievers.models.resolve import Model

BATCH = 256  # texts for one call of a user's function
PROBE = "probe"

EncodeQueries = Callable[[list[str]], Any]
EncodeDocuments = Callable[[list[str], list[str]], Any]


@contextmanager
def name_encoder_in_errors(name: str) -> Iterator[None]:
    """Turn any exception of the user's encoder ``name`` into an error with that name."""
    try:
        yield
    except BenchError:
        raise
    except Exception as error:
        raise BenchError(
            f"{name} raised {type(error).__name__}: {first_line(error)}",
            "Fix the encoder and run again; stored vectors are not encoded again.",
        ) from error


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
        raise BenchError(
            f"{name} returned an array of shape {vectors.shape} for {rows} texts",
            f"Return one row of {dim} numbers for each text.",
        )
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
            with name_encoder_in_errors(self.name):
                array = function(*batch)
            rows = len(batch[0])
            vectors[start : start + rows] = check_vectors(array, rows, self.dim, self.name)
            if advance:
                advance(rows)
        return scale_to_unit(vectors) if self.recipe.similarity == "cos" else vectors


@dataclass
class ThirdPartyEncoder(Encoder):
    """An object of a third party's class, whose errors and vectors are checked.

    Its other methods, such as ``count_query_tokens``, can be called too. ``name`` is for messages.
    """

    encoder: Any
    name: str

    @property
    def recipe(self) -> Recipe:  # type: ignore[override]
        """Recipe that the object was made with."""
        recipe: Recipe = self.encoder.recipe
        return recipe

    def for_dataset(self, name: str) -> "ThirdPartyEncoder":
        """Return the encoder with the prompts of the dataset ``name``."""
        with name_encoder_in_errors(self.name):
            return replace(self, encoder=self.encoder.for_dataset(name))

    def encode_queries(self, texts: Sequence[str], advance: Callback | None = None) -> Float32Array:
        """Encode ``texts`` as queries, and check the vectors."""
        with name_encoder_in_errors(self.name):
            array = self.encoder.encode_queries(texts, advance)
        return check_vectors(array, len(texts), self.dim, self.name)

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Callback | None = None
    ) -> Float32Array:
        """Encode ``titles`` with ``texts``, and check the vectors."""
        with name_encoder_in_errors(self.name):
            array = self.encoder.encode_documents(titles, texts, advance)
        return check_vectors(array, len(texts), self.dim, self.name)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_") or attribute == "encoder":
            raise AttributeError(attribute)
        return getattr(self.encoder, attribute)


def open_third_party(recipe: Recipe, device: str) -> Encoder:
    """Create an object of the third party's class in ``recipe``, and check its methods."""
    module, _, name = recipe.encoder.partition(":")
    try:
        encoder = getattr(importlib.import_module(module), name)(recipe, device)
    except BenchError:
        raise
    except Exception as error:
        raise BenchError(
            f"cannot load the encoder class {recipe.encoder}: {first_line(error)}",
            "It is called with a recipe and a device: Class(recipe, device).",
        ) from error
    needed = ("recipe", "for_dataset", "encode_queries", "encode_documents")
    if missing := [part for part in needed if not hasattr(encoder, part)]:
        raise BenchError(
            f"the encoder class {recipe.encoder} has no {', '.join(missing)}",
            "Implement the methods of retrievers.encoders.protocol.Encoder.",
        )
    return ThirdPartyEncoder(encoder, f"the encoder class {recipe.encoder}")


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
    is_cosine = getattr(encoder, "similarity_fn_name", None) == "cosine"
    stated: Similarity = similarity or ("cos" if is_cosine else "dot")
    settings = _read_settings(encoder)
    own = getattr(encoder, "parameters", None)
    parameters = own() if hasattr(encoder, "encode_query") and callable(own) else ()
    label = f"{name} ({getattr(encoder, '__qualname__', type(encoder).__name__)})"
    with name_encoder_in_errors(label):
        probe = convert_vectors(queries([PROBE]))
    if probe.ndim != 2 or len(probe) != 1:
        raise BenchError(
            f"{label} returned an array of shape {probe.shape} for one text",
            "An encoder takes a list of texts and returns one row for each",
        )
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
        raise BenchError(
            f"an encoder returned {type(array).__name__}, not an array of numbers: {error}",
            "Return a NumPy array or a torch tensor of shape (texts, dimension).",
        ) from error


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
    if hasattr(encoder, "mteb_model_meta") and hasattr(encoder, "encode"):
        return _find_mteb_functions(encoder)
    if callable(encoder):
        return encoder, lambda titles, texts: encoder(join_titles(titles, texts))
    raise BenchError(
        f"{type(encoder).__name__} does not encode",
        "Pass a SentenceTransformer, an object with encode_queries and encode_corpus, an encoder "
        "of mteb, or a function from a list of texts to an array.",
    )


def _find_mteb_functions(encoder: Any) -> tuple[EncodeQueries, EncodeDocuments]:
    """Return functions that hand texts to an encoder of mteb 2 in data loaders."""
    from datasets import Dataset
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.types import PromptType
    from torch.utils.data import DataLoader

    # Fields of a retrieval task that mteb's encoders read; its validation needs more.
    task = TaskMetadata.model_construct(
        name="Retrieval", type="Retrieval", category="t2t", modalities=["text"]
    )

    def encode(columns: dict[str, list[str]], prompt_type: Any) -> Any:
        return encoder.encode(
            DataLoader(Dataset.from_dict(columns), batch_size=BATCH),
            task_metadata=task,
            hf_split="test",
            hf_subset="default",
            prompt_type=prompt_type,
        )

    return (
        lambda texts: encode({"text": texts, "query": texts}, PromptType.query),
        lambda titles, texts: encode(
            {"text": join_titles(titles, texts), "title": titles, "body": texts},
            PromptType.document,
        ),
    )


def join_titles(titles: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Join titles and texts as ``(title + " " + text).strip()``, as beir does."""
    return [join("space", "", title, text)[0] for title, text in zip(titles, texts, strict=True)]


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
            raise BenchError(
                f"{recipe.model} is not a recipe of the hashing encoder",
                'Write kind = "hashing", normalize = true, and dim as the only option.',
            )
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
