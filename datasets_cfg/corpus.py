"""Corpora on disk: memory-mapped Arrow files, built once from a stream of documents.

A corpus is a folder with ``documents.arrow`` (an uncompressed Arrow IPC file, so that reading a
text means reading its page), ``tie_rank.npy`` (the byte-order rank of each id), and
``manifest.json`` with the checksums of both. No document is returned before all of them were
compared with their checksum.
"""

import dataclasses
import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datasets_cfg.readers.reader import Document, collect_assumptions
from foundation.arrays import Int64Array
from foundation.errors import BenchError
from foundation.files import add_to_hash, replace_folder, sha256_of_file
from foundation.records import Record, read_json, write_json

SCHEMA_VERSION = 2
DOCUMENTS_FILE = "documents.arrow"
TIE_RANK_FILE = "tie_rank.npy"
MANIFEST_FILE = "manifest.json"
CHECKED_AT_OPEN = 64 << 20  # bytes of a corpus that is checked at open, in 0.1 s
COLUMNS = ("id", "title", "text")
SCHEMA = pa.schema([pa.field(name, pa.large_string(), nullable=False) for name in COLUMNS])
BLOCK_BYTES = 16 << 20  # hashed at a time
BATCH_BYTES = 16 * 2**20
BATCH_DOCUMENTS = 2**16  # objects of short documents need more memory than their text


class DamagedCorpusError(BenchError):
    """A corpus on disk that is damaged."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(
            f"the corpus in {folder} cannot be used: {reason}",
            hint="Repeat the command to rebuild the corpus from its sources.",
        )


class CorpusManifest(Record):
    """The manifest of a corpus folder.

    ``sha256`` covers the id, title and text of each document in order, every field preceded by its
    length in bytes. ``empty_documents`` have neither title nor text. ``assumptions`` about the
    files that were read have their counts. The last two are of the other files of the corpus.
    """

    schema_version: int
    documents: int
    empty_documents: int
    sha256: str
    assumptions: dict[str, int]
    documents_sha256: str
    tie_rank_sha256: str


@dataclass(frozen=True, eq=False)
class Corpus:
    """Memory-mapped documents of a collection.

    Documents are compared with their checksum on first use, about a million passages per second.

    Attributes:
        folder: folder of the corpus.
        manifest: counts and content hash.
        mapped: memory-mapped file of the documents.
        tie_rank: int64 ``(n,)``, rank of each document's id in byte order (UTF-8), 0 the lowest.
    """

    folder: Path
    manifest: CorpusManifest
    mapped: mmap.mmap
    tie_rank: Int64Array
    _table: pa.Table

    def __len__(self) -> int:
        return self.manifest.documents

    @cached_property
    def table(self) -> pa.Table:
        """Columns ``id``, ``title``, ``text``, each a chunked ``large_string`` array.

        The first use compares them with their checksum. If they are damaged, it removes the
        manifest, so that the next use of the collection rebuilds the corpus, and raises a
        `DamagedCorpusError`.
        """
        if _hash_mapped(self.mapped) != self.manifest.documents_sha256:
            with suppress(OSError):
                (self.folder / MANIFEST_FILE).unlink(missing_ok=True)
            raise DamagedCorpusError(self.folder, f"{DOCUMENTS_FILE} has a different checksum")
        return self._table

    @property
    def ids(self) -> pa.ChunkedArray:
        """Document ids, ``large_string`` ``(n,)``."""
        return self.table.column("id")

    @property
    def titles(self) -> pa.ChunkedArray:
        """Titles, ``large_string`` ``(n,)``, "" for a document without one."""
        return self.table.column("title")

    @property
    def texts(self) -> pa.ChunkedArray:
        """Bodies, ``large_string`` ``(n,)``."""
        return self.table.column("text")

    @property
    def sha256(self) -> str:
        """Content hash, see `CorpusManifest`."""
        return self.manifest.sha256

    def rows_of(self, ids: Sequence[str]) -> Int64Array:
        """Return the row of each of ``ids``, int64 ``(len(ids),)``, or -1 for an unknown id."""
        wanted = pa.array(ids, pa.large_string()).dictionary_encode()
        rows = np.full(len(wanted.dictionary), -1, dtype=np.int64)
        start = 0
        for chunk in pc.index_in(self.ids, value_set=wanted.dictionary).chunks:
            positions = chunk.fill_null(-1).to_numpy()
            places = np.flatnonzero(positions >= 0)
            rows[positions[places]] = start + places
            start += len(chunk)
        result: Int64Array = rows[wanted.indices.to_numpy()]
        return result

    def texts_at(self, rows: Int64Array) -> list[str]:
        """Return the bodies of the given ``rows``, int64 in ``[0, n)``, in their order.

        Raises:
            IndexError: a row is negative, like the padding of unfilled hits, or beyond the corpus.
        """
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"rows outside 0..{len(self) - 1}: {rows.min()}..{rows.max()}")
        return _take_texts(self.texts, rows)

    def documents_at(self, rows: Int64Array) -> tuple[list[str], list[str]]:
        """Return titles and bodies of the given ``rows``, int64, reading only their pages."""
        documents = _take_texts(self.titles, rows), _take_texts(self.texts, rows)
        self.release_pages()
        return documents

    def iter_batches(self, rows: int) -> Iterator[tuple[int, list[str], list[str]]]:
        """Yield ``(first row, titles, texts)`` for every ``rows`` documents, in order."""
        for start in range(0, len(self), rows):
            batch = self.table.slice(start, rows)
            titles, texts = batch.column("title").to_pylist(), batch.column("text").to_pylist()
            self.release_pages()
            yield start, titles, texts

    def release_pages(self) -> None:
        """Release the pages that were read, which count as memory of this process."""
        self.mapped.madvise(mmap.MADV_DONTNEED)

    def with_ids_as_texts(self) -> "Corpus":
        """Return this corpus for vectors that are looked up: each text is the document's id."""
        blank = pa.array([""], pa.large_string()).take(pa.array(np.zeros(len(self), np.int64)))
        table = pa.table([self.ids, pa.chunked_array([blank]), self.ids], schema=SCHEMA)
        return dataclasses.replace(
            self,
            manifest=msgspec.structs.replace(self.manifest, sha256=f"{self.sha256}-ids"),
            _table=table,
        )

    @classmethod
    def build(
        cls, documents: Iterable[Document], folder: Path, sources: Sequence[Path] = ()
    ) -> "Corpus":
        """Write documents, read from ``sources``, to a folder as they arrive, and open the result.

        The corpus appears when it is complete and replaces an older one.
        """
        with replace_folder(folder) as unfinished:
            _write(documents, unfinished, sources)
            corpus = cls.open(unfinished)  # mapped files survive the rename
        return dataclasses.replace(corpus, folder=folder)

    @classmethod
    def open(cls, folder: Path) -> "Corpus":
        """Open the corpus in ``folder``. A small one is compared with its checksum at once."""
        try:
            corpus = _open(folder)
        except (BenchError, OSError, ValueError, EOFError) as error:
            raise DamagedCorpusError(folder, str(error)) from error
        if len(corpus.mapped) <= CHECKED_AT_OPEN:
            _ = corpus.table
        return corpus


def stamp_files(paths: Sequence[Path]) -> list[tuple[str, str, str]]:
    """Return the resolved path, size in bytes and time of change of each file."""
    stats = [(path.resolve(), path.stat()) for path in paths]
    return [(str(path), str(stat.st_size), str(stat.st_mtime_ns)) for path, stat in stats]


def _take_texts(column: pa.ChunkedArray, rows: Int64Array) -> list[str]:
    """Return texts of rows, chunk by chunk, since Arrow would join thousands of chunks."""
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    chunk_of = np.searchsorted(ends, rows, side="right")
    texts = np.empty(len(rows), dtype=object)
    for number in np.unique(chunk_of):
        places = np.flatnonzero(chunk_of == number)
        chunk = column.chunk(int(number))
        local = rows[places] - (ends[number] - len(chunk))
        texts[places] = chunk.take(pa.array(local)).to_pylist()
    return list(texts)


def _open(folder: Path) -> Corpus:
    manifest = read_json(folder / MANIFEST_FILE, CorpusManifest)
    if manifest.schema_version != SCHEMA_VERSION:
        raise ValueError(f"its format is version {manifest.schema_version}, not {SCHEMA_VERSION}")
    rank_path = folder / TIE_RANK_FILE
    if sha256_of_file(rank_path) != manifest.tie_rank_sha256:
        raise ValueError(f"{TIE_RANK_FILE} has a different checksum")
    tie_rank = np.load(rank_path, mmap_mode="r", allow_pickle=False)
    mapped, table = _map_table(folder / DOCUMENTS_FILE)
    if not table.schema.equals(SCHEMA) or not len(table) == len(tie_rank) == manifest.documents:
        raise ValueError("its files belong to different corpora")
    return Corpus(folder, manifest, mapped, tie_rank, table)


def _write(documents: Iterable[Document], folder: Path, sources: Sequence[Path]) -> None:
    before = stamp_files(sources)
    path = folder / DOCUMENTS_FILE
    with collect_assumptions() as assumptions:
        count, empty, sha256 = write_documents(documents, path)
    if not count:
        hint = "Check whether the corpus file is empty or its download incomplete."
        raise BenchError("the collection has no documents", hint)
    _, table = _map_table(path)
    order, repeated = _sort_ids(table)
    if len(repeated):
        count, empty, sha256 = write_documents(_without(table, repeated), folder / "unique")
        (folder / "unique").replace(path)
        _, table = _map_table(path)
        order, _ = _sort_ids(table)
        assumptions["documents that occur twice, with equal texts, are read once"] = len(repeated)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    np.save(folder / TIE_RANK_FILE, rank, allow_pickle=False)
    if stamp_files(sources) != before:
        raise BenchError(
            "a file of the collection changed while it was read", "Repeat the command."
        )
    manifest = CorpusManifest(
        schema_version=SCHEMA_VERSION,
        documents=count,
        empty_documents=empty,
        sha256=sha256,
        assumptions=dict(assumptions),
        documents_sha256=sha256_of_file(path),
        tie_rank_sha256=sha256_of_file(folder / TIE_RANK_FILE),
    )
    write_json(folder / MANIFEST_FILE, manifest)


def _map_table(path: Path) -> tuple[mmap.mmap, pa.Table]:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return mapped, pa.ipc.open_file(pa.py_buffer(mapped)).read_all()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from error


def _sort_ids(table: pa.Table) -> tuple[Int64Array, Int64Array]:
    """Return the rows in byte order of the ids, and the rows that repeat an earlier document."""
    ids = table.column("id").combine_chunks()
    rows = pc.sort_indices(ids)
    ordered = ids.take(rows)
    repeats = pc.equal(ordered.slice(1), ordered.slice(0, len(ids) - 1))
    order = rows.to_numpy().astype(np.int64)
    places = np.flatnonzero(repeats.to_numpy(zero_copy_only=False))
    for place in places:
        first, second = table.take(order[place : place + 2]).to_pylist()
        if first != second:
            earlier, later = sorted(order[place : place + 2] + 1)
            what = f"documents {earlier} and {later} of the corpus have different titles or texts"
            hint = f"Remove or rename one of the two (repeated ids: {len(places):,})."
            raise BenchError(f"document id {first['id']!r} occurs twice: {what}", hint)
    return order, order[places + 1]


def _without(table: pa.Table, rows: Int64Array) -> Iterator[Document]:
    """Yield the documents of a table in order, except for those at ``rows``."""
    kept = np.ones(len(table), dtype=bool)
    kept[rows] = False
    for batch in table.filter(pa.array(kept)).to_batches():
        yield from map(Document, *(column.to_pylist() for column in batch.columns))


def write_documents(documents: Iterable[Document], path: Path) -> tuple[int, int, str]:
    """Write documents in record batches of about 16 MiB of text.

    Returns:
        The number of documents, the number without title and text, and the content hash.
    """
    digest = hashlib.sha256()
    count = empty = 0
    with path.open("wb") as sink:
        with pa.ipc.new_file(sink, SCHEMA) as writer:
            for batch in _batches(documents):
                for fields in batch:
                    add_to_hash(digest, fields)
                    empty += not (fields[1].strip() or fields[2].strip())
                writer.write_batch(pa.record_batch([*zip(*batch, strict=True)], schema=SCHEMA))
                count += len(batch)
        sink.flush()
        os.fsync(sink.fileno())
    return count, empty, digest.hexdigest()


def _batches(documents: Iterable[Document]) -> Iterator[list[tuple[bytes, bytes, bytes]]]:
    batch: list[tuple[bytes, bytes, bytes]] = []
    size = 0
    for document in documents:
        id_, title, text = document.id.encode(), document.title.encode(), document.text.encode()
        batch.append((id_, title, text))
        size += len(id_) + len(title) + len(text)
        if size >= BATCH_BYTES or len(batch) == BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _hash_mapped(mapped: mmap.mmap) -> str:
    """Hash a mapped file and release its pages, which count as memory of this process."""
    digest = hashlib.sha256()
    for start in range(0, len(mapped), BLOCK_BYTES):
        digest.update(mapped[start : start + BLOCK_BYTES])
        mapped.madvise(mmap.MADV_DONTNEED)
    return digest.hexdigest()
