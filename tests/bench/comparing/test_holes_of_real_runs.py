"""Holes of TAS-B and BM25 on TREC-DL 2019: with all judgements, and with those of BM25's pool."""

import numpy as np
import pytest

from bench.comparing.holes import tabulate_holes
from bench.comparing.settling import (
    estimate_relevance,
    examine_holes,
    expected_effects,
    find_verdicts,
)
from bench.evaluation.run_files import read_run_file
from datasets_cfg.readers.reader import Qrels
from tests.bench.evaluation.test_real_runs import files_of, qrels_of

NAMES = ("dl19.tas-b", "dl19.bm25")


def qrels_from(rows: list[tuple[str, str, int]]) -> Qrels:
    queries, documents, grades = zip(*rows, strict=True)
    return Qrels(queries, documents, np.array(grades, np.int32))


def test_a_pool_of_bm25_hides_the_gain_of_tas_b_until_the_first_documents_of_the_list_are_judged(
    bench_data,
):
    """The example of docs/explanation/holes.md."""
    runs = tuple(read_run_file(files_of(name, bench_data)[0]).run for name in NAMES)
    qrels = qrels_of(files_of(NAMES[0], bench_data)[1])
    whole = tabulate_holes(runs, qrels, "nDCG@10")
    assert find_verdicts(whole.differences()) == 1
    assert whole.differences().mean() == pytest.approx(0.215202, abs=1e-6)
    assert examine_holes(whole, "tas-b", "bm25").outcome == "settled"

    pool = {(query, doc) for query, docs, _ in runs[1].rankings() for doc in docs[:100]}
    kept = [row for row in qrels if row[:2] in pool]
    table = tabulate_holes(runs, qrels_from(kept), "nDCG@10")
    assert find_verdicts(table.differences()) == 0
    assert table.differences().mean() == pytest.approx(0.044401, abs=1e-6)
    found = examine_holes(table, "tas-b", "bm25")
    assert (found.outcome, found.needed) == ("open", 11)
    assert found.low < 0.044402 < 0.215202 < found.high

    truth = {row[:2]: row[2] for row in qrels}
    order = np.argsort(-expected_effects(table, estimate_relevance(table)[0]), kind="stable")
    pairs = [
        (table.query_ids[table.query[hole]], table.documents[hole][0])
        for hole in table.holes[order[:20]]
    ]
    judged = [(*pair, truth.get(pair, 0)) for pair in pairs]
    assert sum(grade > 0 for _, _, grade in judged) == 15
    settled = tabulate_holes(runs, qrels_from(kept + judged), "nDCG@10", imported=len(judged))
    found = examine_holes(settled, "tas-b", "bm25")
    assert (found.outcome, found.holes) == ("settled", 135)
