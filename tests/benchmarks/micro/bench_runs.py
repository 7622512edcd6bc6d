"""A run of 1,000 queries x 1,000 documents: scored, and written and read as a TREC file."""

import pytest

from bench.evaluation.run_files import encode_trec, read_run_file
from bench.evaluation.scoring import score
from tests.benchmarks.scoring_speed import MEASURES, synthetic


@pytest.fixture(scope="module")
def run_and_qrels():
    return synthetic(1000, 1000)


def bench_score_1000_x_1000(benchmark, run_and_qrels):
    run, qrels = run_and_qrels
    scores = benchmark(score, run, qrels, MEASURES)
    assert 0 < scores.mean("nDCG@10") < 1


def write_file(run, path):
    path.write_bytes(encode_trec(run, "tag"))


def bench_write_1000_x_1000(benchmark, run_and_qrels, tmp_path):
    benchmark(write_file, run_and_qrels[0], tmp_path / "run.trec")


def bench_read_1000_x_1000(benchmark, run_and_qrels, tmp_path):
    write_file(run_and_qrels[0], tmp_path / "run.trec")
    found = benchmark(read_run_file, tmp_path / "run.trec")
    assert len(found.run) == 1_000_000
