"""BM25, the lexical baseline.

Differences from Anserini's BM25 (Lucene), and so from published figures: document lengths are
exact, whereas Lucene stores them in one byte; words are runs of letters, digits and underscores,
whereas Lucene splits by Unicode rules and drops a possessive 's. Equal are k1 = 0.9 and b = 0.4,
Lucene's formula, its 33 English stop words, Porter's stemmer, and that a word that occurs twice in
a query counts twice.

Postings are on disk and are built in bounded memory by blocked sort-based indexing (Manning,
Raghavan and Schütze, Introduction to Information Retrieval, 2008, section 4.2): the words of a
block of documents are counted, sorted and written, and the blocks are merged some words at a time.
"""

import math
import os
import re
import tempfile
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from foundation.arrays import Float32Array, Int32Array, Int64Array
from foundation.errors import BenchError, name_path_in_errors
from foundation.records import Record, convert_table
from retrievers.encoders.protocol import Callback, join_documents
from retrievers.index.hits import Hits
from retrievers.models.card import Recipe

# Of k1 and b, so that float32 scores stay finite.
Constant = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
MAX_CACHED_FORMS = 1 << 19  # forms of words: 90 MB
_WORD = re.compile(r"\w+")
STOP_WORDS = frozenset(  # Lucene's for English
    _WORD.findall(
        "a an and are as at be but by for if in into is it no not of on or such that the their "
        "then there these they this to was will with"
    )
)


class _Options(Record):
    method: Literal["lucene"] = "lucene"
    k1: Constant = 0.9
    b: Constant = 0.4
    stopwords: Literal["english", "none"] = "english"
    stemmer: str = "porter"


class BM25:
    """Rank documents by the words that they share with a query (Robertson and Zaragoza, 2009).

    Args:
        recipe: recipe of kind ``bm25``. Options: ``method`` (``lucene``), ``k1``, ``b``,
            ``stopwords`` (``english`` or ``none``) and ``stemmer`` (``none``, or a Snowball
            algorithm such as ``porter``).

    Raises:
        BenchError: an option or its value is unknown.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._options = convert_table(recipe.options, _Options, "BM25")
        self._stem = _stemmer(self._options.stemmer)
        self._count = 0
        self._words: _Vocabulary
        self._postings: Postings

    def __len__(self) -> int:
        return self._count

    def index(
        self,
        batches: Iterable[tuple[Sequence[str], Sequence[str]]],
        advance: Callback | None = None,
        folder: Path | None = None,
    ) -> None:
        """Index a corpus.

        Memory: see `index_bytes`. Disk: 20 bytes for each distinct word of each document while
        indexing, then 8 until this object is deleted.

        Args:
            batches: titles and texts in row order, some documents at a time.
            advance: called with the number of documents after each batch.
            folder: folder of the temporary files; None for the system's.

        Raises:
            OSError: the disk is full.
        """
        stop = STOP_WORDS if self._options.stopwords == "english" else frozenset[str]()
        words = self._words = _Vocabulary(stop, self._stem)
        with name_path_in_errors(folder or Path(tempfile.gettempdir())):
            writer = PostingsWriter(folder)
            for titles, texts in batches:
                for document in join_documents(self.recipe, titles, texts):
                    writer.add(words.learn(document))
                if advance:
                    advance(len(texts))
            lengths = np.array(writer.lengths)
            self._count = len(lengths)
            idf, mean = self._idf(writer.finish()), lengths.mean() if self._count else 0.0

            def weigh(words: Int32Array, rows: Int32Array, counts: Float32Array) -> Float32Array:
                """Scores with the rounding of bm25s: idf in float32, products in float64."""
                k1, b = self._options.k1, self._options.b
                saturation = k1 * (1 - b + b * lengths[rows] / mean) + counts
                return (idf[words] * (counts / saturation)).astype(np.float32)

            self._postings = writer.merged(weigh)

    def search(self, queries: Sequence[str], k: int) -> Hits:
        """Return the ``k`` best documents of each query, and all that tie with the last of them.

        The width of the result may exceed ``k``, so that the caller can break ties by its own rule;
        equal scores are in no particular order. A document that shares no word with the query is
        not returned.
        """
        ranked = [_rank_rows(self._scores(query), k) for query in queries]
        width = max([k, *(len(rows) for rows, _ in ranked)])
        hits = Hits.empty(len(queries), width)
        for query, (rows, scores) in enumerate(ranked):
            hits.rows[query, : len(rows)] = rows
            hits.scores[query, : len(rows)] = scores
        return hits

    def _scores(self, query: str) -> Float32Array:
        """Return the score of every document, float32 ``(n,)``, 0 without a shared word."""
        scores = np.zeros(self._count, np.float32)
        for word in self._words.known(query):
            rows, weights = self._postings.of(word)
            scores[rows] += weights
        return scores

    def _idf(self, frequencies: Int64Array) -> Float32Array:
        """Return the inverse document frequency of each word, float32."""
        odds = (self._count - frequencies + 0.5) / (frequencies + 0.5)
        distinct, places = np.unique(odds, return_inverse=True)
        values = [math.log(1 + value) for value in distinct.tolist()]  # as bm25s rounds
        return np.array(values, np.float32)[places]


class _Vocabulary:
    """Numbers of stemmed words. Each form of a word is stemmed once while it is cached."""

    def __init__(self, stop: frozenset[str], stem: Callable[[str], str]) -> None:
        self._stop, self._stem = stop, stem
        self._stems: dict[str, int] = {}
        self._forms: dict[str, int] = {}

    def learn(self, text: str) -> list[int]:
        """Return the numbers of the words in ``text``. New words get numbers."""
        words = self._split(text)
        if len(self._forms) > MAX_CACHED_FORMS:
            self._forms.clear()
        for word in words:
            if word not in self._forms:
                self._forms[word] = self._stems.setdefault(self._stem(word), len(self._stems))
        return [self._forms[word] for word in words]

    def known(self, text: str) -> list[int]:
        """Return the numbers of the words in ``text`` that occur in a document."""
        stems = map(self._stem, self._split(text))
        return [self._stems[stem] for stem in stems if stem in self._stems]

    def _split(self, text: str) -> list[str]:
        return [word for word in _WORD.findall(text.lower()) if word not in self._stop]


def index_bytes(documents: int) -> int:
    """Estimate the peak memory in bytes of indexing and searching ``documents`` passages.

    Half a gigabyte for sorting and merging, 16 bytes for each document, and 150 for each different
    word, of which MS MARCO has one for every three passages.
    """
    return min(1 << 29, documents << 12) + documents * (16 + 150 // 3)


def _rank_rows(scores: Float32Array, k: int) -> tuple[Int64Array, Float32Array]:
    """Return rows and scores above 0 of the ``k`` best and their ties, best first."""
    rows = np.flatnonzero(scores > 0)
    if len(rows) > k:
        last = np.partition(scores[rows], -k)[-k]
        rows = rows[scores[rows] >= last]
    rows = rows[np.argsort(-scores[rows], kind="stable")]
    return rows, scores[rows]


def _stemmer(name: str) -> Callable[[str], str]:
    if name == "none":
        return str
    import Stemmer

    if name not in Stemmer.algorithms():
        known = f"Use none or one of {', '.join(Stemmer.algorithms())}."
        raise BenchError(f"there is no stemmer {name!r}", known)
    stem: Callable[[str], str] = Stemmer.Stemmer(name).stemWord
    return stem


BLOCK_WORDS = 1 << 22  # words sorted at a time: 200 MB
MERGED_POSTINGS = 1 << 22  # postings merged at a time: 60 bytes each

# Maps words, rows, and counts of the word in the document to the weights of postings.
Weigh: TypeAlias = Callable[[Int32Array, Int32Array, Float32Array], Float32Array]
_Records: TypeAlias = npt.NDArray[Any]
_POSTING = np.dtype([("row", "<i4"), ("weight", "<f4")])
_COUNTED = np.dtype([("word", "<i4"), ("row", "<i4"), ("count", "<f4")])


class Postings:
    """Rows and weights of each word, in a file that is deleted with this object."""

    def __init__(self, file: IO[bytes], starts: Int64Array) -> None:
        self._file = file
        self._starts = starts
        weakref.finalize(self, file.close)

    def of(self, word: int) -> tuple[Int32Array, Float32Array]:
        """Return ascending rows of the documents with word number ``word``, and its weights."""
        first, end = self._starts[word : word + 2].tolist()
        records = _read_records(self._file, _POSTING, first, end)
        return records["row"], records["weight"]


class PostingsWriter:
    """Builder of postings from documents that arrive one by one.

    Args:
        folder: folder of unnamed files: 20 bytes for each posting until all are merged, then 8.

    Attributes:
        lengths: number of words of each document so far.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.lengths = array("i")
        self._words = array("i")
        self._folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._frequencies: Int64Array = np.empty(0, np.int64)
        self._ends = [0]  # ends of the blocks, after the start of the first
        self._rows = 0  # documents in blocks

    def add(self, words: Sequence[int]) -> None:
        """Append a document with the word numbers ``words``."""
        self._words.extend(words)
        self.lengths.append(len(words))
        if len(self._words) >= BLOCK_WORDS:
            self._write_block()

    def finish(self) -> Int64Array:
        """Return the document frequency of each word, int64 ``(words,)``, when all are added."""
        self._write_block()
        self._file.flush()
        return self._frequencies

    def merged(self, weigh: Weigh) -> Postings:
        """Merge the blocks into postings with the weights of ``weigh``, and delete their file."""
        starts = np.concatenate([[0], np.cumsum(self._frequencies)])
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        with self._file:
            places = self._ends[:-1]
            for first, end in _word_ranges(starts):
                counted = np.empty(starts[end] - starts[first], _COUNTED)
                free = starts[first:end] - starts[first]
                for block, (place, stop) in enumerate(zip(places, self._ends[1:], strict=True)):
                    places[block] = bisect_left(range(stop), end, lo=place, key=self._word_at)
                    some = _read_records(self._file, _COUNTED, place, places[block])
                    words = some["word"] - first
                    beginnings = _find_run_starts(words)
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
        return int(_read_records(self._file, _COUNTED, place, place + 1)["word"][0])

    def _write_block(self) -> None:
        lengths = np.array(self.lengths[self._rows :], np.intc)
        rows = np.repeat(np.arange(self._rows, len(self.lengths)), lengths)
        keys = np.array(self._words, np.int64) << 32 | rows
        self._words, self._rows = array("i"), len(self.lengths)
        keys.sort()
        beginnings = _find_run_starts(keys)
        counted = np.empty(len(beginnings), _COUNTED)
        counted["count"] = np.diff(beginnings, append=len(keys))
        keys = keys[beginnings]
        counted["word"], counted["row"] = keys >> 32, keys & 0xFFFFFFFF
        frequencies = np.bincount(counted["word"], minlength=len(self._frequencies))
        frequencies[: len(self._frequencies)] += self._frequencies
        self._frequencies = frequencies
        self._ends.append(self._ends[-1] + len(counted))
        self._file.write(counted.data)


def _word_ranges(starts: Int64Array) -> Iterator[tuple[int, int]]:
    """Yield ranges of words to merge together: few postings in total, or a single word."""
    first, count = 0, len(starts) - 1
    while first < count:
        fitting = np.searchsorted(starts, starts[first] + MERGED_POSTINGS, side="right") - 1
        yield first, (first := max(first + 1, int(fitting)))


def _read_records(file: IO[bytes], kind: np.dtype[Any], first: int, end: int) -> _Records:
    content = os.pread(file.fileno(), (end - first) * kind.itemsize, first * kind.itemsize)
    return np.frombuffer(content, kind)


def _find_run_starts(ordered: npt.NDArray[np.integer]) -> Int64Array:
    """Return the position of the first of each run of equal values."""
    return np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
