"""Two-level intervals: against brute force, SciPy, and simulations of many ablations; means."""

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from scipy import stats

from bench.evaluation.judging import suite_weights
from bench.experiments.experiment import plan_experiment, run_experiment
from bench.experiments.grid import FILES
from bench.experiments.report import CellScores, make_report
from bench.experiments.report_record import MEAN
from bench.experiments.seed_statistics import estimate_interval, standard_error
from bench.runner.workspace import Workspace
from tests.support.experiments import FAKES, GRID, read_scores, run_stages_in_this_process
from tests.support.results import CONDITIONS

RNG = np.random.default_rng(5)


def crossed(rng, seeds, queries, of_seeds, of_queries, of_both, mean=0.0):
    """Differences of two recipes; six queries in ten do not change by themselves."""
    own = np.where(rng.random(queries) < 0.6, 0.0, rng.normal(0, of_queries / 0.4**0.5, queries))
    return (
        mean + rng.normal(0, of_seeds, (seeds, 1)) + own + rng.normal(0, of_both, (seeds, queries))
    )


def draw(part, resamples, seed):
    """Means over resampled seeds and queries ``(seeds, queries)``, each level one fewer."""
    rng = np.random.default_rng(seed)
    of_seeds, of_queries = (
        rng.multinomial(count - 1, np.full(count, 1 / count), resamples) for count in part.shape
    )
    return np.sum((of_seeds @ part) * of_queries, axis=1) / np.prod(np.subtract(part.shape, 1))


def test_the_forums_of_cqadupstack_weigh_as_one_collection_of_beir(tmp_path, monkeypatch):
    def opened(workspace, name, split):
        return SimpleNamespace(name=name.removeprefix("./"))

    monkeypatch.setattr("bench.runner.workspace._opened_once", opened)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    workspace = Workspace(tmp_path)
    found = workspace.weights(["beir"])
    assert found == pytest.approx(suite_weights("beir"))
    forums = [share for name, share in found.items() if "cqadupstack" in name]
    assert (len(forums), sum(forums)) == (12, pytest.approx(1 / 14))
    assert workspace.weights(["beir", "./own"])["own"] == pytest.approx(1 / 15)
    both = workspace.weights(["beir/cqadupstack", "./own"])
    assert list(both.values()) == pytest.approx([1 / 13] * 13)


def test_p_of_the_seeds_is_scipys_t_test_on_their_means():
    parts = [crossed(RNG, 3, queries, 0.001, 0.3, 0.01, mean=0.1) for queries in (400, 900)]
    weights = [0.25, 0.75]
    means = np.average([part.mean(axis=1) for part in parts], axis=0, weights=weights)
    found = estimate_interval(parts, weights)
    assert found.p_seeds == pytest.approx(stats.ttest_1samp(means, 0).pvalue, rel=1e-9)
    assert found.p < 1e-9 < found.p_seeds


def test_the_variance_is_that_of_resampling_less_the_interaction_counted_twice_too_often():
    part = crossed(RNG, 5, 60, 0.02, 0.1, 0.1)
    rest = part - part.mean(1, keepdims=True) - part.mean(0) + part.mean()
    once = (rest**2).sum() / (4 * 59) / (5 * 60)
    drawn = draw(part, 100_000, seed=1).var()
    assert standard_error([part])[0] ** 2 == pytest.approx(drawn - 2 * once, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize(
    ("of_seeds", "of_queries", "of_both"),
    [(0.0, 0.2, 0.2), (0.01, 0.2, 0.2), (0.03, 0.1, 0.2), (0.05, 0.05, 0.05), (0.0, 0.3, 0.0)],
)
def test_intervals_hold_the_truth_19_times_in_20(seeds, of_seeds, of_queries, of_both):
    rng, held = np.random.default_rng(seeds), []
    for _ in range(300):
        found = estimate_interval(
            [crossed(rng, seeds, 150, of_seeds, of_queries, of_both, mean=0.01)]
        )
        held.append(found.low <= 0.01 <= found.high)
    assert 0.88 < np.mean(held) <= 1


@pytest.mark.slow
def test_p_and_interval_agree_and_a_true_difference_that_is_detectable_is_found():
    rng, found = np.random.default_rng(1), []
    for _ in range(200):
        one = estimate_interval([crossed(rng, 5, 150, 0.01, 0.1, 0.1)])
        assert (one.p < 0.05) == (one.low > 0 or one.high < 0)
        found.append(one.detectable)
    reach = float(np.median(found))
    parts = [crossed(rng, 5, 150, 0.01, 0.1, 0.1, mean=reach) for _ in range(300)]
    assert np.mean([estimate_interval([part]).p < 0.05 for part in parts]) == pytest.approx(
        0.8, abs=0.1
    )


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_the_mean_of_a_report_has_the_weights_that_it_was_made_with(tmp_path, monkeypatch, seeds):
    run_stages_in_this_process(monkeypatch)
    text = GRID.replace('on = ["c"]', 'on = ["a", "b", "c"]')
    grid = msgspec.structs.replace(FILES.parse(text.encode(), ""), seeds=seeds)
    plan = plan_experiment(grid, FAKES)
    outcome = run_experiment(plan, tmp_path, lambda _: None)
    read, factors = read_scores(tmp_path), {"a": 1.0, "b": 2.0, "c": 4.0}

    def scores_of(task):
        found = read(task).on.items()
        return CellScores(
            {name: replace(one, values=one.values * factors[name]) for name, one in found}
        )

    weights = {"c": 0.5, "a": 0.25, "b": 0.25}
    report = make_report(replace(plan, weights=weights), outcome, scores_of, "", CONDITIONS)
    for row in report.rows:
        one = {name: row.on_collection(name) for name in ("a", "b", "c", MEAN)}
        expected = sum(share * one[name].score.value for name, share in weights.items())
        assert one[MEAN].score.value == pytest.approx(expected)
        assert np.mean(report.seed_scores(row, MEAN)) == pytest.approx(expected)
        if row.against:
            found = {name: on.difference.value for name, on in one.items()}
            expected = sum(share * found[name] for name, share in weights.items())
            assert found[MEAN] == pytest.approx(expected)
    report = make_report(plan, outcome, scores_of, "", CONDITIONS)
    plain = report.rows[0]
    expected = np.mean([plain.on_collection(name).score.value for name in weights])
    assert plain.on_collection(MEAN).score.value == pytest.approx(expected)
    assert np.mean(report.seed_scores(plain, MEAN)) == pytest.approx(expected)


def test_one_seed_or_what_does_not_vary_has_a_mean_and_no_interval():
    for part in (RNG.normal(size=(1, 30)), np.full((3, 10), 0.25)):
        found = estimate_interval([part])
        assert found.value == pytest.approx(part.mean())
        assert (found.low, found.high, found.p) == (None, None, None)
