"""Fine-tune an encoder: from a preset and judged queries to a folder that can be evaluated at once.

A training that was killed goes on from its last whole checkpoint when the same call is made again,
with the batches and negatives that it would have had; one that is finished is not repeated.

In the folder: the checkpoint (see `engine.save`) with its loss curve and negatives; ``rounds/N``
the same of the rounds before the last; ``teacher`` the cross-encoder and its scores.

Where negatives are refreshed, a round is cut into phases: each ends with a checkpoint, from which
the corpus is encoded and searched again, and from which the next phase goes on. So a training that
was killed in any phase ends as if it had not been.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from foundation.arrays import Int64Array
from foundation.errors import BenchError
from retrievers.models.card import CARD_FILE, Card
from retrievers.models.model import Model, resolve_model
from retrievers.training.engine.arguments import (
    CHECKPOINTS,
    FitSettings,
    TrainingContext,
    check_packages,
    is_first_process,
    wait_for_file,
    world_size,
)
from retrievers.training.engine.run_folder import (
    ModelSize,
    RunFolder,
    checkpoint_step,
    last_complete_checkpoint,
    load_or_compute,
    read_size,
)
from retrievers.training.engine.trainer import FitResult, explain_write_errors, load_weights
from retrievers.training.finetune.batches import (
    Batches,
    BatchOrder,
    NegativePool,
    check_batch,
    per_device,
    plan_order,
)
from retrievers.training.finetune.finetune_preset import (
    Contrastive,
    Finetuning,
    Mining,
    Source,
    loss_temperature,
)
from retrievers.training.finetune.student import (
    Student,
    trained_card,
)
from retrievers.training.finetune.training_data import (
    MinedHits,
    NegativeSearch,
    TextKeys,
    TrainingSet,
    merge_negatives,
    select_negatives,
)

logger = logging.getLogger(__name__)

NEGATIVES = "negatives"
FORMER_SETTINGS = {"private": False, "chosen_by": "collection"}  # settings of adapters that were
REFRESHED = "refreshed"  # the model as trained so far, removed when it has mined


class FinetuneTraining(msgspec.Struct, frozen=True, omit_defaults=True):
    """Identity of a fine-tuning: all that decides the result.

    Attributes:
        preset: all of it, as a table.
        start: fingerprint of the start model's recipe.
        examples: sha256 (hex) of queries and relevant documents.
        trained_on: what the finished card states.
        processes: that share each step.
        below: sha256 of the files of adapters that a new one is put on.
    """

    preset: dict[str, Any]
    start: str
    examples: str
    trained_on: tuple[str, ...]
    processes: int
    below: dict[str, str] = {}


class FinetuneResult(msgspec.Struct, frozen=True):
    """A finished fine-tuning.

    Attributes:
        folder: of the checkpoint, for ``--model``.
        steps: of each round.
        rounds: how many.
        queries: that were trained on.
        seconds: of the optimizer's steps in the last call.
        resumed_at: step that the last call went on from, over all rounds; 0 if it began.
        size: parameters and bytes of what was trained; None in records from before they were
            counted.
    """

    folder: str
    steps: int
    rounds: int
    queries: int
    seconds: float
    resumed_at: int
    size: ModelSize | None = None


def _table(preset: Finetuning) -> dict[str, Any]:
    """Return all of a preset, with the settings of adapters that trainings before had, too."""
    table: dict[str, Any] = msgspec.to_builtins(preset)
    if preset.adapter:
        table["adapter"] |= FORMER_SETTINGS
    return table


def refuse_search(model: Model | None, depth: int) -> MinedHits:
    """Refuse to search: a fine-tuning with in-batch negatives alone needs no search.

    Raises:
        BenchError: the preset mines negatives.
    """
    raise BenchError("this preset mines negatives, and no search was handed in")


def finetune(
    preset: Finetuning,
    model: Model,
    examples: TrainingSet,
    context: TrainingContext,
    *,
    search: NegativeSearch = refuse_search,
) -> FinetuneResult:
    """Fine-tune an encoder on judged queries.

    Args:
        model: where every round starts.
        mine: searches for negatives; not needed where the preset has in-batch negatives alone.

    Raises:
        BenchError: a model that cannot be trained here, a folder with another training or another
            process, not enough memory, or a loss that is not a number.
    """
    check_packages("accelerate", "datasets", "sentence_transformers.sentence_transformer")
    card = trained_card(model, preset, examples.trained_on)
    check_batch(len(examples), preset.batch_size)
    training = FinetuneTraining(
        preset=_table(preset),
        start=model.recipe.fingerprint,
        examples=examples.sha256,
        trained_on=card.trained_on,
        processes=world_size(),
        below=preset.adapter.hashes_below() if preset.adapter else {},
    )
    if preset.adapter or preset.part:  # so that what does not fit is known before all
        Student(preset, model, card)
    folder = RunFolder(context.out, training)
    if finished := folder.result(FinetuneResult):
        return finished
    with folder.claim(context.device):
        rounds = [
            Round(preset, model, card, examples, search, context, number).train()
            for number in range(1, len(preset.rounds) + 1)
        ]
        trained = msgspec.structs.replace(
            rounds[-1],
            rounds=len(rounds),
            seconds=sum(each.seconds for each in rounds),
            resumed_at=sum(each.resumed_at for each in rounds),
            size=read_size(context.out),
        )
        folder.finish(trained)
    return trained


@dataclass(frozen=True, eq=False)
class Round:
    """One round: the encoder of one mines the negatives of the next.

    Attributes:
        start: model where every round starts.
        card: of what comes out.
        mine: searches for negatives.
        whole: context of the whole training.
        number: of the round, from 1.
    """

    preset: Finetuning
    start: Model
    card: Card
    examples: TrainingSet
    search: NegativeSearch
    whole: TrainingContext
    number: int

    @property
    def mining(self) -> Mining:
        """Where its negatives come from."""
        return self.preset.rounds[self.number - 1]

    @property
    def context(self) -> TrainingContext:
        """The context of the round, whose folder gets its checkpoint."""
        last = self.number == len(self.preset.rounds)
        return self.whole if last else self.whole.with_folder(self._folder(self.number))

    def _folder(self, number: int) -> Path:
        """Folder of a round that is not the last."""
        return self.whole.out / "rounds" / str(number)

    def _mining_model(self) -> Model:
        """Return the model that finds the negatives before the first step."""
        before = self.number - 1
        return resolve_model(str(self._folder(before))) if before else self.start

    def train(self) -> FinetuneResult:
        """Train, and write the checkpoint; a finished round is not repeated."""
        examples, pool = self._first_pool()
        return replace(self, examples=examples)._train(pool)

    def _train(self, pool: NegativePool) -> FinetuneResult:
        folder, fitted = self.context.out, FitResult(0.0, self.steps)
        if not (folder / CARD_FILE).exists():
            fitted = self._fit(pool)
            if is_first_process():
                with explain_write_errors(folder):
                    self.student.save(folder, self.card)
        if is_first_process():
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        wait_for_file(folder / CARD_FILE)
        queries = len(self.examples)
        return FinetuneResult(
            str(folder), self.steps, 1, queries, fitted.seconds, fitted.resumed_at
        )

    @property
    def steps(self) -> int:
        """Steps of the optimizer."""
        return self.preset.steps_for(self.mining, len(self.examples))

    @cached_property
    def student(self) -> Student:
        """The model that is trained."""
        return Student(self.preset, self.start, self.card)

    @cached_property
    def order(self) -> BatchOrder:
        """The queries of each batch."""
        keys = TextKeys.read(self.examples.documents, self.examples.positives)
        preset, steps = self.preset, self.steps
        order = plan_order(self.examples, keys, preset.batch_size, steps, preset.seed)
        if order.conflicting_batches and is_first_process():
            logger.warning(
                "in %d of %d batches a document is relevant to two queries, and counts as a "
                "negative of one: lower batch_size",
                order.conflicting_batches,
                steps,
            )
        return order

    @cached_property
    def settings(self) -> FitSettings:
        """Settings of the trainer."""
        preset = self.preset
        return FitSettings(
            context=self.context,
            stage=f"round {self.number}",
            optimizer=preset.effective_optimizer(),
            steps=self.steps,
            batch_size=per_device(preset.batch_size),
            seed=preset.seed,
            precision=preset.precision,
            save_model=lambda folder, step: self.student.save(folder, self.card),
            memory_hint=memory_hint(preset),
        )

    def _first_pool(self) -> tuple[TrainingSet, NegativePool]:
        """Negatives before the first step; with a teacher, and without queries it has none for."""
        pool = self._find_negatives(0, self._mining_model)
        if self.preset.teacher is None:
            return self.examples, pool
        from retrievers.training.finetune.teacher import CrossEncoderTeacher

        teacher = CrossEncoderTeacher(
            settings=self.preset.teacher,
            student=self.start,
            examples=self.examples,
            context=self.whole.with_folder(self.whole.out / "teacher"),
            seed=self.preset.seed,
        )
        return teacher.score(pool.rows, self.context.out / "teacher-scores")

    def _find_negatives(self, step: int, miner: Callable[[], Model]) -> NegativePool:
        """Negatives as they are found at a step, which are kept.

        Args:
            miner: gives the model of that step; called where its negatives are not there yet.
        """
        parts = [self._search_source(source, step, miner) for source in self.mining.sources]
        return NegativePool(merge_negatives(parts, len(self.examples)))

    def _search_source(self, source: Source, step: int, miner: Callable[[], Model]) -> Int64Array:
        name = "bm25" if source == "bm25" else f"{source}-{step:08}"

        def find() -> Int64Array:
            found = self.search(None if source == "bm25" else miner(), self.mining.depth)
            return select_negatives(found, self.examples, self.mining)

        return load_or_compute(self.context.out / NEGATIVES / f"{name}.npy", find)

    def _fit(self, pool: NegativePool) -> FitResult:
        """Train all phases that are not done."""
        checkpoints, every = self.settings.checkpoints, self.mining.refresh_steps
        seconds, resumed_at = 0.0, checkpoint_step(last_complete_checkpoint(checkpoints))
        searches = range(0, self.steps, every or self.steps)
        for begin, until in pairwise([*searches, self.steps]):
            if checkpoint_step(last_complete_checkpoint(checkpoints)) < until:
                pool = self._refresh_pool(begin) if begin else pool
                seconds += self._fit_phase(pool, until)
        if seconds == 0.0 and (last := last_complete_checkpoint(checkpoints)):
            load_weights(self.student.model, last)
        return FitResult(seconds, resumed_at)

    def _refresh_pool(self, step: int) -> NegativePool:
        """Negatives as the model of a step finds them; the phase begins there or goes on."""
        folder = self.context.out / REFRESHED

        def load_model_of_step() -> Model:
            checkpoint = last_complete_checkpoint(self.settings.checkpoints)
            if checkpoint is None or checkpoint_step(checkpoint) != step:
                raise BenchError(
                    f"the negatives of step {step} are missing or damaged, and the checkpoint to "
                    "find them again is gone",
                    "train into another folder",
                )
            load_weights(self.student.model, checkpoint)
            self.student.save(folder, self.card)
            return resolve_model(str(folder))

        pool = self._find_negatives(step, load_model_of_step)
        if is_first_process():
            shutil.rmtree(folder, ignore_errors=True)
        return pool

    def _fit_phase(self, pool: NegativePool, until: int) -> float:
        """Train up to a step; return the seconds that it took."""
        # Imports sentence-transformers' trainers, which `check_packages` has found.
        from retrievers.training.finetune.losses import RetrieverTrainer, build_loss

        preset, model = self.preset, self.student.model
        batches = Batches(
            examples=self.examples,
            order=self.order,
            pool=pool,
            keys=TextKeys.read(self.examples.documents, [*self.examples.positives, pool.rows]),
            inputs=self.student.inputs,
            count=preset.hard_negatives,
            seed=preset.seed,
        )
        temperature = loss_temperature(preset.loss, self.card.similarity)
        loss = build_loss(preset.loss, model, temperature=temperature, devices=world_size())
        trainer = RetrieverTrainer.build(model, loss, batches, self.settings)
        return trainer.fit(self.settings, until).seconds


def memory_hint(preset: Finetuning) -> str:
    """Return what to do if a batch does not fit into memory."""
    chunks = isinstance(preset.loss, Contrastive)
    keeps = "set loss.chunk, which keeps the batch (GradCache); or " if chunks else ""
    return f"{keeps}lower batch_size or max_document_tokens, or use gradient_checkpointing"
