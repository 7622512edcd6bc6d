"""The documents of a collection on disk: Arrow, memory-mapped, built once while streaming.

A corpus is a folder of three files. ``documents.arrow`` is an uncompressed Arrow IPC file, so
that reading a text is reading the page that holds it. ``tie_rank.npy`` is the byte-order rank of
each id. ``manifest.json`` is written last and says what the other two hold.
"""

import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datasets_cfg.corpus_writer import SCHEMA, Document, write_documents
from datasets_cfg.folders import whole_folder
from foundation.arrays import Int64Array
from foundation.errors import BenchError
from foundation.records import Record

SCHEMA_VERSION = 1
DOCUMENTS_FILE = "documents.arrow"
TIE_RANK_FILE = "tie_rank.npy"
MANIFEST_FILE = "manifest.json"
_COMPARED_IDS = 1 << 20  # sorted ids compared with their neighbour at a time

__all__ = ["Corpus", "Document", "Manifest", "SourceFile"]


class SourceFile(Record):
    """A file that a corpus was read from: ``size`` in bytes, ``mtime_ns`` since the epoch."""

    path: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> "SourceFile":
        """Describe an existing file, by its resolved path."""
        status = path.stat()
        return cls(str(path.resolve()), status.st_size, status.st_mtime_ns)


class Manifest(Record):
    """What a corpus folder holds.

    ``sha256`` covers each document's id, title and text in order, every field preceded by its
    length in bytes. ``empty_documents`` have neither title nor text.
    """

    schema_version: int
    documents: int
    empty_documents: int
    sha256: str
    sources: tuple[SourceFile, ...]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents of a collection, memory-mapped: opening one reads almost nothing.

    Attributes:
        table: columns ``id``, ``title``, ``text``, each a chunked ``large_string`` array.
        tie_rank: int64 ``(n,)``, rank of each document's id in byte order (UTF-8), 0 the lowest.
        manifest: counts, content hash and sources.
        mapped: the file of the table.
    """

    table: pa.Table
    tie_rank: Int64Array
    manifest: Manifest
    mapped: mmap.mmap

    def __len__(self) -> int:
        return self.manifest.documents

    @property
    def ids(self) -> pa.ChunkedArray:
        """Document ids, ``large_string`` ``(n,)``."""
        return self.table.column("id")

    @property
    def titles(self) -> pa.ChunkedArray:
        """Titles, ``large_string`` ``(n,)``; "" where a document has none."""
        return self.table.column("title")

    @property
    def texts(self) -> pa.ChunkedArray:
        """Bodies, ``large_string`` ``(n,)``."""
        return self.table.column("text")

    @property
    def sha256(self) -> str:
        """Content hash; see `Manifest`."""
        return self.manifest.sha256

    def rows_of(self, ids: Sequence[str]) -> Int64Array:
        """Row of each asked id, int64 ``(len(ids),)``; -1 where the corpus has no such id.

        The asked ids are the hash table and the corpus is scanned, so that memory grows with the
        question: a corpus of 21 million ids costs 4 bytes per document.
        """
        asked = pa.array(ids, pa.large_string()).dictionary_encode()
        rows = np.full(len(asked.dictionary), -1, dtype=np.int64)
        start = 0
        for chunk in pc.index_in(self.ids, value_set=asked.dictionary).chunks:
            positions = chunk.fill_null(-1).to_numpy()
            found = np.flatnonzero(positions >= 0)
            rows[positions[found]] = start + found
            start += len(chunk)
        result: Int64Array = rows[asked.indices.to_numpy()]
        return result

    def texts_at(self, rows: Int64Array) -> list[str]:
        """Bodies of the given rows, in their order; each row in ``[0, n)``.

        Raises:
            IndexError: a row is negative (the padding of an unfilled hit) or beyond the corpus.
        """
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"rows outside 0..{len(self) - 1}: {rows.min()}..{rows.max()}")
        ends = np.cumsum([len(chunk) for chunk in self.texts.chunks])
        chunk_of = np.searchsorted(ends, rows, side="right")
        texts = np.empty(len(rows), dtype=object)
        for number in np.unique(chunk_of):
            places = np.flatnonzero(chunk_of == number)
            chunk = self.texts.chunk(int(number))
            local = rows[places] - (ends[number] - len(chunk))
            texts[places] = chunk.take(pa.array(local)).to_pylist()
        return list(texts)

    def iter_batches(self, rows: int) -> Iterator[tuple[int, list[str], list[str]]]:
        """Yield ``(first row, titles, texts)`` for every ``rows`` documents, in order."""
        for start in range(0, len(self), rows):
            batch = self.table.slice(start, rows)
            titles, texts = batch.column("title").to_pylist(), batch.column("text").to_pylist()
            self.release_pages()
            yield start, titles, texts

    def release_pages(self) -> None:
        """Give back the memory of the pages that were read: mapped pages count as this process's.

        They stay in the system's cache while there is room, and are mapped again when needed.
        """
        self.mapped.madvise(mmap.MADV_DONTNEED)

    @classmethod
    def build(
        cls, documents: Iterable[Document], folder: Path, sources: Sequence[Path] = ()
    ) -> "Corpus":
        """Write ``documents`` to ``folder`` while streaming, and open it.

        All files are written to a temporary folder beside ``folder``, which is renamed at the
        end: a build that is killed leaves nothing that opens. An older corpus in ``folder`` is
        replaced, and of two builds at the same time the last one stays.

        Raises:
            BenchError: no documents, a duplicate id, text that is not valid Unicode, or a
                failure to write, such as a full disk.
        """
        with whole_folder(folder) as unfinished:
            _write(documents, unfinished, sources)
            corpus = cls.open(unfinished)  # its maps outlive the rename
        return corpus

    @classmethod
    def open(cls, folder: Path) -> "Corpus":
        """Open a corpus that `build` wrote.

        Raises:
            BenchError: there is none, or it was written by another version of this program,
                or its files do not fit together.
        """
        manifest = _read_manifest(folder)
        try:
            with (folder / DOCUMENTS_FILE).open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            table = pa.ipc.open_file(pa.py_buffer(mapped)).read_all()
            tie_rank = np.load(folder / TIE_RANK_FILE, mmap_mode="r", allow_pickle=False)
        except (OSError, EOFError, ValueError, pa.ArrowInvalid) as error:
            raise _unusable(folder, str(error)) from error
        if not table.schema.equals(SCHEMA) or len(table) != manifest.documents:
            raise _unusable(folder, f"{DOCUMENTS_FILE} is not what the manifest says")
        if tie_rank.shape != (manifest.documents,) or tie_rank.dtype != np.int64:
            raise _unusable(folder, f"{TIE_RANK_FILE} is not what the manifest says")
        return cls(table, tie_rank, manifest, mapped)


def _write(documents: Iterable[Document], folder: Path, sources: Sequence[Path]) -> None:
    written = write_documents(documents, folder / DOCUMENTS_FILE)
    if not written.documents:
        raise BenchError(
            "the collection has no documents",
            hint="look at the corpus file: is it empty, or was its download cut short?",
        )
    with pa.memory_map(str(folder / DOCUMENTS_FILE)) as source:
        ids = pa.ipc.open_file(source).read_all().column("id").combine_chunks()
    np.save(folder / TIE_RANK_FILE, _byte_order_rank(ids), allow_pickle=False)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        documents=written.documents,
        empty_documents=written.empty_documents,
        sha256=written.sha256,
        sources=tuple(SourceFile.of(path) for path in sources),
    )
    encoded = msgspec.json.format(msgspec.json.encode(manifest))
    (folder / MANIFEST_FILE).write_bytes(encoded)


def _byte_order_rank(ids: pa.LargeStringArray) -> Int64Array:
    """Rank of each id among all; Arrow compares strings by their UTF-8 bytes."""
    order = pc.sort_indices(ids)
    for start in range(0, len(ids) - 1, _COMPARED_IDS):
        ordered = ids.take(order.slice(start, _COMPARED_IDS + 1))
        same = pc.equal(ordered.slice(1), ordered.slice(0, len(ordered) - 1))
        place = pc.index(same, True).as_py()
        if place >= 0:
            rows = sorted(order.slice(start + place, 2).to_pylist())
            raise BenchError(
                f"document id {ordered[place].as_py()!r} occurs twice: "
                f"documents {rows[0] + 1} and {rows[1] + 1} of the corpus",
                hint="ids must be unique: remove or rename one of the two",
            )
    rank = np.empty(len(ids), dtype=np.int64)
    rank[order.to_numpy()] = np.arange(len(ids))
    return rank


def _read_manifest(folder: Path) -> Manifest:
    try:
        content = (folder / MANIFEST_FILE).read_bytes()
    except OSError as error:
        raise _unusable(folder, f"no readable {MANIFEST_FILE}") from error
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as error:
        raise _unusable(folder, f"{MANIFEST_FILE}: {error}") from error
    if manifest.schema_version != SCHEMA_VERSION:
        found = manifest.schema_version
        raise _unusable(folder, f"its format is version {found}, this is {SCHEMA_VERSION}")
    return manifest


def _unusable(folder: Path, reason: str) -> BenchError:
    return BenchError(
        f"{folder} holds no usable corpus: {reason}",
        hint=f"remove the folder and run again, and it is built anew: rm -r {folder}",
    )
