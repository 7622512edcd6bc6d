"""Encoders made of a user's Python objects.

They are recognised, in this order: a `SentenceTransformer` (``encode_query`` and
``encode_document``), a model of beir (``encode_queries`` and ``encode_corpus``), an object with
``encode_queries`` of texts and ``encode_documents`` of titles and texts, and a callable that maps a
list of texts to an array. Named models become such objects: a folder that sentence-transformers
loads, and a name in a user's file.
"""

import hashlib
import inspect
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import msgspec
import numpy as np

from foundation.arrays import Float32Array
from foundation.errors import BenchError, wrap_errors
from foundation.machine import library_version
from foundation.sources import load_name
from retrievers.encoders.protocol import Callback, Encoder, join, scale_to_unit
from retrievers.models.card import UNKNOWN_FINGERPRINT, Card, Dtype, Prompts, Recipe, Similarity
from retrievers.models.folder import check_similarity
from retrievers.models.resolve import Model
from retrievers.models.st_files import POOLING

BATCH = 256  # texts for one call of a user's function
PROBE = "probe"
SENTENCE = "sentence_embedding"
FIX_ENCODER = "Fix the encoder and run again; stored vectors are not encoded again."

# Whose code a SentenceTransformer runs, and what it states besides its modules.
LIBRARIES = ("sentence_transformers", "transformers", "torch")
VERSIONS = ("sentence-transformers", "transformers")
STATED = ("prompts", "default_prompt_name", "max_seq_length", "truncate_dim", "similarity_fn_name")
REPLACED = {"forward", "encode", "encode_query", "encode_document", "tokenize", "preprocess"}
SIDES = ("padding", "truncation")
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
        tokenizer: counts tokens, so that truncated texts are noticed; None if unknown.
    """

    recipe: Recipe
    name: str
    queries: EncodeQueries
    documents: EncodeDocuments
    tokenizer: Any = None

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

    def count_query_tokens(self, texts: Sequence[str]) -> list[int] | None:
        """Count the tokens of each query in ``texts`` before truncation."""
        return self._count([self.recipe.prompts.query + text for text in texts])

    def count_document_tokens(
        self, titles: Sequence[str], texts: Sequence[str]
    ) -> list[int] | None:
        """Count the tokens of ``titles`` with ``texts`` before truncation."""
        prompt = self.recipe.prompts.document
        return self._count([prompt + text for text in join_titles(titles, texts)])

    def _count(self, texts: list[str]) -> list[int] | None:
        if self.tokenizer is None:
            return None
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
            settings. Stored vectors are found by it. None: a hash of everything that a
            SentenceTransformer holds; for other objects, vectors are not stored.
        similarity: ``dot`` or ``cos``. None: as a SentenceTransformer states, otherwise ``dot``.

    Raises:
        BenchError: the object does not encode, fails on a probe, or returns another shape than one
            row for each text.
    """
    unknown = f"{UNKNOWN_FINGERPRINT}{uuid.uuid4().hex}"
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
        raise BenchError(problem, "An encoder takes a list of texts and returns one row for each.")
    recipe = Recipe(
        model=name,
        kind="python",
        dim=probe.shape[1],
        normalize=stated == "cos",
        similarity=stated,
        options={"fingerprint": fingerprint or _hash_object(encoder) or unknown},
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
    return Model(card, recipe), PythonEncoder(recipe, label, queries, documents, tokenizer)


def _hash_object(encoder: Any) -> str:
    """Return a hash of everything in a SentenceTransformer that determines its vectors.

    It is "" for other objects, and if code of others, a hook or a replaced method takes part.
    """
    if not (hasattr(encoder, "encode_query") and callable(getattr(encoder, "modules", None))):
        return ""
    from torch import uint8

    for module in encoder.modules():
        is_own = type(module).__module__.partition(".")[0] not in LIBRARIES
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if is_own or hooks or vars(module).keys() & REPLACED:
            return ""
    tokenizer = _find_tokenizer(encoder) or getattr(encoder, "tokenizer", None)
    backend: Any = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(backend, "to_str"):
        return ""
    described: dict[str, Any] = {name: library_version(name) for name in VERSIONS}
    described |= {name: str(getattr(encoder, name, None)) for name in STATED}
    described["sides"] = [str(getattr(tokenizer, f"{each}_side", "")) for each in SIDES]
    for place, module in enumerate(encoder):
        settings = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
        network = getattr(getattr(module, "auto_model", None), "config", None)
        config = network.to_dict() if network else {}
        kept = {name: each for name, each in config.items() if name != "_name_or_path"}
        described[str(place)] = (type(module).__name__, settings, kept)
    digest = hashlib.sha256(json.dumps(described, default=str, sort_keys=True).encode())
    digest.update(backend.to_str().encode())
    for name, tensor in (*encoder.named_parameters(), *encoder.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(uint8).numpy())
    return digest.hexdigest()


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


def convert_vectors(
    array: Any, name: str = "an encoder", shape: str = "(texts, dimension)"
) -> Float32Array:
    """Convert what ``name`` returned to a float32 NumPy array, which should be of this ``shape``.

    See `check_vectors` for what is converted.
    """
    if isinstance(array, list | tuple) and array and hasattr(array[0], "detach"):
        array = [row.detach().float().cpu().numpy() for row in array]
    if hasattr(array, "detach"):
        array = array.detach().float().cpu().numpy()
    try:
        return np.asarray(array, dtype=np.float32)
    except (TypeError, ValueError) as error:
        problem = f"{name} returned {type(array).__name__}, not an array of numbers: {error}"
        raise BenchError(problem, f"Return an array of shape {shape}.") from error


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


def open_object(model: Model, device: str, made: Any = None) -> PythonEncoder:
    """Open the encoder of a resolved model of kind ``python``, whose recipe gets its dimension.

    Args:
        model: result of `resolve_model`.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        made: the object of a file, if it was made already.

    Raises:
        BenchError: the folder cannot be loaded or lacks weights, the file does not define an
            encoder, or it returns another shape than one row for each text.
    """
    stated = model.recipe
    if model.document is None:
        made = make_object(model.card.encoder, device) if made is None else made
        similarity = None
    else:
        from retrievers.encoders.library import load_folder

        made, similarity = load_folder(model, device), stated.similarity
        model.check_unchanged()
    _, encoder = wrap_encoder(made, model.card.name, similarity=similarity)
    shared = {name: getattr(stated, name) for name in SHARED}
    encoder.recipe = msgspec.structs.replace(encoder.recipe, **shared)
    return encoder


def make_object(encoder: str, device: str) -> Any:
    """Return the encoder or search system that ``file.py:Name`` is, or the one it creates when
    called without arguments. A parameter ``device`` gets the device.
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
