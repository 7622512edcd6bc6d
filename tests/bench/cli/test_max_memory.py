"""``--max-memory`` from the command line: refused before the work, or kept to."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.evaluation.index_search import resident_bytes
from foundation.machine import format_size
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import Bench, Finished, write_collection

MANY = {str(row): ("", f"text {row % 700} of {row % 13}") for row in range(3_000)}


@pytest.fixture
def folder(tmp_path):
    return write_collection(tmp_path / "many", documents=MANY, qrels={("q1", "1"): 1})


def ranking(bench: Bench, *arguments: object) -> bytes:
    """Content of the file of the ranking: equal for equal rankings."""
    done = bench("run", *arguments, "--model", "hashing", "--depth", 100)
    assert done.code == 0, done.stderr
    (path,) = bench.out.rglob("run.arrow")
    content = path.read_bytes()
    path.unlink()
    return content


def test_a_small_budget_gives_the_same_ranking(bench, folder):
    free = ranking(bench, folder)
    budget = format_size(resident_bytes() + (150 << 20))
    assert ranking(bench, folder, "--max-memory", budget) == free


def test_a_budget_that_is_too_small_is_refused_before_anything_is_encoded(bench, folder):
    done = bench("run", folder, "--model", "hashing", "--max-memory", "20MB")
    assert done.code == 2
    assert "search needs at least" in done.stderr
    assert "\n  Use --max-memory" in done.stderr
    assert not list((bench.cache / "vectors").rglob("*.f32"))
    assert not bench.out.exists()


def test_a_budget_without_memory_for_the_model_is_refused_before_it_is_loaded(
    bench, folder, tmp_path
):
    tiny.write_mlm_pickle(tmp_path / "weights")
    card = tiny.write_card(tmp_path / "tiny.toml", checkpoint="weights", pooling="cls")
    budget = format_size(resident_bytes() + (150 << 20))  # enough for a model without weights
    done = bench("run", folder, "--model", card, "--max-memory", budget)
    assert done.code == 2
    assert "once the model is loaded" in done.stderr
    assert not list((bench.cache / "vectors").rglob("*.f32"))


@pytest.mark.slow
def test_the_budget_that_a_refusal_names_is_enough_in_another_process(bench, folder):
    assert_is_enough(bench.process, folder, "hashing")


def test_the_budget_that_a_refusal_of_bm25_names_is_enough(bench, folder):
    assert_is_enough(bench, folder, "bm25")


def assert_is_enough(run: Callable[..., Finished], folder: Path, model: str) -> None:
    command = ("run", folder, "--model", model, "--max-memory")
    refused = run(*command, "20MB")
    assert refused.code == 2, refused.stderr
    (named,) = re.findall(r"\n  Use --max-memory (\S+),", refused.stderr)
    done = run(*command, named)
    assert done.code == 0, done.stderr
