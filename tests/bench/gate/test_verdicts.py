"""The truth table of the gate: each row, and what goes before what."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gate.verdicts import WORST, Decision, Evidence, Loss, decide, worse

PLAIN = Evidence(
    rule="loss",
    collections=(Loss("one", -0.01, 0.4, 0.4), Loss("two", 0.02, 0.3, 0.3)),
    mean=Loss("mean", 0.005, 0.5, 0.5),
    changed=40,
    same_rankings=False,
    largest_loss=0.008,
    margin=0.01,
    floor=0.1,
)
MARGIN = msgspec.structs.replace(PLAIN, rule="margin")


def outcome(evidence: Evidence, **changed: object) -> tuple[str, int]:
    found = decide(msgspec.structs.replace(evidence, **changed))
    assert found.reasons
    return found.outcome, found.exit_code


LOST = {"mean": Loss("mean", -0.02, 0.01, 0.01)}


@pytest.mark.parametrize(
    ("evidence", "changed", "expected"),
    [
        (PLAIN, {}, ("OK", 0)),
        (PLAIN, {"missing": ("one: no result",)}, ("MISSING", 4)),
        (PLAIN, {"missing": ("one: no result",), **LOST}, ("MISSING", 4)),
        (PLAIN, {"drifted": ("one: +0.01",)}, ("DRIFT", 5)),
        (PLAIN, {"drifted": (), **LOST}, ("OK", 0)),
        (PLAIN, {"floor": 0.009}, ("REGRESSION", 1)),
        (PLAIN, {"floor": 0.01}, ("OK", 0)),
        (PLAIN, {"floor": 0.009, "changed": 1}, ("REGRESSION", 1)),
        (PLAIN, {"same_rankings": True, "changed": 0}, ("OK", 0)),
        (PLAIN, {"changed": 9}, ("INCONCLUSIVE", 3)),
        (PLAIN, {"changed": 9, **LOST}, ("INCONCLUSIVE", 3)),
        (PLAIN, {"mean": Loss("mean", -0.02, 0.2, 0.01)}, ("INCONCLUSIVE", 3)),
        (PLAIN, {"mean": Loss("mean", 0.02, 1.0, 0.01)}, ("OK", 0)),
        (PLAIN, {"collections": (Loss("one", -0.02, 0.2, 0.01),), **LOST}, ("REGRESSION", 1)),
        (PLAIN, LOST, ("REGRESSION", 1)),
        (PLAIN, {"mean": Loss("mean", -0.02, 0.05, 0.05)}, ("REGRESSION", 1)),
        (PLAIN, {"mean": Loss("mean", -0.02, 0.0501, 0.0501)}, ("OK", 0)),
        (PLAIN, {"mean": Loss("mean", 0.3, 0.0001, 0.0001)}, ("OK", 0)),
        (PLAIN, {"collections": (Loss("one", -0.01, 0.04, 0.04),)}, ("REGRESSION", 1)),
        (PLAIN, {"largest_loss": 0.9}, ("OK", 0)),
        (MARGIN, {}, ("OK", 0)),
        (MARGIN, {"largest_loss": 0.011}, ("INCONCLUSIVE", 3)),
        (MARGIN, {"largest_loss": None}, ("INCONCLUSIVE", 3)),
        (MARGIN, {"changed": 9}, ("INCONCLUSIVE", 3)),
        (MARGIN, {"largest_loss": 0.03, **LOST}, ("REGRESSION", 1)),
        (MARGIN, {"largest_loss": 0.03, "mean": Loss("m", -0.02, 0.2, 0.2)}, ("INCONCLUSIVE", 3)),
        (MARGIN, {"largest_loss": 0.03, "mean": Loss("m", -0.02, 0.06, 0.01)}, ("INCONCLUSIVE", 3)),
        (MARGIN, {"largest_loss": 0.03, "mean": Loss("m", -0.001, 0.01, 0.01)}, ("REGRESSION", 1)),
        (MARGIN, {"largest_loss": None, "mean": Loss("m", -0.02, 0.2, 0.2)}, ("INCONCLUSIVE", 3)),
        (MARGIN, {"mean": Loss("mean", -0.001, 0.01, 0.01)}, ("OK", 0)),
        (MARGIN, {"floor": 0.009}, ("REGRESSION", 1)),
    ],
)
def test_each_row_of_the_truth_table(evidence, changed, expected):
    assert outcome(evidence, **changed) == expected


@given(st.lists(st.sampled_from(WORST), min_size=1, max_size=4))
def test_the_worst_of_several_outcomes_decides(outcomes):
    found = worse([Decision(one, ("why",)) for one in outcomes])
    assert WORST.index(found.outcome) == max(WORST.index(one) for one in outcomes)


@given(st.floats(-0.5, 0.5), st.floats(0.0501, 1), st.sampled_from(["loss", "margin"]))
def test_no_difference_that_chance_explains_is_a_regression_by_either_rule(difference, p, rule):
    mean = Loss("mean", difference, p, p)
    evidence = msgspec.structs.replace(PLAIN, rule=rule, mean=mean, largest_loss=0.5)
    assert decide(evidence).outcome != "REGRESSION"


def test_a_loss_beyond_the_margin_that_chance_explains_says_so():
    mean = Loss("mean", -0.02, 0.2, 0.2)
    (reason,) = decide(msgspec.structs.replace(MARGIN, mean=mean, largest_loss=0.03)).reasons
    assert "observed -0.0200, which chance can explain" in reason


@given(st.floats(-0.5, 0.5), st.floats(0, 1), st.floats(0, 0.4))
def test_a_better_mean_never_turns_ok_into_regression(difference, p, gain):
    def at(value: float) -> int:
        return decide(msgspec.structs.replace(PLAIN, mean=Loss("mean", value, p, p))).exit_code

    assert at(abs(difference) + gain) == 0
