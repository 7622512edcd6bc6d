"""The gate over entries with chosen scores: outcome, gaps, protocol, anchor, published scores."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from bench.comparing.pairs import ComparisonSettings
from bench.comparing.statistics import Resampling
from bench.evaluation.judging import mean_weights, suite_weights
from bench.evaluation.runs import Run
from bench.gate.check_record import StoredModel
from bench.gate.paired_tests import check_against, check_published, find_losses_elsewhere
from bench.gate.power import DetectableEffect
from bench.gate.scope import Candidate, Scope
from bench.gate.settings import GateSettings
from bench.gate.verdicts import conclude_check
from bench.result_store.result import Evaluation
from foundation.errors import BenchError
from retrievers.models.card import ExpectedScore
from tests.support.results import PROTOCOL, evaluation

SETTINGS = GateSettings()
COMPARISON_SETTINGS = ComparisonSettings(resampling=Resampling(499, 0))
BASE = np.random.default_rng(0).choice([0.0, 0.5, 1.0], 200)


def entry(
    values: np.ndarray, documents: tuple[str, ...] = ("d1", "d2"), depth: int = 10
) -> Evaluation:
    ids = tuple(f"q{i:04}" for i in range(len(values)))
    ranking = [(query, doc, -rank) for query in ids for rank, doc in enumerate(documents)]
    run = Run.from_rows(*zip(*ranking, strict=True))
    protocol = msgspec.structs.replace(PROTOCOL, depth=depth)
    return evaluation({"RR@10": values}, ids, run, protocol)


def shifted(count: int, by: float) -> np.ndarray:
    values = BASE.copy()
    values[:count] += by
    return values


def check(candidate, baseline=None, weights=None, failed=None, settings=SETTINGS):
    base = {"one": entry(BASE)} if baseline is None else baseline
    model = Candidate("ckpt", candidate, failed or {})
    scope = Scope(weights=weights or {"one": 1.0})
    other = StoredModel("baseline", "base", base)
    return check_against(model, other, scope, settings, COMPARISON_SETTINGS)


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        (shifted(0, 0), "INCONCLUSIVE"),
        (shifted(40, 0.1), "OK"),
        (shifted(40, -0.1), "REGRESSION"),
        (shifted(5, 0.1), "INCONCLUSIVE"),
    ],
)
def test_the_outcome_on_one_collection(values, outcome):
    assert check({"one": entry(values)}).outcome == outcome


def test_equal_scores_of_other_rankings_are_too_few_changes_to_say_anything():
    assert check({"one": entry(BASE, ("d2", "d1"))}).outcome == "INCONCLUSIVE"


def test_a_loss_within_the_margin_passes_the_margin_rule_alone():
    candidate = {"one": entry(shifted(40, -0.05))}
    margin = GateSettings(rule="margin", margin=0.05)
    assert check(candidate).outcome == "REGRESSION"
    assert check(candidate, settings=margin).outcome == "OK"


def test_a_significant_loss_that_one_unseen_gain_could_balance_is_inconclusive():
    found = check({"one": entry(shifted(40, -0.01))})
    assert found.rows[0].paired.p < 0.01
    assert found.outcome == "INCONCLUSIVE"
    assert "rare gains" in found.reasons[0]


def test_fifteen_queries_cannot_rule_out_a_large_loss():
    base = BASE[:15]
    other = base + np.tile([0.4, -0.4, 0.1], 5)
    found = check({"one": entry(other)}, {"one": entry(base)})
    assert found.outcome == "INCONCLUSIVE"
    assert found.largest_loss > SETTINGS.floor
    assert "0.1000 (the floor)" in found.reasons[0]


def test_a_loss_that_was_stated_as_detectable_must_be_ruled_out():
    candidate = Candidate("ckpt", {"one": entry(BASE + np.tile([0.1, -0.1], 100))})
    compared = (StoredModel("baseline", "base", {"one": entry(BASE)}), Scope(weights={"one": 1.0}))
    for stated, outcome in ((0.03, "OK"), (0.01, "INCONCLUSIVE")):
        effect = DetectableEffect("one", 200, 0.1, "a guess", stated)
        assert (
            check_against(candidate, *compared, SETTINGS, COMPARISON_SETTINGS, [effect]).outcome
            == outcome
        )


def test_only_a_regression_counts_on_collections_that_are_left_out(caplog):
    """The rest: another protocol, an improvement, a damaged result, and nothing of one side."""
    known = {
        "lost": (shifted(40, -0.1), 10),
        "unclear": (shifted(40, -0.01), 10),
        "better": (shifted(40, 0.1), 10),
        "deeper": (shifted(40, -0.1), 20),
        "damaged": (BASE[:50], 10),
        "absent": (BASE, 10),
    }
    ours = [on(name, entry(values, depth=depth)) for name, (values, depth) in known.items()]
    theirs = [on(name, entry(BASE)) for name in known if name != "absent"]
    other = StoredModel("baseline", "base", {"one": entry(BASE)}, theirs)
    rows = find_losses_elsewhere(ours, other, known, SETTINGS, COMPARISON_SETTINGS)
    assert [row.name for row in rows] == ["lost"]
    assert "damaged, which --on leaves out, cannot be compared" in caplog.text


def on(name: str, stored: Evaluation) -> Evaluation:
    protocol = msgspec.structs.replace(stored.result.protocol, collection=name)
    return replace(stored, result=msgspec.structs.replace(stored.result, protocol=protocol))


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


def test_a_check_without_any_result_is_missing():
    assert check({}).outcome == "MISSING"
    assert check({"one": entry(BASE)}, {}).outcome == "MISSING"


def test_other_protocols_are_bad_input():
    with pytest.raises(BenchError, match="different protocols on one: depth 20 and 10"):
        check({"one": entry(BASE, depth=20)})


@pytest.mark.parametrize(("by", "outcome"), [(0.01, "DRIFT"), (-0.01, "DRIFT"), (1e-4, "OK")])
def test_expect_same_fails_for_a_gain_and_for_a_loss(by, outcome):
    found = check({"one": entry(BASE + by)}, settings=GateSettings(expect_same=True))
    assert found.outcome == outcome


def test_the_worse_of_baseline_and_anchor_decides_and_is_named():
    fine = check({"one": entry(BASE)})
    lost = msgspec.structs.replace(check({"one": entry(shifted(40, -0.1))}), role="anchor")
    found = conclude_check("ckpt", [fine, lost], [], SETTINGS)
    assert (found.outcome, found.exit_code) == ("REGRESSION", 1)
    assert "anchor" in found.reasons[0]


def test_a_suspiciously_large_gain_passes_and_recommends_verify():
    found = conclude_check("ckpt", [check({"one": entry(shifted(200, 0.2))})], [], SETTINGS)
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


def test_a_nan_score_never_equals_a_published_one():
    found = against_published({"one": {"RR@10": float("nan")}})
    assert found.outcome == "DRIFT"


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
    [({"RR@10": 0.505}, "OK"), ({"RR@10": 0.52}, "DRIFT"), ({"AP": 0.5}, "MISSING")],
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
