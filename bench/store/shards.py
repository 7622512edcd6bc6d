"""Shards: the vectors of some thousands of texts, and the plans and leases to encode missing ones.

A shard has three files, named after a hash of the keys of its texts in order. ``NAME.f32`` or
``NAME.f16`` holds the vectors, row after row, little-endian. ``NAME.keys`` holds the keys.
``NAME.json`` is written last and holds the checksums of the other two. Processes that write or
remove a shard hold the lock ``NAME.lock``.

A key is BLAKE2b, 128 bits, over the length of the title, the title, the length of the text and the
text, with the role as personalisation. Keys are uint64 ``(n, 2)``, so that those of 5 million
documents take 80 MB and are compared without Python objects. Vectors are read with ``pread``,
because pages of a memory map would count as memory of this process.

A plan depends only on the texts in their order and on the intact shards. All processes on the same
store share the work. While one shard is encoded, the texts of the next are tokenised and the
vectors of the last are written. On a GPU some shards are launched ahead, so that it never idles.
"""

import errno
import hashlib
import logging
import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from datasets_cfg.corpus import Corpus
from foundation.arrays import Float16Array, Float32Array, Int64Array, UInt64Array
from foundation.errors import BenchError
from foundation.files import FileLock, replace_file, replace_files, sha256_of_file
from foundation.records import Record, decode_json
from retrievers.encoders.protocol import Callback, EncodeTexts
from retrievers.models.card import Recipe, Role, StoreDtype

KEY_BYTES = 16
CORPUS_SUFFIX = ".corpus"  # keys of a corpus; a shard has a different suffix
BATCH_DOCUMENTS = 1 << 13  # held as Python strings
LOOKUP_CHUNK = 1 << 21  # keys looked up at once: 100 MB
READERS = 8  # threads that read tiles for a device: one cannot fill its bus
GAP_BYTES = 1 << 16  # reading over a smaller gap is cheaper than another read
FORMAT = 1
SUFFIXES: dict[StoreDtype, str] = {"float32": ".f32", "float16": ".f16"}
DTYPES: dict[StoreDtype, str] = {"float32": "<f4", "float16": "<f2"}
MANIFEST_NAME = re.compile(r"[0-9a-f]{32}\.json")
SHARD_ROWS = 2048  # one or two minutes for a small model on two cores
ENDPOINT_SHARD_ROWS = 512  # 16 connections with a request of 32 texts each, which a kill loses
HALF_SHARD_ROWS = 16_384  # in half precision: a second on a GPU, in many batches

READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)

StoredArray = Float32Array | Float16Array

logger = logging.getLogger(__name__)


def document_keys(titles: Sequence[str], texts: Sequence[str]) -> UInt64Array:
    """Return the keys of documents, whose titles may be "", uint64 ``(n, 2)``."""
    return keys_from_bytes(b"".join(_digests("document", zip(titles, texts, strict=True))))


def query_keys(texts: Sequence[str]) -> UInt64Array:
    """Return the keys of the queries ``texts``, uint64 ``(n, 2)``."""
    return keys_from_bytes(b"".join(_digests("query", (("", text) for text in texts))))


def corpus_keys(corpus: Corpus, folder: Path) -> UInt64Array:
    """Return the keys of all documents of a corpus, uint64 ``(n, 2)``.

    They are stored in a file in ``folder`` that is named after the content of the corpus and begins
    with a checksum. The texts are read again if it is missing or damaged.
    """
    path = folder / f"{corpus.sha256}{CORPUS_SUFFIX}"
    with suppress(FileNotFoundError):
        stored = path.read_bytes()
        if stored[:KEY_BYTES] == _checksum(stored[KEY_BYTES:]):
            return keys_from_bytes(memoryview(stored)[KEY_BYTES:])
    keys = np.empty((len(corpus), 2), "<u8")
    for start, titles, texts in corpus.iter_batches(BATCH_DOCUMENTS):
        keys[start : start + len(texts)] = document_keys(titles, texts)
    content = keys.data.cast("B")
    with replace_file(path) as file:
        file.write(_checksum(content))
        file.write(content)
    return keys.astype(np.uint64, copy=False)


def keys_from_bytes(content: bytes | memoryview) -> UInt64Array:
    """Return the keys stored in ``content``, 16 bytes each, as uint64 ``(n, 2)``."""
    return np.frombuffer(content, "<u8").astype(np.uint64, copy=False).reshape(-1, 2)


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


@contextmanager
def ignore_read_only() -> Iterator[None]:
    """Ignore that nothing can be written, so that a store on a read-only disk can be used."""
    try:
        yield
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise


def _checksum(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=KEY_BYTES).digest()


class ShardManifest(Record):
    """Content of a shard's files: vectors ``(rows, dim)`` of texts in one role.

    ``tokens_sha256`` is a hash of the token ids of fixed texts, which depend on the versions of
    libraries. It is "" without a tokenizer.
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
    """Vectors ``(rows, dim)`` on disk, with the path and content of ``NAME.json``."""

    manifest_path: Path
    manifest: ShardManifest

    @property
    def path(self) -> Path:
        """File of the vectors."""
        return self.manifest_path.with_suffix(SUFFIXES[self.manifest.dtype])

    @property
    def keys_path(self) -> Path:
        """File of the keys."""
        return self.manifest_path.with_suffix(".keys")

    def check(self) -> None:
        """Compare the vectors with their checksum, and raise a `BenchError` if they are damaged."""
        if not self.path.is_file():
            raise BenchError(f"{self.path.name} is missing")
        if sha256_of_file(self.path) != self.manifest.vectors_sha256:
            raise BenchError(f"{self.path.name} has a different checksum")


def read_shard(manifest_path: Path) -> tuple[Shard, UInt64Array]:
    """Return the shard of a manifest, and its keys, uint64 ``(rows, 2)``, without the vectors.

    Raises:
        BenchError: the manifest or the keys are damaged.
        FileNotFoundError: the manifest does not exist.
    """
    manifest = decode_json(manifest_path.read_bytes(), ShardManifest, manifest_path.name)
    if manifest.format != FORMAT:
        raise BenchError(f"{manifest_path.name} has format {manifest.format}, not {FORMAT}")
    shard = Shard(manifest_path, manifest)
    try:
        content = shard.keys_path.read_bytes()
    except FileNotFoundError as error:
        raise BenchError(f"{shard.keys_path.name} is missing") from error
    size, sha256 = manifest.rows * KEY_BYTES, hashlib.sha256(content).hexdigest()
    if (len(content), sha256) != (size, manifest.keys_sha256):
        raise BenchError(f"{shard.keys_path.name} does not match its manifest")
    return shard, keys_from_bytes(content)


def write_shard(
    folder: Path, role: Role, recipe: Recipe, batch: "PendingShard", vectors: Float32Array
) -> Path:
    """Write the ``vectors`` of a shard, float32 ``(n, dim)``, and return its manifest's path.

    Raises:
        BenchError: a value is too large for float16.
        OSError: the disk is full.
    """
    content = convert_for_storage(vectors, recipe)
    key_bytes = batch.keys.astype("<u8").tobytes()
    manifest = ShardManifest(
        format=FORMAT,
        role=role,
        rows=len(vectors),
        dim=vectors.shape[1],
        dtype=recipe.store_dtype,
        vectors_sha256=hashlib.sha256(content.data).hexdigest(),
        keys_sha256=hashlib.sha256(key_bytes).hexdigest(),
        tokens_sha256=batch.tokens_sha256,
    )
    shard = Shard(folder / f"{batch.name}.json", manifest)
    paths = [shard.path, shard.keys_path, shard.manifest_path]  # the manifest last
    contents: list[bytes | memoryview] = [content.data, key_bytes, msgspec.json.encode(manifest)]
    with replace_files(paths) as files:
        for file, part in zip(files, contents, strict=True):
            file.write(part)
    return shard.manifest_path


def convert_for_storage(vectors: Float32Array, recipe: Recipe) -> npt.NDArray[np.floating]:
    """Return vectors in the recipe's store dtype, little-endian and in C order, ``(n, dim)``."""
    with np.errstate(over="ignore"):
        content = np.ascontiguousarray(vectors, dtype=DTYPES[recipe.store_dtype])
    if not np.isfinite(content).all():
        largest = f"{np.abs(vectors).max():,.0f}"
        problem = f"{recipe.model}: {largest} is too large for float16, which ends at 65,504"
        raise BenchError(problem, "Omit --set store_dtype=float16")
    return content


def discard_if_damaged(manifest_path: Path) -> None:
    """Remove a damaged shard, with a warning, unless another process writes it."""
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
    """Vectors of texts in any number of shards. Implements ``certificate.Vectors``.

    Attributes:
        shards: shards of one recipe and dtype.
        positions: int64 ``(n,)``, row of each text in the concatenated shards.
        dim: dimension of the vectors.
        encoded: number of distinct texts that this process encoded.
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
            yield start, self._gather(self.positions[start : start + rows], dtype, READERS)

    def rows(self, wanted: Int64Array) -> Float32Array:
        """Return the vectors of the rows ``wanted``, float32 ``(len(wanted), dim)``."""
        vectors: Float32Array = self._gather(self.positions[wanted], "<f4")
        return vectors

    @cached_property
    def _starts(self) -> Int64Array:
        return np.cumsum([0, *(shard.manifest.rows for shard in self.shards)])

    def _gather(self, positions: Int64Array, dtype: str, threads: int = 1) -> Any:
        vectors = np.empty((len(positions), self.dim), dtype)
        order = np.argsort(positions, kind="stable")
        ordered = positions[order]
        cuts = np.searchsorted(ordered, self._starts)

        def read(number: int) -> None:
            some = slice(cuts[number], cuts[number + 1])
            local = ordered[some] - self._starts[number]
            _read_rows(self.shards[number], local, order[some], vectors)

        numbers = np.flatnonzero(np.diff(cuts)).tolist()
        if threads == 1:  # a pool would take longer than a few rows
            for number in numbers:
                read(number)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(read, numbers))
        return vectors


def _read_rows(shard: Shard, local: Int64Array, into: Int64Array, vectors: StoredArray) -> None:
    """Copy ascending rows of a shard into rows of ``vectors``, reading neighbours together."""
    dtype = DTYPES[shard.manifest.dtype]
    row_bytes = shard.manifest.dim * np.dtype(dtype).itemsize
    handle = os.open(shard.path, os.O_RDONLY)
    try:
        gaps = np.diff(local) * row_bytes > GAP_BYTES
        for run in np.split(np.arange(len(local)), np.flatnonzero(gaps) + 1):
            rows, targets = local[run], into[run]
            first, count = int(rows[0]), int(rows[-1] - rows[0]) + 1
            direct = bool((np.diff(rows) == 1).all() and (np.diff(targets) == 1).all())
            place = slice(targets[0], targets[0] + count)
            same = direct and vectors.dtype == dtype
            span = vectors[place] if same else np.empty((count, shard.manifest.dim), dtype)
            if os.preadv(handle, [span.data.cast("B")], first * row_bytes) != span.nbytes:
                raise BenchError(
                    f"{shard.path} was cut short while it was read", "Repeat the command."
                )
            if not same:
                vectors[place if direct else targets] = span if direct else span[rows - first]
    finally:
        os.close(handle)


@dataclass(frozen=True, eq=False)
class PendingShard:
    """Texts that become one shard: their keys, and their rows in the corpus or list of queries."""

    keys: UInt64Array
    rows: Int64Array
    tokens_sha256: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def name(self) -> str:
        """Name of the shard: a hash of its keys and token ids, 32 hexadecimal digits."""
        content = self.keys.astype("<u8").tobytes() + self.tokens_sha256.encode()
        return hashlib.blake2b(content, digest_size=KEY_BYTES).hexdigest()


@dataclass(frozen=True, eq=False)
class EncodingPlan:
    """The stored vectors of some texts, or None while some are missing, and the shards to encode.

    ``keys`` are those of all texts, uint64 ``(n, 2)``; missing shards are in the order of the
    texts.
    """

    keys: UInt64Array
    vectors: StoredVectors | None
    missing: tuple[PendingShard, ...]

    @property
    def missing_rows(self) -> int:
        """Number of distinct texts to encode."""
        return sum(len(batch) for batch in self.missing)


class Planner:
    """Maker of plans that remembers which shards it checked, so that a process reads each once."""

    def __init__(self) -> None:
        self._checked: dict[Shard, tuple[int, int]] = {}

    def plan(
        self, folder: Path, recipe: Recipe, keys: UInt64Array, tokens_sha256: str = ""
    ) -> EncodingPlan:
        """Find texts in the shards of a folder, and split the missing ones into shards.

        Damaged shards are removed. ``folder`` belongs to one side of a recipe, ``recipe``. ``keys``
        are uint64 ``(n, 2)``. The shards to read and to make have the digest ``tokens_sha256``.
        """
        present = dict(read_shards(folder, tokens_sha256))
        while True:
            shards = tuple(present)
            stored = np.concatenate([np.empty((0, 2), np.uint64), *present.values()])
            positions = find_rows(keys, stored)
            starts = np.cumsum([0, *(shard.manifest.rows for shard in shards)])
            numbers = np.searchsorted(starts, positions[positions >= 0], side="right") - 1
            used = [shards[number] for number in np.unique(numbers).tolist()]
            with ThreadPoolExecutor() as pool:
                intact = list(pool.map(self._is_intact, used))
            broken = [shard for shard, good in zip(used, intact, strict=True) if not good]
            if not broken:
                break
            for shard in broken:
                del present[shard]
        rows = np.flatnonzero(positions < 0)
        distinct, most = rows[first_occurrences(keys[rows])], rows_per_shard(recipe)
        parts = [distinct[start : start + most] for start in range(0, len(distinct), most)]
        missing = tuple(PendingShard(keys[part], part, tokens_sha256) for part in parts)
        vectors = None if missing else StoredVectors(shards, positions, recipe.dim)
        return EncodingPlan(keys, vectors, missing)

    def _is_intact(self, shard: Shard) -> bool:
        """Check a shard once per process, and again if its file changes. Remove a damaged one."""
        try:
            status = shard.path.stat()
            stamp = status.st_size, status.st_mtime_ns
            if self._checked.get(shard) != stamp:
                shard.check()
        except (FileNotFoundError, BenchError):
            discard_if_damaged(shard.manifest_path)
            return False
        self._checked[shard] = stamp
        return True


def read_shards(folder: Path, tokens_sha256: str) -> Iterator[tuple[Shard, UInt64Array]]:
    """Yield the shards in ``folder`` with the digest ``tokens_sha256`` and their keys, by name."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if MANIFEST_NAME.fullmatch(path.name):
            with suppress(FileNotFoundError):  # another process has just removed it
                try:
                    shard, keys = read_shard(path)
                    if shard.manifest.tokens_sha256 == tokens_sha256:
                        yield shard, keys
                except BenchError:
                    discard_if_damaged(path)


def rows_per_shard(recipe: Recipe) -> int:
    """Return the number of texts of a new shard of ``recipe``."""
    if recipe.traits.is_remote:
        return ENDPOINT_SHARD_ROWS
    return SHARD_ROWS if recipe.dtype == "float32" else HALF_SHARD_ROWS


Prepared = tuple[PendingShard, FileLock, EncodeTexts]  # its lease, and the rest of the work


@dataclass(frozen=True)
class ShardEncoder:
    """Encoding of pending shards, shared with other processes.

    A shard is leased before it is prepared. Shards leased by other processes are waited for at the
    end.

    Attributes:
        folder: folder of the shards. The lock file ``NAME.lock`` is the lease of a shard.
        prepare: reads and tokenises the texts of a shard in a thread, and returns a function that
            encodes them, see `Encoder.prepare_documents`.
        write: writes a shard, in another thread.
        advance: called with the number of texts encoded, by this or another process.
        overlap: encode a shard while the last one is written.
    """

    folder: Path
    prepare: Callable[[PendingShard], EncodeTexts]
    write: Callable[[PendingShard, Float32Array], None]
    advance: Callback | None = None
    overlap: bool = True

    def encode(self, batches: Sequence[PendingShard]) -> int:
        """Encode shards, or wait for other processes that encode them.

        Returns the number of texts that this process encoded.
        """
        refused: list[PendingShard] = []
        encoded = 0

        def write_and_release(batch: PendingShard, lease: FileLock, vectors: Float32Array) -> None:
            with lease:
                self.write(batch, vectors)

        with (
            ExitStack() as leases,
            ThreadPoolExecutor(1) as writer,
            closing(self._prepare_ahead(self._lease_free(batches, refused, leases))) as prepared,
        ):
            writing: Future[None] | None = None
            for batch, lease, encode in launch_ahead(prepared):
                logger.info("shard %s: %d texts", batch.name, len(batch))
                if writing and not self.overlap:
                    writing.result()
                vectors = encode(self.advance)
                encoded += len(batch)
                if writing:
                    writing.result()
                writing = writer.submit(write_and_release, batch, lease, vectors)
            if writing:
                writing.result()
        if waiting := [batch for batch in refused if not self._exists(batch)]:
            logger.warning(
                "waiting for another process that encodes %d shards of these texts", len(waiting)
            )
        # without holding a lease, so that no two processes wait for each other
        return encoded + sum(map(self._wait_for, refused))

    def _lease_free(
        self, batches: Sequence[PendingShard], refused: list[PendingShard], leases: ExitStack
    ) -> Iterator[tuple[PendingShard, FileLock]]:
        """Lease one shard after the other. Shards leased by others are added to ``refused``."""
        for batch in batches:
            if self._is_done(batch):
                continue
            lease = FileLock.try_acquire(self._lock_path(batch))
            if lease is None:
                refused.append(batch)
                continue
            leases.callback(lease.release)
            if self._is_done(batch):
                lease.release()
            else:
                yield batch, lease

    def _prepare_ahead(
        self, leased: Iterator[tuple[PendingShard, FileLock]]
    ) -> Generator[Prepared]:
        """Prepare each shard while the previous one is in use."""
        with ThreadPoolExecutor(1) as ahead:
            coming = ((*each, ahead.submit(self.prepare, each[0])) for each in leased)
            for now, _ in pairwise(chain(coming, [None])):
                if now:
                    yield now[0], now[1], now[2].result()

    def _wait_for(self, batch: PendingShard) -> int:
        """Wait for a shard, and return the number of texts encoded here if its process died."""
        with FileLock.acquire(self._lock_path(batch)):
            if self._is_done(batch):
                return 0
            self.write(batch, self.prepare(batch)(self.advance))  # the other process has died
            return len(batch)

    def _lock_path(self, batch: PendingShard) -> Path:
        return self.folder / f"{batch.name}.lock"

    def _exists(self, batch: PendingShard) -> bool:
        return (self.folder / f"{batch.name}.json").exists()

    def _is_done(self, batch: PendingShard) -> bool:
        there = self._exists(batch)
        if there and self.advance:
            self.advance(len(batch))
        return there


def launch_ahead(prepared: Iterator[Prepared]) -> Iterator[Prepared]:
    """Launch shards ahead, as many as each asks for, and yield them in order."""
    flying: deque[Prepared] = deque()
    for shard in prepared:
        launch: Callable[[], None] | None = getattr(shard[2], "launch", None)
        if launch:
            launch()
        flying.append(shard)
        if len(flying) >= getattr(shard[2], "in_flight", 1):
            yield flying.popleft()
    yield from flying
