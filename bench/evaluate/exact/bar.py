"""The bar: a score that k documents reach, below which no other is among the best k."""

from dataclasses import dataclass

import numpy as np

from bench.evaluate.exact.best import Beside, Best
from bench.evaluate.exact.bounds import lowest_score, reached_score
from bench.evaluate.exact.candidates import Pairs
from bench.evaluate.search import scores_of_keys
from foundation.arrays import Float32Array, Float64Array


@dataclass(frozen=True)
class Bar:
    """The best k scores of each query that some documents have, proposed or exact, ``(q, k)``.

    A slice is a view: what is merged into it is merged into the whole.

    Attributes:
        scores: of k different documents; -inf where there are not yet k.
        exact: the k-th exact one, ``(q,)``.
        error: of a proposed score, ``(q,)``.
    """

    scores: Float32Array
    exact: Float32Array
    error: Float64Array

    @classmethod
    def of(cls, best: Best, error: Float64Array) -> "Bar":
        """The bar while all scores are exact."""
        return cls(scores_of_keys(best.keys), best.last_score, error)

    def __getitem__(self, queries: slice) -> "Bar":
        return Bar(self.scores[queries], self.exact[queries], self.error[queries])

    def merge(self, pairs: Pairs) -> None:
        """Raise the bar by scores of other documents than those it has."""
        beside = Beside.of(pairs.queries, *self.scores.shape)
        scores = beside.put(self.scores, pairs.scores, np.float32(-np.inf))
        self.scores[beside.asked] = np.partition(scores, beside.width, axis=1)[:, beside.width :]

    def lowest(self) -> Float32Array:
        """The proposed score below which a document is not among the best k, ``(q,)``."""
        reached = reached_score(self.scores.min(axis=1), self.error)
        return lowest_score(np.maximum(self.exact, reached), self.error)
