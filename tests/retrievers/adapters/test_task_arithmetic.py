"""Task arithmetic on whole models: the weights against NumPy, and what cannot be added."""

import json

import numpy as np
import pytest

from bench.exit_codes import ExitCode
from foundation.errors import BenchError
from retrievers.encoders.routed import open_encoder
from retrievers.models.model import resolve_model
from retrievers.training.task_arithmetic import add_tasks
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import Bench
from tests.support.small_finetuning import TEXTS, TITLES, weights


def write(folder, seed, *, trained_on=(), normalize=False, **sizes):
    """A model of a seed, its card, and its name."""
    tiny.write_bert(folder, seed=seed, initializer_range=0.1, **sizes)
    own = {"pooling": "cls", "normalize": normalize, "trained_on": list(trained_on)}
    tiny.write_card(folder / "card.toml", checkpoint=".", **own)
    return folder


@pytest.fixture
def models(tmp_path):
    base = write(tmp_path / "base", 0, trained_on=["start"])
    return base, [
        write(tmp_path / name, seed, trained_on=[name]) for name, seed in (("a", 1), ("b", 2))
    ]


def vectors(folder):
    return open_encoder(resolve_model(str(folder)), "cpu").encode_documents(TITLES, TEXTS)


@pytest.mark.parametrize("shares", [[0.5, 0.25], [1.0, -0.5], [0.3, 0.7], None])
def test_each_weight_is_the_base_and_the_weighted_changes(models, tmp_path, shares):
    base, folders = models
    add_tasks(str(base), folders, tmp_path / "sum", shares)
    start, *trained = (weights(folder) for folder in (base, *folders))
    summed = weights(tmp_path / "sum")
    assert summed.keys() == start.keys()
    for name, value in summed.items():
        changes = [each[name].astype(float) - start[name] for each in trained]
        expected = start[name] + sum(
            share * change for share, change in zip(shares or [0.5, 0.5], changes, strict=True)
        )
        np.testing.assert_allclose(value, expected, atol=1e-6)
    assert resolve_model(str(tmp_path / "sum")).card.trained_on == ("start", "a", "b")


def test_a_weight_of_1_is_the_trained_model_and_of_0_the_base(models, tmp_path):
    base, folders = models
    add_tasks(str(base), folders[:1], tmp_path / "one", [1.0])
    add_tasks(str(base), folders[:1], tmp_path / "zero", [0.0])
    np.testing.assert_allclose(vectors(tmp_path / "one"), vectors(folders[0]), atol=1e-5)
    np.testing.assert_allclose(vectors(tmp_path / "zero"), vectors(base), atol=1e-5)


def test_what_cannot_be_added_is_one_error(models, tmp_path):
    base, (first, _) = models
    wide = write(tmp_path / "wide", 3, hidden_size=48)
    cosine = write(tmp_path / "cosine", 3, normalize=True)
    for others, shares, message in (
        ([wide], None, "these weights cannot be added: they differ in"),
        ([first, cosine], None, "make vectors in different ways: normalize"),
        ([first], [1.0, 2.0], "2 weights for 1 models"),
    ):
        with pytest.raises(BenchError, match=message):
            add_tasks(str(base), others, tmp_path / "sum", shares)
    words = write(tmp_path / "words", 3)
    path = words / "tokenizer.json"
    path.write_text(path.read_text().replace('"river"', '"rover"'))
    with pytest.raises(BenchError, match="different vocabularies"):
        add_tasks(str(base), [words], tmp_path / "sum")
    with pytest.raises(BenchError, match="bm25 is no plain encoder"):
        add_tasks("bm25", [first], tmp_path / "sum")
    assert not (tmp_path / "sum").exists()


def test_the_command_writes_a_model_that_can_be_resolved(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path)
    done = bench(
        *("compose", "arithmetic", "a", "b", "--base", "base", "--weights", "0.5", "-0.25"),
        *("--out", "sum", "--json"),
    )
    assert done.code == ExitCode.OK, done.stderr
    document = json.loads(done.stdout)
    assert (document["how"], document["base"], document["adapters"]) == (
        "arithmetic",
        "base",
        ["a", "b"],
    )
    assert document["parameters"] > 0
