"""Postings on disk: for each word the documents that hold it, made in bounded memory.

Blocked sort-based indexing (Manning, Raghavan and Schütze, Introduction to Information Retrieval,
2008, section 4.2): words are counted some documents at a time, such a block is sorted by word and
written, and the blocks are merged some words at a time.
"""

import os
import tempfile
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from foundation.arrays import Float32Array, Int32Array, Int64Array

BLOCK_WORDS = 1 << 22  # sorted at a time: 200 MB
MERGED_POSTINGS = 1 << 22  # of some words, or those of one word: 60 bytes for each

# Words, rows, and how often the word is in the document, to the weights of the postings.
Weigh: TypeAlias = Callable[[Int32Array, Int32Array, Float32Array], Float32Array]
_Records: TypeAlias = npt.NDArray[Any]
_POSTING = np.dtype([("row", "<i4"), ("weight", "<f4")])
_COUNTED = np.dtype([("word", "<i4"), ("row", "<i4"), ("count", "<f4")])


class Postings:
    """Rows and weights of each word, in a file that ends with this object."""

    def __init__(self, file: IO[bytes], starts: Int64Array) -> None:
        self._file = file
        self._starts = starts
        weakref.finalize(self, file.close)

    def of(self, word: int) -> tuple[Int32Array, Float32Array]:
        """Rows, rising, of the documents that hold a word, and its weight in each."""
        first, end = self._starts[word : word + 2].tolist()
        records = _read(self._file, _POSTING, first, end)
        return records["row"], records["weight"]


class PostingsWriter:
    """Inverts documents that come one by one.

    Args:
        folder: where the files without names are: 20 bytes for each posting until all are merged,
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
        self._frequencies: Int64Array = np.empty(0, np.int64)
        self._ends = [0]  # of the blocks; the first begins at 0
        self._rows = 0  # documents in blocks

    def add(self, words: Sequence[int]) -> None:
        """Append a document of these words, by number."""
        self._words.extend(words)
        self.lengths.append(len(words))
        if len(self._words) >= BLOCK_WORDS:
            self._write_block()

    def finish(self) -> Int64Array:
        """Document frequency of each word, int64 ``(words,)``; no more documents come."""
        self._write_block()
        self._file.flush()
        return self._frequencies

    def merged(self, weigh: Weigh) -> Postings:
        """All postings with their weights; the file of the blocks ends here."""
        starts = np.concatenate([[0], np.cumsum(self._frequencies)])
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        with self._file:
            places = self._ends[:-1]
            for first, end in _ranges(starts):
                counted = np.empty(starts[end] - starts[first], _COUNTED)
                free = starts[first:end] - starts[first]
                for block, (place, stop) in enumerate(zip(places, self._ends[1:], strict=True)):
                    places[block] = bisect_left(range(stop), end, lo=place, key=self._word_at)
                    some = _read(self._file, _COUNTED, place, places[block])
                    words = some["word"] - first
                    beginnings = _firsts(words)
                    sizes = np.diff(beginnings, append=len(words))
                    distinct = words[beginnings]
                    shifts = np.repeat(free[distinct] - beginnings, sizes)
                    counted[shifts + np.arange(len(some))] = some
                    free[distinct] += sizes
                postings = np.empty(len(counted), _POSTING)
                postings["row"] = counted["row"]
                postings["weight"] = weigh(counted["word"], counted["row"], counted["count"])
                file.write(postings.data)
        file.flush()
        return Postings(file, starts)

    def _word_at(self, place: int) -> int:
        return int(_read(self._file, _COUNTED, place, place + 1)["word"][0])

    def _write_block(self) -> None:
        lengths = np.array(self.lengths[self._rows :], np.intc)
        rows = np.repeat(np.arange(self._rows, len(self.lengths)), lengths)
        keys = np.array(self._words, np.int64) << 32 | rows
        self._words, self._rows = array("i"), len(self.lengths)
        keys.sort()
        beginnings = _firsts(keys)
        counted = np.empty(len(beginnings), _COUNTED)
        counted["count"] = np.diff(beginnings, append=len(keys))
        keys = keys[beginnings]
        counted["word"], counted["row"] = keys >> 32, keys & 0xFFFFFFFF
        frequencies = np.bincount(counted["word"], minlength=len(self._frequencies))
        frequencies[: len(self._frequencies)] += self._frequencies
        self._frequencies = frequencies
        self._ends.append(self._ends[-1] + len(counted))
        self._file.write(counted.data)


def _ranges(starts: Int64Array) -> Iterator[tuple[int, int]]:
    """Words that are merged together: their postings are few, or it is a single word."""
    first, count = 0, len(starts) - 1
    while first < count:
        fitting = np.searchsorted(starts, starts[first] + MERGED_POSTINGS, side="right") - 1
        yield first, (first := max(first + 1, int(fitting)))


def _read(file: IO[bytes], kind: np.dtype[Any], first: int, end: int) -> _Records:
    content = os.pread(file.fileno(), (end - first) * kind.itemsize, first * kind.itemsize)
    return np.frombuffer(content, kind)


def _firsts(ordered: npt.NDArray[np.integer]) -> Int64Array:
    """Places of the first of equal values."""
    return np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
