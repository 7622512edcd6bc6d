"""Common parts of trainers: settings, resuming, complete checkpoints, loss curve, stop at NaN.

The trainers themselves come from Hugging Face and sentence-transformers. `FiniteLossMixin` precedes
them among the base classes.
"""

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

from foundation.errors import BenchError, is_out_of_memory, wrap_errors
from retrievers.encoders.device import pick_device, use_full_precision, warn_if_bfloat16_is_slow
from retrievers.training.engine.context import (
    CURVE_FILE,
    SAVE_MINUTES,
    LossPoint,
    Progress,
    TrainingContext,
    append_point,
    cut_curve,
    disconnect_at_exit,
    is_first,
    log_point,
    world_size,
)
from retrievers.training.engine.run_folder import (
    CHECKPOINTS,
    MODEL,
    WEIGHTS,
    last_checkpoint,
    seal,
    step_of,
)
from retrievers.training.preset import Optimizer, Precision

POINTS = 200  # approximate number of points of a loss curve
AGREE_STEPS = 10  # between two agreements of several processes on a checkpoint
MAX_STEPS_UNCHECKED = 50  # steps between two checks of the loss
KEPT_CHECKPOINTS = 2
SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}
MOST_LOADERS = 4

logger = logging.getLogger(__name__)

# Threads do not survive a fork. If the parent has used its tokenizer in parallel, a forked loader
# would wait forever for the tokenizer's threads.
os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))


class SharedArguments(TrainingArguments):  # type: ignore[misc]
    """Trainer arguments for several trainings in a process or several processes on a machine."""

    def __post_init__(self) -> None:
        # An earlier training of this process leaves its precision in the environment.
        os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
        disconnect_at_exit()
        super().__post_init__()

    @property
    def device(self) -> torch.device:
        """Device of this process: ``cpu`` and not ``cpu:1``, onto which checkpoints cannot load."""
        device: torch.device = super().device
        return torch.device("cpu") if device.type == "cpu" else device


@dataclass(frozen=True)
class FitSettings:
    """Settings of one training of one model, as its preset has them.

    ``batch_size`` is that of one forward pass on one device. ``save_model`` writes the model of a
    step in evaluable form, for ``watch``.
    """

    context: TrainingContext
    stage: str
    optimizer: Optimizer
    steps: int
    batch_size: int
    seed: int
    memory_hint: str
    accumulate: int = 1
    precision: Precision = "float32"
    save_model: Callable[[Path, int], None] | None = None

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.context.out / CHECKPOINTS

    @property
    def curve(self) -> Path:
        """File of the loss curve."""
        return self.context.out / CURVE_FILE

    def arguments(self, kind: type[SharedArguments], **further: Any) -> Any:
        """Return the settings and ``further`` arguments as arguments of a Hugging Face trainer."""
        device = pick_device(self.context.device)
        on_cpu = device.type == "cpu"
        warn_if_bfloat16_is_slow(self.precision, device)
        arguments = kind(
            output_dir=str(self.checkpoints),
            per_device_train_batch_size=self.batch_size,
            gradient_accumulation_steps=self.accumulate,
            max_steps=self.steps,
            learning_rate=self.optimizer.lr,
            warmup_steps=round(self.optimizer.warmup * self.steps),
            weight_decay=self.optimizer.weight_decay,
            lr_scheduler_type=SCHEDULES[self.optimizer.schedule],
            max_grad_norm=self.optimizer.max_grad_norm,
            seed=self.seed,
            bf16=self.precision == "bfloat16",
            fp16=self.precision == "float16" and not on_cpu,  # which trains in float32
            save_strategy="steps",
            save_steps=self.context.save_every or self.steps,
            save_total_limit=KEPT_CHECKPOINTS,
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=on_cpu,  # explicit, because bfloat16 would require a GPU
            dataloader_pin_memory=not on_cpu,
            dataloader_num_workers=count_loaders(on_cpu),
            **further,
        )
        # `accelerate launch` uses several GPUs. In one process the Trainer would split batches.
        arguments._n_gpu = min(arguments.n_gpu, 1)
        return arguments


def count_loaders(on_cpu: bool) -> int:
    """Return the number of data loader processes, which has no influence on the batches."""
    cores = len(os.sched_getaffinity(0)) // world_size()
    return 0 if on_cpu else max(0, min(MOST_LOADERS, cores - 1))


@dataclass(frozen=True)
class FitResult:
    """Wall-clock seconds of a call, and the step that it resumed from, 0 at the start."""

    seconds: float
    resumed_at: int


@dataclass
class LossMeter:
    """Sums since the last point of the curve, on the device: reading a value waits for a GPU."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    batches: int = 0
    tokens: Tensor | int = 0
    since: float = field(default_factory=time.perf_counter)

    def add(self, losses: Mapping[str, Tensor], tokens: Tensor | int) -> None:
        """Add the losses of one forward pass, scalars by name, and its number of tokens."""
        for name, loss in losses.items():
            self.sums[name] = loss.detach() + self.sums.get(name, 0)
        self.tokens = tokens + self.tokens
        self.batches += 1

    @property
    def finite(self) -> bool:
        """True if all losses since the last point are finite."""
        return all(bool(total.isfinite().all()) for total in self.sums.values())

    def take_point(self, step: int, lr: float) -> LossPoint:
        """Return the means since the last point, for the last step, and reset the meter."""
        now = time.perf_counter()
        point = LossPoint(
            step=step,
            losses={name: float(total) / self.batches for name, total in self.sums.items()},
            lr=lr,
            seconds=now - self.since,
            tokens=int(self.tokens),
        )
        self.sums, self.batches, self.tokens, self.since = {}, 0, 0, now
        return point


class FiniteLossMixin:
    """Mixin of all trainers, which resume, save complete checkpoints and stop at NaN."""

    model: nn.Module
    args: Any
    state: Any
    accelerator: Any
    settings: FitSettings
    meter: LossMeter

    def fit(self, settings: FitSettings, until: int | None = None) -> FitResult:
        """Train from the last complete checkpoint, or from the start if there is none.

        After the step ``until``, if it is not None, the training is saved and stops. An
        interruption by SIGINT or SIGTERM is raised again after the checkpoint of its step.
        """
        start, until = last_checkpoint(settings.checkpoints), until or settings.steps
        resumed_at = step_of(start)
        if start is not None and resumed_at >= until:
            load_weights(self.model, start)
            return FitResult(0.0, resumed_at)
        if is_first():
            cut_curve(settings.curve, resumed_at)
        self.settings, self.meter = settings, LossMeter()
        self.remove_callback(PrinterCallback)  # type: ignore[attr-defined]  # prints to stdout
        saving = SaveCallback(timed=settings.context.save_every is None, until=until)
        self.add_callback(saving)  # type: ignore[attr-defined]
        curve = CurveCallback(self)
        self.add_callback(curve)  # type: ignore[attr-defined]
        began = time.perf_counter()
        with (
            self._explain_memory_errors(),
            use_full_precision(),
            warnings.catch_warnings(),
            saving.until_interrupted(),
            curve.log or nullcontext(),
        ):
            warnings.filterwarnings("ignore", "mtime may not be reliable")  # it is not used
            self.train(  # type: ignore[attr-defined]
                resume_from_checkpoint=str(start) if start else None
            )
        return FitResult(time.perf_counter() - began, resumed_at)

    def check_finite(self, step: int) -> None:
        """Raise if the loss or a weight at ``step`` is not finite, and name the last good model."""
        weights = (parameter.isfinite().all() for parameter in self.model.parameters())
        if self.meter.finite and all(map(bool, weights)):
            return
        settings = self.settings
        message = f"the loss or a weight is not a finite number at step {step}"
        if settings.save_model and (good := last_checkpoint(settings.checkpoints)):
            message += f"; the model of step {step_of(good)} is in {good / MODEL}"
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
                seal(checkpoint)

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
        self.trainer = trainer
        self.every = min(MAX_STEPS_UNCHECKED, max(1, trainer.args.max_steps // POINTS))
        self.log = trainer.settings.context.open_log()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Write a point of the curve if it is due, and report progress."""
        step, point, settings = state.global_step, None, self.trainer.settings
        if step % self.every == 0 or step == args.max_steps or control.should_save:
            if not self.trainer.meter.finite:
                self.trainer.check_finite(step)
            point = self.trainer.meter.take_point(step, others["lr_scheduler"].get_last_lr()[0])
        if not is_first():
            return
        if point is not None:
            with explain_errors(settings.curve):
                append_point(settings.curve, point)
                if self.log:
                    log_point(self.log, point)
        settings.context.report(Progress(settings.stage, step, args.max_steps, point=point))


@dataclass
class SaveCallback(TrainerCallback):  # type: ignore[misc]
    """Callback that saves every few minutes if ``timed``, and stops after ``until`` or a signal.

    Several processes agree every few steps, because their clocks and signals differ.
    """

    timed: bool
    until: int
    interrupted: int = 0  # number of the signal
    saved: float = field(default_factory=time.monotonic)

    @contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """Let the step in the block end that SIGINT or SIGTERM interrupts, then raise."""
        owner, previous = os.getpid(), dict[int, Any]()

        def stop(number: int, frame: Any) -> None:
            if os.getpid() != owner:  # a loader, whose batch the step may need
                if number == signal.SIGTERM:
                    os._exit(128 + number)
                return
            self.interrupted = number
            signal.signal(number, previous[number])
            os.write(2, b"\nstopping with a checkpoint after this step; once more stops at once\n")

        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(each) != signal.SIG_IGN:
                    previous[each] = signal.signal(each, stop)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self.interrupted == signal.SIGINT:
            raise KeyboardInterrupt
        if self.interrupted:
            raise SystemExit(128 + self.interrupted)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Request a checkpoint if it is due, and a stop after an interruption."""
        due = self.timed and time.monotonic() - self.saved >= 60 * SAVE_MINUTES
        wanted = [int(due), self.interrupted]
        if world_size() > 1:
            agreed = torch.tensor(wanted, device=args.device)
            if state.global_step % AGREE_STEPS:
                agreed.zero_()
            else:
                torch.distributed.all_reduce(agreed, torch.distributed.ReduceOp.MAX)
            wanted = agreed.tolist()
        due, interrupted = map(bool, wanted)
        self.interrupted = self.interrupted or wanted[1]
        stop = interrupted or state.global_step == self.until
        control.should_save = control.should_save or due or stop
        control.should_training_stop = control.should_training_stop or stop

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Measure the time from here on, and say where an interrupted training continues."""
        self.saved = time.monotonic()
        if self.interrupted and control.should_training_stop and is_first():
            logger.warning("stopped after step %d, whose checkpoint is written", state.global_step)


def explain_errors(path: Path) -> AbstractContextManager[None]:
    """Replace errors of torch and safetensors by a message that names ``path`` and the reason."""
    hint = "Free some space and run the same command: it continues from the last checkpoint."
    return wrap_errors(f"cannot write {path}", hint)


def load_weights(module: nn.Module, checkpoint: Path) -> None:
    """Load all weights of ``checkpoint`` into ``module``."""
    load_model(module, str(checkpoint / WEIGHTS))
