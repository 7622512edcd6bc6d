"""BM25, the lexical baseline.

What differs from the BM25 of Anserini (Lucene), and so from published figures: document lengths
are exact, Lucene stores them in one byte; words are runs of letters, digits and underscores,
Lucene splits by Unicode rules and drops a possessive 's. Alike: k1 = 0.9 and b = 0.4, Lucene's
formula, its 33 English stop words, Porter's stemmer, and a word that is twice in the query counts
twice.
"""

import math
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foundation.arrays import Float32Array, Int32Array, Int64Array
from foundation.errors import BenchError, did_you_mean, naming
from retrievers.encoders.document_text import joined
from retrievers.encoders.postings import Postings, PostingsWriter
from retrievers.encoders.protocol import Advance
from retrievers.index.faiss_index import Hits
from retrievers.models.recipe import Option, Recipe

DEFAULTS: dict[str, Option] = {
    "method": "lucene",
    "k1": 0.9,
    "b": 0.4,
    "stopwords": "english",
    "stemmer": "porter",
}
LARGEST = 1_000_000  # of k1 and b: scores of float32 stay finite
METHODS = ("lucene", "robertson", "atire")  # those in which a document without the words scores 0
MOST_WORDS = 1 << 19  # forms of words that are remembered: 90 MB
_WORD = re.compile(r"\w+")
STOP_WORDS = frozenset(  # Lucene's for English
    _WORD.findall(
        "a an and are as at be but by for if in into is it no not of on or such that the their "
        "then there these they this to was will with"
    )
)


class BM25:
    """Documents ranked by the words that they share with a query (Robertson and Zaragoza, 2009).

    Args:
        recipe: of kind ``bm25``. Options: ``method``, ``k1``, ``b``, ``stopwords`` (``english``
            or ``none``) and ``stemmer`` (``none``, or a Snowball algorithm such as ``porter``).

    Raises:
        BenchError: an unknown option or value.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        options = _checked(recipe.options)
        stop, stem = _stopwords(str(options["stopwords"])), _stemmer(str(options["stemmer"]))
        self._words = _Words(stop, stem)
        self._method = str(options["method"])
        self._k1, self._b = float(options["k1"]), float(options["b"])
        self._count = 0
        self._postings: Postings

    def __len__(self) -> int:
        return self._count

    def index(
        self,
        batches: Iterable[tuple[Sequence[str], Sequence[str]]],
        advance: Advance | None = None,
        folder: Path | None = None,
    ) -> None:
        """Index a corpus, given as batches of titles and texts in row order.

        Memory: see `index_bytes`. Disk: 20 bytes for each distinct word of each document, and then
        8 until this object ends.

        Args:
            folder: where that is; None for the system's folder of temporary files.

        Raises:
            OSError: no space is left.
        """
        words = self._words = self._words.empty()
        with naming(folder or Path(tempfile.gettempdir())):
            writer = PostingsWriter(folder)
            for titles, texts in batches:
                for document in joined(self.recipe, titles, texts):
                    writer.add(words.learn(document))
                if advance:
                    advance(len(texts))
            lengths = np.array(writer.lengths)
            self._count = len(lengths)
            idf, mean = self._idf(writer.finish()), lengths.mean() if self._count else 0.0

            def weigh(words: Int32Array, rows: Int32Array, counts: Float32Array) -> Float32Array:
                """Scores with the rounding of bm25s: idf in float32, products in float64."""
                k1, b = self._k1, self._b
                saturation = k1 * (1 - b + b * lengths[rows] / mean) + counts
                shares = (counts * (k1 + 1) if self._method == "atire" else counts) / saturation
                return (idf[words] * shares).astype(np.float32)

            self._postings = writer.merged(weigh)

    def search(self, queries: Sequence[str], k: int) -> Hits:
        """The k best documents of each query, and all that tie with the last of them.

        So that the caller can cut ties in its own order, the width may pass k; it holds no order
        among equal scores. A document that shares no word with the query is never a hit.
        """
        ranked = [_best(self._scores(query), k) for query in queries]
        width = max([k, *(len(rows) for rows, _ in ranked)])
        rows = np.full((len(queries), width), -1, np.int64)
        scores = np.full((len(queries), width), -np.inf, np.float32)
        for place, (own_rows, own_scores) in enumerate(ranked):
            rows[place, : len(own_rows)] = own_rows
            scores[place, : len(own_rows)] = own_scores
        return Hits(scores, rows)

    def _scores(self, query: str) -> Float32Array:
        """Score of every document, float32 ``(n,)``; 0 without a shared word."""
        scores = np.zeros(self._count, np.float32)
        for word in self._words.known(query):
            rows, weights = self._postings.of(word)
            scores[rows] += weights
        return scores

    def _idf(self, frequencies: Int64Array) -> Float32Array:
        """Inverse document frequency of each word, float32."""
        count, method = self._count, self._method

        def idf(frequency: int) -> float:
            if method == "atire":
                return math.log(count / frequency)
            odds = (count - frequency + 0.5) / (frequency + 0.5)
            return math.log(1 + odds if method == "lucene" else max(1.0, odds))

        distinct, places = np.unique(frequencies, return_inverse=True)
        values: Float32Array = np.array([idf(value) for value in distinct.tolist()], np.float32)
        return values[places]


class _Words:
    """Text to numbers of stemmed words; each form of a word is stemmed once while it is known.

    Attributes:
        vocabulary: number of each stem.
    """

    def __init__(self, stop: frozenset[str], stem: Callable[[str], str]) -> None:
        self.vocabulary: dict[str, int] = {}
        self._stop = stop
        self._stem = stem
        self._numbers: dict[str, int] = {}

    def empty(self) -> "_Words":
        """The same rules with an empty vocabulary."""
        return _Words(self._stop, self._stem)

    def learn(self, text: str) -> list[int]:
        """Numbers of the words that are not stop words; new words get new numbers."""
        words = self._split(text)
        if len(self._numbers) > MOST_WORDS:
            self._numbers.clear()
        for word in words:
            if word not in self._numbers:
                stem = self._stem(word)
                self._numbers[word] = self.vocabulary.setdefault(stem, len(self.vocabulary))
        return [self._numbers[word] for word in words]

    def known(self, text: str) -> list[int]:
        """The same, without words that no document has."""
        stems = map(self._stem, self._split(text))
        return [self.vocabulary[stem] for stem in stems if stem in self.vocabulary]

    def _split(self, text: str) -> list[str]:
        return [word for word in _WORD.findall(text.lower()) if word not in self._stop]


def index_bytes(documents: int) -> int:
    """Most memory that indexing and searching takes, for passages: by estimate.

    Half a gigabyte for what is sorted and merged at a time, 16 bytes for each document, and 150 for
    each different word: MS MARCO has one for three passages.
    """
    return min(1 << 29, documents << 12) + documents * (16 + 150 // 3)


def _best(scores: Float32Array, k: int) -> tuple[Int64Array, Float32Array]:
    """Rows and scores of the k best and of what ties with the last, best first; none of 0."""
    rows = np.flatnonzero(scores > 0)
    if len(rows) > k:
        last = np.partition(scores[rows], -k)[-k]
        rows = rows[scores[rows] >= last]
    rows = rows[np.argsort(-scores[rows], kind="stable")]
    return rows, scores[rows]


def _checked(options: dict[str, Option]) -> dict[str, Any]:
    for name in options:
        if name not in DEFAULTS:
            known = f"its options: {', '.join(DEFAULTS)}"
            raise BenchError(f"BM25 has no option {name!r}", did_you_mean(name, DEFAULTS, known))
    merged = DEFAULTS | options
    if merged["method"] not in METHODS:
        raise BenchError(f"BM25 has no method {merged['method']!r}", f"use one of {METHODS}")
    for name in ("k1", "b"):
        value = merged[name]
        if isinstance(value, str | bool) or not 0 <= value <= LARGEST:
            raise BenchError(f"BM25: {name} = {value!r} is not a number from 0 to {LARGEST:,}")
    return merged


def _stopwords(name: str) -> frozenset[str]:
    if name == "none":
        return frozenset()
    if name != "english":
        raise BenchError(f"BM25 has no stop words {name!r}", "use english or none")
    return STOP_WORDS


def _stemmer(name: str) -> Callable[[str], str]:
    if name == "none":
        return str
    import Stemmer

    if name not in Stemmer.algorithms():
        raise BenchError(
            f"there is no stemmer {name!r}", f"use none or one of {Stemmer.algorithms()}"
        )
    stem: Callable[[str], str] = Stemmer.Stemmer(name).stemWord
    return stem
