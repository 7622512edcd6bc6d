"""Joint intervals of gains, and what choosing the best one adds."""

import itertools

import numpy as np
import pytest

from bench.comparing.sign_flips import sign_flip_p
from bench.comparing.statistics import Resampling
from bench.tuning.gains import STEP, GainTest, selection_gain


def random_gains(queries: int, settings: int, seed: int = 0, gain: float = 0.0) -> np.ndarray:
    """Gains that the settings share in part."""
    rng = np.random.default_rng(seed)
    shared, own = rng.normal(gain, 0.2, (queries, 1)), rng.normal(0, 0.1, (queries, settings))
    return np.clip(shared + own, -1, 1)


def brute_force(gains: np.ndarray, gain: float) -> np.ndarray:
    """p of the one-sided single-step maxT over all sign flips of ``gains`` minus ``gain``."""
    shifted = gains - gain
    signs = np.array(list(itertools.product((-1, 1), repeat=len(gains))))
    scale = np.sqrt((shifted**2).sum(axis=0))
    largest = ((signs @ shifted) / scale).max(axis=1)
    return np.array([(largest >= one - 1e-12).mean() for one in shifted.sum(axis=0) / scale])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_limits_are_those_of_all_sign_flips(seed):
    gains = random_gains(12, 3, seed, 0.15)
    test = GainTest(gains, Resampling(20_000))
    low, high = test.limits(), -test.limits(-1)
    for setting in range(gains.shape[1]):
        assert brute_force(gains, low[setting] - 0.01)[setting] <= 0.025
        assert brute_force(gains, low[setting] + 0.01)[setting] > 0.025
        assert brute_force(-gains, -high[setting] - 0.01)[setting] <= 0.025
        assert brute_force(-gains, -high[setting] + 0.01)[setting] > 0.025
    assert (low < gains.mean(axis=0)).all()
    assert (gains.mean(axis=0) < high).all()


def test_one_setting_is_proved_better_as_compare_tests_it():
    for gain in np.arange(0, 0.12, 0.01):
        gains = random_gains(60, 1, 4, gain)
        p = sign_flip_p(gains[:, 0])
        if abs(p - 0.05) > 0.01:
            assert GainTest(gains, Resampling()).exceeds(0)[0] == (p <= 0.05)


def test_a_setting_is_proved_exactly_if_its_lower_limit_is_not_below_zero():
    for seed in range(8):
        test = GainTest(random_gains(40, 5, seed, 0.08), Resampling(999))
        assert (test.exceeds(0) == (test.limits() >= 0)).all()


def test_neither_copies_nor_the_order_of_settings_and_queries_change_a_limit():
    gains, rng = random_gains(50, 3, 5, 0.1), np.random.default_rng(0)
    limits = GainTest(gains, Resampling()).limits()
    copied = GainTest(np.repeat(gains, 4, axis=1), Resampling()).limits()
    assert copied[::4] == pytest.approx(limits, abs=2 * STEP)
    mixed = GainTest(gains[rng.permutation(50)], Resampling()).limits()
    assert (mixed == limits).all()


def test_more_settings_cost_certainty():
    gains = random_gains(50, 40, 6, 0.1)
    alone = GainTest(gains[:, :1], Resampling()).limits()[0]
    assert GainTest(gains, Resampling()).limits()[0] < alone


def test_the_same_ranking_and_too_few_queries_prove_nothing():
    assert not GainTest(np.zeros((30, 2)), Resampling()).exceeds(0).any()
    test = GainTest(np.full((4, 1), 0.5), Resampling())
    assert not test.exceeds(0).any()
    assert test.limits()[0] < -0.9 < 0.9 < -test.limits(-1)[0]


@pytest.mark.slow
def test_selection_explains_what_choosing_adds_to_gains_that_are_none():
    shown, explained = [], []
    for seed in range(100):
        gains = np.random.default_rng(seed).normal(0, 0.2, (100, 12))
        shown.append(gains.mean(axis=0).max())
        explained.append(selection_gain(gains, 0))
    assert np.mean(explained) == pytest.approx(np.mean(shown), rel=0.1)


def test_a_single_setting_was_not_chosen():
    assert selection_gain(random_gains(50, 1), 0) == 0
    assert selection_gain(random_gains(50, 9), 0) > 0
