"""Settings of a training: optimizer, device, checkpoints, and the processes that share the work.

With several processes, the first one searches and writes, and the others wait for its files. They
do not wait at a barrier of the devices, because barriers time out after minutes and encoding a
corpus can take hours.
"""

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from foundation.errors import BenchError, import_package
from foundation.records import Record
from retrievers.training.engine.curve import CURVE_FILE, LossPoint

Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Above0 = Annotated[float, msgspec.Meta(gt=0)]
Precision = Literal["float32", "bfloat16", "float16"]

CHECKPOINTS = "checkpoints"  # folder that a finished training removes
KEPT_CHECKPOINTS = 2
SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}
MOST_LOADERS = 4
POLL_S = 0.2

logger = logging.getLogger(__name__)

# Threads do not survive a fork. If the parent has used its tokenizer in parallel, a forked loader
# would wait forever for the tokenizer's threads.
os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))


class Optimizer(Record, kw_only=True):
    """AdamW (Loshchilov and Hutter, 2019) with a schedule: the ``[optimizer]`` table of presets.

    Attributes:
        algorithm: ``adamw``, the only one. The field is part of the identity of stored trainings.
        lr: highest learning rate.
        warmup: share of the steps during which the learning rate rises from 0.
        weight_decay: weight decay of AdamW.
        schedule: decay to 0 after the warm-up; ``constant`` does not decay.
        max_grad_norm: gradients are clipped to this norm.
    """

    algorithm: Literal["adamw"] = "adamw"
    lr: Above0 = 1e-4
    warmup: Share = 0.1
    weight_decay: Share = 0.01
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    max_grad_norm: Above0 = 1.0


def check_packages(*names: str) -> None:
    """Raise before a training starts if the packages ``names`` cannot be imported.

    Raises:
        BenchError: If a package is not installed.
    """
    problem = "training needs a package that cannot be imported"
    for name in names:
        import_package(name, problem, "pip install 'retrieval-bench[train]'")


def world_size() -> int:
    """Return the number of processes that ``accelerate launch`` started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Return whether this process searches, writes and prints."""
    return os.environ.get("RANK", "0") == "0"


def wait_for_file(path: Path) -> None:
    """Wait until the first process has written the file ``path``, which appears atomically."""
    while not is_first() and not path.exists():
        time.sleep(POLL_S)


@contextmanager
def first_process_first(device: str) -> Iterator[None]:
    """Let the first process run the block alone, then all others.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``.
    """
    if world_size() == 1:
        yield
        return
    from accelerate import PartialState

    from retrievers.encoders.device import pick_device

    disconnect_at_exit()
    with PartialState(cpu=pick_device(device).type == "cpu").main_process_first():
        yield


@cache  # register only once
def disconnect_at_exit() -> None:
    """Close the connection between processes before Python exits.

    If it stays open, Gloo's threads can outlive the interpreter and abort a finished training.
    """
    atexit.register(_disconnect)


def _disconnect() -> None:
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


@dataclass(frozen=True)
class Progress:
    """Progress of a stage of a training.

    Attributes:
        stage: name, such as ``round 1``.
        done: finished units, including units of earlier calls.
        total: units of the stage.
        unit: name of the units.
        point: point of the loss curve, if this step has one.
    """

    stage: str
    done: int
    total: int
    unit: str = "steps"
    point: LossPoint | None = None


@dataclass(frozen=True)
class TrainingContext:
    """Output folder, device, checkpoint interval and progress callback of a training.

    None of these settings changes the resulting weights.

    Attributes:
        out: output folder. An unfinished training in it is continued.
        device: ``auto``, ``cpu`` or ``cuda``, see `check_device`.
        save_every: steps between two checkpoints. The last two checkpoints are kept until the end.
        progress: function that the first process calls after each step and after other work.
    """

    out: Path
    device: str = "auto"
    save_every: int = 500
    progress: Callable[[Progress], None] | None = None

    def with_folder(self, folder: Path) -> "TrainingContext":
        """Return the context of a part of the training, whose output folder is ``folder``."""
        return replace(self, out=folder)

    def report(self, progress: Progress) -> None:
        """Call the progress callback with ``progress`` in the first process."""
        if self.progress is not None and is_first():
            self.progress(progress)


def check_device(name: str) -> None:
    """Raise if the device ``name`` is not supported: trainers always use the first visible GPU.

    Raises:
        BenchError: If it is another GPU.
    """
    number = name.partition(":")[2]
    if number and int(number):
        raise BenchError(
            f"training uses the first visible GPU, not {name}",
            f"Set CUDA_VISIBLE_DEVICES={int(number)} and use --device cuda.",
        )


@dataclass(frozen=True)
class FitSettings:
    """Settings of one training of one model.

    Attributes:
        context: context whose folder gets the checkpoints and the loss curve.
        stage: name in progress reports.
        optimizer: optimizer and schedule.
        steps: optimizer steps.
        batch_size: examples of one forward pass on one device.
        seed: seed of dropout and of the trainer.
        memory_hint: advice if a batch does not fit into memory.
        accumulate: forward passes per step.
        precision: precision of the forward pass; weights and optimizer states are float32.
        save_model: function that writes the model of a step to a folder in evaluable form, for
            ``watch``. None writes no model.
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

    def arguments(self, kind: Callable[..., Any], **further: Any) -> Any:
        """Return the settings as arguments of a Hugging Face trainer.

        Args:
            kind: class of the arguments.
            further: additional arguments of that class.
        """
        from retrievers.encoders.device import pick_device, warn_if_bfloat16_is_slow

        device = pick_device(self.context.device)
        on_cpu = device.type == "cpu"
        warn_if_bfloat16_is_slow(self.precision, device)
        precision = supported_precision(self.precision, on_cpu)
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
            bf16=precision == "bfloat16",
            fp16=precision == "float16",
            save_strategy="steps",
            save_steps=self.context.save_every,
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


@cache  # warn only once
def supported_precision(precision: Precision, on_cpu: bool) -> Precision:
    """Return the precision to train in: float32 instead of ``precision`` float16 if ``on_cpu``."""
    if on_cpu and precision == "float16":
        logger.warning("float16 needs a GPU: on this CPU, training computes in float32")
        return "float32"
    return precision


def count_loaders(on_cpu: bool) -> int:
    """Return the number of data loader processes, 0 if ``on_cpu``.

    A batch depends only on its index in the training, so the number of loaders changes nothing.
    """
    cores = len(os.sched_getaffinity(0)) // world_size()
    return 0 if on_cpu else max(0, min(MOST_LOADERS, cores - 1))
