"""Trainings: `pretrain`, `finetune`, `adapt` and `compose`, from names to a folder for ``run``."""

from pathlib import Path

import msgspec

from bench.requests.training import (
    AdaptRequest,
    ComposeRequest,
    FinetuneRequest,
    PretrainRequest,
    TrainingFields,
)
from bench.runner.workspace import open_workspace
from bench.training.on_collections import (
    TRAIN,
    adapt_on,
    finetune_on,
    open_test_sets,
    pretrain_on,
    route_on,
)
from foundation.errors import BenchError
from retrievers.adapters.compose import average_adapters, find_adapter_base, stack_adapters
from retrievers.models.resolve import count_parameters, resolve_model
from retrievers.training.continual.sequence import read_method
from retrievers.training.engine.arguments import TrainingContext, check_device
from retrievers.training.finetune import finetune_preset
from retrievers.training.finetune.finetune import FinetuneResult
from retrievers.training.finetune.finetune_preset import Finetuning
from retrievers.training.pretrain import preset as pretrain_preset
from retrievers.training.pretrain.preset import Pretraining
from retrievers.training.pretrain.pretrain import PretrainResult


def pretrain(request: PretrainRequest) -> PretrainResult:
    """Pre-train an encoder on the documents of collections.

    The same request continues an interrupted training, and returns the result of a finished one.

    Raises:
        BenchError: wrong input, the folder holds something else, the disk or memory is too small,
            or the loss is not finite.
    """
    preset, context = load_pretraining(request), _context(request, request.out)
    return pretrain_on(preset, open_workspace(request).documents(request.on), context)


def finetune(request: FinetuneRequest) -> FinetuneResult:
    """Fine-tune an encoder on the judged queries of collections.

    Queries with the text of a test query of these collections are left out, with a warning. The
    same request continues an interrupted training, and returns the result of a finished one.

    Raises:
        BenchError: wrong input, a training query is evaluated, the folder holds something else, the
            disk or memory is too small, or the loss is not finite.
    """
    given = request.preset
    preset = given if isinstance(given, Finetuning) else finetune_preset.load_preset(given)
    preset = finetune_preset.changed(preset, request.changes, "--set")
    context, workspace = _context(request, request.out), open_workspace(request)
    start = resolve_model(request.model, like=request.like)
    names = workspace.expand_names(request.on, files=True)
    training = [workspace.dataset(name, request.split) for name in names]
    tested = open_test_sets(names, workspace.expand_names(request.held_out), workspace)
    return finetune_on(
        *(preset, start, training, workspace.store, context),
        evaluated=list(tested.values()),
        negatives=request.negatives,
    )


def adapt(request: AdaptRequest) -> tuple[PretrainResult, ...]:
    """Continue pre-training on one collection after the other.

    Returns:
        One result for each collection, in order.

    Raises:
        BenchError: as `pretrain`, or the method or one of its settings does not exist.
    """
    preset, context = load_pretraining(request), _context(request, request.out)
    settings = {"name": request.method, **request.method_settings}
    method = read_method(settings, f"--method {request.method}")
    return adapt_on(preset, open_workspace(request).documents(request.on), method, context)


def load_pretraining(request: PretrainRequest | AdaptRequest) -> Pretraining:
    """Load the preset of a request, with its changes.

    Raises:
        BenchError: there is no such preset, or a change does not fit it.
    """
    given = request.preset
    preset = given if isinstance(given, Pretraining) else pretrain_preset.load_preset(given)
    options = {"objective.name": request.objective, "start.model": request.start}
    chosen = {name: value for name, value in options.items() if value}
    return pretrain_preset.changed(preset, {**chosen, **request.changes}, "--set")


def _context(request: TrainingFields, out: Path) -> TrainingContext:
    """Return the context of a training."""
    check_device(request.device)
    if type(request.save_every) is not int or request.save_every < 1:
        raise BenchError(f"save_every={request.save_every} is not a whole number from 1")
    return TrainingContext(out, request.device, request.save_every, request.progress)


class ComposedAdapter(msgspec.Struct, frozen=True):
    """Summary of a composed adapter.

    Attributes:
        folder: folder of the adapter.
        how: method of combination, see `ComposeRequest`.
        base: name of the common base model.
        adapters: folders of the combined adapters.
        parameters: number of parameters of the adapter, without the base.
        trained_on: collections that the adapters were trained on, and the base was not.
    """

    folder: str
    how: str
    base: str
    adapters: tuple[str, ...]
    parameters: int
    trained_on: tuple[str, ...]


def compose(request: ComposeRequest) -> ComposedAdapter:
    """Combine adapters of one base model, and write the result.

    Raises:
        BenchError: wrong input, the folder holds other files, or the adapters do not fit together.
    """
    out, adapters = request.out, request.adapters
    if out.exists() and any(out.iterdir()):
        raise BenchError(f"{out} contains other files", "Use another folder.")
    if request.how == "route" and not request.on:
        raise BenchError(
            "route needs a collection per adapter",
            "python -m bench compose route ADAPTERS --on COLLECTIONS --out OUT",
        )
    base = find_adapter_base(adapters)
    if request.how == "stack":
        stack_adapters(base, adapters, out)
    elif request.how == "route":
        workspace = open_workspace(request)
        training = [workspace.dataset(name, TRAIN) for name in workspace.expand_names(request.on)]
        route_on(base, adapters, out, training)
    else:
        average_adapters(base, adapters, out, request.weights)
    composed = resolve_model(str(out))
    counted = count_parameters(composed)
    known = base.card.trained_on
    return ComposedAdapter(
        folder=str(out),
        how=request.how,
        base=base.card.name,
        adapters=tuple(map(str, adapters)),
        parameters=(counted.adapter or counted.total) if counted else 0,
        trained_on=tuple(name for name in composed.card.trained_on if name not in known),
    )
