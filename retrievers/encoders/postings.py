"""Postings on disk: for each word the documents that hold it, made in bounded memory.

Blocked sort-based indexing (Manning, Raghavan and Schütze, Introduction to Information Retrieval,
2008, section 4.2): words are counted some documents at a time, such a block is sorted by word and
written, and the blocks are merged some words at a time.
"""

import os
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from foundation.arrays import Float32Array, Int32Array, Int64Array

BLOCK_WORDS = 1 << 22  # sorted at a time: 150 MB
MERGED_POSTINGS = 1 << 22  # of some words, and of each word that has more: 48 bytes for each

# Words, rows, and how often the word is in the document; to the weights of the postings.
Weigh: TypeAlias = Callable[[Int64Array, Int32Array, Float32Array], Float32Array]
_POSTING = np.dtype([("row", "<i4"), ("weight", "<f4")])  # the weight in a block is the count
_Records: TypeAlias = npt.NDArray[Any]


class Postings:
    """Rows and weights of each word, in a file that ends with this object."""

    def __init__(self, file: IO[bytes], starts: Int64Array) -> None:
        self._file = file
        self._starts = starts
        weakref.finalize(self, file.close)

    def of(self, word: int) -> tuple[Int32Array, Float32Array]:
        """Rows, rising, of the documents that hold a word, and its weight in each."""
        records = _read(self._file, *self._starts[word : word + 2].tolist())
        return records["row"], records["weight"]


class PostingsWriter:
    """Inverts documents that come one by one.

    Args:
        folder: where the files without names are: 16 bytes for each posting until all are merged,
            then 8.

    Attributes:
        lengths: words of each document so far.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.lengths = array("i")
        self._words = array("i")
        self._folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._blocks: list[_Block] = []
        self._block_row = 0  # of the first document that is not written yet

    def add(self, words: Sequence[int]) -> None:
        """Append a document of these words, by number."""
        self._words.extend(words)
        self.lengths.append(len(words))
        if len(self._words) >= BLOCK_WORDS:
            self._write_block()

    def finish(self, count: int) -> Int64Array:
        """How many documents hold each of ``count`` words, int64 ``(count,)``; no more come."""
        self._write_block()
        self._file.flush()
        frequencies = np.zeros(count, np.int64)
        for block in self._blocks:
            frequencies[block.words] += np.diff(block.starts)
        return frequencies

    def merged(self, frequencies: Int64Array, weigh: Weigh) -> Postings:
        """All postings with their weights; the file of the blocks ends here."""
        starts = np.concatenate([[0], np.cumsum(frequencies)])
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        with self._file:
            for first, end in _ranges(starts):
                records = np.empty(starts[end] - starts[first], _POSTING)
                free = starts[first:end] - starts[first]
                for block in self._blocks:
                    block.copy(self._file, first, end, records, free)
                words = np.repeat(np.arange(first, end), frequencies[first:end])
                records["weight"] = weigh(words, records["row"], records["weight"])
                file.write(records.data)
        file.flush()
        return Postings(file, starts)

    def _write_block(self) -> None:
        lengths = np.array(self.lengths[self._block_row :], np.intc)
        rows = np.repeat(np.arange(self._block_row, len(self.lengths)), lengths)
        keys = np.array(self._words, np.int64) << 32 | rows
        keys.sort()
        places = _firsts(keys)
        records = np.empty(len(places), _POSTING)
        records["weight"] = np.diff(places, append=len(keys))
        keys = keys[places]
        records["row"] = keys & 0xFFFFFFFF
        words = (keys >> 32).astype(np.int32)
        places = _firsts(words)
        starts = np.append(places, len(words)) + self._file.tell() // _POSTING.itemsize
        self._blocks.append(_Block(words[places], starts))
        self._file.write(records.data)
        self._words, self._block_row = array("i"), len(self.lengths)


@dataclass(frozen=True)
class _Block:
    """Where the postings of some documents are: ``words`` rise, word i begins at ``starts[i]``."""

    words: Int32Array
    starts: Int64Array

    def copy(
        self, file: IO[bytes], first: int, end: int, target: _Records, free: Int64Array
    ) -> None:
        """Put postings of words ``first`` to ``end`` where ``free`` says, and move that on."""
        low, high = np.searchsorted(self.words, [first, end])
        words, starts = self.words[low:high] - first, self.starts[low : high + 1]
        counts = np.diff(starts)
        shifts = np.repeat(free[words] - starts[:-1], counts)
        target[shifts + np.arange(starts[0], starts[-1])] = _read(file, *starts[[0, -1]].tolist())
        free[words] += counts


def _ranges(starts: Int64Array) -> Iterator[tuple[int, int]]:
    """Words that are merged together: their postings are few, or it is a single word."""
    first, count = 0, len(starts) - 1
    while first < count:
        fitting = np.searchsorted(starts, starts[first] + MERGED_POSTINGS, side="right") - 1
        yield first, (first := max(first + 1, int(fitting)))


def _read(file: IO[bytes], first: int, end: int) -> _Records:
    size = _POSTING.itemsize
    content = os.pread(file.fileno(), (end - first) * size, first * size)
    return np.frombuffer(content, _POSTING)


def _firsts(ordered: npt.NDArray[np.integer]) -> Int64Array:
    """Places of the first of equal values."""
    return np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
