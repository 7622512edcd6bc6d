"""Pre-train an encoder: from a preset and texts to a folder that can be evaluated at once.

A training that was killed goes on from its last checkpoint when the same call is made again, and
reads what it would have read; one that is finished is not repeated.
"""

import importlib
import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import nn
from transformers import PreTrainedModel

from foundation.errors import BenchError
from retrievers.models.card import Card
from retrievers.training.engine.curve import cut_curve
from retrievers.training.engine.processes import world_size
from retrievers.training.engine.record import (
    Trained,
    Training,
    check_own,
    claim,
    sample_of,
    write_trained,
)
from retrievers.training.engine.saved import load_heads, save_checkpoint, save_heads
from retrievers.training.engine.start import Started, open_start
from retrievers.training.engine.stream import Stream
from retrievers.training.engine.trainer import (
    DivergedError,
    Progress,
    StreamTrainer,
    Watch,
    arguments_of,
    last_checkpoint,
    load_weights,
    step_of,
)
from retrievers.training.pretrain.preset import Pretraining, to_table

CHECKPOINTS = "checkpoints"  # removed when the training is finished
CURVE_FILE = "losses.jsonl"
GOOD = "last-good"  # model of the last checkpoint before a loss that is not a number
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def pretrain(
    preset: Pretraining,
    texts: Sequence[str],
    out: Path,
    *,
    trained_on: tuple[str, ...] = (),
    device: str = "auto",
    save_every: int = 500,
    progress: Callable[[Progress], None] | None = None,
) -> Trained:
    """Pre-train an encoder on texts.

    ``out`` then holds a checkpoint (see `saved`), the loss curve and what was trained. Started by
    ``accelerate launch``, all processes share each step.

    Args:
        texts: at least one; read when they are needed.
        trained_on: collections that the texts are from, for the card.
        device: ``auto`` or ``cpu``.
        save_every: steps between two checkpoints; the last two are kept until the end.
        progress: called after each step, in the first process.

    Raises:
        BenchError: no texts, a package that is not installed, a start that cannot be loaded,
            an ``out`` that holds another training, not enough memory, or a loss that is not a
            number.
    """
    if not len(texts):
        raise BenchError("there are no texts to train on")
    check_packages()
    started = open_start(preset.start, preset.seed)
    check_length(preset, started)
    check_distinct(preset, len(texts))
    job = _Job(preset, started, _training(preset, started, texts, trained_on), out)
    steps = job.training.steps
    arguments = arguments_of(preset, steps, out / CHECKPOINTS, device, save_every)
    module = job.module()  # before the folder is claimed: its settings may not fit the encoder
    collate = preset.objective.collator(started.tokenizer, preset.max_tokens)
    with arguments.main_process_first():  # one process clears up, the others find it done
        check_own(out)
        begun = last_checkpoint(out / CHECKPOINTS)
        finished = claim(out, job.training, begun is not None)
    if finished:
        return finished
    stream = Stream(texts, steps * places_a_step(preset), preset.seed)
    trainer = StreamTrainer(
        module, arguments, stream, collate, lambda folder, step: job.save(module, folder, step)
    )
    return job.train(trainer, begun, progress)


@runtime_checkable
class SavesEncoder(Protocol):
    """A module whose result is not a whole encoder."""

    def save_encoder(self, folder: Path, card: Card) -> None:
        """Write what ``--model FOLDER`` takes; the card says how it was trained."""
        ...


@dataclass(frozen=True)
class _Job:
    """One training, and where it goes."""

    preset: Pretraining
    started: Started
    training: Training
    out: Path

    def module(self) -> nn.Module:
        """The objective's module with the heads of the start, where it has any."""
        encoder = self.started.encoder.encoder
        torch.manual_seed(self.preset.seed)
        module = self.preset.objective.heads(self.started.encoder)
        if self.started.folder is not None:
            load_heads(module, encoder, self.started.folder, self.preset.objective)
        if self.preset.gradient_checkpointing:
            for part in module.modules():
                if isinstance(part, PreTrainedModel) and _is_trained(part):
                    part.gradient_checkpointing_enable({"use_reentrant": False})
        return module

    def train(
        self,
        trainer: StreamTrainer,
        begun: Path | None,
        progress: Callable[[Progress], None] | None,
    ) -> Trained:
        """Train to the end, from a checkpoint where there is one, and write the folder."""
        curve, start = self.out / CURVE_FILE, time.perf_counter()
        if trainer.is_world_process_zero():
            cut_curve(curve, step_of(begun) if begun else 0)
        trainer.add_callback(Watch(trainer, curve, progress))
        with self._rescuing(trainer.model), explained(self.preset), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "mtime may not be reliable")  # nor is it needed
            trainer.train(resume_from_checkpoint=str(begun) if begun else None)
        trained = Trained(
            folder=str(self.out),
            objective=self.preset.objective.name,
            steps=self.training.steps,
            texts_read=self.training.steps * places_a_step(self.preset),
            seconds=time.perf_counter() - start,
            resumed_at=step_of(begun) if begun else 0,
        )
        if trainer.is_world_process_zero():
            write_trained(self.out, trained)
            self.save(trainer.model, self.out, self.training.steps)
            # Only now: a training that is resumed needs them.
            shutil.rmtree(self.out / CHECKPOINTS, ignore_errors=True)
        return trained

    @contextmanager
    def _rescuing(self, module: nn.Module) -> Iterator[None]:
        """Where training diverges, make a model of the last checkpoint, which is good."""
        try:
            yield
        except DivergedError as error:
            kept = last_checkpoint(self.out / CHECKPOINTS)
            if kept is None:
                raise
            load_weights(module, kept)
            self.save(module, self.out / GOOD, step_of(kept))
            slower = self.preset.optimizer.lr / 10
            raise BenchError(
                f"{error}; the model of step {step_of(kept)} is kept in {self.out / GOOD}",
                f"go on from it more slowly: --start {self.out / GOOD} --lr {slower:g} "
                "--out ANOTHER",
            ) from error

    def save(self, module: nn.Module, folder: Path, steps: int) -> None:
        """Write the encoder as a model, its heads apart."""
        encoder = self.started.encoder.encoder
        save_heads(module, encoder, folder, self.preset.objective)
        card = card_of(self.preset, steps, self.training.trained_on)
        if isinstance(module, SavesEncoder):
            module.save_encoder(folder, card)
        else:
            save_checkpoint(encoder, self.started.tokenizer, folder, card)


def _training(
    preset: Pretraining, started: Started, texts: Sequence[str], trained_on: tuple[str, ...]
) -> Training:
    return Training(
        preset=to_table(preset),
        steps=steps_of(preset, len(texts), places_a_step(preset)),
        texts=len(texts),
        sample=sample_of(texts),
        trained_on=tuple(dict.fromkeys([*started.trained_on, *trained_on])),
        processes=world_size(),
    )


def _is_trained(part: nn.Module) -> bool:
    return any(weight.requires_grad for weight in part.parameters())


def check_packages() -> None:
    """Refuse to begin without what the Hugging Face Trainer needs."""
    try:
        importlib.import_module("accelerate")
    except ImportError as error:
        raise BenchError(
            f"pre-training needs a package that cannot be imported: {error}",
            "pip install 'retrieval-bench[train]'",
        ) from error


def steps_of(preset: Pretraining, texts: int, texts_a_step: int) -> int:
    """Steps of a training on so many texts."""
    if preset.steps is not None:
        return preset.steps
    return max(1, math.ceil((preset.epochs or 0) * texts / texts_a_step))


def places_a_step(preset: Pretraining) -> int:
    """Texts that all processes read together in a step."""
    return preset.batch_size * preset.accumulate * world_size()


def check_length(preset: Pretraining, started: Started) -> None:
    """Refuse texts that are longer than the model's positions."""
    if preset.max_tokens > started.max_tokens:
        raise BenchError(
            f"max_tokens is {preset.max_tokens}, and the model has positions for "
            f"{started.max_tokens}",
            f"use max_tokens = {started.max_tokens}",
        )


def check_distinct(preset: Pretraining, texts: int) -> None:
    """Refuse a contrast between more texts than there are: equal ones would be pushed apart."""
    places = preset.batch_size * world_size()
    if contrasts(preset) and places > texts:
        raise BenchError(
            f"{preset.objective.name} contrasts the {places:,} texts of a batch, and there are "
            f"{texts:,}",
            f"use --batch-size {max(1, texts // world_size())} or less",
        )


def contrasts(preset: Pretraining) -> bool:
    """Whether texts of a batch are each other's negatives."""
    return hasattr(preset.objective, "sub_batch")


@contextmanager
def explained(preset: Pretraining) -> Iterator[None]:
    """Turn a lack of memory into what to type instead."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
        if not isinstance(error, MemoryError) and not _lacks_memory(error):
            raise
        raise BenchError(
            f"not enough memory for {preset.batch_size} texts of {preset.max_tokens} tokens",
            _less_memory(preset),
        ) from error


def _less_memory(preset: Pretraining) -> str:
    """What to type for less memory."""
    checkpointing = "--gradient-checkpointing"
    sub_batch = getattr(preset.objective, "sub_batch", 0)
    if contrasts(preset):
        size = (sub_batch or 2 * preset.batch_size) // 2
        smaller = f"--set objective.sub_batch={size}, which is the same training" if size else ""
    else:
        size = preset.batch_size // 2
        same = preset.accumulate * preset.batch_size // max(1, size)
        smaller = f"--batch-size {size} --accumulate {same} (as many texts a step)" if size else ""
    if smaller:
        return f"use {smaller}, or {checkpointing}"
    return f"use fewer --max-tokens, or {checkpointing}"


def _lacks_memory(error: RuntimeError) -> bool:
    return any(words in str(error).lower() for words in OUT_OF_MEMORY)


def card_of(preset: Pretraining, steps: int, trained_on: tuple[str, ...]) -> Card:
    """The card of the finished checkpoint: ``[CLS]`` vectors, compared as they were trained."""
    cosine = getattr(preset.objective, "similarity", "dot") == "cos"
    return Card(
        name="card",
        title=f"{preset.title}, {steps:,} steps",
        checkpoint=".",
        pooling="cls",
        normalize=cosine,
        similarity="cos" if cosine else "dot",
        max_query_tokens=preset.max_tokens,
        max_document_tokens=preset.max_tokens,
        trained_on=trained_on,
        warning="pre-trained only: not trained to retrieve, so zero-shot scores say little; "
        "fine-tune it first",
    )
