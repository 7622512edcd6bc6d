"""Vectors on disk: every text encoded once, and found by its content.

Below the store's folder there is one folder a recipe, named after its fingerprint, with
``recipe.json`` and shards of some thousands of texts (``bench.store.shards``). Documents are kept
in the folder of the recipe's document side, queries in that of its query side, facts in that of
the recipe itself; for a model without prompts these are one folder. Read is every folder whose
``recipe.json`` has the same side, because folders were once those of whole recipes.

What is missing is cut into shards in the order of the corpus. So a stopped run goes on where it
was and ends with the same files, and another split, subset or collection encodes only texts that
it does not share.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.store.keys import corpus_keys, query_keys
from bench.store.planning import Advance, Batch, Encode, EncodingPlan, Planner, ShardWork
from bench.store.shards import DamagedShardError, StoredVectors, discard, write_shard
from datasets_cfg.corpus import Corpus
from foundation.arrays import Float32Array, Int64Array, UInt64Array
from foundation.errors import BenchError
from foundation.files import replacing
from foundation.locks import FileLock, FolderInUse
from foundation.records import Record, decode_json, read_json
from retrievers.encoders.protocol import Clock, Encoder
from retrievers.models.recipe import Recipe, Role

KEYS_FOLDER = "keys"
RECIPE_FILE = "recipe.json"
FACT_SUFFIX = ".fact.json"

logger = logging.getLogger(__name__)


class VectorStore:
    """Vectors by content, below one folder. Several processes may use it at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._in_use: dict[Path, FolderInUse] = {}
        self._recipes: dict[Path, Recipe] = {}
        self._planner = Planner()

    def plan(self, encoder: Encoder, corpus: Corpus, rows: slice = slice(None)) -> EncodingPlan:
        """See which texts of a corpus, or of some of its rows, are stored; encodes none.

        The texts are read when a corpus is first seen, afterwards their keys. Shards that are
        damaged are named in a warning.
        """
        keys = corpus_keys(corpus, self._made(self.folder / KEYS_FOLDER))
        return self._plan(encoder.recipe, "document", keys[rows])

    def documents(
        self, encoder: Encoder, corpus: Corpus, plan: EncodingPlan, advance: Advance | None = None
    ) -> StoredVectors:
        """Vectors of a corpus; what is missing is encoded, shard by shard.

        ``advance`` is called with numbers of distinct texts, ``plan.missing_rows`` in all.

        Raises:
            BenchError: a number is too large for the store's dtype.
            OSError: no space is left.
            BenchError: the encoder fails.
        """
        prepare = _preparing_documents(encoder, corpus)
        return self._fill(encoder, plan, "document", prepare, advance)

    def encode_free(
        self, encoder: Encoder, corpus: Corpus, plan: EncodingPlan, advance: Advance | None = None
    ) -> tuple[int, list[Batch]]:
        """Encode the missing shards of a corpus that no other process is at work on.

        ``advance`` is called with numbers of texts that are encoded here.

        Returns:
            How many texts were encoded, and the shards that others are at work on.

        Raises:
            BenchError: as `documents`.
        """
        if not plan.missing:
            return 0, []
        prepare = _preparing_documents(encoder, corpus)
        return self._work(encoder, plan, "document", prepare, advance).do_free(plan.missing)

    def has(self, recipe: Recipe, role: Role, shard: str) -> bool:
        """True where a shard of this name is written."""
        return (self._folder_of(recipe.side(role)) / f"{shard}.json").exists()

    def queries(self, encoder: Encoder, texts: Sequence[str]) -> Float32Array:
        """Vectors of queries, float32 ``(q, dim)``; encoded where they are not stored.

        Raises:
            BenchError: as `documents`.
        """

        def prepare(batch: Batch) -> Encode:
            some = [texts[row] for row in batch.rows.tolist()]
            return lambda advance: encoder.encode_queries(some, advance)

        plan = self._plan(encoder.recipe, "query", query_keys(texts))
        return self._fill(encoder, plan, "query", prepare, None).rows(np.arange(len(texts)))

    def remember(
        self, encoder: Encoder, about: str, compute: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """A JSON-able fact about an encoder: computed once, and again where its file is damaged.

        Raises:
            OSError: no space is left.
        """
        path = fact_path(self._folder_of(encoder.recipe), about)
        try:
            known = read_fact(path)
        except DamagedShardError as error:
            logger.warning("%s is damaged (%s): it is made again", path, error)
            known = None
        if known is not None:
            return known
        fact = compute()
        _keep(self._described(encoder.recipe) / path.name, encode_fact(about, fact))
        return fact

    def _folder_of(self, recipe: Recipe) -> Path:
        return self.folder / folder_name(recipe)

    def _plan(self, recipe: Recipe, role: Role, keys: UInt64Array) -> EncodingPlan:
        side = recipe.side(role)
        folders = self._folders_with(side, role)
        for folder in folders:
            self._use(folder)
        return self._planner.plan(folders, recipe, keys)

    def _folders_with(self, side: Recipe, role: Role) -> list[Path]:
        """Folders that vectors of a side may be in; first the one that new ones are written to."""
        own = self._folder_of(side)
        there = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        return [
            own,
            *(folder for folder in there if folder != own and self._has(folder, side, role)),
        ]

    def _has(self, folder: Path, side: Recipe, role: Role) -> bool:
        """True for a folder of a recipe that has this side."""
        if folder not in self._recipes:
            try:
                recipe = read_json(folder / RECIPE_FILE, Recipe)
            except BenchError:
                return False  # no folder of a recipe, or of one that this version does not know
            if folder_name(recipe) != folder.name:
                return False  # not what was written
            self._recipes[folder] = recipe
        return self._recipes[folder].side(role).fingerprint == side.fingerprint

    def _fill(
        self,
        encoder: Encoder,
        plan: EncodingPlan,
        role: Role,
        prepare: Callable[[Batch], Encode],
        advance: Advance | None,
    ) -> StoredVectors:
        side = encoder.recipe.side(role)
        if plan.vectors is not None:
            self._tidy(self._folder_of(side), plan)
            return _used(plan.vectors)
        work = self._work(encoder, plan, role, prepare, advance)
        encoded = replace(work, advance_by_others=advance).do(plan.missing)
        done = self._plan(side, role, plan.keys)
        if done.vectors is None:
            raise BenchError(
                f"{done.missing_rows:,} vectors in {self._folder_of(side)} were lost after they "
                "were written",
                "type the same command again",
            )
        return _used(replace(done.vectors, encoded=encoded))

    def _work(
        self,
        encoder: Encoder,
        plan: EncodingPlan,
        role: Role,
        prepare: Callable[[Batch], Encode],
        advance: Advance | None,
    ) -> ShardWork:
        """Work that makes the missing shards of a plan, in a folder without leftovers."""
        side = encoder.recipe.side(role)
        folder = self._described(side)
        self._tidy(folder, plan)
        clock: Clock = getattr(encoder, "clock", None) or Clock()

        def keep(batch: Batch, vectors: Float32Array) -> None:
            with clock.phase("write"):
                write_shard(folder, role, side, batch.keys, vectors)

        def is_there(batch: Batch) -> bool:
            return self.has(side, role, batch.name)

        return ShardWork(folder, is_there, prepare, keep, advance)

    def _tidy(self, folder: Path, plan: EncodingPlan) -> None:
        for manifest_path in plan.damaged:
            discard(manifest_path)
            self._planner.forget(manifest_path)

    def _use(self, folder: Path) -> None:
        """Keep others from removing a folder while this process lives."""
        if folder not in self._in_use:
            with suppress(FileNotFoundError):
                self._in_use[folder] = FolderInUse.reading(folder)

    def _made(self, folder: Path) -> Path:
        """A folder that is there, and is not removed while this process lives.

        Raises:
            OSError: no space is left.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._use(folder)
        return folder if folder in self._in_use else self._made(folder)

    def _described(self, recipe: Recipe) -> Path:
        """The folder of a recipe, which its file describes; the file's time is that of last use.

        Raises:
            OSError: no space is left.
        """
        folder = self._made(self._folder_of(recipe))
        path = folder / RECIPE_FILE
        if path.exists():
            _mark_used(folder)
        else:
            _keep(path, msgspec.json.format(msgspec.json.encode(recipe), indent=1))
        return folder


class _KeptFact(Record):
    """A fact as it is on disk; ``sha256`` is of ``value`` as it stands there."""

    about: str
    sha256: str
    value: msgspec.Raw


def fact_path(folder: Path, about: str) -> Path:
    """Where a fact is kept."""
    return folder / f"{hashlib.sha256(about.encode()).hexdigest()}{FACT_SUFFIX}"


def encode_fact(about: str, fact: dict[str, Any]) -> bytes:
    """The bytes of a fact on disk."""
    value = msgspec.json.encode(fact)
    kept = _KeptFact(about, hashlib.sha256(value).hexdigest(), msgspec.Raw(value))
    return msgspec.json.encode(kept)


def read_fact(path: Path) -> dict[str, Any] | None:
    """Read a fact; None where there is none, or one of an older version without a checksum.

    Raises:
        DamagedShardError: it is not what was written.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if b'"sha256"' not in content:
        return None
    try:
        kept = decode_json(content, _KeptFact, path.name)
        if hashlib.sha256(kept.value).hexdigest() != kept.sha256:
            raise DamagedShardError(f"{path.name} has another checksum")
        if fact_path(path.parent, kept.about) != path:
            raise DamagedShardError(f"{path.name} is a fact about something else")
        return decode_json(bytes(kept.value), dict[str, Any], path.name)
    except BenchError as error:
        raise DamagedShardError(str(error)) from error


def folder_name(recipe: Recipe) -> str:
    """Name of the folder of a recipe."""
    return recipe.fingerprint[:32]


def _used(vectors: StoredVectors) -> StoredVectors:
    """The vectors; their folders are marked as used."""
    for folder in {shard.manifest_path.parent for shard in vectors.shards}:
        _mark_used(folder)
    return vectors


def _mark_used(folder: Path) -> None:
    """Make now the time of last use, where that may be written."""
    try:
        os.utime(folder / RECIPE_FILE)
    except OSError:
        logger.debug("%s cannot be written", folder / RECIPE_FILE)


def _preparing_documents(encoder: Encoder, corpus: Corpus) -> Callable[[Batch], Encode]:
    """Read the documents of a batch, and tokenise them where the encoder does that ahead."""

    def prepare(batch: Batch) -> Encode:
        titles, texts = _documents_at(corpus, batch.rows)
        ahead = getattr(encoder, "prepare_documents", None)
        if ahead is not None:
            prepared: Encode = ahead(titles, texts)
            return prepared
        return lambda advance: encoder.encode_documents(titles, texts, advance)

    return prepare


def _documents_at(corpus: Corpus, rows: Int64Array) -> tuple[list[str], list[str]]:
    """Titles and texts of rising rows; only the pages that hold them are read."""
    titles: list[str] = []
    texts: list[str] = []
    for start, batch_rows in _by_chunk(corpus, rows):
        some = corpus.table.slice(start, int(batch_rows[-1]) + 1).take(batch_rows)
        titles += some.column("title").to_pylist()
        texts += some.column("text").to_pylist()
    corpus.release_pages()
    return titles, texts


def _by_chunk(corpus: Corpus, rows: Int64Array) -> Iterable[tuple[int, Int64Array]]:
    """First row of each chunk of the corpus that holds any of the rows, and those, from there.

    Arrow joins the chunks that it takes rows from, and a large corpus has thousands.
    """
    lengths = [len(chunk) for chunk in corpus.texts.chunks]
    starts = np.cumsum([0, *lengths])
    cuts = np.searchsorted(rows, starts)
    for number in np.flatnonzero(np.diff(cuts)).tolist():
        start = int(starts[number])
        yield start, rows[cuts[number] : cuts[number + 1]] - start


def _keep(path: Path, content: bytes) -> None:
    """Write a small file under its lock, so that nobody takes it for one left over."""
    lock = FileLock.wait(path.parent / f"{path.name.partition('.')[0]}.lock")
    with lock, replacing(path) as file:
        file.write(content)
