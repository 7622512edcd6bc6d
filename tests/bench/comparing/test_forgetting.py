"""Transfer between collections, with NumPy as oracle."""

from pathlib import Path

import numpy as np
import pytest

from bench.comparing.pairs import ComparedModel, Forgetting, measure_forgetting
from bench.comparing.statistics import Resampling, holm
from bench.result_store.find import find_results
from foundation.errors import BenchError
from tests.support.leaderboards import make_protocol, store

FAST = Resampling(resamples=999)
NAMES = ("base", "first", "second", "third")
COLLECTIONS = ("bio", "law", "news")


@pytest.fixture
def scores(tmp_path) -> dict[tuple[str, str], np.ndarray]:
    """Stored results of a base and three checkpoints on three collections."""
    rng = np.random.default_rng(0)
    found = {}
    for place, collection in enumerate(COLLECTIONS):
        start = rng.random(40 + 10 * place)
        for name in NAMES:
            found[name, collection] = np.clip(start + rng.normal(0, 0.1, len(start)), 0, 1)
            store(tmp_path, name, collection, found[name, collection].tolist())
    return found


def model(root: Path, name: str) -> ComparedModel:
    stored = find_results(root)
    results = {one.dataset: one for one in stored if one.record.model == name}
    return ComparedModel(name, results)


def computed(root: Path, base: bool = True) -> Forgetting:
    models = [model(root, name) for name in NAMES[0 if base else 1 :]]
    return measure_forgetting(models, COLLECTIONS, "nDCG@10", FAST)


def mean(scores: dict[tuple[str, str], np.ndarray], name: str, collection: str) -> float:
    return float(scores[name, collection].mean())


def test_the_matrix_holds_the_mean_of_each_checkpoint_on_each_collection(scores, tmp_path):
    found = computed(tmp_path)
    assert [row.checkpoint for row in found.rows] == list(NAMES)
    for row in found.rows:
        for collection, level in row.levels.items():
            assert level.value == pytest.approx(mean(scores, row.checkpoint, collection))
            assert level.low < level.value < level.high
    assert found.queries == {name: 40 + 10 * n for n, name in enumerate(COLLECTIONS)}
    last = [mean(scores, "third", name) for name in COLLECTIONS]
    assert found.average.value == pytest.approx(np.mean(last))


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        (
            "gain",
            [("bio", "first", "base"), ("law", "second", "first"), ("news", "third", "second")],
        ),
        ("backward", [("bio", "third", "first"), ("law", "third", "second")]),
        ("forward", [("law", "first", "base"), ("news", "second", "base")]),
    ],
)
def test_each_kind_of_transfer_is_as_defined_by_lopez_paz_and_ranzato(
    scores, tmp_path, kind, steps
):
    """BWT is the mean over i < T of R[T, i] - R[i, i], FWT that of R[i-1, i] - b[i] over i > 1.

    The gain is R[i, i] - R[i-1, i].
    """
    found = getattr(computed(tmp_path), kind)
    parts = [
        mean(scores, after, name) - mean(scores, before, name) for name, after, before in steps
    ]
    assert [(one.on, one.a, one.b) for one in found.rows] == steps
    assert [one.difference for one in found.rows] == pytest.approx(parts)
    assert found.mean.difference == pytest.approx(np.mean(parts))
    p_values = [one.p for one in found.rows]
    assert [one.p_adjusted for one in found.rows] == pytest.approx(holm(p_values))


def test_transfer_without_a_base_or_a_second_training_is_a_gap(scores, tmp_path):
    found = computed(tmp_path, base=False)
    assert (found.forward, found.base) == (None, "")
    assert found.gain is not None
    assert [one.on for one in found.gain.rows] == ["law", "news"]
    assert found.backward is not None
    models = [model(tmp_path, "base"), model(tmp_path, "first")]
    one = measure_forgetting(models, ["bio"], "nDCG@10", FAST)
    assert (one.backward, one.forward) == (None, None)
    assert one.gain is not None
    alone = measure_forgetting(models[1:], ["bio"], "nDCG@10", FAST)
    assert alone.gain is None


def test_a_missing_result_or_another_protocol_is_refused(scores, tmp_path):
    second = model(tmp_path, "second")
    partial = ComparedModel("partial", {"bio": model(tmp_path, "first").results["bio"]})
    with pytest.raises(BenchError, match="partial has no result on law"):
        measure_forgetting([partial, second], ["bio", "law"], "nDCG@10", FAST)
    with pytest.raises(BenchError, match="1 models do not match 3 collections"):
        measure_forgetting([second], COLLECTIONS, "nDCG@10", FAST)
    other = tmp_path / "other"
    store(other, "deep", "bio", [0.5] * 40, protocol=make_protocol("bio", depth=5))
    with pytest.raises(BenchError, match="different protocols on bio: depth"):
        measure_forgetting([model(other, "deep"), second], ["bio", "bio"], "nDCG@10", FAST)
