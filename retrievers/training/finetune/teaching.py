"""The teacher of a fine-tuning: opened or trained once, it scores the negatives of each round."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from foundation.arrays import Int64Array
from foundation.errors import BenchError
from retrievers.models.checkpoint import Checkpoint, open_checkpoint
from retrievers.models.model import Model
from retrievers.training.engine.processes import is_first, wait_for
from retrievers.training.engine.start import find_checkpoint
from retrievers.training.finetune.collate import Pool
from retrievers.training.finetune.distillation import (
    Pairs,
    cross_encoder,
    pairs_of,
    scored,
    without_close,
)
from retrievers.training.finetune.examples import TrainingSet
from retrievers.training.finetune.finetune_preset import Teacher
from retrievers.training.finetune.fitting import CHECKPOINTS, Fit, RerankerTrainer, fit

TRAINED = "complete"  # empty file in the folder of a teacher that is whole
Say = Callable[[str], Callable[[int, int], None]]


def taught(
    settings: Teacher,
    student: Model,
    examples: TrainingSet,
    rows: Int64Array,
    *,
    teacher_folder: Path,
    scores_folder: Path,
    seed: int,
    device: str,
    say: Say,
) -> tuple[TrainingSet, Pool]:
    """The negatives with the teacher's scores, and the queries that have any.

    Args:
        student: whose start is the teacher's, where the settings name none.
        rows: negatives of each query, ``(q, keep)``.
        teacher_folder: of the trained teacher; made where it is not there.
        scores_folder: of what it scored.

    Raises:
        BenchError: there is no such teacher, it cannot be trained, or no negative is left.
    """
    teacher = open_teacher(settings, student, examples, rows, teacher_folder, seed, device, say)
    pool = scored(
        teacher.to(pick(device)),
        examples,
        rows,
        scores_folder,
        batch_size=settings.batch_size,
        advance=say("teacher scores"),
    )
    if settings.margin is not None:
        pool = without_close(pool, settings.margin)
    left = np.flatnonzero((pool.rows >= 0).any(axis=1))
    if not len(left):
        raise BenchError("no negative is left", "lower teacher.margin, or raise rounds.depth")
    return examples.take(left), pool.take(left)


def open_teacher(
    settings: Teacher,
    student: Model,
    examples: TrainingSet,
    rows: Int64Array,
    folder: Path,
    seed: int,
    device: str,
    say: Say,
) -> Any:
    """A trained cross-encoder: the one that is named, or one that is trained here, once."""
    if settings.model:
        named, _ = find_checkpoint(settings.model)
        return cross_encoder(named, settings.max_tokens, trained=True)
    if not (folder / TRAINED).exists():
        start = _start(settings, student)
        teacher = cross_encoder(start, settings.max_tokens, trained=False, seed=seed)
        _train(teacher, settings, examples, rows, folder, seed, device, say)
        if is_first():
            teacher.model.save_pretrained(str(folder), safe_serialization=True)
            teacher.tokenizer.save_pretrained(str(folder))
            (folder / TRAINED).touch()
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        wait_for(folder / TRAINED)
    return cross_encoder(open_checkpoint(folder), settings.max_tokens, trained=True)


def pick(device: str) -> str:
    """The device that a cross-encoder scores on."""
    import torch

    return "cuda" if device == "auto" and torch.cuda.is_available() else "cpu"


def _start(settings: Teacher, student: Model) -> Checkpoint:
    if settings.start:
        return find_checkpoint(settings.start)[0]
    if student.document is None:
        raise BenchError(f"{student.card.name} has no checkpoint", "name teacher.start")
    return student.document


def _train(
    teacher: Any,
    settings: Teacher,
    examples: TrainingSet,
    rows: Int64Array,
    folder: Path,
    seed: int,
    device: str,
    say: Say,
) -> None:
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    pairs = pairs_of(examples, rows, settings, seed)
    advance = say("teacher")
    steps = len(pairs) // settings.batch_size
    fit(
        RerankerTrainer,
        teacher,
        BinaryCrossEntropyLoss(teacher),
        Pairs(examples, pairs),
        Fit(
            folder,
            settings.optimizer,
            steps,
            settings.batch_size,
            seed,
            device=device,
            smaller="lower teacher.batch_size",
        ),
        until=steps,
        progress=lambda at: advance(at.step, at.steps),
    )
