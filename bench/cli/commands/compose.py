"""``compose``: trained adapters or whole models of one base as one that ``run --model`` takes."""

import msgspec

from bench.cli.commands.common import workspace
from bench.cli.options.train import ComposeOptions
from bench.cli.terminal import print_json, print_next
from bench.exit_codes import ExitCode
from bench.training.on_collections import route_on
from foundation.errors import BenchError
from retrievers.adapters.compose import average_adapters, stack_adapters
from retrievers.adapters.folder import base_of
from retrievers.models.model import resolve_model
from retrievers.models.parameters import count_parameters
from retrievers.training.task_arithmetic import add_tasks

TRAINING = "train"  # split whose queries are a domain's texts


class Composed(msgspec.Struct, frozen=True):
    """The adapter or model that was written.

    Attributes:
        how: see `ComposeOptions`.
        base: the model that all are trained from.
        adapters: what was put together; whole models for ``arithmetic``.
        parameters: of the adapter that came out, without the base's; else of the model.
    """

    folder: str
    how: str
    base: str
    adapters: tuple[str, ...]
    parameters: int


def compose(options: ComposeOptions) -> int:
    """``compose``: check, write, say what to type next."""
    _check(options)
    if options.how == "arithmetic":
        add_tasks(options.base, options.folders, options.out, options.weights)
        return _report(options, options.base)
    base = base_of(options.folders)
    if options.how == "stack":
        stack_adapters(base, options.folders, options.out)
    elif options.how == "route":
        space = workspace(options.places)
        training = [space.dataset(name, TRAINING) for name in space.expand(options.on)]
        route_on(base, options.folders, options.out, training)
    else:
        average_adapters(base, options.folders, options.out, options.weights)
    return _report(options, base.card.name)


def _report(options: ComposeOptions, base: str) -> int:
    counted = count_parameters(resolve_model(str(options.out)))
    done = Composed(
        folder=str(options.out),
        how=options.how,
        base=base,
        adapters=tuple(str(folder) for folder in options.folders),
        parameters=(counted.adapter or counted.total) if counted else 0,
    )
    if options.output.json:
        print_json(done)
    else:
        names = ", ".join(done.adapters)
        print(
            f"{done.folder}: {done.how} of {names}; {done.parameters:,} parameters on {done.base}"
        )
        print_next("evaluate it", f"python -m bench run stdlib-code --model {done.folder}")
    return ExitCode.OK


def _check(options: ComposeOptions) -> None:
    """Refuse to write over anything, and a way without what it needs."""
    if options.out.exists() and any(options.out.iterdir()):
        raise BenchError(f"{options.out} holds something else", "name another folder")
    if options.how == "route" and not options.on:
        raise BenchError(
            "route needs the collection of each adapter",
            "compose route FOLDERS --on COLLECTIONS",
        )
    if options.how == "arithmetic" and not options.base:
        raise BenchError(
            "arithmetic needs the model that the trainings began from",
            "compose arithmetic FOLDERS --base MODEL",
        )
