"""BM25, the lexical baseline, on bm25s.

What differs from the BM25 of Anserini (Lucene), and so from published figures: document lengths
are exact, Lucene stores them in one byte; words are runs of letters, digits and underscores,
Lucene splits by Unicode rules and drops a possessive 's. Alike: k1 = 0.9 and b = 0.4, Lucene's
formula, its 33 English stop words, Porter's stemmer, and a word that is twice in the query counts
twice.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from foundation.suggestions import did_you_mean
from retrievers.encoders.document_text import joined
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
_WORD = re.compile(r"\w+")


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
        self._scorer: Any = None

    def __len__(self) -> int:
        return self._count

    def index(
        self,
        batches: Iterable[tuple[Sequence[str], Sequence[str]]],
        advance: Advance | None = None,
    ) -> None:
        """Index a corpus, given as batches of titles and texts in row order.

        Holds 4 bytes for each word of the corpus while it reads, and then about 16 for each
        distinct word of each document while it builds.
        """
        import bm25s

        words = self._words = self._words.empty()
        documents: list[array[int]] = []
        for titles, texts in batches:
            documents += map(words.learn, joined(self.recipe, titles, texts))
            if advance:
                advance(len(texts))
        self._count = len(documents)
        if not words.vocabulary:
            return
        self._scorer = bm25s.BM25(k1=self._k1, b=self._b, method=self._method, backend="numpy")
        self._scorer.index(
            (documents, dict(words.vocabulary)), create_empty_token=False, show_progress=False
        )

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
        known = self._words.known(query)
        if not known:
            return np.zeros(self._count, np.float32)
        scores: Float32Array = self._scorer.get_scores_from_ids(known)
        return scores


class _Words:
    """Text to numbers of stemmed words; each form of a word is stemmed once.

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

    def learn(self, text: str) -> "array[int]":
        """Numbers of the words that are not stop words; new words get new numbers."""
        words = self._split(text)
        for word in words:
            if word not in self._numbers:
                stem = self._stem(word)
                self._numbers[word] = self.vocabulary.setdefault(stem, len(self.vocabulary))
        return array("i", [self._numbers[word] for word in words])

    def known(self, text: str) -> list[int]:
        """The same, without words that no document has."""
        stems = map(self._stem, self._split(text))
        return [self.vocabulary[stem] for stem in stems if stem in self.vocabulary]

    def _split(self, text: str) -> list[str]:
        return [word for word in _WORD.findall(text.lower()) if word not in self._stop]


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
    from bm25s.stopwords import STOPWORDS_EN

    return frozenset(STOPWORDS_EN)


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
