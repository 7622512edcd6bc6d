"""``compose``: trained adapters of one base as one that ``run --model`` takes."""

import msgspec

from bench.cli.options.train import ComposeOptions
from bench.cli.printing import print_json, print_next
from bench.exit_codes import ExitCode
from foundation.errors import BenchError
from retrievers.adapters.average import average_adapters
from retrievers.adapters.parts import base_of
from retrievers.adapters.stack import add_outputs, stack_adapters
from retrievers.models.model import resolve_model
from retrievers.models.parameters import count_parameters


class Composed(msgspec.Struct, frozen=True):
    """The adapter that was written.

    Attributes:
        how: ``average``, ``outputs`` or ``stack``.
        base: the model that all adapters are for.
        parameters: of the adapter that came out, without the base's.
    """

    folder: str
    how: str
    base: str
    adapters: tuple[str, ...]
    parameters: int


def compose(options: ComposeOptions) -> int:
    """``compose``: check, write, say what to type next."""
    _check(options)
    base = base_of(options.folders)
    if options.how == "stack":
        stack_adapters(base, options.folders, options.out)
    elif options.how == "outputs":
        add_outputs(base, options.folders, options.out, options.weights)
    else:
        average_adapters(base, options.folders, options.out, options.weights)
    counted = count_parameters(resolve_model(str(options.out)))
    done = Composed(
        folder=str(options.out),
        how=options.how,
        base=base.card.name,
        adapters=tuple(str(folder) for folder in options.folders),
        parameters=counted.adapter if counted else 0,
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
    """Nothing is written over, and no weights are passed by."""
    if options.out.exists() and any(options.out.iterdir()):
        raise BenchError(f"{options.out} holds something else", "name another folder")
    if options.how == "stack" and options.weights:
        raise BenchError("a stack has no weights", "leave --weights out, or use outputs")
