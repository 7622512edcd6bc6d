"""Intervals of means, and groups of models in place of ranks.

Neighbours on a leaderboard can seldom be told apart. A group is led by its best model and ends
before the first one that is worse at the 5 % level: paired sign flips of the queries, Holm over
the pairs with the leader. That model leads the next group.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.compare import suite_weights
from bench.errors import BenchError
from bench.results import SCORES_FILE
from bench.statistics import ALPHA, SAME_MEAN, Floats, Resampled, Resampling, holm, resample
from bench.stored import Stored


@dataclass(frozen=True)
class Standing:
    """Where a mean stands: limits of its 95 % bootstrap interval, and its group (1 is the best)."""

    low: float
    high: float
    group: int


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
    exact: Floats
    drawn: Resampled
    columns: int = 1

    def plus(self, weight: float, other: "_Means") -> "_Means":
        """This sum and another weighted part, for the rows that are in both."""
        rows = tuple(row for row in self.rows if row in other.rows)
        mine, theirs = ([one.rows.index(row) for row in rows] for one in (self, other))
        bootstrap = self.drawn.bootstrap[:, mine] + weight * other.drawn.bootstrap[:, theirs]
        flipped = self.drawn.flipped[:, mine] + weight * other.drawn.flipped[:, theirs]
        exact = self.exact[mine] + weight * other.exact[theirs]
        return _Means(rows, exact, Resampled(bootstrap, flipped), self.columns + 1)

    def times(self, weight: float) -> "_Means":
        """The first part of a weighted sum."""
        drawn = Resampled(weight * self.drawn.bootstrap, weight * self.drawn.flipped)
        return _Means(self.rows, weight * self.exact, drawn)


def standings(
    by_row: Mapping[str, Mapping[str, Stored]],
    wanted: Mapping[str, Collection[str]],
    suites: Collection[str],
    resampling: Resampling,
    advance: Callable[[int], None],
) -> Standings:
    """Intervals and groups in every column and, where every member has scores, in every suite.

    Args:
        by_row: result by name of column, by name of row.
        wanted: measures that are resampled, by column.
        advance: called with 1 after each column.

    Raises:
        BenchError: values of queries are damaged, or are of other queries.
    """
    found: Standings = {}
    sums: dict[tuple[str, str], _Means] = {}
    weights = {suite: suite_weights(suite) for suite in suites}
    weights = {suite: some for suite, some in weights.items() if _is_filled(by_row, some)}
    for column in wanted:
        results = {row: cells[column] for row, cells in by_row.items() if column in cells}
        for measure, means in _resampled(results, wanted[column], resampling, _stream(column)):
            found[column, measure] = _stand(means)
            for suite, shares in weights.items():
                if column in shares:
                    earlier = sums.get((suite, measure))
                    sums[suite, measure] = (
                        earlier.plus(shares[column], means)
                        if earlier
                        else means.times(shares[column])
                    )
        advance(1)
    whole = {key: one for key, one in sums.items() if one.columns == len(weights[key[0]])}
    return found | {key: _stand(one) for key, one in whole.items()}


def _is_filled(by_row: Mapping[str, Mapping[str, Stored]], columns: Collection[str]) -> bool:
    """Whether any row has a result in every one of the columns."""
    return any(set(columns) <= set(cells) for cells in by_row.values())


def _resampled(
    by_row: Mapping[str, Stored], measures: Collection[str], resampling: Resampling, stream: int
) -> Iterator[tuple[str, _Means]]:
    """By measure, the rows that have values of queries, on the same resamples."""
    loaded = {row: _load(one) for row, one in by_row.items()}
    known = {row: found for row, found in loaded.items() if found is not None}
    for measure in measures:
        names = tuple(row for row, (_, values) in known.items() if measure in values)
        if names:
            scores = _aligned([known[row] for row in names], measure, by_row[names[0]].folder)
            yield measure, _Means(names, scores.mean(axis=0), resample(scores, resampling, stream))


def _stream(column: str) -> int:
    """Each column draws by itself: what else is shown does not change its figures."""
    return int.from_bytes(hashlib.sha256(column.encode()).digest()[:8], "big")


def _load(one: Stored) -> tuple[tuple[str, ...], Mapping[str, Floats]] | None:
    """Values by query; None for a result that came without them, such as a published one."""
    return one.scores() if (one.folder / SCORES_FILE).exists() else None


def _aligned(
    some: Sequence[tuple[tuple[str, ...], Mapping[str, Floats]]], measure: str, folder: Path
) -> Floats:
    """Scores float64 ``(queries, rows)``, the queries in the order of the first row."""
    ids = some[0][0]
    columns = []
    for own, values in some:
        if sorted(own) != sorted(ids):
            raise BenchError(
                f"results beside {folder} are of other queries though their protocol is the same",
                "a file of one of them was changed: evaluate again",
            )
        place = {name: number for number, name in enumerate(own)} if own != ids else {}
        order = [place[name] for name in ids] if place else slice(None)
        columns.append(values[measure][order])
    return np.stack(columns, axis=1)


def _stand(means: _Means) -> dict[str, Standing]:
    low, high = np.quantile(means.drawn.bootstrap, [ALPHA / 2, 1 - ALPHA / 2], axis=0)
    group = groups(means.exact, means.drawn.flipped)
    return {
        row: Standing(float(low[place]), float(high[place]), group[place])
        for place, row in enumerate(means.rows)
    }


def groups(means: Floats, flipped: Floats) -> list[int]:
    """Number of the group of each model, 1 for the best.

    Args:
        means: float64 ``(m,)``.
        flipped: float64 ``(resamples, m)``: means with random signs, the same for every model.
    """
    order = np.argsort(-means, kind="stable")
    signs = np.ascontiguousarray(flipped.T[order])
    found, start, group = [0] * len(means), 0, 0
    while start < len(order):
        group += 1
        behind = means[order[start]] - means[order[start + 1 :]]
        size = 1 + _not_separable(behind, signs[start] - signs[start + 1 :])
        for place in order[start : start + size]:
            found[place] = group
        start += size
    return found


def _not_separable(behind: Floats, flipped: Floats) -> int:
    """How many models in a row are not worse than the leader at the 5 % level.

    Args:
        behind: float64 ``(m,)``, leader minus model, rising.
        flipped: float64 ``(m, resamples)``, the same with random signs.
    """
    as_far = (np.abs(flipped) >= behind[:, None] - SAME_MEAN).sum(axis=1)
    adjusted = holm(((1 + as_far) / (1 + flipped.shape[1])).tolist())
    return next((place for place, p in enumerate(adjusted) if p <= ALPHA), len(adjusted))
