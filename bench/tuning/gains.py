"""Gains of many settings over a baseline: intervals that hold together, and what choosing adds.

If the baseline and a setting are exchangeable, the sign of the gain of each query is random. One
set of random signs of the queries is used for all settings, and the largest statistic of any
setting is what a true gain must exceed (single-step maxT: Westfall and Young, Resampling-based
multiple testing, 1993). So in at most 2.5 % of samples does any setting without a gain seem better,
and in as many does any without a loss seem worse, however many settings there are and however
similar they are. Any setting that is proved better may be chosen.

The lower limit of a setting is the largest gain, in steps of `STEP`, that the same test rejects
when it is subtracted from the gains of all settings.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bench.comparing.sign_flips import flip_means
from bench.comparing.statistics import SAME_MEAN, Resampling
from bench.gate.decision import LOWER_LEVEL
from foundation.arrays import BoolArray, Float64Array

STEP = 1e-4  # of a limit, which is shown with four digits
HALVES = 500  # random splits of the queries


@dataclass(frozen=True)
class GainTest:
    """Joint sign flips of the gains of all settings: one-sided, at half of 5 %, as `compare` tests.

    Attributes:
        gains: float64 ``(queries, settings)``, score of a setting minus that of the baseline.
        resampling: number of sets of signs, and seed.
    """

    gains: Float64Array
    resampling: Resampling

    @cached_property
    def _flipped(self) -> Float64Array:
        """Sums of all settings, and of ones, under the signs, float64 ``(sets, settings + 1)``.

        Queries are sorted by their gains, so that their names have no influence.
        """
        table = np.column_stack([sort_queries(self.gains), np.ones(len(self.gains))])
        rng = np.random.default_rng([self.resampling.seed, len(table)])
        return flip_means(table, self.resampling.resamples, rng) * len(table)

    def exceeds(self, gain: float, sign: int = 1) -> BoolArray:
        """Return which settings are proved to gain more than ``gain``, bool ``(settings,)``.

        With ``sign`` -1, these are gains of the baseline over the settings.
        """
        total, squares = sign * self.gains.sum(axis=0), (self.gains**2).sum(axis=0)
        count = len(self.gains)
        scale = np.sqrt(np.maximum(squares - 2 * gain * total + count * gain**2, SAME_MEAN))
        flipped = (sign * self._flipped[:, :-1] - gain * self._flipped[:, -1:]) / scale
        largest = np.sort(flipped.max(axis=1))
        allowed = (
            math.floor((1 - LOWER_LEVEL) * (1 + len(largest))) - 1
        )  # sets as extreme as the sample
        critical = largest[-1 - allowed]
        exceeding: BoolArray = (total - count * gain) / scale > critical + SAME_MEAN
        return exceeding

    def limits(self, sign: int = 1) -> Float64Array:
        """Return the lower limit of the gain of each setting, float64 ``(settings,)``.

        With ``sign`` -1, these are limits of the baseline's gains: upper limits, negated.
        """
        known: dict[int, BoolArray] = {}

        def fails(setting: int) -> Callable[[int], bool]:
            def at(step: int) -> bool:
                if step not in known:
                    known[step] = self.exceeds(step * STEP, sign)
                return not known[step][setting]

            return at

        most = math.ceil(1 / STEP)
        steps = range(-most, most + 1)
        found = [bisect_left(steps, True, key=fails(one)) for one in range(self.gains.shape[1])]
        return np.array([(steps[0] + place - 1) * STEP for place in found])


def sort_queries(gains: Float64Array) -> Float64Array:
    """Return the rows of ``gains``, float64 ``(queries, settings)``, ordered by their values."""
    return np.asarray(gains[np.lexsort(gains.T)])


def selection_gain(gains: Float64Array, seed: int) -> float:
    """Return how much of the best mean gain comes from choosing the best on the same queries.

    On a random half of the queries, the best setting is chosen; its gain there minus its gain on
    the other half is what the choice adds with half the queries, on average of `HALVES` splits. It
    shrinks by the root of two with all queries.

    Args:
        gains: float64 ``(queries, settings)``.
        seed: of the splits.
    """
    ordered, rng = sort_queries(gains), np.random.default_rng([seed, len(gains)])
    half, added = len(ordered) // 2, []
    for _ in range(HALVES if half and gains.shape[1] > 1 else 0):
        rows = rng.permutation(len(ordered))
        one, other = ordered[rows[:half]].mean(axis=0), ordered[rows[half:]].mean(axis=0)
        best = int(one.argmax())
        added.append(one[best] - other[best])
    return max(0.0, float(np.mean(added)) / math.sqrt(2)) if added else 0.0
