"""Common parts of trainers: resuming, complete checkpoints, the loss curve, and a stop at NaN.

The trainers themselves come from Hugging Face and sentence-transformers. `FiniteLossMixin` precedes
them among the base classes.
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
from retrievers.encoders.device import use_full_precision
from retrievers.training.engine.arguments import FitSettings, Progress, disconnect_at_exit, is_first
from retrievers.training.engine.curve import LossMeter, append_point, cut_curve
from retrievers.training.engine.run_folder import (
    MODEL,
    WEIGHTS,
    checkpoint_step,
    last_checkpoint,
    write_manifest,
)

POINTS = 200  # approximate number of points of a loss curve
MAX_STEPS_UNCHECKED = 50  # steps between two checks of the loss


class SharedArguments(TrainingArguments):  # type: ignore[misc]
    """Trainer arguments for several trainings per process and several processes per machine."""

    def __post_init__(self) -> None:
        # An earlier training of this process leaves its precision in the environment.
        os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
        disconnect_at_exit()
        super().__post_init__()

    @property
    def device(self) -> torch.device:
        """Device of this process.

        On a CPU each of several processes gets a numbered device such as ``cpu:1``, onto which
        checkpoints cannot be loaded. It is replaced by ``cpu``.
        """
        device: torch.device = super().device
        return torch.device("cpu") if device.type == "cpu" else device


@dataclass(frozen=True)
class FitResult:
    """Duration of a training.

    Attributes:
        seconds: wall-clock seconds of this call.
        resumed_at: step that this call resumed from, 0 if it started from scratch.
    """

    seconds: float
    resumed_at: int


class FiniteLossMixin:
    """Mixin of all trainers, which resume, save complete checkpoints and stop at NaN.

    A checkpoint is written only if the loss and all weights are finite, so the last one is usable.

    Attributes:
        model: network to train.
        args: arguments of the trainer.
        state: state of the trainer.
        accelerator: accelerator of the trainer.
        settings: settings of the current call of `fit`.
        meter: losses since the last point of the curve.
    """

    model: nn.Module
    args: Any
    state: Any
    accelerator: Any
    settings: FitSettings
    meter: LossMeter

    def fit(self, settings: FitSettings, until: int | None = None) -> FitResult:
        """Train from the last complete checkpoint, or from the start if there is none.

        Args:
            settings: settings of the training.
            until: step after which to save and stop. None for the last step.

        Raises:
            BenchError: If memory or disk space runs out, or the loss is not finite.
        """
        start, until = last_checkpoint(settings.checkpoints), until or settings.steps
        if start is not None and checkpoint_step(start) >= until:
            load_weights(self.model, start)
            return FitResult(0.0, checkpoint_step(start))
        if is_first():
            cut_curve(settings.curve, checkpoint_step(start))
        self.settings, self.meter = settings, LossMeter()
        self.remove_callback(PrinterCallback)  # type: ignore[attr-defined]  # prints to stdout
        self.add_callback(CurveCallback(self))  # type: ignore[attr-defined]
        if until < settings.steps:
            self.add_callback(StopCallback(until))  # type: ignore[attr-defined]
        began = time.perf_counter()
        with self._explain_memory_errors(), use_full_precision(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "mtime may not be reliable")  # it is not used
            self.train(  # type: ignore[attr-defined]
                resume_from_checkpoint=str(start) if start else None
            )
        return FitResult(time.perf_counter() - began, checkpoint_step(start))

    def check_finite(self, step: int) -> None:
        """Raise if the loss or a weight at ``step`` is not finite.

        Raises:
            BenchError: The message names the last checkpoint, which is usable.
        """
        weights = (parameter.isfinite().all() for parameter in self.model.parameters())
        if self.meter.finite and all(map(bool, weights)):
            return
        settings = self.settings
        message = f"the loss or a weight is not a finite number at step {step}"
        if settings.save_model and (good := last_checkpoint(settings.checkpoints)):
            message += f"; the model of step {checkpoint_step(good)} is in {good / MODEL}"
        slower = f"--set optimizer.lr={settings.optimizer.lr / 10:g}"
        raise BenchError(message, f"Train with {slower}, from a good model, into another folder.")

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        step = self.state.global_step
        self.check_finite(step)
        checkpoint = self.settings.checkpoints / f"checkpoint-{step}"
        with explain_errors(checkpoint):
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
            self.accelerator.wait_for_everyone()  # each process writes its own random state
            if is_first():
                write_manifest(checkpoint)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the weights of the module. Unlike the Trainer's own method, allow tied weights."""
        if not is_first():  # transformers 5 calls this method in every process
            return
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.model, str(folder / WEIGHTS))
        if self.settings.save_model:
            self.settings.save_model(folder / MODEL, self.state.global_step)

    def _load_from_checkpoint(self, checkpoint_path: str, model: Any = None) -> None:
        load_weights(model or self.model, Path(checkpoint_path))

    @contextmanager
    def _explain_memory_errors(self) -> Iterator[None]:
        """Replace an out-of-memory error by a message that says what to change."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
            if not is_out_of_memory(error):
                raise
            batch = f"batches of {self.settings.batch_size}"
            raise BenchError(f"not enough memory for {batch}", self.settings.memory_hint) from error


class CurveCallback(TrainerCallback):  # type: ignore[misc]
    """Callback that writes the loss curve and reports progress."""

    def __init__(self, trainer: FiniteLossMixin) -> None:
        """Write the loss curve of ``trainer``."""
        self.trainer = trainer
        self.every = min(MAX_STEPS_UNCHECKED, max(1, trainer.args.max_steps // POINTS))

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Write a point of the curve if it is due, and report progress.

        Args:
            args: arguments of the trainer.
            state: state of the trainer.
            control: control flags of the trainer.
            others: other objects of the trainer, among them the learning rate schedule.
        """
        step, point, settings = state.global_step, None, self.trainer.settings
        if step % self.every == 0 or step == args.max_steps:
            if not self.trainer.meter.finite:
                self.trainer.check_finite(step)
            point = self.trainer.meter.take_point(step, others["lr_scheduler"].get_last_lr()[0])
        if not is_first():
            return
        if point is not None:
            with explain_errors(settings.curve):
                append_point(settings.curve, point)
        settings.context.report(Progress(settings.stage, step, args.max_steps, point=point))


@dataclass
class StopCallback(TrainerCallback):  # type: ignore[misc]
    """Callback that saves and stops after a step.

    Attributes:
        step: the step.
    """

    step: int

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Request a checkpoint and a stop after the step.

        Args:
            args: arguments of the trainer.
            state: state of the trainer, with the number of steps.
            control: control flags to set.
            others: other objects of the trainer.
        """
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Replace errors of torch and safetensors by a message that names ``path`` and the reason.

    Raises:
        BenchError: If the block could not write.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if is_out_of_memory(error):
            raise
        reason = getattr(error, "strerror", None) or first_line(error)
        raise BenchError(
            f"cannot write {path}: {reason}",
            "Free some space and run the same command: it continues from the last checkpoint.",
        ) from error


def load_weights(module: nn.Module, checkpoint: Path) -> None:
    """Load all weights of ``checkpoint`` into ``module``."""
    load_model(module, str(checkpoint / WEIGHTS))
