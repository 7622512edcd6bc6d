"""Documents to an Arrow IPC file, a bounded number of bytes at a time."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from foundation.errors import BenchError
from foundation.files import ContentHash

SCHEMA = pa.schema(
    [
        pa.field("id", pa.large_string(), nullable=False),
        pa.field("title", pa.large_string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
    ]
)
BATCH_BYTES = 16 * 2**20
BATCH_DOCUMENTS = 2**16  # Python objects of very short documents weigh more than their text


class Document(NamedTuple):
    """One document of a collection as its reader yields it; ``title`` may be empty."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class WrittenCorpus:
    """Counts of a written corpus, and a hash over length-prefixed ids, titles and texts."""

    documents: int
    empty_documents: int
    sha256: str


def write_documents(documents: Iterable[Document], path: Path) -> WrittenCorpus:
    """Stream ``documents`` to ``path`` in record batches of about 16 MiB of text.

    Raises:
        BenchError: a field cannot be written as UTF-8 (a lone surrogate).
        OSError: the file cannot be written.
    """
    content = ContentHash()
    count = empty = 0
    with path.open("wb") as sink:
        with pa.ipc.new_file(sink, SCHEMA) as writer:
            for batch in _batches(documents):
                for fields in batch:
                    content.add(fields)
                    empty += not (fields[1].strip() or fields[2].strip())
                columns = [
                    pa.array(column, pa.large_string()) for column in zip(*batch, strict=True)
                ]
                writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
                count += len(batch)
        sink.flush()
        os.fsync(sink.fileno())
    return WrittenCorpus(count, empty, content.hexdigest())


def _batches(documents: Iterable[Document]) -> Iterator[list[tuple[bytes, bytes, bytes]]]:
    batch: list[tuple[bytes, bytes, bytes]] = []
    size = 0
    for document in documents:
        fields = _encoded(document)
        batch.append(fields)
        size += len(fields[0]) + len(fields[1]) + len(fields[2])
        if size >= BATCH_BYTES or len(batch) == BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encoded(document: Document) -> tuple[bytes, bytes, bytes]:
    try:
        return document.id.encode(), document.title.encode(), document.text.encode()
    except UnicodeEncodeError as error:
        raise BenchError(
            f"document {document.id!r} holds text that is not valid Unicode: {error.reason}"
        ) from error
