"""Vectors on disk: every text encoded once, and found by its content.

Below the store's folder there is one folder a recipe, named after its fingerprint, with
``recipe.json`` and shards of some thousands of texts (``bench.store.shards``). Documents are kept
in the folder of the recipe's document side, queries in that of its query side, facts in that of
the recipe itself; for a model without prompts these are one folder.

What is missing is cut into shards in the order of the corpus. So a stopped run goes on where it
was and ends with the same files, and another split, subset or collection encodes only texts that
it does not share.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.store.keys import corpus_keys, query_keys
from bench.store.planning import EncodeShard, EncodingPlan, PendingShard, Planner, ShardEncoder
from bench.store.shards import StoredVectors, write_shard
from datasets_cfg.corpus import Corpus
from foundation.arrays import Float32Array, UInt64Array
from foundation.errors import BenchError
from foundation.files import FolderLock, read_file, replace_file
from foundation.records import Record, decode_json, write_json
from retrievers.encoders.protocol import Callback, Encoder, PhaseTimer
from retrievers.models.recipe import Recipe, Role

KEYS_FOLDER = "keys"
RECIPE_FILE = "recipe.json"
FACT_SUFFIX = ".fact.json"

logger = logging.getLogger(__name__)


class VectorStore:
    """Vectors by content, below one folder. Several processes may use it at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._in_use: dict[Path, FolderLock] = {}
        self._planner = Planner()

    def plan(self, encoder: Encoder, corpus: Corpus) -> EncodingPlan:
        """See which texts of a corpus are stored; encodes none.

        The texts are read when a corpus is first seen, afterwards their keys. Shards that are
        damaged are named in a warning, and removed.
        """
        keys = corpus_keys(corpus, self._make_folder(self.folder / KEYS_FOLDER))
        return self._plan(encoder.recipe.side("document"), keys)

    def documents(
        self,
        encoder: Encoder,
        corpus: Corpus,
        plan: EncodingPlan,
        advance: Callback | None = None,
    ) -> StoredVectors:
        """Vectors of a corpus; what is missing is encoded, shard by shard.

        ``advance`` is called with numbers of distinct texts, ``plan.missing_rows`` in all.

        Raises:
            BenchError: a number is too large for the store's dtype.
            OSError: no space is left.
            BenchError: the encoder fails.
        """
        encoded = self.encode_documents(encoder, corpus, plan, advance)
        return self._vectors_of(encoder.recipe.side("document"), plan, encoded)

    def encode_documents(
        self,
        encoder: Encoder,
        corpus: Corpus,
        plan: EncodingPlan,
        advance: Callback | None = None,
    ) -> int:
        """Encode the missing shards of a corpus, or wait for others who do.

        Returns:
            How many texts were encoded here.

        Raises:
            BenchError: as `documents`.
        """

        def prepare(batch: PendingShard) -> EncodeShard:
            titles, texts = corpus.documents_at(batch.rows)
            ahead: Callable[..., EncodeShard] | None = getattr(encoder, "prepare_documents", None)
            if ahead:  # it tokenises them now
                return ahead(titles, texts)
            return lambda advance: encoder.encode_documents(titles, texts, advance)

        return self._shard_encoder(encoder, "document", prepare, advance).encode(plan.missing)

    def queries(self, encoder: Encoder, texts: Sequence[str]) -> Float32Array:
        """Vectors of queries, float32 ``(q, dim)``; encoded where they are not stored.

        Raises:
            BenchError: as `documents`.
        """

        def prepare(batch: PendingShard) -> EncodeShard:
            some = [texts[row] for row in batch.rows.tolist()]
            return lambda advance: encoder.encode_queries(some, advance)

        side = encoder.recipe.side("query")
        plan = self._plan(side, query_keys(texts))
        encoded = self._shard_encoder(encoder, "query", prepare, None).encode(plan.missing)
        return self._vectors_of(side, plan, encoded).rows(np.arange(len(texts)))

    def remember(
        self, encoder: Encoder, about: str, compute: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """A JSON-able fact about an encoder: computed once, and again where its file is damaged.

        Raises:
            OSError: no space is left.
        """
        path = self._recipe_folder(encoder.recipe) / fact_file_name(about)
        try:
            return read_fact(path)
        except FileNotFoundError:
            pass
        except BenchError as error:
            logger.warning("%s is damaged (%s): it is made again", path, error)
        fact = compute()
        value = msgspec.json.encode(fact)
        with replace_file(path) as file:
            kept = _StoredFact(about, hashlib.sha256(value).hexdigest(), msgspec.Raw(value))
            file.write(msgspec.json.encode(kept))
        return fact

    def folder_of(self, side: Recipe) -> Path:
        """The folder of a recipe, or of one side of it."""
        return self.folder / side.fingerprint[:32]

    def _plan(self, side: Recipe, keys: UInt64Array) -> EncodingPlan:
        folder = self.folder_of(side)
        self._protect_from_deletion(folder)
        return self._planner.plan(folder, side, keys)

    def _vectors_of(self, side: Recipe, plan: EncodingPlan, encoded: int) -> StoredVectors:
        """All vectors of a plan, after what was missing was encoded."""
        done = self._plan(side, plan.keys) if plan.missing else plan
        if done.vectors is None:
            raise BenchError(
                f"{done.missing_rows:,} vectors in {self.folder_of(side)} were lost after they "
                "were written",
                "type the same command again",
            )
        return replace(done.vectors, encoded=encoded)

    def _shard_encoder(
        self,
        encoder: Encoder,
        role: Role,
        prepare: Callable[[PendingShard], EncodeShard],
        advance: Callback | None,
    ) -> ShardEncoder:
        """The work that makes shards of one side."""
        side = encoder.recipe.side(role)
        folder = self._recipe_folder(side)
        timer: PhaseTimer = getattr(encoder, "timer", None) or PhaseTimer()

        def keep(batch: PendingShard, vectors: Float32Array) -> None:
            with timer.phase("write"):
                write_shard(folder, role, side, batch.keys, vectors)

        return ShardEncoder(folder, prepare, keep, advance)

    def _protect_from_deletion(self, folder: Path) -> None:
        """Keep others from removing a folder while this process lives."""
        if folder not in self._in_use:
            with suppress(FileNotFoundError):
                self._in_use[folder] = FolderLock.shared(folder)

    def _make_folder(self, folder: Path) -> Path:
        """A folder that is there, and is not removed while this process lives.

        Raises:
            OSError: no space is left.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._protect_from_deletion(folder)
        return folder if folder in self._in_use else self._make_folder(folder)

    def _recipe_folder(self, recipe: Recipe) -> Path:
        """The folder of a recipe, which its file describes; the file's time is that of last use.

        Raises:
            OSError: no space is left.
        """
        folder = self._make_folder(self.folder_of(recipe))
        path = folder / RECIPE_FILE
        if not path.exists():
            write_json(path, recipe)
        with suppress(OSError):  # where one may not write
            os.utime(path)
        return folder


class _StoredFact(Record):
    """A fact as it is on disk; ``sha256`` is of ``value`` as it stands there."""

    about: str
    sha256: str
    value: msgspec.Raw


def fact_file_name(about: str) -> str:
    """Name of the file of a fact."""
    return f"{hashlib.sha256(about.encode()).hexdigest()}{FACT_SUFFIX}"


def read_fact(path: Path) -> dict[str, Any]:
    """Read a fact.

    Raises:
        BenchError: it is not what was written.
        FileNotFoundError: there is none.
    """
    kept = decode_json(read_file(path), _StoredFact, path.name)
    whole = hashlib.sha256(kept.value).hexdigest() == kept.sha256
    if not whole or fact_file_name(kept.about) != path.name:
        raise BenchError(f"{path.name} is not what was written")
    return decode_json(bytes(kept.value), dict[str, Any], path.name)
