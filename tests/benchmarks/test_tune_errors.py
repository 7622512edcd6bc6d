"""`tune` proves a gain that is none in at most 5 % of samples, and finds planted ones."""

import numpy as np
import pytest
from scipy import stats

from bench.evaluation.runs import Run
from bench.requests.deciding import TuneRequest
from tests.benchmarks.tune_errors import (
    deal,
    drawn,
    flipped,
    gains_of,
    main,
    noisy,
    rates,
    trial_of,
)

DRAWS, SETS, QUERIES = 60, 199, 24
MOST = stats.binom.ppf(0.9995, DRAWS, 0.025) / DRAWS  # 5 % two-sided


@pytest.fixture(scope="module")
def trial(bench_data, tmp_path_factory):
    """TAS-B and BM25 on TREC-DL 2019, by others."""
    files = [bench_data / f"runs/dl19.{name}.trec" for name in ("tas-b", "bm25")]
    folders = {
        "data_dir": bench_data / "msmarco-sample",
        "cache_dir": tmp_path_factory.mktemp("cache"),
    }
    request = TuneRequest(files, "msmarco/dl19", measure="nDCG@10", results=None, **folders)
    return trial_of(request, 0.0)


@pytest.mark.slow
def test_scores_before_grades_are_dealt_are_those_of_the_scorer(trial):
    dealt = deal(trial)
    scores = dealt.scores(dealt.grades)
    assert len(scores) == 43
    gains = scores[:, 1:] - scores[:, :1]
    assert gains == pytest.approx(gains_of(trial), abs=1e-12)


@pytest.mark.slow
def test_dealt_grades_leave_no_ranking_better_than_another(trial):
    dealt, rng = deal(trial), np.random.default_rng(0)
    means = np.stack([dealt(rng).mean(axis=0) for _ in range(400)])
    assert np.abs(means.mean(axis=0) / (means.std(axis=0) / 20)).max() < 4


@pytest.mark.slow
def test_real_rankings_that_are_equally_good_seldom_seem_better(trial):
    joint = rates(deal(trial), DRAWS, SETS)
    assert joint.proved <= MOST
    assert joint.explained == pytest.approx(joint.shown, rel=0.3)


def mixed_gains(queries: int) -> np.ndarray:
    """Gains of settings that share much, little or nothing with each other."""
    rng = np.random.default_rng(queries)
    shares, noise = np.linspace(0, 1, 24), rng.normal(0, 0.2, (queries, 24))
    return np.clip(shares * rng.normal(0, 0.2, (queries, 1)) + (1 - shares) * noise, -1, 1)


@pytest.mark.slow
def test_a_naive_sweep_errs_where_joint_intervals_do_not():
    for draw in (flipped(mixed_gains(QUERIES)), drawn(mixed_gains(QUERIES))):
        found = rates(draw, DRAWS, SETS)
        assert found.proved <= MOST < found.naive


@pytest.mark.slow
def test_planted_gains_are_found_and_not_exaggerated():
    gains = mixed_gains(QUERIES)
    small, large = (rates(drawn(gains, gain), DRAWS, SETS, gain) for gain in (0.02, 0.2))
    assert small.proved < large.proved
    assert large.proved > 0.95
    assert max(small.exceeded, large.exceeded) <= MOST


def test_noisy_copies_differ_from_a_ranking_and_from_each_other():
    run = Run.from_rows(["q"] * 50, [f"d{n:02}" for n in range(50)], np.arange(50.0))
    one, other = (noisy(run, 0.5, np.random.default_rng(seed)) for seed in (1, 2))
    ranked = [list(next(each.rankings())[1]) for each in (run, one, other)]
    assert sorted(ranked[0]) == sorted(ranked[1]) == sorted(ranked[2])
    assert ranked[0] != ranked[1] != ranked[2]
    assert noisy(run, 0.0, np.random.default_rng(0)).doc_ids.to_pylist() == ranked[0]


@pytest.mark.slow
def test_the_study_prints_a_line_for_each_kind_of_sample(bench_data, tmp_path, capsys):
    files = [str(bench_data / f"runs/dl19.{name}.trec") for name in ("tas-b", "bm25")]
    folders = ["--data-dir", str(bench_data / "msmarco-sample"), "--cache-dir", str(tmp_path)]
    few = ["--draws", "3", "--sets", "99", "--planted", ".1", "--split", ".5"]
    main([*files, "--on", "msmarco/dl19", *few, *folders])
    lines = capsys.readouterr().out.splitlines()
    names = [line.partition(":")[0] for line in lines]
    assert names == ["msmarco/dl19", "dealt", "flipped", "drawn", "planted 0.1"]
