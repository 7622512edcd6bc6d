"""Fine-tune an encoder: from a preset and judged queries to a folder that can be evaluated at once.

A training that was killed goes on from its last checkpoint when the same call is made again, with
the batches and negatives that it would have had; one that is finished is not repeated.

In ``out``: the checkpoint (see `saved`) with its loss curve and negatives; ``rounds/N`` the same of
the rounds before the last; ``teacher`` the cross-encoder and its scores.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from foundation.errors import BenchError
from retrievers.models.card import Card
from retrievers.models.lookup import CARD_FILE
from retrievers.models.model import Model, resolve_model
from retrievers.training.engine.processes import is_first, world_size
from retrievers.training.engine.size import Size, read_size
from retrievers.training.finetune.examples import TrainingSet
from retrievers.training.finetune.finetune_preset import Finetuning
from retrievers.training.finetune.negatives import Mine
from retrievers.training.finetune.order import check_batch
from retrievers.training.finetune.student import (
    finished_card,
    import_trainer,
    network_of,
    student,
    training_recipe,
)

CURVE_FILE = "losses.jsonl"
TRAINING_FILE = "training.json"
TRAINED_FILE = "trained.json"
Report = Callable[[str, int, int], None]


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is trained, so that a folder is gone on with only by the same training.

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
    """A finished training.

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
    out: Path,
    *,
    mine: Mine | None = None,
    device: str = "auto",
    save_every: int = 500,
    report: Report | None = None,
) -> Finetuned:
    """Fine-tune an encoder on judged queries.

    Args:
        model: where every round starts.
        mine: searches for negatives; not needed where the preset has in-batch negatives alone.
        device: ``auto`` or ``cpu``.
        save_every: steps between two checkpoints; the last two are kept until a round's end.
        report: called with a stage's name, what of it is done, and its total.

    Raises:
        BenchError: a model that cannot be trained here, an ``out`` that holds another
            training, not enough memory, or a loss that is not a number.
    """
    import_trainer()
    card = finished_card(model, preset, examples.trained_on)
    if mine is None and preset.hard_negatives:
        raise BenchError("this preset mines negatives, and no search was handed in")
    check_batch(examples, preset.batch_size)
    job = Job(
        preset=msgspec.to_builtins(preset),
        start=model.recipe.fingerprint,
        examples=examples.sha256,
        trained_on=card.trained_on,
        processes=world_size(),
        below=preset.adapter.hashes_below() if preset.adapter else {},
    )
    if preset.adapter is not None:
        _try(preset, model, card)
    if finished := _earlier(job, out):
        return finished
    from retrievers.training.finetune.rounds import Task, train_round

    task = Task(preset, model, examples, card, mine, out, device, save_every, report)
    miner, seconds, resumed_at = model, 0.0, 0
    for number, mining in enumerate(preset.rounds, start=1):
        last = number == len(preset.rounds)
        folder = out if last else out / "rounds" / str(number)
        done = train_round(task, mining, miner, folder, f"round {number}")
        seconds, resumed_at = seconds + done.seconds, resumed_at + done.resumed_at
        miner = miner if last else resolve_model(str(folder))
    trained = Finetuned(
        folder=str(out),
        steps=done.steps,
        rounds=len(preset.rounds),
        queries=done.queries,
        seconds=seconds,
        resumed_at=resumed_at,
        size=read_size(out),
    )
    if is_first():
        (out / TRAINED_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(trained)))
    return trained


def _try(preset: Finetuning, model: Model, card: Card) -> None:
    """Put the adapter into the network once, so that what cannot be is known before all else."""
    from retrievers.adapters.train import add_adapter

    if preset.adapter is not None:
        recipe = training_recipe(model, card, preset)
        add_adapter(network_of(student(model, recipe)), preset.adapter, model, preset.seed)


def _earlier(job: Job, out: Path) -> Finetuned | None:
    """The same training where it is finished; what another one began is refused."""
    path, asked = out / TRAINING_FILE, msgspec.json.encode(job)
    if not path.exists():
        if not is_first():
            return None
        if out.exists() and any(out.iterdir()):
            raise BenchError(f"{out} holds something else", "name another folder")
        out.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(asked))
        return None
    try:
        held = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise BenchError(f"{path} cannot be read: {error}", f"remove {out}") from error
    wanted = msgspec.json.decode(asked)
    different = [name for name in wanted if held.get(name) != wanted[name]]
    if different:
        raise BenchError(
            f"{out} holds another training: it differs in {', '.join(different)}",
            "name another folder, or remove it",
        )
    if not (out / TRAINED_FILE).exists() or not (out / CARD_FILE).exists():
        return None
    return msgspec.json.decode((out / TRAINED_FILE).read_bytes(), type=Finetuned)
