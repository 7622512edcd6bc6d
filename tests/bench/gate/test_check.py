"""The gate over entries with chosen scores: gaps, published scores, warnings."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

import bench
from bench.comparing.pairs import ComparedModel, ComparisonSettings
from bench.comparing.statistics import Resampling
from bench.evaluation.judging import mean_weights, suite_weights
from bench.evaluation.result_record import Evaluation
from bench.gate.candidate import Candidate, check_published
from bench.gate.check import Scope, announce, check_against, expected_effects
from bench.gate.decision import GateSettings
from retrievers.models.card import ExpectedScore
from tests.support.results import PROTOCOL, evaluation

COMPARISON_SETTINGS = ComparisonSettings(resampling=Resampling(499, 0))
BASE = np.random.default_rng(0).choice([0.0, 0.5, 1.0], 200)


def entry(values: np.ndarray) -> Evaluation:
    ids = tuple(f"q{i:04}" for i in range(len(values)))
    return evaluation({"RR@10": values}, ids, protocol=PROTOCOL)


def check(candidate, baseline, weights, failed=None):
    model, other = Candidate("ckpt", candidate, failed or {}), ComparedModel("base", baseline)
    return check_against(model, other, weights, GateSettings(), COMPARISON_SETTINGS)


def test_what_queries_can_show_is_computed_from_their_number_and_a_stated_deviation():
    detectable, provable = expected_effects({"one": 150, "two": 150}, {"one": 1.0})
    assert provable == pytest.approx(1 - 0.05 ** (1 / 150), rel=1e-3)
    assert detectable == pytest.approx(2.82 * 0.2 / np.sqrt(150), rel=0.01)


def test_mixed_main_measures_are_told_with_the_measure_that_gives_a_mean(capsys):
    """The first message promised the margin of a mean that does not exist."""
    sizes, measures = {"one": 76, "two": 200}, {"one": "nDCG@10", "two": "RR@10"}
    results = {}
    for name, measure in measures.items():
        ids = tuple(f"q{i:04}" for i in range(sizes[name]))
        done = evaluation({measure: BASE[: sizes[name]]}, ids, protocol=PROTOCOL)
        record = msgspec.structs.replace(done.record, main_measure=measure, queries=sizes[name])
        results[name] = replace(done, record=record)
    weights = {"one": 0.5, "two": 0.5}
    scope = Scope(None, ComparedModel("base", results), weights, (), {})
    announce("ckpt", scope, False, None)
    shown = capsys.readouterr().err
    assert "the main measures differ (RR@10, nDCG@10), so there is no mean" in shown
    assert "Add --measure nDCG@10" in shown
    found = check(results, results, weights)
    assert (found.outcome, found.mean) == ("INCONCLUSIVE", None)
    worst = max(row.bound for row in found.rows)
    assert f"No margin below {worst:.4f} can be passed" in shown
    announce("ckpt", scope, False, "nDCG@10")
    assert "main measures" not in (shown := capsys.readouterr().err)
    assert f"No margin below {worst:.4f}" not in shown


def test_a_suspiciously_large_gain_is_ok_and_points_to_verify(tmp_path):
    found = bench.check(entry(BASE + 0.2), entry(BASE), resamples=199, cache_dir=tmp_path)
    assert found.outcome == "OK"
    assert any("verify" in text for text in found.warnings)


def test_the_three_queries_that_lost_most_on_any_collection_are_named():
    values = BASE.copy()
    values[[3, 5]] -= [0.9, 0.2]
    other = BASE.copy()
    other[[7, 9]] -= [0.4, 0.1]
    base = {"one": entry(BASE), "two": entry(BASE)}
    candidate = {"one": entry(values), "two": entry(other)}
    weights = {"one": 0.5, "two": 0.5}
    worst = check(candidate, base, weights).worst
    assert [(query.collection, query.query_id) for query in worst] == [
        ("one", "q0003"),
        ("two", "q0007"),
        ("one", "q0005"),
    ]
    assert [query.baseline - query.candidate for query in worst] == pytest.approx([0.9, 0.4, 0.2])
    assert check(base, candidate, weights).worst == ()


def against_published(measures):
    claim = ExpectedScore(dataset="one", measure="RR@10", value=0.5, source="s", tolerance=0.01)
    stored = {
        name: evaluation({key: np.array([value]) for key, value in own.items()}, ["q"])
        for name, own in measures.items()
    }
    return check_published(Candidate("ckpt", stored), [claim], measures)


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
    assert against_published({"two": measured}).outcome == "MISSING"


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
