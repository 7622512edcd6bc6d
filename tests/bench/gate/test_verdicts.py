"""The truth table of the gate: each row, and what goes before what."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.comparing.statistics import Difference
from bench.gate.check_record import PairVerdict
from bench.gate.settings import GateSettings
from bench.gate.verdicts import BY_SEVERITY, THE_MEAN, Evidence, conclude_check, decide
from bench.outcomes import ExitCode
from foundation.errors import BenchError


def evidence(
    one: tuple[float, ...] = (-0.01, 0.4),
    mean: tuple[float, ...] | None = (0.005, 0.5),
    changed: int = 40,
    largest_loss: float | None = 0.008,
    **others: object,
) -> Evidence:
    """Two collections and their mean: difference, p, and p of the randomisation test if smaller.

    A loss up to ``largest_loss`` is possible everywhere.
    """
    known = {"one": one, "two": (0.008, 0.3)} | ({THE_MEAN: mean} if mean else {})
    cautious = {name: difference(*found[:2], changed) for name, found in known.items()}
    plain = {name: difference(found[0], found[-1], changed) for name, found in known.items()}
    return Evidence(plain, cautious, losses=dict.fromkeys(known, largest_loss), **others)


def difference(by: float, p: float, changed: int) -> Difference:
    return Difference(
        difference=by,
        low=None,
        high=None,
        p=p,
        exact=False,
        wins=changed // 2,
        ties=9,
        losses=0,
        effect=None,
        detectable=None,
    )


SAME = {"expect_same": True}
CLOSE = {"expect_same": True, "tolerance": 0.01}
MARGIN = {"rule": "margin"}
MISSING = {"missing": {"one": "no result"}}
LOST = {"mean": (-0.02, 0.01)}


@pytest.mark.parametrize(
    ("settings", "known", "expected"),
    [
        ({}, {}, ("OK", 0)),
        ({}, MISSING, ("MISSING", 4)),
        ({}, {**MISSING, **LOST}, ("MISSING", 4)),
        (SAME, MISSING, ("MISSING", 4)),
        (SAME, {}, ("DRIFT", 5)),
        (CLOSE, {}, ("OK", 0)),
        ({**CLOSE, "floor": 0.004}, {}, ("INCONCLUSIVE", 3)),
        ({**CLOSE, "floor": 0.004}, {"one": (-0.005, 0.05)}, ("REGRESSION", 1)),
        (SAME, {"one": (0.0, 1.0), "same_model": True}, ("DRIFT", 5)),
        ({"floor": 0.009}, {}, ("INCONCLUSIVE", 3)),
        ({"floor": 0.009}, {"one": (-0.01, 0.9, 0.05)}, ("INCONCLUSIVE", 3)),
        ({"floor": 0.009}, {"one": (-0.01, 0.0501)}, ("INCONCLUSIVE", 3)),
        ({"floor": 0.01}, {}, ("OK", 0)),
        ({"floor": 0.009}, {"changed": 8, "one": (-0.01, 0.04)}, ("REGRESSION", 1)),
        ({"floor": 0.009}, LOST, ("REGRESSION", 1)),
        ({"floor": 0.009}, {"changed": 2}, ("INCONCLUSIVE", 3)),
        ({"floor": 0.009}, {"same_rankings": True}, ("INCONCLUSIVE", 3)),
        ({}, {"same_rankings": True, "changed": 0}, ("OK", 0)),
        ({}, {"same_rankings": True, "changed": 0, "same_model": True}, ("INCONCLUSIVE", 3)),
        ({}, {**MISSING, "same_model": True}, ("MISSING", 4)),
        ({}, {"changed": 8}, ("INCONCLUSIVE", 3)),
        ({}, {"changed": 8, **LOST}, ("INCONCLUSIVE", 3)),
        ({}, {"mean": (-0.02, 0.2, 0.01)}, ("INCONCLUSIVE", 3)),
        ({}, {"mean": (0.02, 1.0, 0.01)}, ("OK", 0)),
        ({}, {"one": (-0.02, 0.2, 0.01), **LOST}, ("REGRESSION", 1)),
        ({}, LOST, ("REGRESSION", 1)),
        ({}, {"mean": (-0.02, 0.05)}, ("REGRESSION", 1)),
        ({}, {"mean": (-0.02, 0.0501)}, ("OK", 0)),
        ({}, {"mean": (0.3, 0.0001)}, ("OK", 0)),
        ({}, {"one": (-0.01, 0.04)}, ("REGRESSION", 1)),
        ({}, {"largest_loss": 0.1}, ("OK", 0)),
        ({}, {"largest_loss": 0.101}, ("INCONCLUSIVE", 3)),
        ({}, {"largest_loss": None}, ("INCONCLUSIVE", 3)),
        ({}, {"largest_loss": 0.03, "stated": {THE_MEAN: 0.03, "one": 0.01}}, ("OK", 0)),
        ({}, {"largest_loss": 0.031, "stated": {THE_MEAN: 0.03}}, ("INCONCLUSIVE", 3)),
        ({}, {"largest_loss": 0.031, "stated": {"one": 0.03}, "mean": None}, ("INCONCLUSIVE", 3)),
        ({}, {"largest_loss": 0.03, "stated": {"one": 0.03}, "mean": None}, ("OK", 0)),
        ({}, {"largest_loss": 0.2, **LOST}, ("REGRESSION", 1)),
        (MARGIN, {}, ("OK", 0)),
        (MARGIN, {"largest_loss": 0.011}, ("INCONCLUSIVE", 3)),
        (MARGIN, {"largest_loss": None}, ("INCONCLUSIVE", 3)),
        (MARGIN, {"changed": 8}, ("INCONCLUSIVE", 3)),
        (MARGIN, {"largest_loss": 0.03, **LOST}, ("REGRESSION", 1)),
        (MARGIN, {"largest_loss": 0.03, "mean": (-0.02, 0.2)}, ("INCONCLUSIVE", 3)),
        (MARGIN, {"largest_loss": 0.03, "mean": (-0.02, 0.06, 0.01)}, ("INCONCLUSIVE", 3)),
        (MARGIN, {"largest_loss": 0.03, "mean": (-0.001, 0.01)}, ("REGRESSION", 1)),
        (MARGIN, {"largest_loss": None, "mean": (-0.02, 0.2)}, ("INCONCLUSIVE", 3)),
        (MARGIN, {"largest_loss": None, "mean": None}, ("INCONCLUSIVE", 3)),
        (MARGIN, {"mean": (-0.001, 0.01)}, ("OK", 0)),
        ({**MARGIN, "floor": 0.009}, {}, ("INCONCLUSIVE", 3)),
        ({**MARGIN, "floor": 0.009}, {"one": (-0.01, 0.05)}, ("REGRESSION", 1)),
    ],
)
def test_each_row_of_the_truth_table(settings, known, expected):
    found = decide(evidence(**known), GateSettings(**settings))
    assert found.reasons
    assert (found.outcome, ExitCode[found.outcome]) == expected


@pytest.mark.parametrize(
    ("settings", "known", "failed"),
    [
        ({"floor": 0.009}, {}, {"one"}),
        (SAME, {}, {"one", "two"}),
        ({}, {"one": (-0.01, 0.04), **LOST}, {"one", THE_MEAN}),
        ({}, {"one": (-0.02, 0.2, 0.01)}, {"one"}),
        (MARGIN, {"largest_loss": 0.03, "one": (-0.01, 0.04), **LOST}, {THE_MEAN}),
        (MARGIN, {"largest_loss": 0.03}, set()),
        ({}, MISSING, set()),
    ],
)
def test_the_rows_that_decided_are_named(settings, known, failed):
    found = decide(evidence(**known), GateSettings(**settings))
    assert set(found.failures) == failed
    assert not failed or tuple(found.failures.values()) == found.reasons


@given(st.lists(st.sampled_from(BY_SEVERITY), min_size=1, max_size=4))
def test_the_worst_of_several_outcomes_decides(outcomes):
    against = [
        PairVerdict(role="baseline", name=str(place), outcome=one, reasons=("why",), rows=())
        for place, one in enumerate(outcomes)
    ]
    found = conclude_check("mine", against, (), GateSettings())
    worst = max(BY_SEVERITY.index(one) for one in outcomes)
    first = [BY_SEVERITY.index(one) for one in outcomes].index(worst)
    assert (found.outcome, found.exit_code) == (BY_SEVERITY[worst], ExitCode[BY_SEVERITY[worst]])
    assert found.reasons == (f"why (against the baseline, {first})",)


@given(st.floats(-0.5, 0.5), st.floats(0.0501, 1), st.sampled_from(["loss", "margin"]))
def test_no_difference_that_chance_explains_is_a_regression_by_either_rule(difference, p, rule):
    known = evidence(mean=(difference, p), largest_loss=0.5)
    assert decide(known, GateSettings(rule=rule)).outcome != "REGRESSION"


def test_a_loss_beyond_the_margin_that_chance_explains_says_so():
    known = evidence(mean=(-0.02, 0.2), largest_loss=0.03)
    (reason,) = decide(known, GateSettings(rule="margin")).reasons
    assert "observed -0.0200, which is not significant" in reason


@given(st.floats(0, 0.9), st.floats(0, 1))
def test_a_better_mean_never_turns_ok_into_regression(gain, p):
    assert decide(evidence(mean=(gain, p)), GateSettings()).outcome == "OK"


def test_on_one_collection_it_stands_for_the_mean():
    known = evidence(one=(-0.02, 0.01), largest_loss=0.03)
    alone = replace(
        known, plain={"one": known.plain["one"]}, cautious={"one": known.cautious["one"]}
    )
    assert set(decide(alone, GateSettings(rule="margin")).failures) == {"one"}


@pytest.mark.parametrize("value", [-0.01, 1.0, 0.201, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["margin", "floor", "tolerance"])
def test_a_limit_that_would_accept_any_model_is_refused(name, value):
    with pytest.raises(BenchError, match=name):
        GateSettings(**{name: value})
