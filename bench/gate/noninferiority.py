"""One-sided bound on the loss of a mean that allows for skew.

A model that loses much on few queries has skewed differences, and a sample may miss the losses.
Sign flips around a margin, the t bound and the percentile bootstrap then rule losses out too
often; `bench.gate.skew` says what is done instead.
"""

import math

import numpy as np

from bench.comparing.statistics import SAME_MEAN
from bench.gate.skew import Studentised

LEVEL = 0.95  # one-sided


def largest_loss(difference: Studentised) -> float | None:
    """The loss of a mean beyond which losses are ruled out at 95 %, one-sided.

    Below 0, a gain is certain.

    Returns:
        None where nothing is ruled out: too few queries changed, a collection has one query, or
        too many resamples have no spread.
    """
    if difference.says_little:
        return None
    if difference.error <= SAME_MEAN:
        return difference.unseen - difference.mean
    quantile = _quantile(difference)
    if not math.isfinite(quantile):
        return None
    return quantile * difference.error - difference.mean + difference.unseen


def _quantile(difference: Studentised) -> float:
    """Upper quantile of the studentised distances; a resample without spread may be anything."""
    flat = difference.errors <= SAME_MEAN
    distances = (difference.means - difference.mean) / np.where(flat, 1.0, difference.errors)
    studentised = np.where(flat, np.inf, distances)
    place = min(len(studentised) - 1, math.ceil(LEVEL * len(studentised)))
    return float(np.partition(studentised, place)[place])
