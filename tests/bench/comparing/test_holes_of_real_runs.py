"""Missing judgements of public runs: TAS-B and BM25 on TREC-DL 2019."""

import pytest

from bench.comparing.holes import tabulate_holes
from bench.comparing.settling import examine_holes
from bench.evaluation.run_files import read_run_file
from datasets_cfg.readers.reader import Qrels
from tests.bench.evaluation.test_real_runs import files_of, qrels_of


@pytest.fixture(scope="module")
def tas_b_and_bm25(bench_data):
    return [
        read_run_file(files_of(f"dl19.{name}", bench_data)[0]).run for name in ("tas-b", "bm25")
    ]


def judged(bench_data, runs, depth=None):
    """A table under all judgements, or those in a pool of BM25's first documents alone."""
    qrels = qrels_of(files_of("dl19.bm25", bench_data)[1])
    if depth:
        pool = {(query, one) for query, ids, _ in runs[1].rankings() for one in ids[:depth]}
        rows = [row for row, (query, one, _) in enumerate(qrels) if (query, one) in pool]
        queries, documents = (
            tuple(ids[row] for row in rows) for ids in (qrels.query_ids, qrels.doc_ids)
        )
        qrels = Qrels(queries, documents, qrels.grades[rows])
    return tabulate_holes(runs, qrels, "nDCG@10")


def test_the_gain_of_tas_b_is_settled_with_all_judgements(bench_data, tas_b_and_bm25):
    table = judged(bench_data, tas_b_and_bm25)
    assert table.differences().mean() == pytest.approx(0.215202, abs=1e-6)
    assert examine_holes(table, "tas-b", "bm25").outcome == "settled"


def test_a_pool_of_bm25_alone_hides_the_gain_of_tas_b_and_is_flagged(bench_data, tas_b_and_bm25):
    table = judged(bench_data, tas_b_and_bm25, 100)
    assert table.differences().mean() == pytest.approx(0.044401, abs=1e-6)
    found = examine_holes(table, "tas-b", "bm25")
    assert (found.outcome, found.needed) == ("open", 11)
    assert found.low < 0.044402 < 0.215202 < found.high
    (warning,) = examine_holes(judged(bench_data, tas_b_and_bm25, 10), "tas-b", "bm25").warnings
    assert warning == "bm25 was probably in the pool of judged documents, and tas-b was not"
