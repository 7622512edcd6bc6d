"""The trainers of sentence-transformers, told to keep an order, a loss curve, and to stop at NaN.

Imports sentence-transformers, so it is imported when training starts.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from safetensors.torch import load_model, save_model
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.sentence_transformer import (
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from torch import nn
from torch.utils.data import BatchSampler, SequentialSampler
from transformers import PrinterCallback, TrainerCallback

from foundation.errors import BenchError
from retrievers.encoders.tower import pick_device
from retrievers.training.engine.curve import cut_curve
from retrievers.training.engine.processes import is_first, world_size
from retrievers.training.engine.trainer import (
    MODEL,
    SCHEDULES,
    WEIGHTS,
    Meter,
    OwnArguments,
    Progress,
    Watch,
    last_checkpoint,
)
from retrievers.training.finetune.finetuning import CURVE_FILE
from retrievers.training.pretrain.preset import Optimizer
from retrievers.training.pretrain.pretrain import OUT_OF_MEMORY

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Fit:
    """One training in the words of both trainers.

    Attributes:
        folder: of checkpoints and of the loss curve.
        batch_size: examples of a step, over all devices.
        write_model: writes what is trained to a folder in each checkpoint, as it can be evaluated.
        smaller: what to do where memory is short.
    """

    folder: Path
    optimizer: Optimizer
    steps: int
    batch_size: int
    seed: int
    precision: str = "float32"
    device: str = "auto"
    save_every: int = 500
    write_model: Callable[[Path], None] | None = None
    smaller: str = "lower batch_size"

    @property
    def per_device(self) -> int:
        """Examples of a step on one device.

        Raises:
            BenchError: the devices cannot share a batch evenly.
        """
        count, rest = divmod(self.batch_size, world_size())
        if rest:
            raise BenchError(
                f"{world_size()} devices cannot share batches of {self.batch_size}",
                "use a batch_size that is a multiple of the devices",
            )
        return count

    def arguments(self, kind: type[Any]) -> Any:
        """What a trainer reads."""
        found = kind(
            output_dir=str(self.folder / CHECKPOINTS),
            per_device_train_batch_size=self.per_device,
            max_steps=self.steps,
            learning_rate=self.optimizer.lr,
            warmup_steps=round(self.optimizer.warmup * self.steps),
            weight_decay=self.optimizer.weight_decay,
            lr_scheduler_type=SCHEDULES[self.optimizer.schedule],
            max_grad_norm=self.optimizer.max_grad_norm,
            seed=self.seed,
            bf16=self.precision == "bfloat16",
            save_strategy="steps",
            save_steps=self.save_every,
            save_total_limit=2,
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=pick_device(self.device).type == "cpu",
            dataloader_pin_memory=pick_device(self.device).type != "cpu",
            batch_sampler=_in_order,
            # An encoder's pooler may be unused; a cross-encoder has no part that is.
            ddp_find_unused_parameters=kind is RetrieverArguments,
        )
        # Several GPUs are for `accelerate launch`; one process would split each batch.
        found._n_gpu = min(found.n_gpu, 1)
        return found

    def places(self) -> Dataset:
        """The order of training: place after place."""
        return Dataset.from_dict({"place": np.arange(self.steps * self.batch_size)})


class _Steady:
    """What both trainers get: weights alone in checkpoints, and none of a model that is broken.

    Raises:
        BenchError: while it trains, when the loss or a weight is no longer a number.
    """

    meter: Meter
    write_model: Callable[[Path], None] | None
    model: nn.Module
    state: Any
    args: Any

    def add_model_card_callback(self, default_args_dict: Any) -> None:
        """No model card in prose: `card.toml` says what there is to say."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **others: Any
    ) -> Any:
        """The loss, which goes to the loss curve too."""
        masks = [value for name, value in inputs.items() if name.endswith("attention_mask")]
        found = super().compute_loss(model, inputs, return_outputs, **others)  # type: ignore[misc]
        loss = found[0] if return_outputs else found
        real = torch.stack([mask.sum() for mask in masks]) if masks else torch.zeros(1).long()
        self.meter.add({"loss": loss}, real)
        return found

    def check(self, step: int) -> None:
        """Stop where the loss or a weight is not a number."""
        weights = (parameter.isfinite().all() for parameter in self.model.parameters())
        if self.meter.finite and all(map(bool, weights)):
            return
        raise BenchError(
            f"the loss is no longer a number at step {step}",
            "lower the learning rate or raise the temperature, and train into another folder",
        )

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.check(self.state.global_step)
        super()._save_checkpoint(model, trial)  # type: ignore[misc]

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.model, str(folder / WEIGHTS))
        if self.write_model:
            self.write_model(folder / MODEL)

    def _load_from_checkpoint(self, checkpoint_path: str) -> None:
        load_model(self.model, str(Path(checkpoint_path) / WEIGHTS))


class RetrieverTrainer(_Steady, SentenceTransformerTrainer):  # type: ignore[misc]
    """Trains a SentenceTransformer."""


class RerankerTrainer(_Steady, CrossEncoderTrainer):  # type: ignore[misc]
    """Trains a CrossEncoder."""


class RetrieverArguments(OwnArguments, SentenceTransformerTrainingArguments):  # type: ignore[misc]
    """What the trainer of a SentenceTransformer reads."""


class RerankerArguments(OwnArguments, CrossEncoderTrainingArguments):  # type: ignore[misc]
    """What the trainer of a CrossEncoder reads."""


ARGUMENTS = {RetrieverTrainer: RetrieverArguments, RerankerTrainer: RerankerArguments}


@dataclass
class _StopAt(TrainerCallback):  # type: ignore[misc]
    """Saves and stops after a step."""

    step: int

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def fit(
    kind: type[Any],
    model: Any,
    loss: nn.Module,
    collate: Callable[[Any], dict[str, Any]],
    settings: Fit,
    *,
    until: int,
    progress: Callable[[Progress], None] | None = None,
) -> float:
    """Train up to a step, from the last checkpoint where there is one; the seconds it took.

    A checkpoint is left behind unless it is the last step.

    Raises:
        BenchError: not enough memory, or a loss that is not a number.
    """
    start = last_checkpoint(settings.folder / CHECKPOINTS)
    if is_first():
        cut_curve(settings.folder / CURVE_FILE, step_of(start))
    trainer = kind(
        model=model,
        args=settings.arguments(ARGUMENTS[kind]),
        train_dataset=settings.places(),
        loss=loss,
        data_collator=collate,
    )
    trainer.meter, trainer.write_model = Meter(), settings.write_model
    trainer.remove_callback(PrinterCallback)  # it prints to stdout
    trainer.add_callback(Watch(trainer, settings.folder / CURVE_FILE, progress))
    if until < settings.steps:
        trainer.add_callback(_StopAt(until))
    began = time.perf_counter()
    with explained(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "mtime may not be reliable")  # nor is it needed
        trainer.train(resume_from_checkpoint=str(start) if start else None)
    return time.perf_counter() - began


def step_of(checkpoint: Path | None) -> int:
    """Step of a checkpoint by its name; 0 for none."""
    return int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0


def restore(model: nn.Module, checkpoint: Path) -> None:
    """Weights of a checkpoint into the model that it was saved from."""
    load_model(model, str(checkpoint / WEIGHTS))


@contextmanager
def explained(settings: Fit) -> Iterator[None]:
    """Turn a lack of memory, and a loss that is not a number, into what to do next."""
    try:
        yield
    except BenchError as error:
        kept = last_checkpoint(settings.folder / CHECKPOINTS)
        place = f"; the last good checkpoint is kept in {kept}" if kept else ""
        raise BenchError(f"{error}{place}", error.hint) from error
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
        lacking = any(words in str(error).lower() for words in OUT_OF_MEMORY)
        if not isinstance(error, MemoryError) and not lacking:
            raise
        raise BenchError(
            f"not enough memory for batches of {settings.batch_size}",
            settings.smaller,
        ) from error


def _in_order(dataset: Dataset, *, batch_size: int, **others: Any) -> BatchSampler:
    """The places as they are: their order is the order of training."""
    return BatchSampler(SequentialSampler(dataset), batch_size, drop_last=False)
