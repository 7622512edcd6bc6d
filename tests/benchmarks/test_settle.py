"""The simulation of missing judgements, on public runs."""

import numpy as np
import pytest

from bench.comparing.holes import tabulate_holes
from bench.comparing.settling import examine_holes
from bench.evaluation.run_files import read_run_file
from datasets_cfg.readers.reader import Qrels
from tests.bench.evaluation.test_real_runs import files_of, qrels_of
from tests.benchmarks.settle import (
    Pair,
    by_model,
    directed,
    judgements_until,
    verdict,
)


@pytest.fixture(scope="module")
def pair(bench_data) -> Pair:
    """TAS-B and BM25 on TREC-DL 2019."""
    files = [files_of(name, bench_data) for name in ("dl19.tas-b", "dl19.bm25")]
    runs = (read_run_file(files[0][0]).run, read_run_file(files[1][0]).run)
    return Pair.of("dl19", "tas-b bm25", runs, qrels_of(files[0][1]), runs[1])


def test_the_gain_of_tas_b_is_settled_with_all_judgements(pair):
    assert verdict(pair.table) == 1
    assert pair.table.differences().mean() == pytest.approx(0.215202, abs=1e-6)
    assert examine_holes(pair.table, "tas-b", "bm25").outcome == "settled"


def test_a_pool_of_bm25_alone_hides_the_gain_of_tas_b_and_is_flagged(pair):
    table = pair.pooled(100)
    assert verdict(table) == 0
    assert table.differences().mean() == pytest.approx(0.044401, abs=1e-6)
    found = examine_holes(table, "tas-b", "bm25")
    assert (found.outcome, found.needed) == ("open", 11)
    assert found.low < 0.044402 < 0.215202 < found.high
    needed = judgements_until(pair, table, 1, by_model)
    assert needed is not None
    assert needed <= 50
    first = table.holes[by_model(pair, table, 1)[:20]]
    assert (pair.truth[first] > 0).sum() == 15
    assert examine_holes(pair.judge(table, first), "tas-b", "bm25").outcome == "settled"
    by_oracle = judgements_until(pair, table, 1, directed)
    assert by_oracle is not None
    assert 0 < by_oracle <= needed


def test_what_is_left_of_the_judgements_is_tabulated_as_such_a_collection(pair, bench_data):
    files = [files_of(name, bench_data) for name in ("dl19.tas-b", "dl19.bm25")]
    runs = (read_run_file(files[0][0]).run, read_run_file(files[1][0]).run)
    qrels = qrels_of(files[0][1])
    kept = pair.pool_rank <= 10
    rows = np.flatnonzero(kept)
    few = Qrels(
        tuple(qrels.query_ids[row] for row in rows),
        tuple(qrels.doc_ids[row] for row in rows),
        qrels.grades[rows],
    )
    assert set(few.queries()) == set(qrels.queries())
    expected, found = tabulate_holes(runs, few, "nDCG@10"), pair.select(kept)
    of_query = [found.query_ids.index(query_id) for query_id in expected.query_ids]
    np.testing.assert_allclose(expected.differences()[0], found.differences()[0][of_query])
    assert len(expected.holes) == len(found.holes)
    assert expected.relevant_only == found.relevant_only
    (warning,) = examine_holes(expected, "tas-b", "bm25").warnings
    assert warning == "bm25 was probably in the pool of judged documents, and tas-b was not"


def test_a_query_without_judgements_stays_in_the_mean(pair):
    few = pair.select(np.arange(len(pair.grade)) < 10)
    assert few.differences().shape == pair.table.differences().shape
    assert len(few.holes) > len(pair.table.holes)
