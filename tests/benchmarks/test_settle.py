"""The simulation of missing judgements, on public runs."""

import numpy as np
import pytest

from bench.comparing.holes import tabulate_holes
from bench.comparing.settling import examine_holes
from bench.evaluation.run_files import read_run_file
from tests.bench.evaluation.test_real_runs import files_of, qrels_of
from tests.benchmarks.settle import Pair, by_model, judgements_until, pooled, select, verdict


@pytest.fixture(scope="module")
def pair(bench_data) -> Pair:
    """BM25 and TAS-B on TREC-DL 2019."""
    files = [files_of(name, bench_data) for name in ("dl19.tas-b", "dl19.bm25")]
    runs = (read_run_file(files[0][0]).run, read_run_file(files[1][0]).run)
    return Pair("dl19", runs, qrels_of(files[0][1]), runs[1])


def test_the_gain_of_tas_b_is_settled_with_all_judgements(pair):
    assert verdict(pair, pair.qrels) == (1, pytest.approx(0.215202, abs=1e-6))
    found = examine_holes(tabulate_holes(pair.runs, pair.qrels, "nDCG@10"), pair.qrels)
    assert found["outcome"] == "settled"


def test_a_pool_of_bm25_alone_hides_the_gain_of_tas_b_and_is_flagged(pair):
    qrels = select(pair.qrels, pooled(pair, 100))
    assert verdict(pair, qrels) == (0, pytest.approx(0.044401, abs=1e-6))
    table = tabulate_holes(pair.runs, qrels, "nDCG@10")
    found = examine_holes(table, qrels)
    assert found["outcome"] == "open"
    assert found["low"] < 0.044402 < 0.215202 < found["high"]
    assert table.shares[1] - table.shares[0] > 0.1
    needed = judgements_until(pair, qrels, 1, by_model, 50)
    assert needed is not None
    assert needed <= 50


def test_removed_judgements_leave_every_query_in_the_mean(pair):
    few = select(pair.qrels, np.arange(len(pair.qrels)) < 10)
    assert set(few.queries()) == set(pair.qrels.queries())
