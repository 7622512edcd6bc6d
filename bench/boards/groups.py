"""Intervals of means, and groups of models in place of ranks.

Neighbours on a leaderboard can seldom be told apart. A group is led by its best model and ends
before the first one that is worse at the 5 % level: paired sign flips of the queries, Holm over
the pairs with the leader. That model leads the next group.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.boards.pairs import PairWork
from bench.comparing.statistics import (
    ALPHA,
    SAME_MEAN,
    Resampled,
    Resampling,
    holm,
    resample,
    stream_of,
)
from bench.evaluate.suites import suite_weights
from bench.results.location import Place
from bench.results.result import Evaluation
from foundation.arrays import Float64Array
from foundation.errors import BenchError


@dataclass(frozen=True)
class Standing:
    """Where a mean stands: limits of its 95 % bootstrap interval, and its group (1 is the best)."""

    low: float
    high: float
    group: int


Values = tuple[tuple[str, ...], Mapping[str, Float64Array]]  # ids of queries, values by measure
Standings = dict[tuple[str, str], dict[str, Standing]]  # (column or suite, measure) -> row -> it


@dataclass(frozen=True)
class _Means:
    """Means of some rows, over all queries and over resampled ones.

    Attributes:
        exact: float64 ``(m,)``.
        drawn: as `Resampled`.
        columns: how many collections went into them.
    """

    rows: tuple[str, ...]
    exact: Float64Array
    drawn: Resampled
    columns: int = 1

    def plus(self, weight: float, other: "_Means") -> "_Means":
        """This sum and another weighted part, for the rows that are in both."""
        rows = tuple(row for row in self.rows if row in other.rows)
        mine, theirs = ([side.rows.index(row) for row in rows] for side in (self, other))
        bootstrap = self.drawn.bootstrap[:, mine] + weight * other.drawn.bootstrap[:, theirs]
        flipped = self.drawn.flipped[:, mine] + weight * other.drawn.flipped[:, theirs]
        exact = self.exact[mine] + weight * other.exact[theirs]
        return _Means(rows, exact, Resampled(bootstrap, flipped), self.columns + 1)

    def times(self, weight: float) -> "_Means":
        """The first part of a weighted sum."""
        drawn = Resampled(weight * self.drawn.bootstrap, weight * self.drawn.flipped)
        return _Means(self.rows, weight * self.exact, drawn)


def standings(
    by_row: Mapping[str, Mapping[str, Evaluation]],
    wanted: Mapping[str, Sequence[str]],
    suites: Collection[str],
    pairs: PairWork,
    resampling: Resampling,
    advance: Callable[[int], None],
) -> Standings:
    """Intervals and groups in every column and, where every member has scores, in every suite.

    Args:
        by_row: result by name of column, by name of row.
        wanted: measures that are resampled, by column; the first is its main one.
        pairs: are compared on the way, by the main measures.
        advance: called with 1 after each column.

    Raises:
        BenchError: values of queries are damaged, or are of other queries; or too few resamples
            for so many models.
    """
    _check_resamples(by_row, wanted, resampling)
    by_column: Standings = {}
    sums: dict[tuple[str, str], _Means] = {}
    weights = {suite: suite_weights(suite) for suite in suites}
    weights = {suite: some for suite, some in weights.items() if _is_filled(by_row, some)}
    for column in wanted:
        results = {row: cells[column] for row, cells in by_row.items() if column in cells}
        for measure, ids, scores, means in _resampled(
            results, wanted[column], resampling, stream_of(column)
        ):
            by_column[column, measure] = _stand(means)
            if measure == wanted[column][0]:
                pairs.add(column, measure, means.rows, ids, scores, means.drawn)
            for suite, shares in weights.items():
                if column in shares:
                    earlier = sums.get((suite, measure))
                    sums[suite, measure] = (
                        earlier.plus(shares[column], means)
                        if earlier
                        else means.times(shares[column])
                    )
        advance(1)
    whole = {key: total for key, total in sums.items() if total.columns == len(weights[key[0]])}
    return by_column | {key: _stand(total) for key, total in whole.items()}


def _check_resamples(
    by_row: Mapping[str, Mapping[str, Evaluation]], columns: Collection[str], resampling: Resampling
) -> None:
    """The smallest p that resamples can give must survive Holm, or all models are one group."""
    most = max(sum(column in cells for cells in by_row.values()) for column in columns)
    resampling.check_enough(most - 1)


def _is_filled(by_row: Mapping[str, Mapping[str, Evaluation]], columns: Collection[str]) -> bool:
    """True where a row has a result in every one of the columns."""
    return any(set(columns) <= set(cells) for cells in by_row.values())


def _resampled(
    by_row: Mapping[str, Evaluation], measures: Sequence[str], resampling: Resampling, stream: int
) -> Iterator[tuple[str, list[str], Float64Array, _Means]]:
    """Measure, ids, scores by query and row, and means, of the rows that have values of queries.

    All measures are resampled at once: drawing the queries takes longer than the products.
    """
    loaded = {row: _load(stored) for row, stored in by_row.items()}
    known = {row: values for row, values in loaded.items() if values is not None}
    cells = [(name, row) for name in measures for row in known if name in known[row][1]]
    if not cells:
        return
    ids = sorted(known[cells[0][1]][0])
    scores = _aligned(ids, [(known[row], name) for name, row in cells], by_row[cells[0][1]].folder)
    drawn = resample(scores, resampling, stream)
    for measure in dict.fromkeys(name for name, _ in cells):
        own = [place for place, (name, _) in enumerate(cells) if name == measure]
        some = Resampled(drawn.bootstrap[:, own], drawn.flipped[:, own])
        names = tuple(cells[place][1] for place in own)
        yield measure, ids, scores[:, own], _Means(names, scores[:, own].mean(axis=0), some)


def _load(stored: Evaluation) -> Values | None:
    """Values by query; None for an older record that came without them."""
    return (stored.scores.query_ids, stored.scores.values) if stored.has_scores else None


def _aligned(
    ids: Sequence[str], cells: Sequence[tuple[Values, str]], folder: Place | None
) -> Float64Array:
    """Scores float64 ``(queries, cells)``, the queries sorted, so that no order changes a draw.

    Args:
        ids: of the queries, sorted.
        cells: values of a row, and a measure.
        folder: of the first row.
    """
    orders: dict[tuple[str, ...], list[int]] = {}
    columns = []
    for (own, values), measure in cells:
        if own not in orders:
            orders[own] = sorted(range(len(own)), key=own.__getitem__)
            if [own[place] for place in orders[own]] != ids:
                raise BenchError(
                    f"results beside {folder} are of other queries though their protocol is the "
                    "same",
                    "a file of one of them was changed: evaluate again",
                )
        columns.append(values[measure][orders[own]])
    return np.stack(columns, axis=1)


def _stand(means: _Means) -> dict[str, Standing]:
    low, high = np.quantile(means.drawn.bootstrap, [ALPHA / 2, 1 - ALPHA / 2], axis=0)
    group = groups(means.exact, means.drawn.flipped)
    return {
        row: Standing(float(low[place]), float(high[place]), group[place])
        for place, row in enumerate(means.rows)
    }


def groups(means: Float64Array, flipped: Float64Array) -> list[int]:
    """Number of the group of each model, 1 for the best.

    Args:
        means: float64 ``(m,)``.
        flipped: float64 ``(resamples, m)``: means with random signs, the same for every model.
    """
    order = np.argsort(-means, kind="stable")
    signs = np.ascontiguousarray(flipped.T[order])
    numbers, start, group = [0] * len(means), 0, 0
    while start < len(order):
        group += 1
        behind = means[order[start]] - means[order[start + 1 :]]
        size = 1 + _not_separable(behind, signs[start] - signs[start + 1 :])
        for place in order[start : start + size]:
            numbers[place] = group
        start += size
    return numbers


def _not_separable(behind: Float64Array, flipped: Float64Array) -> int:
    """Number of models in a row that are not worse than the leader at the 5 % level.

    Args:
        behind: float64 ``(m,)``, leader minus model, rising.
        flipped: float64 ``(m, resamples)``, the same with random signs.
    """
    as_far = (np.abs(flipped) >= behind[:, None] - SAME_MEAN).sum(axis=1)
    adjusted = holm(((1 + as_far) / (1 + flipped.shape[1])).tolist())
    return next((place for place, p in enumerate(adjusted) if p <= ALPHA), len(adjusted))
