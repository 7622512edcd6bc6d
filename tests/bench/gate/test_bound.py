"""The upper bound of a mean loss: exact cases, order, monotonicity, planning."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import integrate, optimize, stats

from bench.gate.decision import draw_means, queries_needed, upper_bound
from tests.support.examples import with_examples

DRAWS = 499
LOSSES = arrays(float, st.integers(1, 40), elements=st.floats(-1, 1))


def bound(losses: np.ndarray, draws: int = DRAWS) -> float:
    return upper_bound([draw_means(losses, draws)])


@pytest.mark.parametrize("queries", [1, 2, 130, 149, 150, 3_000])
def test_unchanged_queries_have_the_exact_bound(queries):
    exact = 1 - 0.05 ** (1 / queries)
    assert bound(np.zeros(queries), 19_999) == pytest.approx(exact, rel=2e-4)


@pytest.mark.parametrize(("lost", "queries"), [(1, 40), (3, 100), (40, 60), (60, 60)])
def test_losses_of_1_have_the_bound_of_clopper_and_pearson(lost, queries):
    losses = np.r_[np.ones(lost), np.zeros(queries - lost)]
    exact = stats.beta.ppf(0.95, lost + 1, queries - lost) if lost < queries else 1.0
    found = bound(losses, 19_999)
    assert found - lost / queries == pytest.approx(exact - lost / queries, rel=0.03)


def test_two_collections_without_a_loss_have_the_quantile_of_a_sum():
    parts = [draw_means(np.zeros(n), 19_999) for n in (50, 200)]

    def share_below(value: float) -> float:
        inner = lambda x: stats.beta.pdf(x, 1, 50) * stats.beta.cdf(2 * value - x, 1, 200)  # noqa: E731
        return integrate.quad(inner, 0, min(1, 2 * value))[0]

    exact = optimize.brentq(lambda value: share_below(value) - 0.95, 0.001, 0.2)
    assert upper_bound(parts, [0.5, 0.5]) == pytest.approx(exact, rel=0.01)


def test_a_normal_sample_has_nearly_the_bound_of_student():
    losses = np.random.default_rng(0).normal(0.02, 0.1, 2_000)
    student = losses.mean() + stats.t.ppf(0.95, 1_999) * losses.std(ddof=1) / np.sqrt(2_000)
    assert bound(losses, 19_999) == pytest.approx(student, abs=0.0007)


@given(LOSSES, st.data())
@with_examples(100)
def test_a_larger_loss_never_lowers_the_bound(losses, data):
    more = data.draw(arrays(float, len(losses), elements=st.floats(0, 1)))
    assert bound(np.minimum(losses + more, 1)) >= bound(losses)


def test_the_number_of_queries_that_prove_a_margin():
    unchanged = [draw_means(np.zeros(130))]
    assert queries_needed(unchanged, [1.0], 0.02) == 149
    assert queries_needed([draw_means(np.full(50, 0.02))], [1.0], 0.02) is None
    noisy = np.tile([0.2, -0.2, 0.0, 0.0], 50)
    needed = queries_needed([draw_means(noisy)], [1.0], 0.02)
    assert 200 < needed < 400
    assert bound(np.resize(noisy, needed), 19_999) == pytest.approx(0.02, abs=0.001)
