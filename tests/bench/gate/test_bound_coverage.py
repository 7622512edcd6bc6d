"""The promises of the gate's bound, in simulation; the limits are those of chance."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from bench.gate.decision import draw_means, upper_bound
from tests.benchmarks.deploy_errors import bound_by_gaffke

DRAWS, INNER = 500, 499
MOST = stats.binom.ppf(0.9995, DRAWS, 0.05) / DRAWS
MARGIN = 0.02
FAMILIES = {  # queries of each collection
    "2, very unequal": (30, 3_000),
    "14, unequal": (11, 13, 14, 38, 56, 75, 81, 100, 162, 250, 250, 352, 500, 750),
}


class Losses(NamedTuple):
    """Possible losses of a query, and their probabilities."""

    values: tuple[float, ...]
    shares: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.dot(self.values, self.shares))

    def draw(self, queries: int, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Losses ``(queries, draws)``."""
        return rng.choice(self.values, (queries, draws), p=self.shares)


EQUAL = Losses((0.0,), (1.0,))  # no query changed


def symmetric(changed: float, mean: float = 0.0) -> Losses:
    """Losses around their mean on a share of the queries, so that all have this mean."""
    spread = np.linspace(-0.4, 0.4, 9)
    weights = stats.norm.pdf(spread, scale=0.2)
    shares = changed * weights / weights.sum()
    return Losses((0.0, *(spread + mean / changed)), (1 - shares.sum(), *shares))


def rare(share: float, gaining: float, mean: float = 0.0, loss: float = 1.0) -> Losses:
    """A rare large loss, and equal gains on a share of the queries that leave this mean."""
    gain = (share * loss - mean) / gaining if gaining else 0.0
    return Losses((loss, -gain, 0.0), (share, gaining, 1 - share - gaining))


def populations(queries: int, mean: float = 0.0) -> Iterator[tuple[str, Losses]]:
    """Kinds of losses with this mean, for samples of this size."""
    for changed in (0.02, 0.1, 0.5, 1.0):
        if mean <= changed * 0.5:
            yield f"{changed:.0%} of the queries changed", symmetric(changed, mean)
    if mean == 0:
        yield "no query changed", EQUAL
    for expected in (0.3, 1.0, 3.0, 10.0):  # rare losses in a sample
        share = max(expected / queries, mean) if mean else expected / queries
        if share <= 0.4:
            yield "rare losses of 1, half gain", rare(share, 0.5, mean)
            yield "rare losses of .5, a tenth gain", rare(share, 0.1, mean * 0.5, loss=0.5)
            yield "rare losses of 1, the rest equal", rare(share, 0.0)


def mixtures(sizes: Sequence[int]) -> Iterator[tuple[str, list[Losses]]]:
    """Losses of several collections."""
    yield "half of the queries changed", [symmetric(0.5)] * len(sizes)
    yield "2 % to 100 % changed", [symmetric(c) for c in np.linspace(0.02, 1, len(sizes))]
    for expected in (0.3, 1.0, 3.0):
        rates = [expected / n for n in sizes]
        yield "rare losses of 1 everywhere, half gain", [rare(rate, 0.5) for rate in rates]
        yield "rare losses of 1 everywhere, the rest equal", [rare(rate, 0.0) for rate in rates]
        for place, where in ((0, "the smallest"), (len(sizes) - 1, "the largest")):
            one = [EQUAL] * len(sizes)
            one[place] = rare(rates[place], 0.0)
            yield f"rare losses of 1 on {where} alone", one


def test_many_samples_at_once_have_the_bound_of_the_gate():
    rng = np.random.default_rng(0)
    sample = [rng.normal(0, 0.2, (40, 3)), rng.normal(0, 0.1, (90, 3))]
    found = bound_by_gaffke(sample, [0.3, 0.7], INNER)
    for column in range(3):
        parts = [draw_means(part[:, column], INNER) for part in sample]
        assert found[column] == pytest.approx(upper_bound(parts, [0.3, 0.7]), abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("queries", [30, 3_000])
def test_the_bound_covers_the_true_mean_whatever_the_losses_are(queries):
    rng = np.random.default_rng([queries, 0])
    for kind, one in populations(queries):
        bounds = bound_by_gaffke([one.draw(queries, DRAWS, rng)], [1.0], INNER)
        assert np.mean(bounds < one.mean - 1e-9) <= MOST, kind


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_bound_covers_the_mean_of_unequal_collections(family):
    sizes = FAMILIES[family]
    weights = np.arange(1, len(sizes) + 1) / np.arange(1, len(sizes) + 1).sum()
    rng = np.random.default_rng(len(sizes))
    for kind, members in mixtures(sizes):
        sample = [one.draw(n, DRAWS, rng) for one, n in zip(members, sizes, strict=True)]
        mean = float(np.dot(weights, [one.mean for one in members]))
        bounds = bound_by_gaffke(sample, weights.tolist(), INNER)
        assert np.mean(bounds < mean - 1e-9) <= MOST, kind


@pytest.mark.slow
@pytest.mark.parametrize("queries", [100, 1_000])
def test_a_true_loss_of_the_margin_passes_at_most_5_times_in_100(queries):
    rng = np.random.default_rng([queries, 1])
    for kind, one in populations(queries, MARGIN):
        if one.mean == pytest.approx(MARGIN):
            bounds = bound_by_gaffke([one.draw(queries, DRAWS, rng)], [1.0], INNER)
            assert np.mean(bounds <= MARGIN) <= MOST, kind


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "least"), [(300, 0.5), (1_000, 0.98)])
def test_equal_models_pass_as_often_as_the_page_says(queries, least):
    rng = np.random.default_rng([queries, 2])
    sample = [symmetric(0.5).draw(queries, DRAWS, rng)]
    assert np.mean(bound_by_gaffke(sample, [1.0], INNER) <= MARGIN) >= least
