"""Whole trainings of a tiny encoder: negatives, rounds, seeds, interruptions, refusals."""

import numpy as np
import pytest

from foundation.errors import BenchError
from retrievers.models.resolve import resolve_model
from retrievers.training.engine.context import read_curve
from retrievers.training.finetune.finetune import finetune
from retrievers.training.finetune.training_data import select_negatives
from retrievers.training.preset import Mining
from tests.support.small_finetuning import (
    MINED,
    Search,
    examples,
    first_words_found,
    model,
    preset,
)
from tests.support.small_starts import KilledError, have_equal_weights, killed_at, on_cpu
from tests.support.tiny_checkpoints import write_bert

BM25 = '\nhard_negatives = 1\n[[rounds]]\nsources = ["bm25"]\ndepth = 40\n'
QUICK = "[optimizer]\nlr = 3e-3\nwarmup = 0.0\n"


def run(folder, table="", name="out", steps=6, **others):
    settings = preset(table + QUICK, steps=steps)
    search = others.pop("search", None)
    context = on_cpu(folder / name, **others)
    return finetune(settings, model(folder), examples(), context, search=search)


OWN_NEGATIVES = MINED + '[loss]\nname = "contrastive"\nin_batch = false\n'
TWO_ROUNDS = BM25 + '[[rounds]]\nsources = ["model"]\ndepth = 12\n'


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A folder with a training without mined negatives."""
    folder = tmp_path_factory.mktemp("plain")
    run(folder)
    return folder / "out"


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """A folder with a training of two rounds, what it returned, and its search."""
    folder, search = tmp_path_factory.mktemp("rounds"), Search()
    return folder / "out", run(folder, TWO_ROUNDS, search=search), search


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "steps"),
    [("", 50), (BM25 + "[loss]\nname = 'contrastive'\nchunk = 2\n", 50), (OWN_NEGATIVES, 100)],
)
def test_training_finds_the_relevant_documents(tmp_path, table, steps):
    run(tmp_path, f"seed = 1\n{table}", steps=steps, search=Search())
    before, after = (first_words_found(tmp_path / name) for name in ("start.toml", "out"))
    assert after > max(0.8, before + 0.2)
    losses = [one.losses["loss"] for one in read_curve(tmp_path / "out" / "losses.jsonl")]
    assert len(losses) == steps
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


@pytest.mark.slow
def test_refreshed_negatives_follow_from_the_weights_of_their_step(tmp_path):
    """A training of two steps ends where one of three is searched with."""
    constant = "[optimizer]\nlr = 3e-3\nwarmup = 0.0\nschedule = 'constant'\n"
    start = model(tmp_path)
    for name, steps in (("long", 3), ("short", 2)):
        settings = preset(MINED + "refresh_steps = 2\n" + constant, steps=steps)
        finetune(settings, start, examples(), on_cpu(tmp_path / name), search=Search())
    found = Search()(resolve_model(str(tmp_path / "short")), 12)
    expected = select_negatives(found, examples(), Mining(sources=("model",), depth=12, keep=10))
    held = np.load(tmp_path / "long" / "negatives" / "model-00000002.npy")
    assert (held[:, :10] == expected).all()
    assert not (tmp_path / "long" / "refreshed").exists()


@pytest.mark.slow
def test_each_round_starts_anew_and_the_model_of_the_last_one_mines(rounds, tmp_path):
    out, trained, search = rounds
    assert search.asked == ["bm25", "1"]
    assert trained.rounds == 2
    assert resolve_model(str(out / "rounds" / "1")).card.trained_on == ("toy",)
    # the first round is a training of its own, and only the same seed gives the same weights
    for seed in (0, 1):
        run(tmp_path, f"seed = {seed}\n{BM25}", str(seed), search=Search())
        assert have_equal_weights(tmp_path / str(seed), out / "rounds" / "1") == (seed == 0)


@pytest.mark.slow
def test_the_seed_draws_the_batches_too(tmp_path):
    """Without dropout, trainings differ by their batches alone."""
    model(tmp_path)
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    write_bert(tmp_path / "start", initializer_range=0.1, **dropout)
    start = resolve_model(str(tmp_path / "start.toml"))
    for seed in (0, 1):
        settings = preset(f"seed = {seed}\n{QUICK}", steps=2)
        finetune(settings, start, examples(), on_cpu(tmp_path / str(seed)))
    assert not have_equal_weights(tmp_path / "0", tmp_path / "1")


@pytest.mark.slow
def test_a_training_stopped_in_its_second_round_keeps_the_first(rounds, tmp_path):
    again, stages = Search(), []
    with pytest.raises(KilledError):
        run(tmp_path, TWO_ROUNDS, progress=killed_at(4, "round 2"), search=Search(), save_every=2)
    run(
        tmp_path,
        TWO_ROUNDS,
        progress=lambda one: stages.append((one.stage, one.done)),
        search=again,
        save_every=2,
    )
    assert again.asked == []
    assert stages == [("round 2", step) for step in (3, 4, 5, 6)]
    assert have_equal_weights(rounds[0], tmp_path / "out")


def test_another_training_in_the_same_folder_is_refused(plain):
    with pytest.raises(BenchError, match="different training: preset"):
        run(plain.parent, steps=7)
    with pytest.raises(BenchError, match=r"different training: data\.examples"):
        finetune(preset(QUICK), model(plain.parent), examples(5), on_cpu(plain))


@pytest.mark.slow
def test_bfloat16_applies_to_one_training_and_gradient_checkpointing_trains_too(plain, tmp_path):
    run(tmp_path, 'precision = "bfloat16"\ngradient_checkpointing = true\n')
    run(tmp_path, name="after")
    assert not have_equal_weights(plain, tmp_path / "out")
    assert have_equal_weights(plain, tmp_path / "after")
    assert resolve_model(str(tmp_path / "out")).recipe.dtype == "float32"
