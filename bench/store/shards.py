"""Shards: the vectors of some thousands of texts that were encoded together, in three files.

The name of a shard is the hash of the keys of its texts in order. ``NAME.f32`` or ``NAME.f16``
holds the vectors, row after row, little-endian. ``NAME.keys`` holds the keys. ``NAME.json`` is
written last and holds the checksums of the other two. Processes that write or remove a shard hold
the lock ``NAME.lock``.

A key is BLAKE2b, 128 bits, over the length of the title, the title, the length of the text and the
text, with the role as personalisation. Keys are uint64 ``(n, 2)``, 16 bytes per text. The keys of 5
million documents take 80 MB and are compared without Python objects.

Vectors are read with ``pread`` into preallocated arrays, because pages of a memory map would count
as memory of this process.
"""

import errno
import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from datasets_cfg.corpus import Corpus
from foundation.arrays import Float16Array, Float32Array, Int64Array, UInt64Array
from foundation.errors import BenchError
from foundation.files import FileLock, read_file, replace_file, replace_files, sha256_of_file
from foundation.records import Record, decode_json
from retrievers.models.recipe import Recipe, Role, StoreDtype

KEY_BYTES = 16
CORPUS_SUFFIX = ".corpus"  # keys of a corpus; a shard has a different suffix
BATCH_DOCUMENTS = 1 << 13  # held as Python strings
LOOKUP_CHUNK = 1 << 21  # keys looked up at once: 100 MB


def document_keys(titles: Sequence[str], texts: Sequence[str]) -> UInt64Array:
    """Return the keys of documents, uint64 ``(n, 2)``.

    Args:
        titles: title of each document, may be "".
        texts: body of each document.
    """
    return keys_from_bytes(b"".join(_digests("document", zip(titles, texts, strict=True))))


def query_keys(texts: Sequence[str]) -> UInt64Array:
    """Return the keys of the queries ``texts``, uint64 ``(n, 2)``."""
    return keys_from_bytes(b"".join(_digests("query", (("", text) for text in texts))))


def corpus_keys(corpus: Corpus, folder: Path) -> UInt64Array:
    """Return the keys of all documents of a corpus, uint64 ``(n, 2)``.

    They are stored in a file that is named after the content of the corpus and begins with a
    checksum. The texts are read again if it is missing or damaged.

    Args:
        corpus: documents.
        folder: folder of the file.
    """
    path = folder / f"{corpus.sha256}{CORPUS_SUFFIX}"
    with suppress(FileNotFoundError, BenchError):
        return read_keys(path)
    keys = np.empty((len(corpus), 2), "<u8")
    for start, titles, texts in corpus.iter_batches(BATCH_DOCUMENTS):
        keys[start : start + len(texts)] = document_keys(titles, texts)
    content = keys.data.cast("B")
    with replace_file(path) as file:
        file.write(_checksum(content))
        file.write(content)
    return keys.astype(np.uint64, copy=False)


def read_keys(path: Path) -> UInt64Array:
    """Return the keys in ``path``, a file of `corpus_keys`.

    Raises:
        BenchError: the checksum differs.
        FileNotFoundError: the file does not exist.
    """
    content = read_file(path, max_bytes=None)
    kept = memoryview(content)[KEY_BYTES:]
    if content[:KEY_BYTES] != _checksum(kept):
        raise BenchError(f"{path.name} has a different checksum")
    return keys_from_bytes(kept)


def keys_from_bytes(content: bytes | memoryview) -> UInt64Array:
    """Return the keys stored in ``content``, 16 bytes each, as uint64 ``(n, 2)``."""
    return np.frombuffer(content, "<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def shard_name(keys: UInt64Array, tokens_sha256: str = "") -> str:
    """Return the name of a shard: a hash of its keys and token ids, 32 hexadecimal digits.

    Args:
        keys: keys of the texts.
        tokens_sha256: see `ShardManifest`.
    """
    content = keys.astype("<u8").tobytes() + tokens_sha256.encode()
    return hashlib.blake2b(content, digest_size=KEY_BYTES).hexdigest()


def first_occurrences(keys: UInt64Array) -> Int64Array:
    """Return the row of the first occurrence of each of ``keys``, int64, ascending."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return np.sort(order[is_first])


def find_rows(keys: UInt64Array, among: UInt64Array) -> Int64Array:
    """Return the first row of each of ``keys`` in ``among``, int64 ``(n,)``, or -1 if absent.

    Keys are looked up in chunks, sorted by their upper halves, because an ascending search stays in
    the CPU cache. Different keys may share an upper half, in which case the next row is compared.
    """
    order = np.argsort(among[:, 0], kind="stable")
    upper = among[order, 0]
    places_among = np.full(len(keys), -1, np.int64)
    for start in range(0, len(keys), LOOKUP_CHUNK):
        chunk = keys[start : start + LOOKUP_CHUNK]
        pending = np.argsort(chunk[:, 0], kind="stable")
        place = np.searchsorted(upper, chunk[pending, 0])
        while len(pending):
            inside = place < len(upper)
            pending, place = pending[inside], place[inside]
            alike = upper[place] == chunk[pending, 0]
            pending, place = pending[alike], place[alike]
            rows = order[place]
            same = among[rows, 1] == chunk[pending, 1]
            places_among[start + pending[same]] = rows[same]
            pending, place = pending[~same], place[~same] + 1
    return places_among


def _digests(role: Role, documents: Iterable[tuple[str, str]]) -> Iterator[bytes]:
    person = role.encode()
    for title, text in documents:
        first, second = title.encode(), text.encode()
        content = b"".join(
            (len(first).to_bytes(8, "little"), first, len(second).to_bytes(8, "little"), second)
        )
        yield hashlib.blake2b(content, digest_size=KEY_BYTES, person=person).digest()


def _checksum(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=KEY_BYTES).digest()


StoredArray = Float32Array | Float16Array

GAP_BYTES = 1 << 16  # reading over a smaller gap is cheaper than another read
FORMAT = 1
SUFFIXES: dict[StoreDtype, str] = {"float32": ".f32", "float16": ".f16"}
DTYPES: dict[StoreDtype, str] = {"float32": "<f4", "float16": "<f2"}
MANIFEST_NAME = re.compile(r"[0-9a-f]{32}\.json")

logger = logging.getLogger(__name__)


class ShardManifest(Record):
    """Content of a shard's files: vectors ``(rows, dim)`` of texts in one role.

    ``tokens_sha256`` is a hash of the token ids of fixed texts, which depend on the versions of
    libraries. It is "" without a tokenizer, and in shards of older versions.
    """

    format: int
    role: Role
    rows: int
    dim: int
    dtype: StoreDtype
    vectors_sha256: str
    keys_sha256: str
    tokens_sha256: str = ""


@dataclass(frozen=True)
class Shard:
    """Vectors ``(rows, dim)`` on disk.

    Attributes:
        manifest_path: path of ``NAME.json``.
        manifest: its content.
    """

    manifest_path: Path
    manifest: ShardManifest

    @property
    def rows(self) -> int:
        """Number of texts."""
        return self.manifest.rows

    @property
    def path(self) -> Path:
        """File of the vectors."""
        return self.manifest_path.with_suffix(SUFFIXES[self.manifest.dtype])

    @property
    def row_bytes(self) -> int:
        """Bytes of one vector on disk."""
        return self.manifest.dim * np.dtype(DTYPES[self.manifest.dtype]).itemsize

    @property
    def keys_path(self) -> Path:
        """File of the keys."""
        return self.manifest_path.with_suffix(".keys")

    def check(self) -> None:
        """Compare the vectors with their checksum.

        Raises:
            BenchError: the file of the vectors is missing or damaged.
        """
        try:
            is_intact = sha256_of_file(self.path) == self.manifest.vectors_sha256
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINVAL):  # missing, or a pipe
                raise
            raise BenchError(f"{self.path.name}: {error.strerror}") from error
        if not is_intact:
            raise BenchError(f"{self.path.name} has a different checksum")


def read_shard(manifest_path: Path) -> tuple[Shard, UInt64Array]:
    """Return the shard of a manifest, and its keys, uint64 ``(rows, 2)``, without the vectors.

    Args:
        manifest_path: path of ``NAME.json``.

    Raises:
        BenchError: the manifest or the keys are damaged.
        FileNotFoundError: the manifest does not exist.
    """
    manifest = decode_json(read_file(manifest_path), ShardManifest, manifest_path.name)
    if manifest.format != FORMAT:
        raise BenchError(f"{manifest_path.name} has format {manifest.format}, not {FORMAT}")
    shard = Shard(manifest_path, manifest)
    try:
        content = read_file(shard.keys_path)
    except FileNotFoundError as error:
        raise BenchError(f"{shard.keys_path.name} is missing") from error
    size, sha256 = shard.rows * KEY_BYTES, hashlib.sha256(content).hexdigest()
    if (len(content), sha256) != (size, manifest.keys_sha256):
        raise BenchError(f"{shard.keys_path.name} does not match its manifest")
    return shard, keys_from_bytes(content)


def write_shard(
    folder: Path,
    role: Role,
    recipe: Recipe,
    keys: UInt64Array,
    vectors: Float32Array,
    tokens_sha256: str = "",
) -> Path:
    """Write a shard and return the path of its manifest.

    Args:
        folder: folder of the shard.
        role: role of the texts.
        recipe: recipe of the vectors.
        keys: keys of the texts, uint64 ``(n, 2)``.
        vectors: float32 ``(n, dim)``.
        tokens_sha256: see `ShardManifest`.

    Raises:
        BenchError: a value is too large for float16.
        OSError: the disk is full.
    """
    content = convert_for_storage(vectors, recipe)
    key_bytes = keys.astype("<u8").tobytes()
    manifest = ShardManifest(
        format=FORMAT,
        role=role,
        rows=len(vectors),
        dim=vectors.shape[1],
        dtype=recipe.store_dtype,
        vectors_sha256=hashlib.sha256(content.data).hexdigest(),
        keys_sha256=hashlib.sha256(key_bytes).hexdigest(),
        tokens_sha256=tokens_sha256,
    )
    path = folder / f"{shard_name(keys, tokens_sha256)}.json"
    shard = Shard(path, manifest)
    contents: list[bytes | memoryview] = [content.data, key_bytes, msgspec.json.encode(manifest)]
    with replace_files([shard.path, shard.keys_path, path]) as files:  # the manifest last
        for file, part in zip(files, contents, strict=True):
            file.write(part)
    return path


def convert_for_storage(vectors: Float32Array, recipe: Recipe) -> npt.NDArray[np.floating]:
    """Return vectors in the recipe's store dtype, little-endian and in C order, ``(n, dim)``.

    Args:
        vectors: float32 ``(n, dim)``.
        recipe: recipe of the vectors.

    Raises:
        BenchError: a value is too large for float16, which ends at 65,504.
    """
    with np.errstate(over="ignore"):
        content = np.ascontiguousarray(vectors, dtype=DTYPES[recipe.store_dtype])
    lost = int((~np.isfinite(content)).sum())
    if lost:
        largest = float(np.abs(vectors).max())
        raise BenchError(
            f"{recipe.model}: {lost:,} values of these vectors are too large for float16, "
            f"which ends at 65,504: the largest is {largest:,.0f}",
            "omit --set store_dtype=float16",
        )
    return content


def discard_if_damaged(manifest_path: Path) -> None:
    """Remove a damaged shard, with a warning, unless another process writes it.

    Args:
        manifest_path: path of ``NAME.json``.
    """
    lock = FileLock.try_acquire(manifest_path.with_suffix(".lock"))
    if lock is None:
        return
    with lock, suppress(FileNotFoundError):
        try:
            read_shard(manifest_path)[0].check()
        except BenchError as error:
            logger.warning("%s is damaged (%s): encoding its texts again", manifest_path, error)
            for suffix in (".json", *SUFFIXES.values(), ".keys"):  # the manifest first
                manifest_path.with_suffix(suffix).unlink(missing_ok=True)


@dataclass(frozen=True, eq=False)
class StoredVectors:
    """Vectors of texts in any number of shards. Implements ``exact.Vectors``.

    Attributes:
        shards: shards of one recipe and dtype.
        positions: int64 ``(n,)``, row of each text in the concatenated shards. Equal texts share a
            row.
        dim: dimension of the vectors.
        encoded: number of distinct texts that this process encoded. Other vectors were already
            stored, or come from another process.
    """

    shards: tuple[Shard, ...]
    positions: Int64Array
    dim: int
    encoded: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Number of texts and dimension."""
        return len(self.positions), self.dim

    def tiles(self, rows: int) -> Iterator[tuple[int, Float32Array]]:
        """Yield the first row and the vectors, float32 ``(m, dim)``, of every ``rows`` texts."""
        for start in range(0, len(self.positions), rows):
            yield start, self._gather(self.positions[start : start + rows], "<f4")

    def stored_tiles(self, rows: int) -> Iterator[tuple[int, StoredArray]]:
        """Yield the same tiles of ``rows`` texts in the dtype in which they are stored."""
        dtype = DTYPES[self.shards[0].manifest.dtype] if self.shards else "<f4"
        for start in range(0, len(self.positions), rows):
            yield start, self._gather(self.positions[start : start + rows], dtype)

    def rows(self, wanted: Int64Array) -> Float32Array:
        """Return the vectors of the rows ``wanted``, float32 ``(len(wanted), dim)``."""
        vectors: Float32Array = self._gather(self.positions[wanted], "<f4")
        return vectors

    @cached_property
    def _starts(self) -> Int64Array:
        return np.cumsum([0, *(shard.rows for shard in self.shards)])

    def _gather(self, positions: Int64Array, dtype: str) -> Any:
        vectors = np.empty((len(positions), self.dim), dtype)
        order = np.argsort(positions, kind="stable")
        ordered = positions[order]
        cuts = np.searchsorted(ordered, self._starts)
        for number in np.flatnonzero(np.diff(cuts)):
            some = slice(cuts[number], cuts[number + 1])
            local = ordered[some] - self._starts[number]
            _read_rows(self.shards[number], local, order[some], vectors)
        return vectors


def _read_rows(shard: Shard, local: Int64Array, into: Int64Array, vectors: StoredArray) -> None:
    """Copy ascending rows of a shard into rows of ``vectors``, reading neighbours together.

    Raises:
        BenchError: the file became shorter.
    """
    handle = os.open(shard.path, os.O_RDONLY)
    try:
        gaps = np.diff(local) * shard.row_bytes > GAP_BYTES
        for run in np.split(np.arange(len(local)), np.flatnonzero(gaps) + 1):
            rows, targets = local[run], into[run]
            first, count = int(rows[0]), int(rows[-1] - rows[0]) + 1
            direct = bool((np.diff(rows) == 1).all() and (np.diff(targets) == 1).all())
            place = slice(targets[0], targets[0] + count)
            dtype = DTYPES[shard.manifest.dtype]
            same = direct and vectors.dtype == dtype
            span = vectors[place] if same else np.empty((count, shard.manifest.dim), dtype)
            if os.preadv(handle, [span.data.cast("B")], first * shard.row_bytes) != span.nbytes:
                raise BenchError(
                    f"{shard.path} was cut short while it was read", "repeat the command"
                )
            if not same:
                vectors[place if direct else targets] = span[rows - first]
    finally:
        os.close(handle)
