"""The teacher of a fine-tuning: opened or trained once, it scores the negatives of each round."""

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from foundation.arrays import Int64Array
from foundation.atomic import replacing_in
from foundation.errors import BenchError
from retrievers.encoders.device import pick_device
from retrievers.models.checkpoint import Checkpoint, open_checkpoint
from retrievers.models.model import Model
from retrievers.training.engine.context import Progress
from retrievers.training.engine.find_checkpoint import find_checkpoint
from retrievers.training.engine.fit import Advice, FitSettings, first_process_first
from retrievers.training.engine.processes import is_first, wait_for
from retrievers.training.engine.step_checkpoints import CHECKPOINTS, COMPLETE, damage, seal
from retrievers.training.engine.trainer import writing
from retrievers.training.finetune.collate import Pool
from retrievers.training.finetune.cross_encoder import (
    TextPairs,
    cross_encoder,
    pairs_of,
    score_pool,
    without_close,
)
from retrievers.training.finetune.finetune_preset import Teacher
from retrievers.training.finetune.losses import reranker_loss
from retrievers.training.finetune.retriever_trainer import RerankerTrainer, per_device
from retrievers.training.finetune.task import FinetuneTask
from retrievers.training.finetune.training_data import TrainingSet

logger = logging.getLogger(__name__)


def score_negatives(
    task: FinetuneTask, rows: Int64Array, scores_folder: Path
) -> tuple[TrainingSet, Pool]:
    """The negatives with the teacher's scores, and the queries that have any.

    Args:
        rows: negatives of each query, int64 ``(q, keep)``, -1 where unfilled.
        scores_folder: of what the teacher scored.

    Raises:
        BenchError: there is no such teacher, it cannot be trained, or no negative is left.
    """
    settings, examples, device = _settings(task), task.examples, task.context.device
    teacher = open_teacher(task, rows)
    on_gpu = pick_device(device).type == "cuda"

    def report(done: int) -> None:
        task.context.report(Progress("teacher scores", done, len(examples), "queries"))

    pool = score_pool(
        teacher.to("cuda" if on_gpu else "cpu"),
        examples,
        rows,
        scores_folder,
        batch_size=settings.pairs_at_once,
        advance=report,
    )
    if settings.margin is not None:
        pool = without_close(pool, settings.margin)
    left = np.flatnonzero((pool.rows >= 0).any(axis=1))
    if not len(left):
        raise BenchError("no negative is left", "lower teacher.margin, or raise rounds.depth")
    return examples.take(left), pool.take(left)


def open_teacher(task: FinetuneTask, rows: Int64Array) -> Any:
    """A trained cross-encoder: the one that is named, or one that is trained here, once."""
    settings, folder = _settings(task), task.teacher_folder
    if settings.model:
        named, _ = find_checkpoint(settings.model)
        return cross_encoder(named, settings.max_tokens, trained=True)
    with first_process_first(task.context.device):
        if is_first() and (folder / COMPLETE).exists() and (problem := damage(folder)):
            logger.warning("%s is damaged, and is trained again: %s", folder, problem)
            (folder / COMPLETE).unlink()
    if not (folder / COMPLETE).exists():
        start = _start(settings, task.model)
        teacher = cross_encoder(start, settings.max_tokens, trained=False, seed=task.preset.seed)
        _train(teacher, task, rows)
        if is_first():
            with writing(folder):
                with replacing_in(folder) as unfinished:
                    teacher.model.save_pretrained(str(unfinished), safe_serialization=True)
                    teacher.tokenizer.save_pretrained(str(unfinished))
                seal(folder)
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        wait_for(folder / COMPLETE)
    return cross_encoder(open_checkpoint(folder), settings.max_tokens, trained=True)


def _settings(task: FinetuneTask) -> Teacher:
    if task.preset.teacher is None:
        raise ValueError("this preset has no teacher")
    return task.preset.teacher


def _start(settings: Teacher, student: Model) -> Checkpoint:
    """The encoder that the teacher is trained from; the student's, where none is named."""
    if settings.start:
        return find_checkpoint(settings.start)[0]
    if student.document is None:
        raise BenchError(f"{student.card.name} has no checkpoint", "name teacher.start")
    return student.document


def _train(teacher: Any, task: FinetuneTask, rows: Int64Array) -> None:
    settings, seed = _settings(task), task.preset.seed
    pairs = pairs_of(task.examples, rows, settings, seed)
    fit_settings = FitSettings(
        context=task.context.inside(task.teacher_folder),
        stage="teacher",
        training=task.training,
        optimizer=settings.optimizer,
        steps=len(pairs) // (settings.batch_size * settings.accumulate),
        batch_size=per_device(settings.batch_size),
        accumulate=settings.accumulate,
        seed=seed,
        advice=Advice(
            batch=f"batches of {settings.batch_size}",
            smaller="lower teacher.batch_size and raise teacher.accumulate as much",
            slower="lower teacher.optimizer.lr, and train into another folder",
        ),
    )
    loss = reranker_loss(teacher, settings)
    trainer = RerankerTrainer.build(teacher, loss, TextPairs(task.examples, pairs), fit_settings)
    trainer.fit(fit_settings)
