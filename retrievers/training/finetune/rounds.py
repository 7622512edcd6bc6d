"""One round of fine-tuning: mine negatives, train, and mine again where the preset says so.

Where negatives are refreshed, training is cut into phases: each ends with a checkpoint, from which
the corpus is encoded and searched again, and from which the next phase goes on. So a training that
was killed in any phase ends as if it had not been.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from foundation.arrays import Int64Array
from foundation.errors import BenchError
from retrievers.adapters.identify import FOLDER
from retrievers.adapters.train import AdaptedNetwork, add_adapter
from retrievers.models.card_file import write_card
from retrievers.models.lookup import CARD_FILE
from retrievers.models.model import Model, resolve_model
from retrievers.training.engine.context import TrainingContext
from retrievers.training.engine.fit import Advice, FitSettings
from retrievers.training.engine.kept_arrays import kept_array
from retrievers.training.engine.processes import is_first, wait_for, world_size
from retrievers.training.engine.save import save_files
from retrievers.training.engine.size import write_size
from retrievers.training.engine.step_checkpoints import (
    CHECKPOINTS,
    last_whole,
    load_weights,
    step_of,
)
from retrievers.training.engine.trainer import Fitted, writing
from retrievers.training.finetune.collate import Batches, Pool
from retrievers.training.finetune.finetune_preset import Contrastive, Finetuning, temperature_of
from retrievers.training.finetune.inputs import Inputs
from retrievers.training.finetune.losses import loss_of
from retrievers.training.finetune.negatives import Mining, Source, merged, mine_source
from retrievers.training.finetune.order import order_of
from retrievers.training.finetune.retriever_trainer import RetrieverTrainer, per_device
from retrievers.training.finetune.student import (
    build_student,
    network_of,
    tokenizer_of,
    training_recipe,
)
from retrievers.training.finetune.task import FinetuneTask
from retrievers.training.finetune.teacher import score_negatives
from retrievers.training.finetune.trained_part import train_only
from retrievers.training.finetune.training_data import TextKeys, TrainingSet

logger = logging.getLogger(__name__)

NEGATIVES = "negatives"
REFRESHED = "refreshed"  # the model as trained so far, removed when it has mined


@dataclass(frozen=True)
class FinishedRound:
    """Figures of a round: steps of the optimizer, queries that were trained on, and times."""

    steps: int
    queries: int
    fitted: Fitted


@dataclass(frozen=True, eq=False)
class Round:
    """One round.

    Attributes:
        miner: finds the negatives before the first step.
        context: of the round, whose folder gets its checkpoint.
        name: in progress reports.
    """

    task: FinetuneTask
    mining: Mining
    miner: Model
    context: TrainingContext
    name: str

    def train(self) -> FinishedRound:
        """Train, and write the checkpoint; a finished round is not repeated."""
        folder = self.context.out
        examples, pool = self._first_pool()
        steps = self.task.preset.steps_for(self.mining, len(examples))
        if (folder / CARD_FILE).exists():
            fitted = Fitted(0.0, steps)
        else:
            student = Student(self, examples, steps)
            fitted = student.train(pool)
            if is_first():
                with writing(folder):
                    student.save(folder)
        if is_first():
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        wait_for(folder / CARD_FILE)
        return FinishedRound(steps, len(examples), fitted)

    def mined(self, step: int, miner: Callable[[], Model]) -> Pool:
        """Negatives as they are found at a step, which are kept.

        Args:
            miner: gives the model of that step; called where its negatives are not there yet.
        """
        parts = [self._from_source(source, step, miner) for source in self.mining.sources]
        return Pool(merged(parts))

    def _from_source(self, source: Source, step: int, miner: Callable[[], Model]) -> Int64Array:
        task = self.task
        name = "bm25" if source == "bm25" else f"{source}-{step:08}"

        def search() -> Int64Array:
            if task.mine is None:
                raise ValueError("negatives are found by a search")
            model = None if source == "bm25" else miner()
            return mine_source(task.mine, model, task.examples, self.mining)

        return kept_array(self.context.out / NEGATIVES / f"{name}.npy", search)

    def _first_pool(self) -> tuple[TrainingSet, Pool | None]:
        """Negatives before the first step; with a teacher, and without queries it has none for."""
        task = self.task
        if not self.mining.sources:
            return task.examples, None
        pool = self.mined(0, lambda: self.miner)
        if task.preset.teacher is None:
            return task.examples, pool
        return score_negatives(task, pool.rows, self.context.out / "teacher-scores")


class Student:
    """The model that a round trains."""

    def __init__(self, round_: Round, examples: TrainingSet, steps: int) -> None:
        task, preset = round_.task, round_.task.preset
        recipe = training_recipe(task.model, task.card, preset)
        torch.manual_seed(preset.seed)
        self.model = build_student(task.model, recipe)
        network = network_of(self.model)
        self.adapted: AdaptedNetwork | None = None
        if preset.adapter is not None:
            self.adapted = add_adapter(network, preset.adapter, task.model, preset.seed)
        if preset.part is not None:
            train_only(network, preset.part)
        if preset.gradient_checkpointing:
            network.gradient_checkpointing_enable({"use_reentrant": False})
        self.round, self.task, self.examples = round_, task, examples
        self.inputs = Inputs(tokenizer_of(self.model), network, recipe)
        keys = TextKeys.read(examples.documents, examples.positives)
        self.order = order_of(examples, keys, preset.batch_size, steps, preset.seed)
        if self.order.crowded and is_first():
            logger.warning(
                "in %d of %d batches a document is relevant to two queries, and counts as a "
                "negative of one: lower batch_size",
                self.order.crowded,
                steps,
            )
        self.settings = FitSettings(
            context=round_.context,
            stage=round_.name,
            training=task.training,
            optimizer=preset.trained_by(),
            steps=steps,
            batch_size=per_device(preset.batch_size),
            seed=preset.seed,
            precision=preset.precision,
            save_model=lambda folder, step: self.save(folder),
            advice=advice_for(preset),
        )

    def save(self, folder: Path) -> None:
        """Write what was trained, as a folder that can be evaluated; the card comes last."""
        network, card = network_of(self.model), self.task.card
        if self.adapted is None:
            save_files(network, tokenizer_of(self.model), folder, card)
            write_size(network, folder, folder.iterdir())
            write_card(card, folder)
        else:
            self.adapted.save_files(folder)
            write_size(network, folder, (folder / FOLDER).rglob("*"))
            self.adapted.save_card(folder, card)

    def train(self, pool: Pool | None) -> Fitted:
        """Train all phases that are not done."""
        checkpoints = self.settings.checkpoints
        begin, seconds, resumed_at = 0, 0.0, step_of(last_whole(checkpoints))
        for until in self._phase_ends():
            if step_of(last_whole(checkpoints)) < until:
                if begin and pool is not None:
                    pool = self._refreshed(begin)
                seconds += self._phase(pool, until).seconds
            begin = until
        if seconds == 0.0 and (last := last_whole(checkpoints)):
            load_weights(self.model, last)
        return Fitted(seconds, resumed_at)

    def _phase_ends(self) -> list[int]:
        every, steps = self.round.mining.refresh_steps, self.settings.steps
        return [*range(every, steps, every), steps] if every else [steps]

    def _phase(self, pool: Pool | None, until: int) -> Fitted:
        return self._trainer(pool).fit(self.settings, until)

    def _trainer(self, pool: Pool | None) -> RetrieverTrainer:
        preset = self.task.preset
        negatives = [] if pool is None else [pool.rows]
        batches = Batches(
            examples=self.examples,
            order=self.order,
            pool=pool,
            keys=TextKeys.read(self.examples.documents, [*self.examples.positives, *negatives]),
            inputs=self.inputs,
            count=preset.hard_negatives,
            seed=preset.seed,
        )
        loss = loss_of(
            preset.loss,
            self.model,
            temperature=temperature_of(preset.loss, self.task.card.similarity),
            devices=world_size(),
        )
        return RetrieverTrainer.build(self.model, loss, batches, self.settings)

    def _refreshed(self, step: int) -> Pool:
        """Negatives as the model of a step finds them; the phase begins there or goes on."""
        folder = self.settings.context.out / REFRESHED

        def model_of_step() -> Model:
            checkpoint = last_whole(self.settings.checkpoints)
            if checkpoint is None or step_of(checkpoint) != step:
                raise BenchError(
                    f"the negatives of step {step} are missing or damaged, and the checkpoint to "
                    "find them again is gone",
                    "train into another folder",
                )
            load_weights(self.model, checkpoint)
            self.save(folder)
            return resolve_model(str(folder))

        pool = self.round.mined(step, model_of_step)
        if is_first():
            shutil.rmtree(folder, ignore_errors=True)
        return pool


def advice_for(preset: Finetuning) -> Advice:
    """Advice for less memory, and after a loss that is not a number."""
    chunks = isinstance(preset.loss, Contrastive)
    keeps = "set loss.chunk, which keeps the batch (GradCache); or " if chunks else ""
    return Advice(
        batch=f"batches of {preset.batch_size}",
        smaller=f"{keeps}lower batch_size or max_document_tokens, or use gradient_checkpointing",
        slower="lower the learning rate or raise the temperature, and train into another folder",
        start_option="" if preset.adapter else "--model",
    )
