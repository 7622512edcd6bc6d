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

import numpy as np
import torch

from foundation.arrays import Int64Array
from foundation.errors import BenchError
from retrievers.adapters.attach import FOLDER
from retrievers.adapters.train import AdaptedNetwork, add_adapter
from retrievers.models.card import Card
from retrievers.models.lookup import CARD_FILE
from retrievers.models.model import Model, resolve_model
from retrievers.training.engine.inputs import Inputs
from retrievers.training.engine.processes import is_first, wait_for, world_size
from retrievers.training.engine.saved import save_checkpoint
from retrievers.training.engine.size import write_size
from retrievers.training.engine.trainer import last_checkpoint
from retrievers.training.finetune.collate import Batches, Pool
from retrievers.training.finetune.examples import TextKeys, TrainingSet
from retrievers.training.finetune.finetune_preset import Contrastive, Finetuning, temperature_of
from retrievers.training.finetune.fitting import (
    CHECKPOINTS,
    Fit,
    RetrieverTrainer,
    fit,
    restore,
    step_of,
)
from retrievers.training.finetune.losses import loss_of
from retrievers.training.finetune.negatives import Mine, Mining, Source, merged, mine_source
from retrievers.training.finetune.order import order_of
from retrievers.training.finetune.student import network_of, student, tokenizer_of, training_recipe
from retrievers.training.finetune.teaching import taught

logger = logging.getLogger(__name__)

NEGATIVES = "negatives"
REFRESHED = "refreshed"  # the model as trained so far, removed when it has mined
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Task:
    """What all rounds share; see `finetuning.finetune`."""

    preset: Finetuning
    model: Model
    examples: TrainingSet
    card: Card
    mine: Mine | None
    out: Path
    device: str
    save_every: int
    report: Report | None

    def say(self, stage: str) -> Callable[[int, int], None]:
        """Progress of one stage."""
        report = self.report
        return (lambda done, total: report(stage, done, total)) if report else lambda *_: None


@dataclass(frozen=True)
class Done:
    """A finished round."""

    steps: int
    queries: int
    seconds: float
    resumed_at: int


def train_round(task: Task, mining: Mining, miner: Model, folder: Path, name: str) -> Done:
    """Train one round, and write its checkpoint to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    preset = task.preset
    examples, pool = _first_pool(task, mining, miner, folder)
    steps = preset.steps_for(len(examples))
    if (folder / CARD_FILE).exists():
        return Done(steps, len(examples), 0.0, steps)
    trained = _Trained(task, mining, examples, folder, steps)
    resumed_at = step_of(last_checkpoint(folder / CHECKPOINTS))
    seconds = trained.train(pool, task.say(name))
    if is_first():
        trained.save(folder)
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    wait_for(folder / CARD_FILE)
    return Done(steps, len(examples), seconds, resumed_at)


def _first_pool(
    task: Task, mining: Mining, miner: Model, folder: Path
) -> tuple[TrainingSet, Pool | None]:
    """Negatives before the first step; with a teacher, and without queries it has none for."""
    if not mining.sources or task.mine is None:
        return task.examples, None
    parts = [
        _mined(task.mine, miner, task.examples, mining, source, folder, 0)
        for source in mining.sources
    ]
    rows = merged(parts)
    if task.preset.teacher is None:
        return task.examples, Pool(rows)
    return taught(
        task.preset.teacher,
        task.model,
        task.examples,
        rows,
        teacher_folder=task.out / "teacher",
        scores_folder=folder / "teacher-scores",
        seed=task.preset.seed,
        device=task.device,
        say=task.say,
    )


def _mined(
    mine: Mine,
    model: Model,
    examples: TrainingSet,
    mining: Mining,
    source: Source,
    folder: Path,
    step: int,
) -> Int64Array:
    """Negatives of a source as they were at a step; kept in the folder."""
    path = folder / NEGATIVES / (f"{source}-{step:08}.npy" if source == "model" else "bm25.npy")
    wait_for(path)
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        rows = mine_source(mine, model, examples, mining, source)
        unfinished = path.with_suffix(".unfinished.npy")
        np.save(unfinished, rows, allow_pickle=False)
        unfinished.replace(path)
    found: Int64Array = np.load(path, allow_pickle=False)
    return found


def _less_memory(preset: Finetuning) -> str:
    chunks = isinstance(preset.loss, Contrastive)
    keeps = "set loss.chunk, which keeps the batch (GradCache); or " if chunks else ""
    return f"{keeps}lower batch_size or max_document_tokens, or use gradient_checkpointing"


class _Trained:
    """A model while one round trains it."""

    def __init__(
        self, task: Task, mining: Mining, examples: TrainingSet, folder: Path, steps: int
    ) -> None:
        preset = task.preset
        recipe = training_recipe(task.model, task.card, preset)
        torch.manual_seed(preset.seed)
        self.model = student(task.model, recipe)
        network = network_of(self.model)
        self.adapted: AdaptedNetwork | None = None
        if preset.adapter is not None:
            self.adapted = add_adapter(network, preset.adapter, task.model, preset.seed)
        if preset.gradient_checkpointing:
            network.gradient_checkpointing_enable({"use_reentrant": False})
        self.task, self.mining, self.examples, self.folder = task, mining, examples, folder
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
        self.fit = Fit(
            folder=folder,
            optimizer=preset.trained_by(),
            steps=steps,
            batch_size=preset.batch_size,
            seed=preset.seed,
            precision=preset.precision,
            device=task.device,
            save_every=task.save_every,
            write_model=self.save,
            smaller=_less_memory(preset),
        )

    def save(self, folder: Path) -> None:
        """What was trained, as a folder that can be evaluated."""
        network = network_of(self.model)
        if self.adapted is None:
            save_checkpoint(network, tokenizer_of(self.model), folder, self.task.card)
            files = folder.iterdir()
        else:
            self.adapted.save(folder, self.task.card)
            files = (folder / FOLDER).rglob("*")
        write_size(network, folder, files)

    def train(self, pool: Pool | None, advance: Callable[[int, int], None]) -> float:
        """All phases that are not done; the seconds they took."""
        seconds, begin = 0.0, 0
        for until in self._phase_ends():
            checkpoint = last_checkpoint(self.folder / CHECKPOINTS)
            if step_of(checkpoint) < until:
                now = pool if begin == 0 or pool is None else self._refreshed(begin, checkpoint)
                seconds += self._phase(now, until, advance)
            begin = until
        if seconds == 0.0 and (checkpoint := last_checkpoint(self.folder / CHECKPOINTS)):
            restore(self.model, checkpoint)
        return seconds

    def _phase_ends(self) -> list[int]:
        every, steps = self.mining.refresh_steps, self.fit.steps
        return [*range(every, steps, every), steps] if every else [steps]

    def _phase(self, pool: Pool | None, until: int, advance: Callable[[int, int], None]) -> float:
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
        return fit(
            RetrieverTrainer,
            self.model,
            loss,
            batches,
            self.fit,
            until=until,
            progress=lambda at: advance(at.step, at.steps),
        )

    def _refreshed(self, step: int, checkpoint: Path | None) -> Pool:
        """Negatives as the model of a step finds them; the phase begins there or goes on."""
        mine, mining = self.task.mine, self.mining
        if mine is None:
            raise ValueError("negatives are refreshed by a search")
        place = self.folder / REFRESHED
        path = self.folder / NEGATIVES / f"model-{step:08}.npy"
        wait_for(path)
        if not path.is_file():
            if checkpoint is None or step_of(checkpoint) != step:
                raise BenchError(f"{path} is missing, and so is the checkpoint to make it anew")
            restore(self.model, checkpoint)
            self.save(place)
        model = resolve_model(str(place)) if place.exists() else self.task.model
        parts = [
            _mined(mine, model, self.examples, mining, source, self.folder, step)
            for source in mining.sources
        ]
        shutil.rmtree(place, ignore_errors=True)
        return Pool(merged(parts))
