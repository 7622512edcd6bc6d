"""Transfer between collections, with NumPy as oracle."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bench.comparing.pairs import ComparedModel
from bench.comparing.statistics import Resampling
from bench.comparing.transfer import Forgetting, TrainingSequence, measure_forgetting
from bench.result_store.find import find_results
from foundation.errors import BenchError
from tests.support.leaderboards import make_protocol, store

FAST = Resampling(resamples=999)
NAMES = ("base", "first", "second", "third")
COLLECTIONS = ("bio", "law", "news", "wiki")


@pytest.fixture
def scores(tmp_path) -> dict[tuple[str, str], np.ndarray]:
    """Stored results of a base and three checkpoints on four collections."""
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
    first, *others = (model(root, name) for name in NAMES)
    sequence = TrainingSequence(others, COLLECTIONS[:3], COLLECTIONS[3:], first if base else None)
    return measure_forgetting(sequence, "nDCG@10", FAST)


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


def test_backward_transfer_is_the_last_minus_the_diagonal_without_the_last(scores, tmp_path):
    """BWT of Lopez-Paz and Ranzato: 1 / (T - 1) times the sum over i < T of R[T, i] - R[i, i]."""
    found = computed(tmp_path).backward
    parts = [
        mean(scores, "third", "bio") - mean(scores, "first", "bio"),
        mean(scores, "third", "law") - mean(scores, "second", "law"),
    ]
    assert [(one.on, one.a, one.b) for one in found.rows] == [
        ("bio", "third", "first"),
        ("law", "third", "second"),
    ]
    assert [one.difference for one in found.rows] == pytest.approx(parts)
    assert found.mean.difference == pytest.approx(np.mean(parts))


def test_forward_transfer_is_before_its_training_minus_the_base_without_the_first(scores, tmp_path):
    """FWT of Lopez-Paz and Ranzato: 1 / (T - 1) times the sum over i > 1 of R[i-1, i] - b[i]."""
    found = computed(tmp_path).forward
    parts = [
        mean(scores, "first", "law") - mean(scores, "base", "law"),
        mean(scores, "second", "news") - mean(scores, "base", "news"),
    ]
    assert [(one.on, one.a, one.b) for one in found.rows] == [
        ("law", "first", "base"),
        ("news", "second", "base"),
    ]
    assert found.mean.difference == pytest.approx(np.mean(parts))


def test_the_average_is_the_last_over_what_was_trained_and_kept_is_on_the_rest(scores, tmp_path):
    found = computed(tmp_path)
    last = [mean(scores, "third", name) for name in COLLECTIONS[:3]]
    assert found.average.value == pytest.approx(np.mean(last))
    kept = mean(scores, "third", "wiki") - mean(scores, "base", "wiki")
    assert [(one.on, one.a, one.b) for one in found.kept.rows] == [("wiki", "third", "base")]
    assert found.kept.mean.difference == pytest.approx(kept)


def test_intervals_are_those_of_a_bootstrap_over_the_queries_of_each_collection(scores, tmp_path):
    found = computed(tmp_path).backward.mean
    parts = [
        scores["third", "bio"] - scores["first", "bio"],
        scores["third", "law"] - scores["second", "law"],
    ]
    rng = np.random.default_rng(1)
    drawn = sum(rng.choice(one, (4_000, len(one))).mean(axis=1) for one in parts) / 2
    low, high = np.quantile(drawn, [0.025, 0.975])
    width = high - low
    assert found.low == pytest.approx(low, abs=0.15 * width)
    assert found.high == pytest.approx(high, abs=0.15 * width)


def test_p_is_that_of_a_paired_test_and_holm_is_over_the_collections(scores, tmp_path):
    rows = computed(tmp_path).backward.rows
    expected = [
        stats.permutation_test(
            (scores["third", name] - scores[own, name],),
            np.mean,
            permutation_type="samples",
            n_resamples=2_000,
            vectorized=True,
            rng=np.random.default_rng(2),
        ).pvalue
        for name, own in (("bio", "first"), ("law", "second"))
    ]
    assert [one.p for one in rows] == pytest.approx(expected, abs=0.06)
    smaller = min(one.p for one in rows)
    assert min(one.p_adjusted for one in rows) == pytest.approx(min(1, 2 * smaller))


def test_transfer_without_a_base_or_a_second_training_is_a_gap(scores, tmp_path):
    found = computed(tmp_path, base=False)
    assert (found.forward, found.kept, found.base) == (None, None, "")
    assert found.backward is not None
    alone = TrainingSequence([model(tmp_path, "first")], ["bio"], base=model(tmp_path, "base"))
    one = measure_forgetting(alone, "nDCG@10", FAST)
    assert (one.backward, one.forward, one.kept) == (None, None, None)


def test_a_missing_result_or_another_protocol_is_refused(scores, tmp_path):
    partial = ComparedModel("partial", {"bio": model(tmp_path, "first").results["bio"]})
    sequence = TrainingSequence([partial, model(tmp_path, "second")], ["bio", "law"])
    with pytest.raises(BenchError, match="partial has no result on law"):
        measure_forgetting(sequence, "nDCG@10", FAST)
    other = tmp_path / "other"
    store(other, "deep", "bio", [0.5] * 40, protocol=make_protocol("bio", depth=5))
    sequence = TrainingSequence([model(other, "deep"), model(tmp_path, "second")], ["bio", "law"])
    with pytest.raises(BenchError, match="different protocols on bio: depth"):
        measure_forgetting(TrainingSequence(sequence.checkpoints, ["bio", "bio"]), "nDCG@10", FAST)
