"""The decision: each row of its table, and what it depends on."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bench.comparing.statistics import Resampling, ScorePair
from bench.gate.check_record import MEAN
from bench.gate.decision import GateSettings, decide
from foundation.errors import BenchError
from tests.support.examples import with_examples

BASE = np.tile([0.0, 0.5, 1.0, 0.5], 100)
RESAMPLING = Resampling(999)
DEFAULTS = (GateSettings(), RESAMPLING)
BY_LOSS = ("OK", "INCONCLUSIVE", "REGRESSION")


def pair(losses: np.ndarray, on: str = "x", measure: str = "RR@10") -> ScorePair:
    base = np.resize(BASE, len(losses))
    return ScorePair(on, measure, base - losses, base, tuple(f"q{i}" for i in range(len(losses))))


def judged(*losses: np.ndarray, measures: tuple[str, ...] = (), **limits: object):
    names = [f"c{number}" for number in range(len(losses))]
    kinds = measures or ("RR@10",) * len(losses)
    pairs = list(map(pair, losses, names, kinds))
    return decide(pairs, dict.fromkeys(names, 1 / len(names)), GateSettings(**limits), RESAMPLING)


def lost(count: int, by: float, queries: int = 400) -> np.ndarray:
    return np.where(np.arange(queries) < count, by, 0.0)


NOISE = np.tile([0.3, -0.3, 0.0, 0.0], 100)


@pytest.mark.parametrize(
    ("losses", "limits", "outcome"),
    [
        ([lost(0, 0, 149)], {}, "OK"),
        ([lost(0, 0, 148)], {}, "INCONCLUSIVE"),
        ([lost(400, -0.1)], {}, "OK"),
        ([lost(40, 0.02)], {}, "OK"),
        ([lost(40, 0.5)], {}, "REGRESSION"),
        ([NOISE], {}, "INCONCLUSIVE"),
        ([NOISE], {"margin": 0.03}, "OK"),
        ([np.tile(NOISE, 10) + 0.03], {}, "REGRESSION"),
        ([lost(100, 0.12), lost(400, -0.05)], {}, "OK"),
        ([lost(400, 0.12), lost(400, -0.2)], {}, "REGRESSION"),
        ([lost(400, 0.12), lost(400, -0.2)], {"floor": 0.15}, "OK"),
        ([lost(12, 0.9, 20), *[lost(400, -0.1)] * 3], {"floor": 0.2}, "REGRESSION"),
        ([lost(3, 0.9, 20), *[lost(400, -0.1)] * 3], {}, "OK"),
    ],
)
def test_each_row_of_the_table(losses, limits, outcome):
    found = judged(*losses, **limits)
    assert found.outcome == outcome
    assert found.reasons


def test_a_significant_loss_within_the_margin_is_ok_and_said():
    found = judged(np.tile(NOISE, 10) + 0.01)
    assert found.outcome == "OK"
    assert "c0 lost 0.0100 (p 0.0" in found.reasons[1].what
    assert "significant, but allowed" in found.reasons[1].what


def test_an_open_decision_says_how_many_queries_are_needed():
    found = judged(lost(0, 0, 130))
    assert found.needed == 149
    assert "about 149 queries are needed, and there are 130" in found.reasons[0].what
    by_chance = judged(np.r_[NOISE[:40] + 0.05])
    assert by_chance.outcome == "INCONCLUSIVE"
    assert "the observed loss of 0.0500 is not significant" in by_chance.reasons[0].what
    assert 40 < by_chance.needed < 400


def test_the_rows_that_decided_are_named():
    found = judged(lost(400, 0.12), lost(400, 0.0))
    assert [bool(row.failure) for row in found.rows] == [True, False]
    assert "more than the floor" in found.rows[0].failure
    assert "the margin" in found.mean.failure
    assert found.mean.on == MEAN
    assert found.mean.bound > 0.06


def test_several_measures_have_no_mean_and_each_collection_must_pass():
    fine, doubtful = lost(0, 0), lost(0, 0, 130)
    found = judged(fine, doubtful, measures=("RR@10", "R@100"))
    assert (found.outcome, found.mean) == ("INCONCLUSIVE", None)
    assert found.needed == 149
    assert judged(fine, fine, measures=("RR@10", "R@100")).outcome == "OK"
    worse = judged(fine, np.tile(NOISE, 10) + 0.05, measures=("RR@10", "R@100"))
    assert worse.outcome == "REGRESSION"
    assert "c1 lost 0.0500" in worse.reasons[0].what


def test_a_gap_is_missing_whatever_the_others_say():
    pairs = [pair(lost(400, 0.5), "one")]
    weights = {"one": 0.5, "two": 0.5}
    found = decide(pairs, weights, GateSettings(), RESAMPLING, {"two": "out of memory"})
    assert (found.outcome, found.mean) == ("MISSING", None)
    assert [str(reason) for reason in found.reasons] == ["two: out of memory"]
    assert [row.missing for row in found.rows] == [(), ("out of memory",)]
    assert decide([], weights, GateSettings(), RESAMPLING).outcome == "MISSING"


@pytest.mark.parametrize(("by", "outcome"), [(0.11, "DRIFT"), (-0.11, "DRIFT"), (1e-4, "OK")])
def test_the_same_scores_are_expected_of_each_query(by, outcome):
    """One query moves, the mean by less than the tolerance."""
    losses = lost(0, 0)
    losses[7] = by
    found = judged(losses, expect_same=True)
    assert abs(losses.mean()) < 0.0005
    assert found.outcome == outcome
    if outcome == "DRIFT":
        assert "RR@10 of 1 query of 400 differs by more than 0.0005" in found.reasons[0].what
        assert f"(most: {-by:+.4f} on q7; mean" in found.reasons[0].what


def test_a_measure_beyond_1_has_no_bound():
    with pytest.raises(BenchError, match="not a measure from 0 to 1"):
        judged(lost(3, 1.5))


LOSSES = arrays(float, st.integers(2, 60), elements=st.floats(-1, 1))
FEW = Resampling(199)


def outcome_of(losses: dict[str, np.ndarray], weights: dict[str, float], limits: GateSettings):
    pairs = [ScorePair(n, "RR@10", -one, np.zeros(len(one))) for n, one in losses.items()]
    return decide(pairs, weights, limits, FEW)


LIMITS = st.builds(GateSettings, margin=st.floats(0, 0.1), floor=st.floats(0, 0.2))


@given(st.data(), LIMITS)
@with_examples(20)
def test_a_candidate_with_lower_or_equal_scores_never_has_a_better_outcome(data, limits):
    names = ["a", "b", "c"][: data.draw(st.integers(1, 3))]
    losses = {name: data.draw(LOSSES) for name in names}
    more = {
        name: np.minimum(
            one + data.draw(arrays(float, len(one), elements=st.floats(0, 0.5), fill=st.just(0.0))),
            1,
        )
        for name, one in losses.items()
    }
    weights = dict.fromkeys(names, 1 / len(names))
    before, after = (outcome_of(each, weights, limits).outcome for each in (losses, more))
    assert BY_LOSS.index(after) >= BY_LOSS.index(before)


@given(st.data(), LIMITS)
@with_examples(10)
def test_the_order_of_queries_and_collections_has_no_influence(data, limits):
    losses = {name: data.draw(LOSSES) for name in ("a", "b")}
    weights = {"a": 0.3, "b": 0.7}
    shuffled = {name: data.draw(st.permutations(list(one))) for name, one in losses.items()}
    one = outcome_of(losses, weights, limits)
    two = outcome_of({n: np.array(v) for n, v in shuffled.items()}, weights, limits)
    other = outcome_of(losses, dict(reversed(weights.items())), limits)
    assert (one.outcome, one.reasons) == (two.outcome, two.reasons)
    assert [(row.paired, row.bound) for row in (*one.rows, one.mean)] == [
        (row.paired, row.bound) for row in (*two.rows, two.mean)
    ]
    assert (one.outcome, one.rows, one.mean) == (other.outcome, other.rows[::-1], other.mean)


def test_p_of_a_loss_is_twice_the_share_of_flips_with_as_large_a_loss():
    losses = np.r_[0.3, 0.2, 0.2, 0.1, -0.1, np.zeros(20)]
    flips = np.array(np.meshgrid(*[[1, -1]] * 5)).reshape(5, -1).T @ losses[:5]
    exact = 2 * np.mean(flips >= losses.sum() - 1e-12)
    assert judged(losses).rows[0].paired.p == pytest.approx(exact)
    assert judged(-losses).rows[0].paired.p == 1


def test_small_losses_that_a_rare_gain_balances_are_no_regression():
    """p alone showed a loss in half of such samples, whose gain of 1 is often missing."""
    outcomes = []
    for seed in range(30, 40):
        losses = np.where(np.random.default_rng(seed).random(50) < 0.01, -1, 0.01 / 0.99)
        found = decide([ScorePair("x", "RR@10", -losses, np.zeros(50))], {"x": 1.0}, *DEFAULTS)
        outcomes.append(found.outcome)
    assert set(outcomes) == {"INCONCLUSIVE"}
    assert found.rows[0].paired.p < 0.001
    assert "0.0101 has a small p, but rare gains that the sample lacks may" in found.reasons[0].what
    assert judged(np.full(50, 0.2)).outcome == "REGRESSION"


def test_a_loss_that_its_lower_bound_does_not_show_says_how_many_queries_would():
    losses = np.r_[np.full(14, 0.3), np.full(4, -0.1), np.zeros(22)]
    found = judged(losses)
    assert (found.outcome, found.rows[0].paired.p < 0.05) == ("INCONCLUSIVE", True)
    assert judged(np.resize(losses, found.needed + 40)).outcome == "REGRESSION"


def test_names_and_order_of_collections_of_one_size_change_no_figure():
    """Nor the outcome at the margin, where a name once decided."""
    rng = np.random.default_rng(6)
    base = [rng.random(90), rng.random(90), rng.random(40)]
    scores = [((b - rng.normal(0, 0.1, len(b))).clip(0, 1), b) for b in base]
    shares, seen = [0.25, 0.25, 0.5], set()
    for names in itertools.permutations("abc"):
        named = zip(names, scores, strict=True)
        pairs = [ScorePair(name, "RR@10", *each) for name, each in sorted(named)]
        weights = dict(sorted(zip(names, shares, strict=True)))
        found = decide(pairs, weights, GateSettings(), RESAMPLING)
        mean = (found.mean.bound, found.mean.mean_a, found.mean.mean_b, found.mean.paired)
        rows = {row.on: (row.bound, row.paired.p, row.paired.low) for row in found.rows}
        seen.add((found.outcome, mean, *(rows[name] for name in names)))
    assert len(seen) == 1
