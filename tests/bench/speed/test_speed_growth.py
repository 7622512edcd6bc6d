"""Fitted exponents against known powers and NumPy's least squares."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.speed import fit as growth
from bench.speed.records import Growth, Spread
from foundation.errors import BenchError


def fitted(sizes, medians) -> Growth:
    return growth.fit("n", "s", "", sizes, [Spread.of([one]) for one in medians])


@given(st.floats(-2, 3), st.floats(1e-6, 1e6))
def test_a_power_is_found_exactly(exponent, constant):
    sizes = [10.0, 20.0, 40.0, 80.0]
    found = fitted(sizes, [constant * size**exponent for size in sizes])
    assert found.exponent == pytest.approx(exponent, abs=1e-9)
    assert found.constant == pytest.approx(constant, rel=1e-6)
    assert found.error == pytest.approx(0, abs=1e-6)


@given(st.lists(st.floats(0.1, 100), min_size=3, max_size=8))
def test_exponent_and_standard_error_are_those_of_numpys_least_squares(costs):
    sizes = np.arange(1, len(costs) + 1) * 7.0
    found = fitted(sizes, costs)
    powers, covariance = np.polyfit(np.log(sizes), np.log(costs), 1, cov=True)
    assert found.exponent == pytest.approx(powers[0], abs=1e-9)
    assert found.error == pytest.approx(np.sqrt(covariance[0, 0]), abs=1e-7)
    assert (found.per_x, found.base) == pytest.approx(np.polyfit(sizes, costs, 1), abs=1e-7)


def test_two_sizes_have_no_standard_error():
    found = fitted([1, 2], [3, 6])
    assert found.error is None
    assert found.exponent == pytest.approx(1)


@pytest.mark.parametrize("sizes", [[5.0], [5.0, 5.0], [0.0, 1.0]])
def test_sizes_that_no_line_goes_through_are_refused(sizes):
    with pytest.raises(BenchError, match="two positive sizes"):
        fitted(sizes, [1.0] * len(sizes))


def test_every_size_runs_once_uncounted_and_then_in_turn():
    seen = []
    spreads = growth.measure(seen.append, [3, 5], repeats=2)
    assert seen == [3, 5, 3, 5, 3, 5]
    assert [len(spread.samples) for spread in spreads] == [2, 2]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
def test_a_spread_holds_its_samples_in_order_and_their_quartiles(samples):
    spread = Spread.of(samples)
    assert spread.samples == tuple(samples)
    assert math.isclose(spread.median, np.median(samples))
    assert spread.q1 <= spread.median <= spread.q3
    assert math.isclose(spread.q3, np.quantile(samples, 0.75))
