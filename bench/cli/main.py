"""The command line: from what was typed to the command that answers.

The records of `bench.cli.options` say what can be typed. A command is imported when it is run, so
that ``--help`` and ``list`` answer at once. Tables go to stdout; progress, warnings and errors to
stderr.
"""

import dataclasses
import importlib
import inspect
import logging
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.exceptions import MissingArgumentError, UnknownCommandError

from bench.cli.options import data, decide, evaluate, train
from bench.cli.options.shared import (
    Argument,
    arguments_of,
    check_outputs_and_device,
    refuse_ignored_options,
)
from bench.cli.terminal import as_typed, program_name
from foundation.errors import BenchError
from foundation.printable import shorten_words

EVALUATE = Group("Evaluate", sort_key=1)
DECIDE = Group("Decide", sort_key=2)
TRAIN = Group("Train", sort_key=3)
STUDY = Group("Study", sort_key=4)
DATA = Group("Data", sort_key=5)

# Record of the options, group in `--help`, and module and function below `bench.cli.commands`.
COMMANDS: dict[str, tuple[type[Any], Group, str]] = {
    "run": (evaluate.RunOptions, EVALUATE, "run.run"),
    "work": (evaluate.WorkOptions, EVALUATE, "vectors.work"),
    "index": (evaluate.IndexOptions, EVALUATE, "vectors.index"),
    "score": (evaluate.ScoreOptions, EVALUATE, "run.score"),
    "speed": (evaluate.SpeedOptions, EVALUATE, "speed.speed"),
    "compare": (decide.CompareOptions, DECIDE, "compare.compare"),
    "check": (decide.CheckOptions, DECIDE, "check.check"),
    "leaderboard": (decide.LeaderboardOptions, DECIDE, "leaderboard.leaderboard"),
    "pretrain": (train.PretrainOptions, TRAIN, "training.pretrain"),
    "finetune": (train.FinetuneOptions, TRAIN, "training.finetune"),
    "adapt": (train.AdaptOptions, TRAIN, "training.adapt"),
    "compose": (train.ComposeOptions, TRAIN, "training.compose"),
    "ablate": (train.AblateOptions, STUDY, "ablate.ablate"),
    "watch": (train.WatchOptions, STUDY, "watch.watch"),
    "list": (data.ListOptions, DATA, "names.list_names"),
    "show": (data.ShowOptions, DATA, "names.show"),
    "fetch": (data.FetchOptions, DATA, "data.fetch"),
    "verify": (data.VerifyOptions, DATA, "data.verify"),
    "cache": (data.CacheOptions, DATA, "data.cache"),
    "export": (decide.ExportOptions, DATA, "export.export"),
}

EXAMPLES = """\
    python -m bench run stdlib-code --model minilm            the embedded default, no download
    python -m bench run beir --model retromae                 the 14 public sets and their mean
    python -m bench run beir/scifact --model path/to/checkpoint --like retromae
    python -m bench check path/to/checkpoint --like retromae --baseline retromae
    python -m bench list models"""


class AppWithExamples(App):
    """Commands whose ``--help`` ends with examples, unwrapped so that they can be copied."""

    def help_print(self, tokens: Any = None, *, console: Any = None) -> None:
        """Print the help of the command that was typed, then its examples."""
        super().help_print(tokens, console=console)
        command = "".join(self.parse_commands(tokens)[0])
        print(f"\nExamples:\n\n{textwrap.indent(as_typed(examples_of(command)), '  ')}")


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Parse and run one command; returns its exit code.

    Raises:
        BenchError: an unknown command or option, or a value that an option cannot have.
        UnicodeEncodeError: a word is not in the encoding of the locale.
    """
    typed = list(sys.argv[1:] if arguments is None else arguments)
    for word in typed:
        word.encode()  # Python stands by surrogates for bytes that no record can hold
    try:
        code = build_app()(typed)
    except CycloptsError as error:
        raise _as_bench_error(error) from error
    return int(code or 0)


def build_app() -> App:
    """All commands with their options."""
    from bench import __version__

    top = AppWithExamples(
        name=program_name(),
        help="Evaluate dense retrievers: from a checkpoint to scores that can be trusted.",
        help_format="markdown",
        version=__version__,
        default_parameter=Parameter(
            negative=(), show_default=_format_default, allow_repeating=True
        ),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    for name, (record, group, function) in COMMANDS.items():
        description = (inspect.getdoc(record) or "").partition("Attributes:")[0]
        top.command(
            _make_command(record, function),
            name=name,
            group=group,
            usage=f"Usage: {usage_line(name, record)}",
            help=description,
        )
    return top


def count_arguments() -> dict[str, int]:
    """The number of options and positionals of each command."""
    return {name: len(list(arguments_of(record))) for name, (record, *_) in COMMANDS.items()}


def usage_line(name: str, record: type[Any]) -> str:
    """A command as it must be typed: positionals stand before the options, which take the rest."""
    required = [
        argument for argument in arguments_of(record) if argument.default is dataclasses.MISSING
    ]
    words = [_placeholder(argument) for argument in arguments_of(record) if argument.positional]
    words += [
        f"{argument.typed_name} {_placeholder(argument)}"
        for argument in required
        if not argument.positional
    ]
    return " ".join((program_name(), name, *words, "[OPTIONS]"))


def _placeholder(argument: Argument) -> str:
    word = argument.name.upper() + ("..." if argument.takes_several else "")
    return word if argument.default is dataclasses.MISSING else f"[{word}]"


def _make_command(record: type[Any], function: str) -> Any:
    """A function of the record of options, which imports the real one when it is called."""

    def command(options: Any) -> int:
        refuse_ignored_options(options)
        _configure_libraries()
        check_outputs_and_device(options)
        module, _, name = function.partition(".")
        code: int = getattr(importlib.import_module(f"bench.cli.commands.{module}"), name)(options)
        return code

    if all(argument.default is not dataclasses.MISSING for argument in arguments_of(record)):
        command.__defaults__ = (record(),)  # the parser wants one where nothing must be typed
    command.__annotations__ = {"options": Annotated[record, Parameter(name="*")], "return": int}
    return command


def examples_of(command: str) -> str:
    """Return the examples of a command, or of the program if it is ""."""
    doc = inspect.getdoc(COMMANDS[command][0]) or "" if command else EXAMPLES
    return textwrap.dedent(doc.rpartition("Examples:\n")[2]).strip()


def _format_default(value: Any) -> str | None:
    """A default in ``--help``; None if the text says what happens without the option."""
    if value is None or value is False or value == () or value == "":
        return None
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _as_bench_error(error: CycloptsError) -> BenchError:
    """The parser's message as ours, with what to type next."""
    command = " ".join(getattr(error, "command_chain", None) or ())
    hint = f"python -m bench {command} --help" if command else "python -m bench --help"
    if isinstance(error, UnknownCommandError):
        hint = "python -m bench --help"
    if isinstance(error, MissingArgumentError) and command in COMMANDS:
        hint = usage_line(command, COMMANDS[command][0])
    return BenchError(shorten_words(str(error)), hint)


def _configure_libraries() -> None:
    """Settings that libraries read when they are imported."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)  # some libraries set their own loggers to DEBUG
    logging.basicConfig(format="%(levelname)s: %(message)s", handlers=[handler])
    logging.addLevelName(logging.WARNING, "warning")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_MININTERVAL", "10")  # a log file is not redrawn
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
