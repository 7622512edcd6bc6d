"""Paired statistics: SciPy and statsmodels as oracles, and simulations of what is claimed."""

from dataclasses import replace
from itertools import permutations, product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bench.comparing.sign_flips import SMALLEST_P, flip_means, sign_flip_p
from bench.comparing.statistics import (
    ALPHA,
    Difference,
    ResampledScores,
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


def differences(a: np.ndarray, b: np.ndarray, resampling=FAST) -> ResampledScores:
    """Two models resampled as ``compare`` does: columns of one matrix, subtracted."""
    means = resample(np.column_stack([a, b]), resampling)
    return ResampledScores(a - b, means[:, 0] - means[:, 1])


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


@with_examples(100)
@given(pairs)
def test_exchanging_the_models_negates_the_comparison(pair):
    there, back = compared(*pair), compared(*reversed(pair))
    assert there.difference == -back.difference
    assert there.p == back.p
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


@with_examples(30)
@given(
    st.lists(st.sampled_from([-1.0, -0.5, -0.125, 0.0, 0.125, 0.25, 1.0]), min_size=2, max_size=9)
)
def test_few_changed_queries_are_enumerated_exactly(values):
    values = np.array(values)
    assert compared(values, np.zeros(len(values))).p == brute_force(values)


def meet_in_the_middle(values: np.ndarray) -> float:
    """Exact p of up to 40 values: all sums of one half against the sorted sums of the other."""
    halves = []
    for half in (values[: len(values) // 2], values[len(values) // 2 :]):
        signs = 1 - 2 * (np.arange(2 ** len(half))[:, None] >> np.arange(len(half)) & 1)
        halves.append(np.sort(signs @ half))
    observed, (one, other) = abs(values.sum()) - 1e-11, halves
    above = len(other) - np.searchsorted(other, observed - one)
    return min(1.0, 2 * float(above.sum()) / 2 ** len(values))


@pytest.mark.parametrize("changed", [32, 33])  # the last one that is enumerated, and the next
@pytest.mark.parametrize("kind", ["normal", "steps of RR", "one outlier", "two outliers", "equal"])
def test_p_is_exact_for_any_shape_of_differences(changed, kind):
    rng = np.random.default_rng(changed)
    values = {
        "normal": rng.normal(0.05, 0.2, changed),
        "steps of RR": 1 / rng.integers(1, 9, changed) - 1 / rng.integers(1, 11, changed) + 1e-3,
        "one outlier": np.r_[0.9, rng.normal(0, 0.01, changed - 1)],
        "two outliers": np.r_[0.9, -0.3, rng.normal(0, 0.001, changed - 2)],
        "equal": rng.choice([0.5, 0.5, -0.5], changed),
    }[kind]
    assert sign_flip_p(values, 1e-11) == pytest.approx(meet_in_the_middle(values), abs=1e-4)


def counted(values: np.ndarray) -> float:
    """Exact p of integers, from the number of flips with each sum."""
    ways = np.ones(1)
    for size in np.abs(values).tolist():
        ways = (np.r_[ways, np.zeros(2 * size)] + np.r_[np.zeros(2 * size), ways]) / 2
    sums = np.arange(len(ways)) - len(ways) // 2
    return float(ways[np.abs(sums) >= abs(values.sum())].sum())


@pytest.mark.parametrize(("changed", "steps"), [(100, 1), (300, 1), (100, 10), (300, 60), (60, 60)])
def test_p_counts_sums_that_are_equal_to_the_observed_one(changed, steps):
    rng = np.random.default_rng(changed + steps)
    values = rng.integers(1, steps + 1, changed)
    signs = np.where(np.arange(changed) < changed / 2 + 0.9 * np.sqrt(changed), 1, -1)
    values *= rng.permutation(signs)
    exact = counted(values)
    accuracy = 5e-4 if exact < 0.1 else 2e-3
    assert sign_flip_p(values / steps, 1e-11) == pytest.approx(exact, abs=accuracy)


def test_no_seed_moves_p():
    values = np.random.default_rng(5).normal(0, 0.2, 300)
    values += 2 * values.std() / np.sqrt(300) - values.mean()
    results = [compared(values, np.zeros(300), Resampling(99, seed)) for seed in range(5)]
    assert 0.04 < results[0].p < 0.06
    assert len({each.p for each in results}) == 1
    assert len({each.low for each in results}) == 5


def test_p_of_many_large_gains_is_the_smallest_one():
    assert compared(np.full(400, 0.5), np.zeros(400)).p == SMALLEST_P


def test_sums_that_tie_with_the_observed_one_count_in_spite_of_rounding():
    values = np.tile([0.1, 0.2, -0.3, 0.7], 10)  # many flips have the same sum, rounded otherwise
    scaled = np.tile([1.0, 2.0, -3.0, 7.0], 10)  # sums of small integers are exact
    a, b = (compared(one, np.zeros(40)) for one in (values, scaled))
    assert a.p == pytest.approx(b.p, abs=1e-9)


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
    together = resample(values, FAST)
    for i, j in ((0, 1), (3, 2)):
        alone = differences(values[:, i], values[:, j])
        drawn = together[:, i] - together[:, j]
        assert drawn == pytest.approx(alone.bootstrap, abs=1e-12)


def test_more_queries_than_fit_into_one_block_are_resampled_as_well():
    values = np.ones((600_000, 1))
    assert resample(values, Resampling(39)).tolist() == [[1.0]] * 39
    assert np.abs(flip_means(values, 3, RNG)).max() < 0.01


def test_the_columns_of_flipped_means_have_the_same_signs():
    values = RNG.normal(0, 1, (30, 1)) * [1.0, -2.0]
    found = flip_means(values, 500, np.random.default_rng(1))
    assert found[:, 1] == pytest.approx(-2 * found[:, 0], abs=1e-12)
    assert found[:, 0].std() == pytest.approx(np.sqrt((values[:, 0] ** 2).sum()) / 30, rel=0.15)


def test_the_seed_and_the_number_of_queries_change_the_resamples_and_nothing_else_does():
    values = RNG.random((40, 2))
    first = resample(values, Resampling(99, 1))
    assert np.array_equal(first, resample(values, Resampling(99, 1)))
    assert not np.array_equal(first, resample(values, Resampling(99, 2)))


def test_names_and_orders_of_models_and_collections_change_no_number():
    rng = np.random.default_rng(4)
    vectors = [rng.choice(VALUES, (n, 2)) for n in (50, 50, 80)]  # two of one size
    parts = {f"c{i}": differences(*one.T) for i, one in enumerate(vectors)}
    weights = [0.5, 0.25, 0.25]
    there = paired_difference(list(parts.values()), weights, "mean")
    for order in permutations(range(3)):
        shuffled = [replace(list(parts.values())[i], on=f"other {i}") for i in order]
        again = paired_difference(shuffled, [weights[i] for i in order], "mean")
        assert again == there
        negated = [ResampledScores(-part.scores, -part.bootstrap) for part in shuffled]
        back = paired_difference(negated, [weights[i] for i in order], "mean")
        assert (back.p, back.difference) == (there.p, -there.difference)
        assert (-back.high, -back.low) == pytest.approx((there.low, there.high), abs=1e-12)


def test_collections_of_one_size_are_resampled_independently():
    values = RNG.normal(0, 0.2, 200)
    one = differences(values, np.zeros(200), Resampling(9_999))
    both = paired_difference([one, one], [0.5, 0.5])
    alone = paired_difference([one])
    assert both.high - both.low == pytest.approx((alone.high - alone.low) / np.sqrt(2), rel=0.03)


@pytest.mark.slow
@with_examples(15)
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
    small, large = (differences(RNG.random(n), RNG.random(n)) for n in (50, 2000))
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
        differences(np.array([1.0, 0, 0, 0]), np.zeros(4)),
        differences(np.array([0.5, 0.5, 0, 0, 0, 0, 0, 0]), np.zeros(8)),
    ]
    found = paired_difference(parts, [0.5, 0.5])
    assert found.p == 2 / 8
    assert found.difference == pytest.approx(0.5 * 0.25 + 0.5 * 0.125)


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "zeros", "skewed"), [(50, 0.5, True), (120, 0.8, False)])
def test_the_interval_holds_the_true_difference_as_often_as_it_says(queries, zeros, skewed):
    rng = np.random.default_rng(13)
    population = sparse(rng, 100_000, zeros, skewed)
    weights = resample(np.eye(queries), Resampling(999))
    held = []
    for _ in range(500):
        values = rng.choice(population, queries)
        found = paired_difference([ResampledScores(values, weights @ values)])
        held.append(found.low <= population.mean() <= found.high)
    assert abs(np.mean(held) - 0.95) <= 3.5 * np.sqrt(0.95 * 0.05 / len(held))


def test_resamples_are_enough_where_the_smallest_p_is_significant_after_holm():
    def smallest(resamples: int) -> float:
        return holm([1 / (1 + resamples)] * 15)[0]

    assert smallest(299) <= ALPHA < smallest(298)
    Resampling(299).check_enough(15)
    with pytest.raises(BenchError, match="298 resamples") as caught:
        Resampling(298).check_enough(15)
    assert caught.value.hint == "Use --resamples 299 or more."
    with pytest.raises(BenchError, match="38 resamples are too few"):
        Resampling(38)
