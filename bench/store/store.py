"""Vector store on disk.

The folder of the store has one folder per recipe, named after its fingerprint, with ``recipe.json``
and shards of some thousands of texts (``bench.store.shards``). Documents are stored under the
recipe's document side, queries under its query side, and facts under the recipe itself. An
interrupted run continues and ends with the same files, and another split, subset or collection
encodes only the texts that it does not share.

The same files can give other token ids, or other vectors, under another version of a library. Each
shard states a digest of the token ids of fixed texts: shards of versions that tokenise differently
share a folder, and never a plan. Vectors of fixed texts are compared with those of the first use
before anything is encoded.

`measure_usage` returns size and age of each folder.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.store.shards import (
    EncodingPlan,
    PendingShard,
    Planner,
    ShardEncoder,
    StoredVectors,
    corpus_keys,
    ignore_read_only,
    query_keys,
    write_shard,
)
from datasets_cfg.corpus import Corpus
from foundation.arrays import Float32Array, UInt64Array
from foundation.errors import BenchError, DriftError
from foundation.files import replace_file
from foundation.machine import library_version
from foundation.records import Record, decode_json, read_json, write_json
from retrievers.encoders.preflight import BATCH_TOLERANCE, relative_distances
from retrievers.encoders.protocol import Callback, Encoder, EncodeTexts
from retrievers.encoders.tokens import probe_texts
from retrievers.models.card import Recipe, Role

KEYS_FOLDER = "keys"
RECIPE_FILE = "recipe.json"
FACT_SUFFIX = ".fact.json"

TOKENIZING = ("transformers", "tokenizers")  # libraries that determine token ids
PROBE_STEP = 4  # every fourth of the fixed texts is encoded: a second on a CPU
FLOAT16_ROUNDING = 2e-3  # of stored vectors
INT8_TOLERANCE = 5e-2

logger = logging.getLogger(__name__)


class VectorStore:
    """Vectors by content, in one folder that several processes may use."""

    def __init__(self, folder: Path) -> None:
        """Use ``folder``, which need not exist."""
        self.folder = folder
        self._planner = Planner()
        self._probed: set[tuple[Path, Role, str]] = set()

    def plan(self, encoder: Encoder, corpus: Corpus) -> EncodingPlan:
        """Find out which texts of a corpus are stored, without encoding any.

        The texts are read once per corpus, and afterwards only their keys. Damaged shards are
        removed with a warning.
        """
        folder = self.folder / KEYS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        return self._plan(encoder, "document", corpus_keys(texts_for(encoder, corpus), folder))

    def documents(
        self, encoder: Encoder, corpus: Corpus, plan: EncodingPlan, advance: Callback | None = None
    ) -> StoredVectors:
        """Return the vectors of a corpus, encoding the missing ones of its plan shard by shard.

        ``advance`` is called with numbers of distinct texts, ``plan.missing_rows`` in total.

        Raises:
            BenchError: a value is too large for the store's dtype, or the encoder fails.
            OSError: the disk is full.
        """
        encoded = self.encode_documents(encoder, corpus, plan, advance)
        return self._vectors_of(encoder, "document", plan, encoded)

    def encode_documents(
        self, encoder: Encoder, corpus: Corpus, plan: EncodingPlan, advance: Callback | None = None
    ) -> int:
        """Encode the missing shards of a corpus, or wait for other processes that encode them.

        Returns the number of texts that this process encoded.
        """

        corpus = texts_for(encoder, corpus)

        def prepare(batch: PendingShard) -> EncodeTexts:
            return encoder.prepare_documents(*corpus.documents_at(batch.rows))

        return self._encode(encoder, "document", plan, prepare, advance)

    def queries(self, encoder: Encoder, texts: Sequence[str]) -> Float32Array:
        """Return the vectors of queries, float32 ``(q, dim)``, encoding missing ones."""

        def prepare(batch: PendingShard) -> EncodeTexts:
            return partial(encoder.encode_queries, [texts[row] for row in batch.rows.tolist()])

        plan = self._plan(encoder, "query", query_keys(texts))
        encoded = self._encode(encoder, "query", plan, prepare, None)
        return self._vectors_of(encoder, "query", plan, encoded).rows(np.arange(len(texts)))

    def tokens_sha256(self, encoder: Encoder, role: Role) -> str:
        """Return the digest of the token ids of fixed texts in a role, "" without a tokenizer.

        It is computed once for each version of the libraries.
        """
        if not encoder.recipe.traits.is_network:
            return ""
        about, side = f"tokens, {library_versions(TOKENIZING)}", encoder.recipe.side(role)
        return str(
            self.remember(side, about, lambda: {"sha256": encoder.hash_tokens(role)})["sha256"]
        )

    def remember(
        self, recipe: Recipe, about: str, compute: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return a stored fact about a recipe, or compute it if it is missing or damaged.

        It has the name ``about`` and can be encoded as JSON.
        """
        path = self._recipe_folder(recipe) / fact_file_name(about)
        try:
            return read_fact(path)
        except FileNotFoundError:
            pass
        except BenchError as error:
            logger.warning("%s is damaged (%s): computing it again", path, error)
        fact = compute()
        value = msgspec.json.encode(fact)
        kept = _StoredFact(about, hashlib.sha256(value).hexdigest(), msgspec.Raw(value))
        with ignore_read_only(), replace_file(path) as file:
            file.write(msgspec.json.encode(kept))
        return fact

    def check_drift(self, encoder: Encoder, role: Role, tokens_sha256: str = "") -> None:
        """Compare the vectors of fixed texts with those of the first use, once in a process.

        Raises:
            DriftError: a vector differs by more than rounding.
        """
        side = encoder.recipe.side(role)
        key = self._recipe_folder(side), role, tokens_sha256
        if key in self._probed:
            return
        texts, here = probe_texts()[::PROBE_STEP], library_versions()
        timer, before = encoder.timer, encoder.timer.copy()
        if role == "query":
            now = encoder.encode_queries(texts)
        else:
            now = encoder.encode_documents([""] * len(texts), texts)
        spent = timer.since(before).counts
        timer.add({}, {name: -count for name, count in spent.items()})  # not of the collection
        about = f"probe of a {role}, tokens {tokens_sha256}"
        fact = self.remember(side, about, lambda: {"vectors": now.tolist(), "libraries": here})
        distances = relative_distances(np.array(fact["vectors"], np.float32), now)
        tolerance, name = _drift_tolerance(encoder.recipe), encoder.recipe.model
        if not (distances <= tolerance).all():
            worst = int(distances.argmax())
            raise DriftError(
                f"{name} changed: the vector of {texts[worst][:60]!r} as a {role} differs from the "
                f"stored one by {distances[worst]:.2g} of its length (rounding: below "
                f"{tolerance:.0e}). Stored with {fact['libraries']}; now {here}",
                "Install the former versions, or restore the files that its code reads; or remove "
                f"the vectors: `python -m bench cache --prune {name}`; or keep both: "
                "--cache-dir DIR.",
            )
        self._probed.add(key)

    def folder_of(self, side: Recipe) -> Path:
        """Return the folder of ``side``, a recipe or one side of it."""
        return self.folder / side.fingerprint[:32]

    def _plan(self, encoder: Encoder, role: Role, keys: UInt64Array) -> EncodingPlan:
        side = encoder.recipe.side(role)
        folder = self.folder_of(side)
        return self._planner.plan(folder, side, keys, self.tokens_sha256(encoder, role))

    def _vectors_of(
        self, encoder: Encoder, role: Role, plan: EncodingPlan, encoded: int
    ) -> StoredVectors:
        """Return all vectors of a plan whose missing shards were encoded."""
        done = self._plan(encoder, role, plan.keys) if plan.missing else plan
        if done.vectors is None:
            folder = self.folder_of(encoder.recipe.side(role))
            problem = f"{done.missing_rows:,} vectors in {folder} disappeared"
            raise BenchError(problem, "Repeat the command.")
        return replace(done.vectors, encoded=encoded)

    def _encode(
        self,
        encoder: Encoder,
        role: Role,
        plan: EncodingPlan,
        prepare: Callable[[PendingShard], EncodeTexts],
        advance: Callback | None,
    ) -> int:
        """Encode the missing shards of one side, after comparing the model with its first use."""
        side, tokens = encoder.recipe.side(role), self.tokens_sha256(encoder, role)
        folder = self._recipe_folder(side)
        if tokens and plan.missing:
            self.check_drift(encoder, role, tokens)

        def keep(batch: PendingShard, vectors: Float32Array) -> None:
            with encoder.timer.phase("write"):
                write_shard(folder, role, side, batch, vectors)

        overlap = not side.traits.is_remote  # so that a kill repeats a single shard of requests
        return ShardEncoder(folder, prepare, keep, advance, overlap).encode(plan.missing)

    def _recipe_folder(self, recipe: Recipe) -> Path:
        """Return the folder of a recipe, with ``recipe.json`` inside and its time set to now."""
        folder = self.folder_of(recipe)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / RECIPE_FILE
        if not path.exists():
            write_json(path, recipe)
        with suppress(OSError):  # in a read-only folder
            os.utime(path)
        return folder


def texts_for(encoder: Encoder, corpus: Corpus) -> Corpus:
    """Return a corpus as ``encoder`` reads it."""
    return corpus.with_ids_as_texts() if encoder.recipe.traits.reads_ids else corpus


class _StoredFact(Record):
    """A fact on disk, with the sha256 of ``value`` as it is stored."""

    about: str
    sha256: str
    value: msgspec.Raw


def fact_file_name(about: str) -> str:
    """Return the name of the file of the fact ``about``."""
    return f"{hashlib.sha256(about.encode()).hexdigest()}{FACT_SUFFIX}"


def read_fact(path: Path) -> dict[str, Any]:
    """Return the fact in the file ``path``, or raise a `BenchError` if it is damaged."""
    kept = decode_json(path.read_bytes(), _StoredFact, path.name)
    whole = hashlib.sha256(kept.value).hexdigest() == kept.sha256
    if not whole or fact_file_name(kept.about) != path.name:
        raise BenchError(f"{path.name} is damaged")
    return decode_json(bytes(kept.value), dict[str, Any], path.name)


def library_versions(names: tuple[str, ...] = ("torch", *TOKENIZING)) -> str:
    """Return the versions of those libraries among ``names`` that are installed."""
    found = {name: library_version(name) for name in names}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def _drift_tolerance(recipe: Recipe) -> float:
    """Return the relative distance that rounding explains."""
    tolerance = BATCH_TOLERANCE[recipe.dtype]
    if recipe.store_dtype == "float16":
        tolerance = max(tolerance, FLOAT16_ROUNDING)
    return max(tolerance, INT8_TOLERANCE) if recipe.precision == "int8" else tolerance


DAY_S = 86_400


class ModelUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One folder of the store.

    Attributes:
        model: name of the model; ``unknown`` for a folder of an older version.
        fingerprint: name of the folder, the first half of the recipe's fingerprint.
        dtype: dtype of the vectors.
        bytes: size on disk of all files, indexes included.
        last_used: seconds since the epoch.
    """

    model: str
    fingerprint: str
    dtype: str
    bytes: int
    last_used: float


class _RecipeHeader(msgspec.Struct):
    """The fields read from ``recipe.json``, which every version has."""

    model: str
    store_dtype: str = "float32"


def measure_usage(store: Path) -> list[ModelUsage]:
    """Return the folders of the store in the folder ``store``, the largest first."""
    folders = store.iterdir() if store.is_dir() else ()
    rows = [_folder_usage(folder) for folder in folders if folder.is_dir()]
    return sorted(rows, key=lambda row: (-row.bytes, row.fingerprint))


def select_models(
    rows: Sequence[ModelUsage], names: Iterable[str], older_than_days: float | None, now: float
) -> list[ModelUsage]:
    """Select folders of the store.

    Args:
        rows: folders of the store.
        names: models, or first characters of fingerprints; empty for all.
        older_than_days: minimum days since the last use; None for any.
        now: seconds since the epoch.

    Raises:
        BenchError: nothing in the store matches a name.
    """
    chosen = list(rows)
    if names := list(names):
        for name in names:
            if not any(_matches(row, name) for row in rows):
                stored = ", ".join(sorted({row.model for row in rows})) or "nothing"
                raise BenchError(
                    f"no vectors of {name!r} are stored", f"Name one of those stored: {stored}."
                )
        chosen = [row for row in rows if any(_matches(row, name) for name in names)]
    if older_than_days is not None:
        chosen = [row for row in chosen if now - row.last_used > older_than_days * DAY_S]
    return chosen


def _matches(row: ModelUsage, name: str) -> bool:
    return bool(name) and (row.model == name or row.fingerprint.startswith(name))


def _folder_usage(folder: Path) -> ModelUsage:
    described, recipe, size = _RecipeHeader("unknown", ""), folder / RECIPE_FILE, 0
    with suppress(BenchError):
        described = read_json(recipe, _RecipeHeader)
    if folder.name == KEYS_FOLDER:
        described = _RecipeHeader("(keys of corpora)", "")
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a temporary file of another process
            size += path.stat().st_size if path.is_file() else 0
    return ModelUsage(
        model=described.model,
        fingerprint=folder.name,
        dtype=described.store_dtype,
        bytes=size,
        last_used=(recipe if recipe.exists() else folder).stat().st_mtime,
    )
