"""Pre-train an encoder: from a preset and texts to a folder that can be evaluated at once.

A training that was killed goes on from its last checkpoint when the same call is made again, and
reads what it would have read; one that is finished is not repeated.
"""

import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch
from torch import nn

from retrievers.card import Card
from retrievers.errors import RetrieverError
from retrievers.training.curve import cut_curve
from retrievers.training.preset import Pretraining, to_table
from retrievers.training.record import Trained, Training, claim, sample_of, write_trained
from retrievers.training.saved import load_heads, save_checkpoint, save_heads
from retrievers.training.start import Started, open_start
from retrievers.training.stream import Stream
from retrievers.training.trainer import (
    DivergedError,
    Progress,
    StreamTrainer,
    Watch,
    arguments_of,
    last_checkpoint,
    load_weights,
    step_of,
)

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
        RetrieverError: no texts, a start that cannot be loaded, an ``out`` that holds another
            training, not enough memory, or a loss that is not a number.
    """
    if not len(texts):
        raise RetrieverError("there are no texts to train on")
    started = open_start(preset.start, preset.seed)
    check_length(preset, started)
    places_a_step = preset.batch_size * preset.accumulate * world_size()
    steps = steps_of(preset, len(texts), places_a_step)
    training = Training(
        preset=to_table(preset),
        steps=steps,
        texts=len(texts),
        sample=sample_of(texts),
        trained_on=tuple(dict.fromkeys([*started.trained_on, *trained_on])),
        processes=world_size(),
    )
    arguments = arguments_of(preset, steps, out / CHECKPOINTS, device, save_every)
    with arguments.main_process_first():  # one process clears up, the others find it done
        begun = last_checkpoint(out / CHECKPOINTS)
        finished = claim(out, training, begun is not None)
    if finished:
        return finished
    module = _module(preset, started)
    collate = preset.objective.collator(started.tokenizer, preset.max_tokens)
    stream = Stream(texts, steps * places_a_step, preset.seed)
    trainer = StreamTrainer(module, arguments, stream, collate)
    resumed_at = step_of(begun) if begun else 0
    start = time.perf_counter()
    try:
        _train(trainer, begun, preset, out, progress)
    except DivergedError as error:
        raise _rescued(error, module, started, preset, training, out) from error
    trained = Trained(
        folder=str(out),
        objective=preset.objective.name,
        steps=steps,
        texts_read=len(stream),
        seconds=time.perf_counter() - start,
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
    begun: Path | None,
    preset: Pretraining,
    out: Path,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Train to the end, from a checkpoint where there is one."""
    if trainer.is_world_process_zero():
        cut_curve(out / CURVE_FILE, step_of(begun) if begun else 0)
    trainer.add_callback(Watch(trainer, out / CURVE_FILE, progress))
    with explained(preset), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "mtime may not be reliable")  # nor is it needed
        trainer.train(resume_from_checkpoint=str(begun) if begun else None)


def _rescued(
    error: RetrieverError,
    module: nn.Module,
    started: Started,
    preset: Pretraining,
    training: Training,
    out: Path,
) -> RetrieverError:
    """Make a model of the last checkpoint, which is good, and say so."""
    kept = last_checkpoint(out / CHECKPOINTS)
    if kept is None:
        return error
    load_weights(module, kept)
    good = out / GOOD
    training = msgspec.structs.replace(training, steps=step_of(kept))
    _save(module, started, preset, training, good)
    return RetrieverError(
        f"{error}; the model of step {training.steps} is kept in {good}",
        f"go on from it more slowly: --start {good} --lr {preset.optimizer.lr / 10:g} "
        "--out ANOTHER",
    )


@contextmanager
def explained(preset: Pretraining) -> Iterator[None]:
    """Turn a lack of memory into what to type instead."""
    try:
        yield
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
    write_trained(out, trained)
    _save(module, started, preset, training, out)
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)


def _save(
    module: nn.Module, started: Started, preset: Pretraining, training: Training, out: Path
) -> None:
    encoder = started.encoder.encoder
    save_heads(module, encoder, out, preset.objective)
    save_checkpoint(encoder, started.tokenizer, out, card_of(preset, training, out))


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
