"""Trainings that the two processes of torchrun share."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from retrievers.models.resolve import resolve_model
from retrievers.training.engine.context import is_first
from retrievers.training.finetune import student
from retrievers.training.finetune.finetune import finetune
from retrievers.training.pretrain import pretrain as pretraining
from retrievers.training.pretrain.pretrain import pretrain
from tests.support import small_finetuning as fine
from tests.support import small_starts as small
from tests.support.processes import run_in_two


def interrupt(progress: Any) -> None:
    """Called in the first process only."""
    if progress.done == 3:
        os.kill(os.getpid(), signal.SIGTERM)


def train(folder: str) -> list[Any]:
    """Interrupt a pre-training and resume it; resume a copy of a fine-tuning that is about to end.

    Returns:
        The exit code of the first, and the steps at which both are resumed.
    """
    here = Path(folder)
    if not is_first():  # only the first process may write
        pretraining.save_checkpoint = student.save_checkpoint = None

    def copy(progress: Any) -> None:
        if progress.done == progress.total:
            shutil.copytree(here / "whole", here / "killed")

    preset, out = small.preset(here / "bert"), here / "shared"
    with pytest.raises(SystemExit) as stopped:
        pretrain(preset, small.texts(), small.on_cpu(out, progress=interrupt))
    pretrained = pretrain(preset, small.texts(), small.on_cpu(out))
    start = resolve_model(str(here / "start.toml"))
    for name, report in (("whole", copy), ("killed", None)):
        context = small.on_cpu(here / name, save_every=4, progress=report)
        tuned = finetune(fine.preset(batch_size=4), start, fine.examples(), context)
    return [stopped.value.code, pretrained.resumed_at, tuned.resumed_at]


@pytest.mark.slow
def test_processes_share_each_step_stop_if_one_is_interrupted_and_resume_together(tmp_path):
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    start = small.write_start(tmp_path / "bert", small.texts(), **dropout)
    fine.model(tmp_path)
    alone = tmp_path / "alone"
    pretrain(small.preset(start, accumulate=2), small.texts(), small.on_cpu(alone))
    assert run_in_two(train, tmp_path) == ["[143, 10, 4]"] * 2
    one, other = small.weights(alone), small.weights(tmp_path / "shared")
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
    assert small.have_equal_weights(tmp_path / "killed", tmp_path / "whole")
