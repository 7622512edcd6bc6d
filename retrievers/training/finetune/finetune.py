"""Fine-tune an encoder: from a preset and judged queries to a folder that can be evaluated.

The same call continues a training that was killed from its last complete checkpoint, with the
batches and negatives that it would have had. A finished training is not repeated.

The folder holds the checkpoint (see `engine.run_folder`) with its loss curve and negatives.
``rounds/N`` holds the same for earlier rounds, and ``teacher`` the cross-encoder and its scores.

A round whose negatives are refreshed is divided into phases. Each phase ends with a checkpoint,
with which the corpus is encoded and searched again and from which the next phase continues. A
training that was killed in any phase therefore ends with the same weights.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import msgspec

from foundation.arrays import Int64Array
from foundation.errors import BenchError
from retrievers.models.card import CARD_FILE, Card
from retrievers.models.resolve import Model, resolve_model
from retrievers.training.engine.context import (
    TrainingContext,
    check_packages,
    is_first,
    wait_for_file,
    world_size,
)
from retrievers.training.engine.identity import Training
from retrievers.training.engine.run_folder import (
    CHECKPOINTS,
    RunFolder,
    last_checkpoint,
    load_array,
    step_of,
)
from retrievers.training.engine.trainer import FitResult, FitSettings, explain_errors, load_weights
from retrievers.training.finetune.student import ModelSize, Student, trained_card
from retrievers.training.finetune.training_data import (
    Batches,
    BatchOrder,
    NegativePool,
    NegativeSearch,
    TextKeys,
    TrainingSet,
    check_batch_size,
    drop_queries_without_negatives,
    given_hits,
    merge_negatives,
    per_device,
    plan_order,
    select_negatives,
)
from retrievers.training.preset import Contrastive, Distillation, Finetuning, Mining, Source
from retrievers.training.pretrain.start import hash_teacher

logger = logging.getLogger(__name__)

NEGATIVES = "negatives"
REFRESHED = "refreshed"  # the current model, removed after its search


class FinetuneResult(msgspec.Struct, frozen=True):
    """Finished fine-tuning.

    Attributes:
        folder: folder of the checkpoint, for ``--model``.
        steps: optimizer steps of each round.
        rounds: number of rounds.
        queries: number of training queries.
        seconds: wall-clock seconds of the optimizer's steps in the last call.
        resumed_at: step that the last call resumed from, summed over rounds. 0 if it started from
            scratch.
        size: parameters and bytes of the trained part.
        dimensions: dimensions at which the vectors were trained, those of whole vectors first.
        found: True if the training had finished before this call, which trained nothing.
    """

    folder: str
    steps: int
    rounds: int
    queries: int
    seconds: float
    resumed_at: int
    size: ModelSize
    dimensions: tuple[int, ...] = ()
    found: bool = False


def finetune(
    preset: Finetuning,
    model: Model,
    examples: TrainingSet,
    context: TrainingContext,
    *,
    search: NegativeSearch | None = None,
) -> FinetuneResult:
    """Fine-tune an encoder on judged queries.

    Args:
        preset: rounds, loss and length of the training.
        model: model that every round starts from.
        examples: queries and relevant documents.
        context: output folder, device and checkpoint interval.
        search: search for negatives. Not needed if the preset uses in-batch negatives only.

    Raises:
        BenchError: the model cannot be trained, the folder holds a different training or is in
            use, memory runs out, or the loss is not finite.
    """
    check_packages("accelerate", "datasets", "sentence_transformers.sentence_transformer")
    preset = _use_given_negatives(preset, examples.negatives)
    card = trained_card(model, preset, examples.trained_on)
    check_batch_size(len(examples), preset.batch_size)
    training = Training(
        start={"recipe": model.recipe.fingerprint, **hash_teacher(preset)},
        data={"examples": examples.sha256, **examples.searched},
        kind="finetune",
        preset=msgspec.to_builtins(preset),
        trained_on=card.trained_on,
        processes=world_size(),
    )
    if preset.adapter or preset.part:  # raise before any work if it does not fit
        Student(preset, model, card)

    def train() -> FinetuneResult:
        rounds = [
            Round(preset, model, card, examples, search, context, number).train()
            for number in range(1, len(preset.rounds) + 1)
        ]
        return msgspec.structs.replace(
            rounds[-1],
            rounds=len(rounds),
            seconds=sum(each.seconds for each in rounds),
            resumed_at=sum(each.resumed_at for each in rounds),
        )

    return RunFolder(context, training).train_once(FinetuneResult, train)


def _use_given_negatives(preset: Finetuning, given: NegativePool | None) -> Finetuning:
    """Return the preset that trains on negatives that came with the queries, or raise."""
    if given is not None:
        preset = preset.with_file(bool(given.positive_scores))
    uses = any("file" in mining.sources for mining in preset.rounds)
    if uses and given is None:
        raise BenchError("the source `file` needs queries that come with negatives")
    distils = uses and preset.teacher is None and isinstance(preset.loss, Distillation)
    if distils and not (given and given.positive_scores):
        raise BenchError("the negatives have no scores to distil from", "Set a [teacher].")
    if given is not None and not uses and is_first():
        logger.warning(
            "the negatives that come with the queries are not used: the preset has "
            "hard_negatives = %d and no round has the source bm25 or file",
            preset.hard_negatives,
        )
    return preset


@dataclass(frozen=True, eq=False)
class Round:
    """Round ``number`` (from 1), which begins with ``start``. ``whole`` is the whole context."""

    preset: Finetuning
    start: Model
    card: Card
    examples: TrainingSet
    search: NegativeSearch | None
    whole: TrainingContext
    number: int

    @property
    def mining(self) -> Mining:
        """Source of this round's negatives."""
        return self.preset.rounds[self.number - 1]

    @property
    def context(self) -> TrainingContext:
        """Context of the round, whose folder gets its checkpoint."""
        last = self.number == len(self.preset.rounds)
        return self.whole if last else self.whole.with_folder(self._folder(self.number))

    def _folder(self, number: int) -> Path:
        return self.whole.out / "rounds" / str(number)

    def train(self) -> FinetuneResult:
        """Train and write the checkpoint. A finished round is not repeated."""
        examples, pool = self._first_pool()
        return replace(self, examples=examples)._train(pool)

    def _train(self, pool: NegativePool) -> FinetuneResult:
        folder, fitted = self.context.out, FitResult(0.0, self.steps)
        if not (folder / CARD_FILE).exists():
            fitted = self._fit(pool)
            if is_first():
                with explain_errors(folder):
                    self.student.save(folder, self.card)
        if is_first():
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        wait_for_file(folder / CARD_FILE)
        return FinetuneResult(
            folder=str(folder),
            steps=self.steps,
            rounds=1,
            queries=len(self.examples),
            seconds=fitted.seconds,
            resumed_at=fitted.resumed_at,
            size=self.student.size(folder),
            dimensions=self.preset.loss.dimensions(self.start.recipe.dim),
        )

    @property
    def steps(self) -> int:
        """Optimizer steps of the round."""
        return self.preset.steps_for(self.mining, len(self.examples))

    @cached_property
    def student(self) -> Student:
        """Model that is trained."""
        return Student(self.preset, self.start, self.card)

    @cached_property
    def order(self) -> BatchOrder:
        """Queries of each batch."""
        keys = TextKeys.read(self.examples.documents, self.examples.positives)
        preset, steps = self.preset, self.steps
        order = plan_order(self.examples, keys, preset.batch_size, steps, preset.seed)
        if order.conflicting_batches and is_first():
            logger.warning(
                "in %d of %d batches a document is relevant to two queries and counts as a "
                "negative of one of them: lower batch_size",
                order.conflicting_batches,
                steps,
            )
        return order

    @cached_property
    def settings(self) -> FitSettings:
        """Settings of the trainer."""
        preset = self.preset
        hint = "Lower batch_size or max_document_tokens, or use gradient_checkpointing."
        if isinstance(preset.loss, Contrastive):
            hint = f"Set loss.chunk, which keeps the batch (GradCache), or {hint}"
        return FitSettings(
            context=self.context,
            stage=f"round {self.number}",
            optimizer=preset.effective_optimizer(),
            steps=self.steps,
            batch_size=per_device(preset.batch_size),
            seed=preset.seed,
            precision=preset.precision,
            save_model=lambda folder, step: self.student.save(folder, self.card),
            memory_hint=hint,
        )

    def _first_pool(self) -> tuple[TrainingSet, NegativePool]:
        """Return the negatives before the first step, and the queries that have some if scored."""

        def mining_model() -> Model:
            before = self.number - 1
            return resolve_model(str(self._folder(before))) if before else self.start

        pool, given = self._find_negatives(0, mining_model), self.examples.negatives
        if self.preset.teacher is None:
            if given is None or not isinstance(self.preset.loss, Distillation):
                return self.examples, pool
            return drop_queries_without_negatives(self.examples, given.select(pool.rows))
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
        """Return the stored negatives of a step, or find them with the model of ``miner``."""
        parts = [self._search_source(source, step, miner) for source in self.mining.sources]
        return NegativePool(merge_negatives(parts, len(self.examples)))

    def _search_source(self, source: Source, step: int, miner: Callable[[], Model]) -> Int64Array:
        name = f"{source}-{step:08}" if source == "model" else source

        def find() -> Int64Array:
            mining, given = self.mining, self.examples.negatives
            if source == "file" and given is not None:
                mining = msgspec.structs.replace(mining, skip=0, margin=None)
                return select_negatives(given_hits(given), self.examples, mining)
            if self.search is None:
                raise BenchError("this preset mines negatives, but no search was passed")
            found = self.search(None if source == "bm25" else miner(), mining.depth)
            return select_negatives(found, self.examples, mining)

        return load_array(self.context.out / NEGATIVES / f"{name}.npy", find)

    def _fit(self, pool: NegativePool) -> FitResult:
        checkpoints, every = self.settings.checkpoints, self.mining.refresh_steps
        seconds, resumed_at = 0.0, step_of(last_checkpoint(checkpoints))
        searches = range(0, self.steps, every or self.steps)
        for begin, until in pairwise([*searches, self.steps]):
            if step_of(last_checkpoint(checkpoints)) < until:
                pool = self._refresh_pool(begin) if begin else pool
                seconds += self._fit_phase(pool, until)
        if seconds == 0.0 and (last := last_checkpoint(checkpoints)):
            load_weights(self.student.model, last)
        return FitResult(seconds, resumed_at)

    def _refresh_pool(self, step: int) -> NegativePool:
        """Return the negatives that the model of a step finds. The next phase starts there."""
        folder = self.context.out / REFRESHED

        def load_model_of_step() -> Model:
            load_weights(self.student.model, self.settings.checkpoints / f"checkpoint-{step}")
            self.student.save(folder, self.card)
            return resolve_model(str(folder))

        pool = self._find_negatives(step, load_model_of_step)
        if is_first():
            shutil.rmtree(folder, ignore_errors=True)
        return pool

    def _fit_phase(self, pool: NegativePool, until: int) -> float:
        """Train up to a step and return the seconds that it took."""
        # Imports sentence-transformers, which `check_packages` has found.
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
        temperature = preset.loss.temperature_for(self.card.similarity)
        loss = build_loss(preset.loss, model, temperature=temperature, devices=world_size())
        trainer = RetrieverTrainer.build(model, loss, batches, self.settings)
        return trainer.fit(self.settings, until).seconds
