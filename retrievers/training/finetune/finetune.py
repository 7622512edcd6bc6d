"""Fine-tune an encoder: from a preset and judged queries to a folder that can be evaluated at once.

A training that was killed goes on from its last whole checkpoint when the same call is made again,
with the batches and negatives that it would have had; one that is finished is not repeated.

In the folder: the checkpoint (see `engine.save`) with its loss curve and negatives; ``rounds/N``
the same of the rounds before the last; ``teacher`` the cross-encoder and its scores.
"""

from typing import Any

import msgspec

from foundation.errors import BenchError
from retrievers.models.model import Model, resolve_model
from retrievers.models.recipe import Recipe
from retrievers.training.engine.context import TrainingContext
from retrievers.training.engine.processes import world_size
from retrievers.training.engine.run_folder import RunFolder
from retrievers.training.engine.size import Size, read_size
from retrievers.training.finetune.finetune_preset import Finetuning
from retrievers.training.finetune.negatives import Mine
from retrievers.training.finetune.order import check_batch
from retrievers.training.finetune.student import (
    build_student,
    finished_card,
    import_trainer,
    network_of,
    training_recipe,
)
from retrievers.training.finetune.task import FinetuneTask
from retrievers.training.finetune.trained_part import train_only
from retrievers.training.finetune.training_data import TrainingSet


class FinetuneTraining(msgspec.Struct, frozen=True, omit_defaults=True):
    """Identity of a fine-tuning: all that decides the result.

    Attributes:
        preset: all of it, as a table.
        start: fingerprint of the start model's recipe.
        examples: sha256 (hex) of queries and relevant documents.
        trained_on: what the finished card states.
        processes: that share each step.
        below: sha256 of the files of adapters that a new one is put on.
    """

    preset: dict[str, Any]
    start: str
    examples: str
    trained_on: tuple[str, ...]
    processes: int
    below: dict[str, str] = {}


class Finetuned(msgspec.Struct, frozen=True):
    """A finished fine-tuning.

    Attributes:
        folder: of the checkpoint, for ``--model``.
        steps: of each round.
        rounds: how many.
        queries: that were trained on.
        seconds: of the optimizer's steps in the last call.
        resumed_at: step that the last call went on from, over all rounds; 0 where it began.
        size: parameters and bytes of what was trained; None in records from before they were
            counted.
    """

    folder: str
    steps: int
    rounds: int
    queries: int
    seconds: float
    resumed_at: int
    size: Size | None = None


def finetune(
    preset: Finetuning,
    model: Model,
    examples: TrainingSet,
    context: TrainingContext,
    *,
    mine: Mine | None = None,
) -> Finetuned:
    """Fine-tune an encoder on judged queries.

    Args:
        model: where every round starts.
        mine: searches for negatives; not needed where the preset has in-batch negatives alone.

    Raises:
        BenchError: a model that cannot be trained here, a folder with another training or another
            process, not enough memory, or a loss that is not a number.
    """
    import_trainer()
    card = finished_card(model, preset, examples.trained_on)
    if mine is None and preset.hard_negatives:
        raise BenchError("this preset mines negatives, and no search was handed in")
    check_batch(len(examples), preset.batch_size)
    training = FinetuneTraining(
        preset=msgspec.to_builtins(preset),
        start=model.recipe.fingerprint,
        examples=examples.sha256,
        trained_on=card.trained_on,
        processes=world_size(),
        below=preset.adapter.hashes_below() if preset.adapter else {},
    )
    _try_part(preset, model, training_recipe(model, card, preset))
    folder = RunFolder(context.out, training)
    if finished := folder.result(Finetuned):
        return finished
    task = FinetuneTask(preset, model, examples, card, mine, context, folder.identity)
    with folder.claimed(context.device):
        trained = _train_rounds(task)
        folder.finish(trained)
    return trained


def _train_rounds(task: FinetuneTask) -> Finetuned:
    """Train all rounds; the encoder of one mines the negatives of the next."""
    # Imports sentence-transformers' trainers, which `import_trainer` has found.
    from retrievers.training.finetune.rounds import Round

    rounds, out = task.preset.rounds, task.context.out
    miner, seconds, resumed_at = task.model, 0.0, 0
    for number, mining in enumerate(rounds, start=1):
        if number > 1:
            miner = resolve_model(str(out / "rounds" / str(number - 1)))
        folder = out if number == len(rounds) else out / "rounds" / str(number)
        done = Round(task, mining, miner, task.context.inside(folder), f"round {number}").train()
        seconds += done.fitted.seconds
        resumed_at += done.fitted.resumed_at
    return Finetuned(
        folder=str(out),
        steps=done.steps,
        rounds=len(rounds),
        queries=done.queries,
        seconds=seconds,
        resumed_at=resumed_at,
        size=read_size(out),
    )


def _try_part(preset: Finetuning, model: Model, recipe: Recipe) -> None:
    """Choose what is trained of the network once, so that what cannot be is known before all."""
    from retrievers.adapters.train import add_adapter

    if preset.adapter is None and preset.part is None:
        return
    network = network_of(build_student(model, recipe))
    if preset.adapter is not None:
        add_adapter(network, preset.adapter, model, preset.seed)
    if preset.part is not None:
        train_only(network, preset.part)
