"""Intervals of means, and groups of models that do not differ significantly, instead of ranks.

Neighbours on a leaderboard rarely differ significantly. A group is led by its best model and ends
before the first model that is worse at the 5 % level, by paired sign flips of the queries with
Holm's correction over the pairs with the leader. That model leads the next group.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bench.comparing.pairs import ComparedModel, ComparisonSettings, read_scores
from bench.comparing.statistics import (
    ALPHA,
    SAME_MEAN,
    ResampledMeans,
    Resampling,
    ScoreMatrix,
    holm,
    random_stream,
    resample,
)
from bench.evaluation.judging import suite_weights
from bench.evaluation.result_record import Evaluation
from foundation.arrays import Float64Array

ByRow = Mapping[str, Mapping[str, Evaluation]]  # name of row -> name of column -> result


class RankGroup(NamedTuple):
    """Position of a mean score.

    Attributes:
        low, high: limits of its 95 % bootstrap interval.
        group: number of its group, 1 for the best.
    """

    low: float
    high: float
    group: int


RankGroups = dict[tuple[str, str, str], RankGroup]  # (row, column or suite, measure)


def compute_rank_groups(
    by_row: ByRow,
    wanted: Mapping[str, Sequence[str]],
    suites: Collection[str],
    resampling: Resampling,
    advance: Callable[[int], None],
) -> RankGroups:
    """Compute intervals and groups in every column, and in every suite with complete rows.

    Args:
        by_row: results by name of row, then by name of column.
        wanted: measures to resample, by column.
        suites: names of the suites.
        resampling: number of resamples, and seed.
        advance: called with 1 after each column.

    Raises:
        BenchError: per-query scores are damaged or of different queries, or there are too few
            resamples for so many models.
    """
    most = max(sum(column in cells for cells in by_row.values()) for column in wanted)
    resampling.check_enough(most - 1)  # with fewer, all models would form one group
    ranked: RankGroups = {}
    weights = {suite: suite_weights(suite) for suite in suites}
    sums: dict[tuple[str, str], _SuiteMeans] = {}
    for column, measures in wanted.items():
        results = {row: cells[column] for row, cells in by_row.items() if column in cells}
        for matrix in _matrices(column, results, measures, resampling):
            means = matrix.scores.mean(axis=0)
            ranked |= _rank(column, matrix.measure, list(matrix.columns), means, matrix.resampled)
            for suite in (suite for suite, shares in weights.items() if column in shares):
                key = (suite, matrix.measure)
                if key not in sums:
                    sums[key] = _SuiteMeans(_complete_rows(by_row, weights[suite], matrix.measure))
                sums[key].add(weights[suite][column], matrix, means)
        advance(1)
    for (suite, measure), total in sums.items():
        if total.rows:
            ranked |= _rank(suite, measure, total.rows, total.means, total.drawn)
    return ranked


class _SuiteMeans:
    """Running weighted means over the collections of a suite, for rows with scores on each."""

    def __init__(self, rows: Sequence[str]) -> None:
        self.rows = rows
        self.means: Float64Array = np.zeros(len(rows))
        self.drawn = ResampledMeans(np.zeros((1, len(rows))), np.zeros((1, len(rows))))

    def add(self, weight: float, matrix: ScoreMatrix, means: Float64Array) -> None:
        """Add one collection with its weight."""
        of_rows = [matrix.columns[row] for row in self.rows]
        self.means = self.means + weight * means[of_rows]
        self.drawn = ResampledMeans(
            self.drawn.bootstrap + weight * matrix.resampled.bootstrap[:, of_rows],
            self.drawn.flipped + weight * matrix.resampled.flipped[:, of_rows],
        )


def _complete_rows(by_row: ByRow, shares: Mapping[str, float], measure: str) -> list[str]:
    """Return the rows with scores on every collection of a suite."""
    return [
        row
        for row, cells in by_row.items()
        if all(column in cells and measure in cells[column].scores.values for column in shares)
    ]


def _matrices(
    column: str, results: Mapping[str, Evaluation], measures: Sequence[str], resampling: Resampling
) -> Iterator[ScoreMatrix]:
    """Yield the scores of the rows, by each measure.

    All measures are resampled at once, since drawing the queries takes longer than the products.
    """
    models = [ComparedModel(row, {column: one}) for row, one in results.items()]
    variants = [ComparisonSettings(measure, resampling=resampling) for measure in measures]
    matrices = [read_scores(column, models, settings) for settings in variants if models]
    matrices = [matrix for matrix in matrices if matrix.columns]
    if not matrices:
        return
    every = np.concatenate([matrix.scores for matrix in matrices], axis=1)
    drawn = resample(every, resampling, random_stream(column))
    start = 0
    for matrix in matrices:
        of_rows = slice(start, start + len(matrix.columns))
        start = of_rows.stop
        columns = ResampledMeans(drawn.bootstrap[:, of_rows], drawn.flipped[:, of_rows])
        yield replace(matrix, drawn=columns)


def _rank(
    column: str, measure: str, rows: Sequence[str], means: Float64Array, drawn: ResampledMeans
) -> RankGroups:
    low, high = np.quantile(drawn.bootstrap, [ALPHA / 2, 1 - ALPHA / 2], axis=0)
    group = assign_groups(means, drawn.flipped)
    return {
        (row, column, measure): RankGroup(float(low[number]), float(high[number]), group[number])
        for number, row in enumerate(rows)
    }


def assign_groups(means: Float64Array, flipped: Float64Array) -> list[int]:
    """Assign each model to a group, 1 for the best.

    Args:
        means: float64 ``(models,)``.
        flipped: float64 ``(resamples, models)``, means under random signs, the same for every
            model.
    """
    order = np.argsort(-means, kind="stable")
    signs = np.ascontiguousarray(flipped.T[order])
    numbers, start, group = [0] * len(means), 0, 0
    while start < len(order):
        group += 1
        behind = means[order[start]] - means[order[start + 1 :]]
        size = 1 + _count_not_worse(behind, signs[start] - signs[start + 1 :])
        for index in order[start : start + size]:
            numbers[index] = group
        start += size
    return numbers


def _count_not_worse(behind: Float64Array, flipped: Float64Array) -> int:
    """Return the number of models in a row that are not worse than the leader at the 5 % level.

    Args:
        behind: float64 ``(models,)``, leader minus model, rising.
        flipped: float64 ``(models, resamples)``, the same under random signs.
    """
    as_far = (np.abs(flipped) >= behind[:, None] - SAME_MEAN).sum(axis=1)
    adjusted = holm(((1 + as_far) / (1 + flipped.shape[1])).tolist())
    return next((count for count, p in enumerate(adjusted) if p <= ALPHA), len(adjusted))
