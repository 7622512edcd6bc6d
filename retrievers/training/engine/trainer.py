"""The Hugging Face Trainer, told to read a stream, keep a loss curve, and stop at NaN."""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from foundation.errors import BenchError
from retrievers.encoders.tower import pick_device
from retrievers.training.engine.curve import LossPoint, append_point
from retrievers.training.engine.processes import disconnect_at_exit, is_first
from retrievers.training.engine.stream import Stream
from retrievers.training.objectives.objective import Collator
from retrievers.training.pretrain.preset import Pretraining

WEIGHTS = "model.safetensors"
COMPLETE = "complete"  # empty file in a checkpoint that is whole
MODEL = "model"  # folder in a checkpoint: the encoder alone, as it can be evaluated
POINTS = 200  # of a loss curve, about
LONGEST_BLIND = 50  # steps between two looks at the loss
SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}


class DivergedError(BenchError):
    """The loss or a weight is not a number."""


@dataclass(frozen=True)
class Progress:
    """Where a training is.

    Attributes:
        point: of the loss curve, where this step has one.
    """

    step: int
    steps: int
    point: LossPoint | None


@dataclass
class Meter:
    """Losses and tokens since the last point, summed where they are computed.

    To read a number from a GPU waits for it, so that is done once a point.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    batches: int = 0
    tokens: Tensor | None = None
    since: float = field(default_factory=time.perf_counter)

    def add(self, losses: Mapping[str, Tensor], real: Tensor) -> None:
        """One forward pass: its losses, and which of its tokens are no padding."""
        for name, loss in losses.items():
            self.sums[name] = self.sums.get(name, torch.zeros_like(loss)) + loss.detach()
        self.tokens = real.sum() + (0 if self.tokens is None else self.tokens)
        self.batches += 1

    @property
    def finite(self) -> bool:
        """Whether all losses since the last point are numbers."""
        return all(bool(total.isfinite().all()) for total in self.sums.values())

    def point(self, step: int, lr: float) -> LossPoint:
        """Means since the last point, and begin anew."""
        now = time.perf_counter()
        point = LossPoint(
            step=step,
            losses={name: float(total) / self.batches for name, total in self.sums.items()},
            lr=lr,
            seconds=now - self.since,
            tokens=0 if self.tokens is None else int(self.tokens),
        )
        self.sums, self.batches, self.tokens, self.since = {}, 0, None, now
        return point


@runtime_checkable
class ChangesSteps(Protocol):
    """A module that has a say in how far the optimizer goes."""

    def before_step(self) -> None:
        """Called before each step of the optimizer, after gradients were clipped."""
        ...

    def after_step(self) -> None:
        """Called after it."""
        ...


class StepChange(TrainerCallback):  # type: ignore[misc]
    """Lets a module change the steps of the optimizer."""

    def __init__(self, module: ChangesSteps) -> None:
        self.module = module

    def on_pre_optimizer_step(self, *_: Any, **others: Any) -> None:
        """Before a step."""
        self.module.before_step()

    def on_optimizer_step(self, *_: Any, **others: Any) -> None:
        """After it."""
        self.module.after_step()


class StreamTrainer(Trainer):  # type: ignore[misc]
    """Trains an objective's module on a stream.

    Args:
        write_model: writes the encoder as a model of this step to a folder, for those who watch
            the training.

    Raises:
        DivergedError: while it trains, when the loss or a weight is no longer a number; nothing is
            saved then, so that the last checkpoint is good.
    """

    def __init__(
        self,
        module: nn.Module,
        arguments: TrainingArguments,
        stream: Stream,
        collate: Collator,
        write_model: Callable[[Path, int], None],
    ) -> None:
        super().__init__(model=module, args=arguments, data_collator=collate, train_dataset=stream)
        self.remove_callback(PrinterCallback)  # prints to stdout, where results go
        self.model_accepts_loss_kwargs = False  # else losses are not divided by `accumulate`
        self.meter = Meter()
        self.write_model = write_model
        if isinstance(module, ChangesSteps):
            self.add_callback(StepChange(module))

    def get_train_dataloader(self) -> Any:
        """The stream in its own order; with several processes each gets its batches."""
        loader = DataLoader(
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            sampler=SequentialSampler(self.train_dataset),
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The objective's loss; its parts go to the loss curve."""
        losses = model(**inputs)
        masks = [mask.sum() for name, mask in inputs.items() if name.endswith("_mask")]
        self.meter.add(losses, torch.stack(masks))
        return (losses["loss"], losses) if return_outputs else losses["loss"]

    def check(self, step: int) -> None:
        """Stop where the loss or a weight is not a number."""
        weights = (parameter.isfinite().all() for parameter in self.model.parameters())
        if self.meter.finite and all(map(bool, weights)):
            return
        raise DivergedError(
            f"the loss is no longer a number at step {step}",
            "lower the learning rate or use precision float32, and train into another folder",
        )

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.check(self.state.global_step)
        super()._save_checkpoint(model, trial)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Weights of the module, tied ones once; Trainer's own refuses tied ones."""
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.model, str(folder / WEIGHTS))
        self.write_model(folder / MODEL, self.state.global_step)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_weights(model or self.model, Path(resume_from_checkpoint))


class Watch(TrainerCallback):  # type: ignore[misc]
    """Writes the loss curve, tells how far the training is, and marks whole checkpoints."""

    def __init__(
        self, trainer: StreamTrainer, curve: Path, progress: Callable[[Progress], None] | None
    ) -> None:
        self.trainer, self.curve, self.progress = trainer, curve, progress
        self.every = min(LONGEST_BLIND, max(1, trainer.args.max_steps // POINTS))

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """After each step."""
        step, point = state.global_step, None
        if step % self.every == 0 or step == args.max_steps:
            if not self.trainer.meter.finite:
                self.trainer.check(step)
            point = self.trainer.meter.point(step, others["lr_scheduler"].get_last_lr()[0])
        if not state.is_world_process_zero:
            return
        if point is not None:
            append_point(self.curve, point)
        if self.progress is not None:
            self.progress(Progress(step, args.max_steps, point))

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """A checkpoint is whole once all of its files are."""
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (folder / COMPLETE).touch()


def load_weights(module: nn.Module, checkpoint: Path) -> None:
    """Take the weights of a checkpoint; each must be there."""
    load_model(module, str(checkpoint / WEIGHTS))


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(checkpoint.name.rpartition("-")[2])


def last_checkpoint(folder: Path) -> Path | None:
    """The last whole checkpoint in a folder, or None; those that a kill left unfinished go away."""
    found = {step_of(path): path for path in folder.glob("checkpoint-*")}
    whole = {step: path for step, path in found.items() if (path / COMPLETE).exists()}
    if is_first():
        for path in set(found.values()) - set(whole.values()):
            shutil.rmtree(path)
    return whole[max(whole)] if whole else None


class OwnArguments:
    """Arguments of a trainer that is not the first of its process, nor alone on its machine."""

    def __post_init__(self) -> None:
        # An earlier training of this process leaves its precision behind; arguments decide.
        os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
        disconnect_at_exit()
        super().__post_init__()  # type: ignore[misc]

    @property
    def device(self) -> torch.device:
        """Where this process trains.

        Of several on a CPU each has a device of its own number, such as ``cpu:1``, which no
        tensor of a checkpoint is loaded onto.
        """
        found: torch.device = super().device  # type: ignore[misc]
        return torch.device("cpu") if found.type == "cpu" else found


class Arguments(OwnArguments, TrainingArguments):  # type: ignore[misc]
    """What the trainer reads."""


def arguments_of(
    preset: Pretraining, steps: int, folder: Path, device: str, save_every: int
) -> TrainingArguments:
    """A preset in the words of the Hugging Face Trainer."""
    on_cpu = pick_device(device).type == "cpu"
    arguments = Arguments(
        output_dir=str(folder),
        per_device_train_batch_size=preset.batch_size,
        gradient_accumulation_steps=preset.accumulate,
        max_steps=steps,
        learning_rate=preset.optimizer.lr,
        warmup_steps=round(preset.optimizer.warmup * steps),
        weight_decay=preset.optimizer.weight_decay,
        lr_scheduler_type=SCHEDULES[preset.optimizer.schedule],
        max_grad_norm=preset.optimizer.max_grad_norm,
        seed=preset.seed,
        bf16=preset.precision == "bfloat16",
        save_strategy="steps",
        save_steps=save_every,
        save_total_limit=2,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=on_cpu,  # said here: else bfloat16 asks for a GPU
        dataloader_pin_memory=not on_cpu,
        ddp_find_unused_parameters=False,
    )
    # Several GPUs are for `accelerate launch`; within one process Trainer would split each batch.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments
