"""Checksums of a corpus: of the blocks of its files, and of the files that it was built from.

Every byte of ``documents.arrow`` belongs to a block. Titles and texts have blocks of their own, a
pair for each record batch of about 16 MiB, and what lies between them (Arrow's metadata, and the
ids) the others. So ids can be trusted after a few per cent of the file were read.
"""

import hashlib
import itertools
import mmap
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from foundation.files import sha256_of_file
from foundation.records import Record

CHECKED_AT_OPEN = 64 << 20  # bytes of a file that are checked without being asked: 0.1 s
SAMPLES, SAMPLE_BYTES = 64, 1 << 16  # of a source, spread evenly over it


class DamagedBlockError(Exception):
    """A file is not what was written; the message says how."""


class Block(Record):
    """Consecutive bytes of a file, from the end of the block before it to ``end``.

    ``texts`` is true of a block that holds titles and texts and nothing else.
    """

    end: int
    sha256: str
    texts: bool = False


class SourceChecksum(Record):
    """Content of a file that a corpus was built from: ``sampled_sha256`` is of 4 MiB of it."""

    path: str
    sampled_sha256: str
    sha256: str


class Checksums(Record):
    """Content of a corpus's files and of its sources; ``documents`` are blocks in their order."""

    manifest_sha256: str
    tie_rank_sha256: str
    documents: tuple[Block, ...]
    sources: tuple[SourceChecksum, ...]


def blocks_of(mapped: mmap.mmap, texts: Sequence[tuple[int, int]]) -> tuple[Block, ...]:
    """Checksums of a whole file.

    Args:
        mapped: the file.
        texts: start and end of the spans that hold titles and texts, in rising order.
    """
    starts = [0, *itertools.chain(*texts)]
    ends = [*starts[1:], len(mapped)]
    return tuple(
        Block(end, _sha256(mapped, start, end), texts=number % 2 == 1)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    )


def text_spans(table: pa.Table, start_address: int) -> list[tuple[int, int]]:
    """Offsets in the mapped file of the titles and texts of each record batch.

    Args:
        table: of a corpus, its buffers in a map of the file; ``id`` is the first column.
        start_address: of the map, in memory.
    """
    spans = []
    for batch in table.to_batches():
        buffers = [buffer for column in batch.columns[1:] for buffer in column.buffers()]
        used = [buffer for buffer in buffers if buffer is not None and buffer.size]
        first = min(buffer.address for buffer in used)
        last = max(buffer.address + buffer.size for buffer in used)
        spans.append((first - start_address, last - start_address))
    return spans


def check_blocks(mapped: mmap.mmap, blocks: Sequence[Block], texts: bool, name: str) -> None:
    """Compare the blocks of one kind with their checksums.

    Args:
        name: of the file, for messages.

    Raises:
        DamagedBlockError: one differs, or the file has another size.
    """
    if not blocks or blocks[-1].end != len(mapped):
        raise DamagedBlockError(f"{name} has {len(mapped):,} bytes, not as many as were written")
    starts = [0, *(block.end for block in blocks)]
    for start, block in zip(starts, blocks, strict=False):
        if block.texts == texts and _sha256(mapped, start, block.end) != block.sha256:
            place = f"bytes {start:,} to {block.end:,}"
            raise DamagedBlockError(f"{name} has another checksum in {place}")


def checked_content(path: Path, sha256: str) -> bytes:
    """Content of a small file.

    Raises:
        DamagedBlockError: it has another checksum.
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DamagedBlockError(f"{path.name} has another checksum")
    return content


def checksum_of_source(path: Path) -> SourceChecksum:
    """Read a source: all of it."""
    return SourceChecksum(str(path.resolve()), _sampled_sha256(path), sha256_of_file(path))


def check_source(known: SourceChecksum, whole: bool) -> None:
    """Compare a source with what it was when the corpus was built.

    Args:
        whole: read all of a file of more than `CHECKED_AT_OPEN` bytes, and not only samples.

    Raises:
        DamagedBlockError: it differs, or cannot be read.
    """
    path = Path(known.path)
    try:
        if whole or path.stat().st_size <= CHECKED_AT_OPEN:
            same = sha256_of_file(path) == known.sha256
        else:
            same = _sampled_sha256(path) == known.sampled_sha256
    except OSError as error:
        raise DamagedBlockError(f"{path} cannot be read: {error.strerror}") from error
    if not same:
        raise DamagedBlockError(f"{path} has other content than when the corpus was built from it")


def _sha256(mapped: mmap.mmap, start: int, end: int) -> str:
    """Hash a span of a mapped file, and give its pages back: they count as this process's."""
    with memoryview(mapped) as content, content[start:end] as span:
        digest = hashlib.sha256(span).hexdigest()
    mapped.madvise(mmap.MADV_DONTNEED)
    return digest


def _sampled_sha256(path: Path) -> str:
    size = path.stat().st_size
    last = max(size - SAMPLE_BYTES, 0)
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        for start in dict.fromkeys(last * number // (SAMPLES - 1) for number in range(SAMPLES)):
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
