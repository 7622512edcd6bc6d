"""Which loss of a mean is ruled out? A one-sided bound that allows for skew.

A model that loses much on few queries has skewed differences, and a sample may miss the losses.
Sign flips around a margin, the t bound and the percentile bootstrap then rule losses out too
often; `bench.gate.skew` says what is done instead.
"""

import math

import numpy as np

from bench.compare.statistics import SAME_MEAN
from bench.gate.skew import Studentised

LEVEL = 0.95  # one-sided


def largest_loss(found: Studentised) -> float | None:
    """The loss of a mean beyond which losses are ruled out at 95 %, one-sided.

    Below 0, a gain is certain.

    Returns:
        None where nothing is ruled out: too few queries changed, a collection has one query, or
        too many resamples have no spread.
    """
    if found.says_little:
        return None
    if found.error <= SAME_MEAN:
        return found.unseen - found.mean
    quantile = _quantile(found)
    if not math.isfinite(quantile):
        return None
    return quantile * found.error - found.mean + found.unseen


def _quantile(found: Studentised) -> float:
    """Upper quantile of the studentised distances; a resample without spread may be anything."""
    flat = found.errors <= SAME_MEAN
    distances = (found.means - found.mean) / np.where(flat, 1.0, found.errors)
    studentised = np.where(flat, np.inf, distances)
    place = min(len(studentised) - 1, math.ceil(LEVEL * len(studentised)))
    return float(np.partition(studentised, place)[place])
