"""Trainings that the two processes of torchrun share."""

import pytest
import torch

from retrievers.training.pretrain.pretrain import pretrain
from tests.support import small_finetuning as fine
from tests.support import small_starts as small
from tests.support.processes import run_in_two

SHARED = r"""
import os, shutil, signal, sys
from pathlib import Path
from retrievers.training.engine import run_folder
from retrievers.training.engine.context import is_first
if not is_first():
    run_folder.save_checkpoint = None  # only the first process may write
from retrievers.models.resolve import resolve_model
from retrievers.training.finetune.finetune import finetune
from retrievers.training.pretrain.pretrain import pretrain
from tests.support import small_finetuning as fine
from tests.support import small_starts as small

def interrupt(progress):  # called in the first process only
    if progress.done == 3:
        os.kill(os.getpid(), signal.SIGTERM)

def copy(progress):
    if progress.done == progress.total:
        shutil.copytree(here / "whole", here / "killed")

here = Path(sys.argv[1])
preset, texts, out = small.preset(here / "bert"), small.texts(), here / "shared"
try:
    pretrain(preset, texts, small.on_cpu(out, progress=interrupt))
except SystemExit as stopped:
    code = stopped.code
resumed_at = [pretrain(preset, texts, small.on_cpu(out)).resumed_at]
preset, start = fine.preset(batch_size=4), resolve_model(str(here / "start.toml"))
for name, report in (("whole", copy), ("killed", None)):
    context = fine.on_cpu(here / name, save_every=4, progress=report)
    tuned = finetune(preset, start, fine.examples(), context)
resumed_at.append(tuned.resumed_at)
sys.stdout.write(f"{code} {resumed_at}\n")  # as a whole: two processes share a pipe
"""


@pytest.mark.slow
def test_processes_share_each_step_stop_if_one_is_interrupted_and_resume_together(tmp_path):
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    start = small.write_start(tmp_path / "bert", small.texts(), **dropout)
    fine.model(tmp_path)
    alone = tmp_path / "alone"
    pretrain(small.preset(start, accumulate=2), small.texts(), small.on_cpu(alone))
    printed = run_in_two(SHARED, tmp_path, str(tmp_path))
    assert " ".join(printed) == "143 [10, 4] 143 [10, 4]"
    one, other = small.weights(alone), small.weights(tmp_path / "shared")
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
    assert fine.same_weights(tmp_path / "killed", tmp_path / "whole")
