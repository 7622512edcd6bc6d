"""`examples/training_split.py`: the halves are all of a collection, and share no question."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.training.training_sets import find_leaks
from datasets_cfg.dataset import open_dataset

ROOT = Path(__file__).parents[3]
COUNT = 40


def msmarco(folder):
    rows = range(COUNT)
    files = {
        "collection.tsv": [f"p{n}\tpassage {n}" for n in rows],
        "queries.tsv": [f"{n}\twhat is {n // 2}{'?' * (n % 2)}" for n in rows],  # each asked twice
        "qrels.tsv": [f"{n}\t0\tp{n}\t1" for n in rows],
    }
    return _written(folder, files)


def dpr(folder):
    rows = range(COUNT)
    files = {
        "psgs_w100.tsv": ["id\ttext\ttitle", *(f"p{n}\tpassage {n}\ttitle" for n in rows)],
        "nq.qa.csv": [f"what is {n // 2}{'?' * (n % 2)}\t['{n}']" for n in rows],
        "qrels.tsv": ["query-id\tcorpus-id\tscore", *(f"{n}\tp{n}\t1" for n in rows)],
    }
    return _written(folder, files)


def _written(folder, files):
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return [folder / name for name in files]


@pytest.mark.slow
@pytest.mark.parametrize("layout", [msmarco, dpr])
def test_halves_are_all_queries_and_share_none(tmp_path, layout):
    out = tmp_path / "samples" / "mine"
    script = ROOT / "examples" / "training_split.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, script, *layout(tmp_path), out]
    subprocess.run(command, check=True, env=environment)
    halves = [
        open_dataset(str(out), cache_dir=tmp_path / "cache", split=split)
        for split in ("train", "test")
    ]
    train, test = halves
    assert not find_leaks(train, test)
    assert {*train.queries.ids, *test.queries.ids} == set(map(str, range(COUNT)))
    assert min(len(train.queries), len(test.queries)) > 4
    assert all(row[1] == f"p{row[0]}" for half in halves for row in half.qrels)
    assert (test.name, test.metadata.main_measure, len(test.corpus)) == (
        "samples/mine",
        "RR@10",
        COUNT,
    )
