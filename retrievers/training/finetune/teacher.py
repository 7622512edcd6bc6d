"""Teacher of a fine-tuning: a cross-encoder (Nogueira and Cho, 2019) that scores negatives.

Scores are its logits before any sigmoid. It is loaded, or trained once on mined negatives.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError, wrap_errors
from foundation.files import replace_entries
from retrievers.encoders.device import pick_device
from retrievers.encoders.library import load_cross_encoder
from retrievers.encoders.protocol import join
from retrievers.encoders.tokens import load_tokenizer
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.folder import ModelFolder
from retrievers.models.resolve import Model
from retrievers.training.engine.context import Progress, TrainingContext, is_first, wait_for_file
from retrievers.training.engine.run_folder import (
    CHECKPOINTS,
    COMPLETE,
    is_complete,
    load_array,
    seal,
)
from retrievers.training.engine.trainer import FitSettings, explain_errors
from retrievers.training.finetune.losses import RerankerTrainer, reranker_loss
from retrievers.training.finetune.student import load_module
from retrievers.training.finetune.training_data import (
    Documents,
    NegativePool,
    TrainingSet,
    drop_queries_without_negatives,
    per_device,
    random_negatives,
)
from retrievers.training.preset import Teacher
from retrievers.training.pretrain.start import find_checkpoint

BLOCK = 256  # queries whose scores are stored at a time


@dataclass(frozen=True, eq=False)
class CrossEncoderTeacher:
    """Teacher of a preset, which is written to the context's folder if it is trained."""

    settings: Teacher
    student: Model
    examples: TrainingSet
    context: TrainingContext
    seed: int

    def score(self, rows: Int64Array, scores_folder: Path) -> tuple[TrainingSet, NegativePool]:
        """Return the queries that have negatives, and these with scores, which are stored.

        ``rows`` are those of the negatives of each query, int64 ``(q, keep)``, -1 if unfilled.
        """
        examples, settings = self.examples, self.settings
        device = pick_device(self.context.device)  # before any training
        teacher = self.open(rows).to(device.type)
        context = self.context.with_folder(scores_folder)
        pool = score_pool(teacher, examples, rows, context, settings.pairs_at_once)
        if settings.margin is not None:
            pool = drop_close_negatives(pool, settings.margin)
        return drop_queries_without_negatives(examples, pool)

    def open(self, rows: Int64Array) -> Any:
        """Load the named cross-encoder, or train one once on negatives at ``rows``."""
        settings, folder = self.settings, self.context.out
        if settings.model:
            teacher, _ = find_checkpoint(settings.model)
        else:
            if not is_complete(folder):
                self._train(rows)
                wait_for_file(folder / COMPLETE)
            teacher = Checkpoint.of_network(ModelFolder(folder))
        longest = min(settings.max_tokens, teacher.position_limit or settings.max_tokens)
        return load_cross_encoder(teacher.folder, "cpu", "float32", longest)

    def _train(self, rows: Int64Array) -> None:
        settings, folder = self.settings, self.context.out
        if is_first():  # the other processes wait for the new one
            (folder / COMPLETE).unlink(missing_ok=True)
        start = find_checkpoint(settings.start)[0] if settings.start else self.student.checkpoint
        teacher = new_cross_encoder(start, settings.max_tokens, self.seed)
        pairs = plan_pairs(self.examples, rows, settings, self.seed)
        fit_settings = FitSettings(
            context=self.context,
            stage="teacher",
            optimizer=settings.optimizer,
            steps=len(pairs) // (settings.batch_size * settings.accumulate),
            batch_size=per_device(settings.batch_size),
            accumulate=settings.accumulate,
            seed=self.seed,
            memory_hint="Lower teacher.batch_size and raise teacher.accumulate as much.",
        )
        loss, collate = reranker_loss(teacher, settings), TextPairs(self.examples, pairs)
        RerankerTrainer.build(teacher, loss, collate, fit_settings).fit(fit_settings)
        if not is_first():
            return
        with explain_errors(folder):
            with replace_entries(folder) as unfinished:
                teacher.model.save_pretrained(str(unfinished), safe_serialization=True)
                teacher.tokenizer.save_pretrained(str(unfinished))
            seal(folder)
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class TextPairs:
    """Collator of the cross-encoder's trainer: texts of queries and documents, and labels.

    ``pairs`` has query, document and label (1 relevant, 0 not) of each example, int64 ``(n, 3)``,
    or of each document of a list, ``(n, documents, 3)``.
    """

    examples: TrainingSet
    pairs: Int64Array
    valid_label_columns: tuple[str, ...] = ()

    def __call__(self, features: Sequence[Mapping[str, int]]) -> dict[str, Any]:
        """Return the texts and labels of the examples ``features``, each as ``{"index": i}``."""
        pairs = self.pairs[[feature["index"] for feature in features]]
        queries, rows, labels = pairs.reshape(-1, 3).T
        return {
            "query": [self.examples.queries[query] for query in queries.tolist()],
            "document": read_documents(self.examples.documents, rows),
            "label": torch.from_numpy(labels.astype(np.float32)),
        }


def plan_pairs(examples: TrainingSet, pool: Int64Array, settings: Teacher, seed: int) -> Int64Array:
    """Choose the pairs of `TextPairs` that the teacher is trained on, in complete batches.

    Each epoch shows each query once, with one relevant document and its negatives. ``pool`` has
    their rows, int64 ``(q, keep)``, -1 if unfilled.
    """
    wanted = round(settings.epochs * len(examples))
    listwise = settings.loss == "listwise"
    pairs: list[Any] = []
    for number in range(wanted):
        epoch, at = divmod(number, len(examples))
        if at == 0:
            rng = np.random.default_rng((seed, 2, epoch))
            order = rng.permutation(len(examples)).tolist()
        query = order[at]
        shown = [(query, int(rng.choice(examples.positives[query])), 1)]
        negatives = rng.permutation(pool[query][pool[query] >= 0])[: settings.negatives]
        if listwise:
            relevant, short = examples.positives[query], settings.negatives - len(negatives)
            others = random_negatives(relevant, len(examples.documents), short, rng)
            negatives = np.concatenate([negatives, others])
        shown += [(query, row, 0) for row in negatives.tolist()]
        pairs += [shown] if listwise else shown
    step = settings.batch_size * settings.accumulate
    whole = len(pairs) // step * step
    if not whole:
        raise BenchError(
            f"the teacher has {len(pairs)} {'lists' if listwise else 'pairs'}, a step needs {step}",
            "Lower teacher.batch_size or raise teacher.epochs.",
        )
    return np.array(pairs[:whole], np.int64)


def new_cross_encoder(checkpoint: Checkpoint, max_tokens: int, seed: int = 0) -> Any:
    """Return the encoder of a checkpoint with a new head for one score, drawn from ``seed``."""
    from sentence_transformers import CrossEncoder

    torch.manual_seed(seed)
    with wrap_errors(f"{checkpoint.folder} cannot be loaded as a cross-encoder", ""):
        transformer = load_module(checkpoint, "sequence-classification", num_labels=1)
    transformer.processor = load_tokenizer(checkpoint)
    transformer.max_seq_length = min(max_tokens, checkpoint.position_limit or max_tokens)
    return CrossEncoder(modules=[transformer], device="cpu")


def score_pool(
    teacher: Any, examples: TrainingSet, rows: Int64Array, context: TrainingContext, batch_size: int
) -> NegativePool:
    """Return the negatives at ``rows`` with the teacher's scores, which are stored."""
    scores = np.full(rows.shape, -np.inf, np.float32)
    positive_scores: list[Float32Array] = []
    for start in range(0, len(examples), BLOCK):
        queries = range(start, min(start + BLOCK, len(examples)))
        filled = [rows[query][rows[query] >= 0] for query in queries]
        documents = [*examples.positives[start : queries.stop], *filled]
        predict = partial(_predict, teacher, examples, queries, documents, batch_size)
        block = load_array(context.out / f"{start:09}.npy", predict)
        parts = np.split(block, np.cumsum([len(each) for each in documents])[:-1])
        positive_scores += parts[: len(queries)]
        for query, negatives in zip(queries, parts[len(queries) :], strict=True):
            scores[query, : len(negatives)] = negatives
        context.report(Progress("teacher scores", queries.stop, len(examples), "queries"))
    return NegativePool(rows, scores, positive_scores)


def drop_close_negatives(pool: NegativePool, margin: float) -> NegativePool:
    """Drop negatives with less than ``margin`` between the lowest relevant score and theirs."""
    lowest = np.array([scores.min() for scores in pool.positive_scores], np.float32)
    close = pool.scores > lowest[:, None] - np.float32(margin)
    return NegativePool(np.where(close, -1, pool.rows), pool.scores, pool.positive_scores)


def read_documents(documents: Documents, rows: Int64Array) -> list[str]:
    """Return title and text of each row of ``rows`` in ``documents`` as one string."""
    pairs = zip(*documents.read(rows), strict=True)
    return [join("space", "", title, text)[0] for title, text in pairs]


def _predict(
    teacher: Any,
    examples: TrainingSet,
    queries: range,
    documents: Sequence[Int64Array],
    batch_size: int,
) -> Float32Array:
    """Return the scores of ``documents``: relevant ones of each query, then its negatives."""
    of = np.repeat([*queries, *queries], [len(rows) for rows in documents]).tolist()
    texts = read_documents(examples.documents, np.concatenate(documents))
    pairs = [(examples.queries[query], text) for query, text in zip(of, texts, strict=True)]
    scores: Float32Array = teacher.predict(
        pairs, batch_size=batch_size, activation_fn=torch.nn.Identity(), show_progress_bar=False
    )
    return scores.astype(np.float32)
