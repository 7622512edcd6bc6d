"""The gate over entries with chosen scores: gaps, protocol, anchor, published scores, warnings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.comparing.pairs import ComparisonSettings
from bench.comparing.statistics import Resampling
from bench.evaluation.judging import mean_weights, suite_weights
from bench.evaluation.result_record import Evaluation
from bench.evaluation.runs import Run
from bench.gate.candidate import Candidate, Reference, check_published
from bench.gate.check import check_against, conclude, expected_sensitivity
from bench.gate.check_record import PairVerdict
from bench.gate.decision import BY_SEVERITY, GateSettings
from bench.requests.outcomes import ExitCode
from retrievers.models.card import ExpectedScore
from tests.support.results import PROTOCOL, evaluation

SETTINGS = GateSettings()
COMPARISON_SETTINGS = ComparisonSettings(resampling=Resampling(499, 0))
BASE = np.random.default_rng(0).choice([0.0, 0.5, 1.0], 200)


def entry(values: np.ndarray, documents: tuple[str, ...] = ("d1", "d2")) -> Evaluation:
    ids = tuple(f"q{i:04}" for i in range(len(values)))
    ranking = [(query, doc, -rank) for query in ids for rank, doc in enumerate(documents)]
    run = Run.from_rows(*zip(*ranking, strict=True))
    return evaluation({"RR@10": values}, ids, run, PROTOCOL)


def shifted(count: int, by: float) -> np.ndarray:
    values = BASE.copy()
    values[:count] += by
    return values


def check(candidate, baseline=None, weights=None, failed=None, settings=SETTINGS):
    base = {"one": entry(BASE)} if baseline is None else baseline
    model = Candidate("ckpt", candidate, failed or {})
    other = Reference("baseline", "base", base)
    return check_against(model, other, weights or {"one": 1.0}, settings, COMPARISON_SETTINGS)


def test_rankings_and_recipes_of_equal_scores_do_not_change_the_outcome():
    assert check({"one": entry(BASE, ("d2", "d1"))}).outcome == "OK"


def test_what_queries_can_show_is_computed_from_their_number_and_a_stated_deviation():
    found = expected_sensitivity({"one": 150, "two": 150}, {"one": 1.0})
    assert found.queries == 150
    assert found.provable == pytest.approx(1 - 0.05 ** (1 / 150), rel=1e-3)
    assert found.detectable == pytest.approx(2.82 * 0.2 / np.sqrt(150), rel=0.01)


def test_a_failed_evaluation_is_missing_and_never_a_score():
    found = check(
        {"one": entry(BASE)},
        {"one": entry(BASE), "two": entry(BASE)},
        {"one": 0.5, "two": 0.5},
        {"two": "not evaluated: out of memory"},
    )
    assert found.outcome == "MISSING"
    assert found.mean is None
    assert [row.candidate for row in found.rows] == [pytest.approx(BASE.mean()), None]
    assert "out of memory" in found.reasons[0]


@given(st.lists(st.sampled_from(BY_SEVERITY), min_size=1, max_size=4))
def test_the_worst_of_several_outcomes_decides(outcomes):
    against = [
        PairVerdict(role="baseline", name=str(place), outcome=one, reasons=("why",), rows=())
        for place, one in enumerate(outcomes)
    ]
    found = conclude(Candidate("mine", {}), against, SETTINGS)
    worst = max(BY_SEVERITY.index(one) for one in outcomes)
    first = [BY_SEVERITY.index(one) for one in outcomes].index(worst)
    assert (found.outcome, found.exit_code) == (BY_SEVERITY[worst], ExitCode[BY_SEVERITY[worst]])
    assert found.reasons == (f"why (against the baseline, {first})",)


def test_a_suspiciously_large_gain_is_ok_and_points_to_verify():
    found = conclude(Candidate("ckpt", {}), [check({"one": entry(shifted(200, 0.2))})], SETTINGS)
    assert found.outcome == "OK"
    assert any("verify" in text for text in found.warnings)


def test_the_three_queries_that_lost_most_on_any_collection_are_named():
    values = BASE.copy()
    values[[3, 5]] -= [0.9, 0.2]
    other = BASE.copy()
    other[[7, 9]] -= [0.4, 0.1]
    base = {"one": entry(BASE), "two": entry(BASE)}
    candidate = {"one": entry(values), "two": entry(other)}
    worst = check(candidate, base, {"one": 0.5, "two": 0.5}).worst
    assert [(query.collection, query.query_id) for query in worst] == [
        ("one", "q0003"),
        ("two", "q0007"),
        ("one", "q0005"),
    ]
    assert [query.baseline - query.candidate for query in worst] == pytest.approx([0.9, 0.4, 0.2])
    assert check({"one": entry(shifted(40, 0.1))}).worst == ()


def against_published(measures):
    stored = {
        name: evaluation({key: np.array([value]) for key, value in own.items()}, ["q"])
        for name, own in measures.items()
    }
    return check_published(Candidate("ckpt", stored), published(0.5), measures)


def published(value: float) -> list[ExpectedScore]:
    return [
        ExpectedScore(dataset="one", measure="RR@10", value=value, source="paper", tolerance=0.01)
    ]


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [
        ({"RR@10": 0.505}, "OK"),
        ({"RR@10": 0.52}, "DRIFT"),
        ({"RR@10": float("nan")}, "DRIFT"),
        ({"AP": 0.5}, "MISSING"),
    ],
)
def test_published_scores_are_held_to_their_tolerance(measured, outcome):
    assert against_published({"one": measured}).outcome == outcome


def test_a_collection_without_a_published_score_is_missing():
    found = against_published({"two": {"RR@10": 0.5}})
    assert found.outcome == "MISSING"


def test_weights_are_those_of_the_suite_and_equal_beside_it():
    assert mean_weights(["beir"]) == pytest.approx(suite_weights("beir"))
    weights = mean_weights(["stdlib-code", "beir"])
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["stdlib-code"] == pytest.approx(weights["beir/scifact"])


@pytest.mark.parametrize("inside", ["beir/scifact", "beir/cqadupstack", "beir/cqadupstack/gis"])
def test_a_member_given_with_its_suite_keeps_its_weight(inside):
    whole = pytest.approx(suite_weights("beir"))
    assert mean_weights([inside, "beir"]) == whole
    assert mean_weights(["beir", inside]) == whole
