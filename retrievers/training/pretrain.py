"""Pre-train an encoder: from a preset and texts to a folder that can be evaluated at once.

A training that was killed goes on from its last checkpoint when the same call is made again, and
reads what it would have read; one that is finished is not repeated.
"""

import hashlib
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from retrievers.card import Card
from retrievers.errors import RetrieverError
from retrievers.lookup import CARD_FILE
from retrievers.training.curve import cut_curve
from retrievers.training.preset import Pretraining, to_table
from retrievers.training.saved import load_heads, save_checkpoint, save_heads
from retrievers.training.start import Started, open_start
from retrievers.training.stream import Stream
from retrievers.training.trainer import (
    Progress,
    StreamTrainer,
    Watch,
    arguments_of,
    last_checkpoint,
)

CHECKPOINTS = "checkpoints"  # removed when the training is finished
CURVE_FILE = "losses.jsonl"
TRAINING_FILE = "training.json"
TRAINED_FILE = "trained.json"
SAMPLED_TEXTS = 1_000
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


class Training(msgspec.Struct, frozen=True):
    """What is trained, so that a folder is gone on with only by the same training.

    Attributes:
        preset: all of it, as a table.
        steps: that it takes.
        texts: how many there are.
        sample: sha256 (hex) of up to 1,000 of them, evenly spaced.
        trained_on: collections that the texts are from, and those that the start had seen.
        processes: that share each step.
    """

    preset: dict[str, Any]
    steps: int
    texts: int
    sample: str
    trained_on: tuple[str, ...]
    processes: int


class Trained(msgspec.Struct, frozen=True):
    """A finished training.

    Attributes:
        folder: of the checkpoint, for ``--model``.
        steps: of the optimizer.
        texts_read: with repetitions.
        seconds: of the last call, resumed steps not counted.
        resumed_at: step that the last call went on from; 0 where it began.
    """

    folder: str
    objective: str
    steps: int
    texts_read: int
    seconds: float
    resumed_at: int


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
        RetrieverError: no texts, a start that cannot be loaded, an ``out`` that holds another
            training, not enough memory, or a loss that is not a number.
    """
    if not len(texts):
        raise RetrieverError("there are no texts to train on")
    started = open_start(preset.start, preset.seed)
    check_length(preset, started)
    places_a_step = preset.batch_size * preset.accumulate * world_size()
    steps = steps_of(preset, len(texts), places_a_step)
    arguments = arguments_of(preset, steps, out / CHECKPOINTS, device, save_every)
    seen = tuple(dict.fromkeys([*started.trained_on, *trained_on]))
    training = training_of(preset, steps, texts, seen)
    if finished := _earlier(training, out):
        return finished
    module = _module(preset, started)
    collate = preset.objective.collator(started.tokenizer, preset.max_tokens)
    stream = Stream(texts, steps * places_a_step, preset.seed)
    trainer = StreamTrainer(module, arguments, stream, collate)
    resumed_at, seconds = _train(trainer, preset, out, progress)
    trained = Trained(
        folder=str(out),
        objective=preset.objective.name,
        steps=steps,
        texts_read=len(stream),
        seconds=seconds,
        resumed_at=resumed_at,
    )
    if trainer.is_world_process_zero():
        _finish(module, started, preset, training, trained, out)
    return trained


def steps_of(preset: Pretraining, texts: int, places_a_step: int) -> int:
    """Steps of a training on so many texts."""
    if preset.steps is not None:
        return preset.steps
    return max(1, math.ceil((preset.epochs or 0) * texts / places_a_step))


def world_size() -> int:
    """Processes that ``accelerate launch`` started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def check_length(preset: Pretraining, started: Started) -> None:
    """Refuse texts that are longer than the model's positions."""
    if preset.max_tokens > started.max_tokens:
        raise RetrieverError(
            f"max_tokens is {preset.max_tokens}, and the model has positions for "
            f"{started.max_tokens}",
            f"use max_tokens = {started.max_tokens}",
        )


def training_of(
    preset: Pretraining, steps: int, texts: Sequence[str], trained_on: tuple[str, ...]
) -> Training:
    """What identifies a training; reads a sample of the texts."""
    digest = hashlib.sha256()
    stride = max(1, len(texts) // SAMPLED_TEXTS)
    for place in range(0, len(texts), stride):
        content = texts[place].encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    table = to_table(preset)
    return Training(table, steps, len(texts), digest.hexdigest(), trained_on, world_size())


def _earlier(training: Training, out: Path) -> Trained | None:
    """The same training where it is finished; what another one began is refused."""
    path, asked = out / TRAINING_FILE, msgspec.json.encode(training)
    if not path.exists():
        if (out / CARD_FILE).exists() or (out / CHECKPOINTS).exists():
            raise RetrieverError(f"{out} holds something else", "name another folder")
        out.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(asked))
        return None
    held, wanted = msgspec.json.decode(path.read_bytes()), msgspec.json.decode(asked)
    different = [name for name in wanted if held.get(name) != wanted[name]]
    if different:
        raise RetrieverError(
            f"{out} holds another training: it differs in {', '.join(different)}",
            "name another folder, or remove it",
        )
    if not (out / CARD_FILE).exists():
        return None
    return msgspec.json.decode((out / TRAINED_FILE).read_bytes(), type=Trained)


def _module(preset: Pretraining, started: Started) -> nn.Module:
    """The objective's module with the heads of the start, where it has any."""
    torch.manual_seed(preset.seed)
    module = preset.objective.heads(started.encoder)
    if started.folder is not None:
        load_heads(module, started.encoder.encoder, started.folder, preset.objective)
    if preset.gradient_checkpointing:
        started.encoder.encoder.gradient_checkpointing_enable({"use_reentrant": False})
    return module


def _train(
    trainer: StreamTrainer,
    preset: Pretraining,
    out: Path,
    progress: Callable[[Progress], None] | None,
) -> tuple[int, float]:
    """Train to the end; the step that it went on from, and seconds."""
    checkpoint = last_checkpoint(out / CHECKPOINTS)
    resumed_at = int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0
    cut_curve(out / CURVE_FILE, resumed_at)
    trainer.add_callback(Watch(trainer, out / CURVE_FILE, progress))
    start = time.perf_counter()
    with explained(preset, out):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return resumed_at, time.perf_counter() - start


@contextmanager
def explained(preset: Pretraining, out: Path) -> Iterator[None]:
    """Turn a lack of memory, and a loss that is not a number, into what to do next."""
    try:
        yield
    except RetrieverError as error:
        kept = last_checkpoint(out / CHECKPOINTS)
        place = f"; the last good checkpoint is kept in {kept}" if kept else ""
        raise RetrieverError(f"{error}{place}", error.hint) from error
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
        if not isinstance(error, MemoryError) and not _lacks_memory(error):
            raise
        raise RetrieverError(
            f"not enough memory for {preset.batch_size} texts of {preset.max_tokens} tokens",
            _less_memory(preset),
        ) from error


def _less_memory(preset: Pretraining) -> str:
    """What to type for less memory; the same training where that is possible."""
    checkpointing = "--gradient-checkpointing"
    if hasattr(preset.objective, "sub_batch"):  # texts of a batch are contrasted with each other
        size = (preset.objective.sub_batch or 2 * preset.batch_size) // 2
        smaller = f"--set objective.sub_batch={size}" if size else ""
    else:
        size = preset.batch_size // 2
        same = preset.accumulate * preset.batch_size // max(1, size)
        smaller = f"--batch-size {size} --accumulate {same}" if size else ""
    if smaller:
        return f"use {smaller}, which is the same training, or {checkpointing}"
    return f"use fewer --max-tokens, or {checkpointing}"


def _lacks_memory(error: RuntimeError) -> bool:
    return any(words in str(error).lower() for words in OUT_OF_MEMORY)


def _finish(
    module: nn.Module,
    started: Started,
    preset: Pretraining,
    training: Training,
    trained: Trained,
    out: Path,
) -> None:
    """Write the folder; only then let go of what a resumed training would need."""
    encoder = started.encoder.encoder
    save_heads(module, encoder, out, preset.objective)
    (out / TRAINED_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(trained)))
    save_checkpoint(encoder, started.tokenizer, out, card_of(preset, training, out))
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)


def card_of(preset: Pretraining, training: Training, out: Path) -> Card:
    """The card of the finished checkpoint: ``[CLS]`` vectors, compared by inner product."""
    return Card(
        name=out.name,
        title=f"{preset.title}, {training.steps:,} steps",
        checkpoint=".",
        pooling="cls",
        max_query_tokens=preset.max_tokens,
        max_document_tokens=preset.max_tokens,
        trained_on=training.trained_on,
        warning="pre-trained only: not trained to retrieve, so zero-shot scores say little; "
        "fine-tune it first",
    )
