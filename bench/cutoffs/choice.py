"""Choice of a cut-off, from the scores of rankings and the relevance of their documents alone.

A cut-off c keeps the documents that score c or more. The loss of a query is the share of its
relevant documents, among those that a search returns, which score less. All cut-offs are tested
from low to high, each at the full level, until the first whose mean loss may exceed ``1 - keep``
(learn then test: Angelopoulos et al., 2021, https://arxiv.org/abs/2110.01052). The sequence is
fixed: it contains every number. Between two scores of relevant documents no loss changes, so these
scores are all that must be computed. As losses rise with the cut-off, and bounds with losses, the
last one that passes is found by bisection. ``docs/explanation/cutoff.md`` has the argument.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bench.gate.decision import DRAWS, LEVEL, draw_means, queries_needed, upper_bound
from foundation.arrays import BoolArray, Float32Array, Float64Array, Int64Array

MeanBound = Callable[[Float64Array], float]


@dataclass(frozen=True)
class ScoredRankings:
    """Rankings of queries, as scores and relevance.

    Attributes:
        scores: float32 ``(queries, depth)``, falling; -inf beyond the end of a ranking.
        relevant: bool ``(queries, depth)``.
        at: number of documents that a search returns.
    """

    scores: Float32Array
    relevant: BoolArray
    at: int

    @cached_property
    def answered(self) -> "ScoredRankings":
        """The queries with a relevant document among those that are returned."""
        return self.take(np.flatnonzero(self.relevant[:, : self.at].any(axis=1)))

    def take(self, rows: Int64Array) -> "ScoredRankings":
        """Return the rankings of the queries in these rows."""
        return ScoredRankings(self.scores[rows], self.relevant[rows], self.at)

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def has_only_ranks(self) -> bool:
        """True if scores fall from rank to rank in the same way for all queries."""
        longest = self.scores.max(axis=0, initial=-np.inf)
        follows = (self.scores == longest) | np.isneginf(self.scores)
        return len(longest) > 1 and bool(follows.all() and (np.diff(longest) < 0).all())

    @cached_property
    def relevant_scores(self) -> Float32Array:
        """Distinct scores of returned relevant documents, rising."""
        return np.unique(self.scores[:, : self.at][self.relevant[:, : self.at]])

    def kept(self, cutoff: float) -> Float64Array:
        """Return the share of each query's returned relevant documents that score ``cutoff``.

        The result is float64 ``(queries,)``, for queries that all have such a document.
        """
        returned, wanted = self.scores[:, : self.at], self.relevant[:, : self.at]
        shares: Float64Array = (wanted & (returned >= cutoff)).sum(axis=1) / wanted.sum(axis=1)
        return shares

    @cached_property
    def best_relevant(self) -> Float32Array:
        """Highest score of a relevant document of each query, or -inf, float32 ``(queries,)``."""
        return _row_maximum(np.where(self.relevant, self.scores, -np.inf))

    @cached_property
    def best_other(self) -> Float32Array:
        """Highest score of each query after its relevant documents were taken out.

        It is -inf if nothing is left, and NaN if more than that was cut off: if nothing is left of
        one of the longest rankings. float32 ``(queries,)``.
        """
        best = _row_maximum(np.where(self.relevant, -np.inf, self.scores))
        cut = self.relevant.all(axis=1) & (self.scores.shape[1] > 0)
        return np.where(cut, np.nan, best).astype(np.float32)


def _row_maximum(scores: Float32Array) -> Float32Array:
    """Return the maximum of each row, or -inf for rows of no columns."""
    best: Float32Array = scores.max(axis=1, initial=-np.inf)
    return best


def lower_bound(kept: Float64Array, draws: int = DRAWS, level: float = LEVEL) -> float:
    """Return the lower bound of the mean of shares ``kept``, float64 ``(queries,)``."""
    return 1 - upper_bound([draw_means(1 - kept, draws)], level=level)


def lower_bounds(kept: Float64Array) -> list[float]:
    """Return the lower bound for each column of ``kept``, float64 ``(queries, cut-offs)``."""
    drawn = draw_means(1 - kept)
    return [1 - upper_bound([replace(drawn, means=means)]) for means in drawn.means.T]


def least_queries(keep: float, level: float = LEVEL) -> int | None:
    """Return how many queries that lose nothing prove ``keep``; None if ten million do not."""
    return queries_needed([draw_means(np.zeros(1))], [1.0], 1 - keep, level)


def choose_cutoff(
    parts: Sequence[ScoredRankings], keep: Sequence[float], estimate: MeanBound = lower_bound
) -> float | None:
    """Return the highest cut-off that keeps enough on each part, or None if none does.

    Args:
        parts: rankings with a relevant document among those that are returned.
        keep: share to keep of each part.
        estimate: of the mean of kept shares. It never falls when one of them rises.
    """
    cutoffs = np.unique(np.concatenate([part.relevant_scores for part in parts]))

    def fails(cutoff: np.float32) -> bool:
        pairs = zip(parts, keep, strict=True)
        return any(estimate(part.kept(float(cutoff))) < share for part, share in pairs)

    passed = bisect_left(cutoffs, True, key=fails)
    return float(cutoffs[passed - 1]) if passed else None
