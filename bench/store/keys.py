"""Keys of stored vectors: hashes of a text in one role.

A key is BLAKE2b, 128 bits, over the length of the title, the title, the length of the text and the
text, with the role as personalisation. Keys are uint64 ``(n, 2)``, 16 bytes per text. The keys of 5
million documents take 80 MB and are compared without Python objects.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from datasets_cfg.corpus import Corpus
from foundation.arrays import Int64Array, UInt64Array
from foundation.errors import BenchError
from foundation.files import read_file, replace_file
from retrievers.models.recipe import Role

KEY_BYTES = 16
CORPUS_SUFFIX = ".corpus"  # differs from that of a shard's keys
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


def shard_name(keys: UInt64Array) -> str:
    """Return the name of the shard of ``keys``: their hash, 32 hexadecimal digits."""
    return hashlib.blake2b(keys.astype("<u8").tobytes(), digest_size=KEY_BYTES).hexdigest()


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
        some = keys[start : start + LOOKUP_CHUNK]
        pending = np.argsort(some[:, 0], kind="stable")
        place = np.searchsorted(upper, some[pending, 0])
        while len(pending):
            inside = place < len(upper)
            pending, place = pending[inside], place[inside]
            alike = upper[place] == some[pending, 0]
            pending, place = pending[alike], place[alike]
            rows = order[place]
            same = among[rows, 1] == some[pending, 1]
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
