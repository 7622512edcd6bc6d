"""Settings of one training, in the words of presets and in those of the Trainer."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from retrievers.encoders.device import pick_device, warn_of_emulation
from retrievers.training.engine.context import TrainingContext
from retrievers.training.engine.curve import CURVE_FILE
from retrievers.training.engine.loaders import count_loaders
from retrievers.training.engine.optimizer import Optimizer, Precision
from retrievers.training.engine.processes import disconnect_at_exit, world_size
from retrievers.training.engine.step_checkpoints import CHECKPOINTS

SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}
KEPT_CHECKPOINTS = 2


@dataclass(frozen=True)
class Advice:
    """Advice for a user whose training cannot go on.

    Attributes:
        batch: what may not fit into memory, such as ``batches of 32``.
        smaller: what to do about that.
        slower: what to do about a loss that is not a number.
        start_option: option of the command that names a model to start from; "" where the model of
            a checkpoint is none to start from.
    """

    batch: str
    smaller: str
    slower: str
    start_option: str = ""


@dataclass(frozen=True)
class FitSettings:
    """One training of one model.

    Attributes:
        context: whose folder gets the checkpoints and the loss curve.
        stage: name in progress reports.
        training: identity of what is trained, see `RunFolder`.
        steps: of the optimizer.
        batch_size: examples of one forward pass on one device.
        accumulate: forward passes of a step.
        precision: of the forward pass; weights and optimizer are float32.
        save_model: writes the model of a step to a folder, as it can be evaluated, for those who
            watch the training; None where nobody does.
    """

    context: TrainingContext
    stage: str
    training: str
    optimizer: Optimizer
    steps: int
    batch_size: int
    seed: int
    advice: Advice
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

    def arguments(self, kind: "type[PlacedArguments]", **own: Any) -> Any:
        """The settings in the words of a trainer, whose ``own`` arguments are added."""
        device = pick_device(self.context.device)
        on_cpu = device.type == "cpu"
        warn_of_emulation(self.precision, device)
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
            save_strategy="steps",
            save_steps=self.context.save_every,
            save_total_limit=KEPT_CHECKPOINTS,
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=on_cpu,  # said here: else bfloat16 asks for a GPU
            dataloader_pin_memory=not on_cpu,
            dataloader_num_workers=count_loaders(on_cpu),
            **own,
        )
        # Several GPUs are for `accelerate launch`; within one process Trainer would split batches.
        arguments._n_gpu = min(arguments.n_gpu, 1)
        return arguments


class PlacedArguments(TrainingArguments):  # type: ignore[misc]
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


@contextmanager
def first_process_first(device: str) -> Iterator[None]:
    """Of the processes that share a training, the others wait until the first is through."""
    if world_size() == 1:
        yield
        return
    on_cpu = pick_device(device).type == "cpu"
    with PlacedArguments(output_dir="", use_cpu=on_cpu).main_process_first():
        yield
