"""Paired statistics: SciPy and statsmodels as oracles, and simulations of what is claimed."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bench.comparing.statistics import (
    ALPHA,
    Difference,
    PairedScores,
    Resampling,
    holm,
    paired_difference,
    resample,
)
from foundation.errors import BenchError
from tests.support.examples import with_examples

RNG = np.random.default_rng(7)
FAST = Resampling(resamples=999)
VALUES = [0.0, 0.0, 0.0, 0.125, 0.25, 0.5, 1.0]  # exact in binary, so that sums tie exactly


def differences(a: np.ndarray, b: np.ndarray, resampling=FAST, stream=0) -> PairedScores:
    """Two models resampled as ``compare`` does: columns of one matrix, subtracted."""
    both = resample(np.column_stack([a, b]), resampling, stream)
    drawn, flipped = (means[:, 0] - means[:, 1] for means in (both.bootstrap, both.flipped))
    return PairedScores(a - b, drawn, flipped)


def compared(a: np.ndarray, b: np.ndarray, resampling=FAST) -> Difference:
    return paired_difference([differences(a, b, resampling)])


def sparse(rng: np.random.Generator, queries: int, zeros: float, skewed: bool = False):
    """Differences of which a share is exactly zero: symmetric, or with rarer, larger losses."""
    size = rng.choice([0.13, 0.37, 0.5, 0.63, 1.0], queries)
    if skewed:
        values = np.where(rng.random(queries) < 0.7, size / 2, -size)
    else:
        values = np.where(rng.random(queries) < 0.5, size, -size)
    return np.where(rng.random(queries) < zeros, 0.0, values)


scores = st.lists(st.sampled_from(VALUES), min_size=2, max_size=40)
pairs = scores.flatmap(
    lambda one: st.lists(st.sampled_from(VALUES), min_size=len(one), max_size=len(one)).map(
        lambda other: (np.array(one), np.array(other))
    )
)


@with_examples(200)
@given(pairs)
def test_exchanging_the_models_negates_the_comparison(pair):
    there, back = compared(*pair), compared(*reversed(pair))
    assert there.difference == -back.difference
    assert (there.p, there.exact) == (back.p, back.exact)
    assert (there.wins, there.ties, there.losses) == (back.losses, back.ties, back.wins)
    assert (there.wins, there.changed) == (np.sum(pair[0] > pair[1]), np.sum(pair[0] != pair[1]))
    assert 0 < there.p <= 1
    assert there.detectable == pytest.approx(back.detectable)
    if there.low is not None:
        assert (there.low, there.high) == pytest.approx((-back.high, -back.low), abs=1e-12)
        assert there.effect == pytest.approx(-back.effect)


def brute_force(values: np.ndarray) -> float:
    """p over every flip of every query, the zeros too, in exact fractions of 1/8."""
    eighths = np.round(values * 8).astype(int).tolist()
    sums = [
        sum(s * v for s, v in zip(signs, eighths, strict=True))
        for signs in product((1, -1), repeat=len(eighths))
    ]
    return float(np.mean([abs(one) >= abs(sum(eighths)) for one in sums]))


@with_examples(60)
@given(
    st.lists(st.sampled_from([-1.0, -0.5, -0.125, 0.0, 0.125, 0.25, 1.0]), min_size=2, max_size=9)
)
def test_few_changed_queries_are_enumerated_exactly(values):
    values = np.array(values)
    found = compared(values, np.zeros(len(values)))
    assert found.exact
    assert found.p == brute_force(values)


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "zeros"), [(50, 0.5), (300, 0.9)])
def test_the_sampled_p_is_that_of_scipy_within_sampling_error(queries, zeros):
    values = sparse(RNG, queries, zeros, skewed=True)
    many = Resampling(resamples=19_999, seed=3)
    theirs = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=19_999, vectorized=True, rng=1
    )
    ours = compared(values, np.zeros(queries), many)
    assert not ours.exact
    error = np.sqrt(2 * theirs.pvalue * (1 - theirs.pvalue) / 19_999)
    assert ours.p == pytest.approx(theirs.pvalue, abs=5 * error + 1e-4)


def test_enumeration_ends_where_there_are_more_flips_than_resamples():
    for changed, exact in ((9, True), (10, False)):
        values = np.concatenate([np.full(changed, 0.5), np.zeros(40)])
        found = compared(values, np.zeros(len(values)), Resampling(resamples=999))
        assert found.exact is exact
        assert found.p == pytest.approx(2.0 ** (1 - changed), abs=0.01)


def test_the_smallest_sampled_p_counts_the_observation_itself():
    found = compared(np.full(400, 0.5), np.zeros(400))
    assert (found.p, found.exact) == (1 / 1000, False)


def test_sums_that_tie_with_the_observed_one_count_in_spite_of_rounding():
    values = np.tile([0.1, 0.2, -0.3, 0.7], 10)  # many flips have the same sum, rounded otherwise
    scaled = np.tile([1.0, 2.0, -3.0, 7.0], 10)  # sums of small integers are exact
    a, b = (compared(one, np.zeros(40), Resampling(9999, 5)) for one in (values, scaled))
    assert a.p == b.p


def test_identical_models_have_no_interval_no_effect_and_p_one():
    same = RNG.random(50)
    found = compared(same + 1e-16, same)  # rounding is a tie
    assert found.difference == pytest.approx(0.0)
    assert (found.p, found.changed) == (1.0, 0)
    assert (found.low, found.high, found.effect, found.detectable) == (None,) * 4
    assert found.few


def test_one_query_has_a_difference_and_nothing_more():
    found = compared(np.array([1.0]), np.array([0.25]))
    assert (found.difference, found.p, found.wins) == (0.75, 1.0, 1)
    assert (found.low, found.high, found.effect, found.detectable) == (None,) * 4


def scipy_limits(values: np.ndarray, drawn: np.ndarray, method: str) -> np.ndarray:
    """Limits from the same bootstrap distribution, at the level of t and not of the normal."""
    count, mean = len(values), values.mean()
    # SciPy compares with the mean exactly, so sums in another order would not be ties.
    drawn = np.where(np.abs(drawn - mean) < 1e-12, mean, drawn)
    widest = stats.t.ppf(1 - ALPHA / 2, count - 1) * np.sqrt(count / (count - 1))
    limits = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=0,
        bootstrap_result=SimpleNamespace(bootstrap_distribution=drawn),
        confidence_level=1 - 2 * stats.norm.cdf(-widest),
        method=method,
    ).confidence_interval
    return np.array(limits)


@pytest.mark.parametrize(("queries", "zeros"), [(30, 0.2), (50, 0.8), (300, 0.9)])
def test_the_interval_is_the_outer_one_of_percentile_and_bca_of_scipy(queries, zeros):
    values = sparse(RNG, queries, zeros, skewed=True) * RNG.uniform(0.9, 1, queries)  # no ties
    part = differences(values, np.zeros(queries), Resampling(9_999))
    found = paired_difference([part])
    limits = np.array([scipy_limits(values, part.bootstrap, m) for m in ("percentile", "BCa")])
    assert found.low == pytest.approx(limits[:, 0].min(), abs=1e-6)
    assert found.high == pytest.approx(limits[:, 1].max(), abs=1e-6)


def test_the_columns_of_one_matrix_are_what_each_pair_alone_would_give():
    values = RNG.random((60, 5))
    together = resample(values, FAST, stream=4)
    for i, j in ((0, 1), (3, 2)):
        alone = differences(values[:, i], values[:, j], FAST, stream=4)
        drawn = together.bootstrap[:, i] - together.bootstrap[:, j]
        flipped = together.flipped[:, i] - together.flipped[:, j]
        assert drawn == pytest.approx(alone.bootstrap, abs=1e-12)
        assert flipped == pytest.approx(alone.flipped, abs=1e-12)


def test_more_queries_than_fit_into_one_block_are_resampled_as_well():
    values = np.ones((600_000, 1))
    found = resample(values, Resampling(3))
    assert found.bootstrap.tolist() == [[1.0]] * 3
    assert np.abs(found.flipped).max() < 0.01


def test_seed_and_stream_change_the_resamples_and_nothing_else_does():
    values = RNG.random((40, 2))
    first = resample(values, Resampling(99, 1), 2).bootstrap
    assert np.array_equal(first, resample(values, Resampling(99, 1), 2).bootstrap)
    for resampling, stream in ((Resampling(99, 2), 2), (Resampling(99, 1), 3)):
        assert not np.array_equal(first, resample(values, resampling, stream).bootstrap)


@pytest.mark.slow
@with_examples(30)
@given(st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.01, 0.02, 1.0])), max_size=30))
def test_holm_is_that_of_statsmodels(p_values):
    from statsmodels.stats.multitest import multipletests

    theirs = multipletests(p_values, method="holm")[1] if p_values else []
    assert holm(p_values) == pytest.approx(list(theirs))


@pytest.mark.slow
@pytest.mark.parametrize("queries", [10, 7000])
def test_the_detectable_effect_is_that_of_statsmodels_within_one_percent(queries):
    from statsmodels.stats.power import TTestPower

    values = RNG.normal(0, 0.3, queries)
    theirs = TTestPower().solve_power(nobs=queries, alpha=0.05, power=0.8) * values.std(ddof=1)
    assert compared(values, np.zeros(queries)).detectable == pytest.approx(theirs, rel=0.01)


def test_collections_count_equally_whatever_their_size():
    small, large = (differences(RNG.random(n), RNG.random(n), stream=n) for n in (50, 2000))
    found = paired_difference([small, large], [0.5, 0.5])
    assert found.difference == pytest.approx((small.scores.mean() + large.scores.mean()) / 2)
    assert found.wins + found.ties + found.losses == 2050
    half = np.array([small.scores.var(ddof=1) / 50, large.scores.var(ddof=1) / 2000]) / 4
    deviation = np.sqrt((small.scores.var(ddof=1) + large.scores.var(ddof=1)) / 2)
    degrees = half.sum() ** 2 / (half**2 / [49, 1999]).sum()
    quantiles = stats.t.ppf([0.975, 0.8], degrees)
    assert found.detectable == pytest.approx(quantiles.sum() * np.sqrt(half.sum()), rel=1e-3)
    assert found.effect == pytest.approx(found.difference / deviation)
    assert found.high - found.low == pytest.approx(2 * quantiles[0] * np.sqrt(half.sum()), rel=0.1)


def test_few_changes_in_a_suite_are_enumerated_across_its_collections():
    parts = [
        differences(np.array([1.0, 0, 0, 0]), np.zeros(4), stream=1),
        differences(np.array([0.5, 0.5, 0, 0, 0, 0, 0, 0]), np.zeros(8), stream=2),
    ]
    found = paired_difference(parts, [0.5, 0.5])
    assert (found.exact, found.p) == (True, 2 / 8)
    assert found.difference == pytest.approx(0.5 * 0.25 + 0.5 * 0.125)


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "zeros"), [(50, 0.9), (300, 0.8)])
def test_p_is_uniform_where_the_models_are_exchangeable(queries, zeros):
    """Never below its level, and near it: p of sparse differences is coarse."""
    rng = np.random.default_rng(11)
    base = np.abs(sparse(rng, queries, zeros))
    found = [
        compared(base * rng.choice([-1, 1], queries), np.zeros(queries), Resampling(199, seed)).p
        for seed in range(1500)
    ]
    for level in (0.05, 0.2, 0.5):
        share = np.mean(np.array(found) <= level)
        error = np.sqrt(level * (1 - level) / len(found))
        assert share <= level + 3.5 * error
        assert share >= level - 3.5 * error - (0.05 if zeros == 0.9 else 0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "zeros", "skewed"), [(50, 0.5, True), (300, 0.8, False)])
def test_the_interval_holds_the_true_difference_as_often_as_it_says(queries, zeros, skewed):
    rng = np.random.default_rng(13)
    population = sparse(rng, 100_000, zeros, skewed)
    weights = resample(np.eye(queries), Resampling(999)).bootstrap
    held = []
    for _ in range(1500):
        values = rng.choice(population, queries)
        found = paired_difference([PairedScores(values, weights @ values, np.zeros(999))])
        held.append(found.low <= population.mean() <= found.high)
    assert 0.92 <= np.mean(held) <= 0.97


def test_resamples_are_enough_where_the_smallest_p_is_significant_after_holm():
    def smallest(resamples: int) -> float:
        return holm([1 / (1 + resamples)] * 15)[0]

    assert smallest(299) <= ALPHA < smallest(298)
    Resampling(299).check_enough(15)
    with pytest.raises(BenchError, match="298 resamples") as caught:
        Resampling(298).check_enough(15)
    assert caught.value.hint == "Use --resamples 299 or more."
    with pytest.raises(BenchError):
        Resampling(598).check_enough(15, sides=2)
