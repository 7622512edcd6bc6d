"""Whole trainings of a tiny encoder: negatives, rounds, seeds, interruptions, refusals."""

import numpy as np
import pytest

from foundation.errors import BenchError
from retrievers.models.resolve import resolve_model
from retrievers.training.engine.context import read_curve
from retrievers.training.finetune.finetune import finetune
from retrievers.training.finetune.training_data import select_negatives
from retrievers.training.preset import Mining
from tests.support.processes import run_in_two
from tests.support.small_finetuning import (
    MINED,
    Search,
    examples,
    first_words_found,
    model,
    on_cpu,
    preset,
    same_weights,
)
from tests.support.small_starts import KilledError, killed_at

BM25 = '\nhard_negatives = 1\n[[rounds]]\nsources = ["bm25"]\ndepth = 40\n'
REFRESHED = MINED + "refresh_steps = 2\n"
QUICK = "[optimizer]\nlr = 3e-3\nwarmup = 0.0\n"


def run(folder, table="", name="out", steps=6, **others):
    settings = preset(table + QUICK, steps=steps)
    search = others.pop("search", None)
    context = on_cpu(folder / name, **others)
    return finetune(settings, model(folder), examples(), context, search=search)


SHARED = """
import json, shutil, sys
from pathlib import Path
from tests.support import small_finetuning as small
from retrievers.models.resolve import resolve_model
from retrievers.training.finetune.finetune import finetune
here = Path(sys.argv[1])
def look(progress):
    if progress.done == progress.total:
        shutil.copytree(here / "whole", here / "killed")
preset, examples = small.preset(batch_size=4), small.examples()
for name, report in (("whole", look), ("killed", None)):
    start = resolve_model(str(here / "start.toml"))
    context = small.on_cpu(here / name, save_every=4, progress=report)
    done = finetune(preset, start, examples, context)
print(done.resumed_at)
"""


@pytest.mark.slow
def test_processes_that_share_a_training_resume_together(tmp_path):
    model(tmp_path)
    assert run_in_two(SHARED, tmp_path, str(tmp_path)) == ["4", "4"]
    assert same_weights(tmp_path / "killed", tmp_path / "whole")


OWN_NEGATIVES = (
    REFRESHED.replace("refresh_steps = 2", "refresh_steps = 100")
    + """
[loss]
name = "contrastive"
in_batch = false
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "steps"),
    [("", 50), (BM25 + "[loss]\nname = 'contrastive'\nchunk = 2\n", 50), (OWN_NEGATIVES, 200)],
)
def test_training_finds_the_relevant_documents(tmp_path, table, steps):
    run(tmp_path, table, "before", steps=1, search=Search())
    run(tmp_path, table, "after", steps=steps, search=Search())
    before, after = (first_words_found(tmp_path / name) for name in ("before", "after"))
    assert after > max(0.8, before + 0.2)
    losses = [one.losses["loss"] for one in read_curve(tmp_path / "after" / "losses.jsonl")]
    assert len(losses) == steps
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


@pytest.mark.slow
def test_only_the_same_seed_gives_the_same_weights(tmp_path):
    for name, seed in (("one", 0), ("two", 0), ("other", 1)):
        run(tmp_path, f"seed = {seed}\n{BM25}", name, search=Search())
    assert same_weights(tmp_path / "one", tmp_path / "two")
    assert not same_weights(tmp_path / "one", tmp_path / "other")


@pytest.mark.slow
def test_refreshed_negatives_follow_from_the_weights_of_their_step(tmp_path):
    """A training of two steps ends where one of three is searched with."""
    constant = "[optimizer]\nlr = 3e-3\nwarmup = 0.0\nschedule = 'constant'\n"
    start = model(tmp_path)
    for name, steps in (("long", 3), ("short", 2)):
        settings = preset(REFRESHED + constant, steps=steps)
        finetune(settings, start, examples(), on_cpu(tmp_path / name), search=Search())
    found = Search()(resolve_model(str(tmp_path / "short")), 12)
    expected = select_negatives(found, examples(), Mining(sources=("model",), depth=12, keep=10))
    held = np.load(tmp_path / "long" / "negatives" / "model-00000002.npy")
    assert (held[:, :10] == expected).all()
    assert not (tmp_path / "long" / "refreshed").exists()


@pytest.mark.slow
def test_each_round_starts_anew_and_the_model_of_the_last_one_mines(tmp_path):
    search = Search()
    table = BM25 + '[[rounds]]\nsources = ["model"]\ndepth = 12\n'
    trained = run(tmp_path, table, search=search)
    assert search.asked == ["bm25", "1"]
    assert trained.rounds == 2
    run(tmp_path, BM25, "first", search=Search())
    assert same_weights(tmp_path / "first", tmp_path / "out" / "rounds" / "1")
    assert resolve_model(str(tmp_path / "out" / "rounds" / "1")).card.trained_on == ("toy",)


@pytest.mark.slow
def test_a_training_stopped_in_its_second_round_keeps_the_first(tmp_path):
    table = BM25 + '[[rounds]]\nsources = ["model"]\ndepth = 12\n'
    run(tmp_path, table, "whole", search=Search())
    with pytest.raises(KilledError):
        run(tmp_path, table, progress=killed_at(4, "round 2"), search=Search(), save_every=2)
    stages = []
    again = Search()
    run(
        tmp_path,
        table,
        progress=lambda one: stages.append((one.stage, one.done)),
        search=again,
        save_every=2,
    )
    assert again.asked == []
    assert stages == [("round 2", step) for step in (3, 4, 5, 6)] or stages[0][0] == "round 2"
    assert same_weights(tmp_path / "whole", tmp_path / "out")


def test_another_training_in_the_same_folder_is_refused(tmp_path):
    run(tmp_path)
    with pytest.raises(BenchError, match="different training: preset"):
        run(tmp_path, steps=7)
    with pytest.raises(BenchError, match=r"different training: data\.examples"):
        finetune(preset(QUICK), model(tmp_path), examples(5), on_cpu(tmp_path / "out"))


@pytest.mark.slow
def test_bfloat16_applies_to_one_training_and_gradient_checkpointing_trains_too(tmp_path):
    run(tmp_path, name="before")
    run(tmp_path, 'precision = "bfloat16"\ngradient_checkpointing = true\n')
    run(tmp_path, name="after")
    assert not same_weights(tmp_path / "before", tmp_path / "out")
    assert same_weights(tmp_path / "before", tmp_path / "after")
    assert resolve_model(str(tmp_path / "out")).recipe.dtype == "float32"
