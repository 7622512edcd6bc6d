"""Common parts of trainers: resuming, whole checkpoints, the loss curve, and a stop at NaN.

The trainers themselves are those of Hugging Face and of sentence-transformers, with
`FiniteLossMixin` before them.
"""

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

from foundation.errors import BenchError, first_line, is_out_of_memory
from retrievers.training.engine.arguments import (
    FitSettings,
    Progress,
    disconnect_at_exit,
    is_first_process,
)
from retrievers.training.engine.curve import LossMeter, append_point, cut_curve
from retrievers.training.engine.run_folder import (
    MODEL,
    WEIGHTS,
    checkpoint_step,
    last_complete_checkpoint,
    write_manifest,
)

POINTS = 200  # of a loss curve, about
MAX_STEPS_UNCHECKED = 50  # steps between two looks at the loss


class SharedMachineArguments(TrainingArguments):  # type: ignore[misc]
    """Arguments of a trainer that is not the first of its process, nor alone on its machine."""

    def __post_init__(self) -> None:
        # An earlier training of this process leaves its precision behind; arguments decide.
        os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
        disconnect_at_exit()
        super().__post_init__()

    @property
    def device(self) -> torch.device:
        """Where this process trains.

        Of several on a CPU each has a device of its own number, such as ``cpu:1``, which no
        tensor of a checkpoint is loaded onto.
        """
        device: torch.device = super().device
        return torch.device("cpu") if device.type == "cpu" else device


@dataclass(frozen=True)
class FitResult:
    """Times of a training.

    Attributes:
        seconds: of this call.
        resumed_at: step that it went on from; 0 if it began.
    """

    seconds: float
    resumed_at: int


class FiniteLossMixin:
    """Mixin of all trainers: they resume, save whole checkpoints, and stop at NaN.

    A checkpoint is written only while the loss and all weights are numbers, so that the last one
    is good.
    """

    model: nn.Module
    args: Any
    state: Any
    accelerator: Any
    settings: FitSettings
    meter: LossMeter

    def fit(self, settings: FitSettings, until: int | None = None) -> FitResult:
        """Train from the last whole checkpoint, if there is one.

        Args:
            until: step after which it stops, with a checkpoint; None for the last one.

        Raises:
            BenchError: not enough memory, no room for a checkpoint, or a loss that is not a number.
        """
        start, until = last_complete_checkpoint(settings.checkpoints), until or settings.steps
        if start is not None and checkpoint_step(start) >= until:
            load_weights(self.model, start)
            return FitResult(0.0, checkpoint_step(start))
        if is_first_process():
            cut_curve(settings.curve, checkpoint_step(start))
        self.settings, self.meter = settings, LossMeter()
        self.remove_callback(PrinterCallback)  # type: ignore[attr-defined]  # prints to stdout
        self.add_callback(CurveCallback(self))  # type: ignore[attr-defined]
        if until < settings.steps:
            self.add_callback(StopCallback(until))  # type: ignore[attr-defined]
        began = time.perf_counter()
        with self._explain_memory_errors(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "mtime may not be reliable")  # nor is it needed
            self.train(  # type: ignore[attr-defined]
                resume_from_checkpoint=str(start) if start else None
            )
        return FitResult(time.perf_counter() - began, checkpoint_step(start))

    def check_finite(self, step: int) -> None:
        """Stop if the loss or a weight is not a number. The last checkpoint is good.

        Raises:
            BenchError: one is not.
        """
        weights = (parameter.isfinite().all() for parameter in self.model.parameters())
        if self.meter.finite and all(map(bool, weights)):
            return
        settings, message = self.settings, f"the loss is no longer a number at step {step}"
        if settings.save_model and (good := last_complete_checkpoint(settings.checkpoints)):
            message += f"; the model of step {checkpoint_step(good)} is in {good / MODEL}"
        slower = f"--set optimizer.lr={settings.optimizer.lr / 10:g}"
        raise BenchError(message, f"train with {slower}, from a good model, into another folder")

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        step = self.state.global_step
        self.check_finite(step)
        checkpoint = self.settings.checkpoints / f"checkpoint-{step}"
        with explain_write_errors(checkpoint):
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
            self.accelerator.wait_for_everyone()  # each process writes a file of its own
            if is_first_process():
                write_manifest(checkpoint)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Weights of the module, tied ones once; the Trainer's own refuses tied ones."""
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.model, str(folder / WEIGHTS))
        if self.settings.save_model:
            self.settings.save_model(folder / MODEL, self.state.global_step)

    def _load_from_checkpoint(self, checkpoint_path: str, model: Any = None) -> None:
        load_weights(model or self.model, Path(checkpoint_path))

    @contextmanager
    def _explain_memory_errors(self) -> Iterator[None]:
        """Turn a lack of memory into what to do next."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
            if not is_out_of_memory(error):
                raise
            batch = f"batches of {self.settings.batch_size}"
            raise BenchError(f"not enough memory for {batch}", self.settings.memory_hint) from error


class CurveCallback(TrainerCallback):  # type: ignore[misc]
    """Writes the loss curve, and tells how far the training is."""

    def __init__(self, trainer: FiniteLossMixin) -> None:
        self.trainer = trainer
        self.every = min(MAX_STEPS_UNCHECKED, max(1, trainer.args.max_steps // POINTS))

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """After each step."""
        step, point, settings = state.global_step, None, self.trainer.settings
        if step % self.every == 0 or step == args.max_steps:
            if not self.trainer.meter.finite:
                self.trainer.check_finite(step)
            point = self.trainer.meter.take_point(step, others["lr_scheduler"].get_last_lr()[0])
        if not is_first_process():
            return
        if point is not None:
            with explain_write_errors(settings.curve):
                append_point(settings.curve, point)
        settings.context.report(Progress(settings.stage, step, args.max_steps, point=point))


@dataclass
class StopCallback(TrainerCallback):  # type: ignore[misc]
    """Saves and stops after a step."""

    step: int

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """After each step."""
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Say what could not be written; torch and safetensors have errors of their own for that.

    Raises:
        BenchError: it could not.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if is_out_of_memory(error):
            raise
        reason = getattr(error, "strerror", None) or first_line(error)
        raise BenchError(
            f"cannot write {path}: {reason}",
            "make room, and type the same command: it continues from the last checkpoint",
        ) from error


def load_weights(module: nn.Module, checkpoint: Path) -> None:
    """Take the weights of a checkpoint; each must be there."""
    load_model(module, str(checkpoint / WEIGHTS))
