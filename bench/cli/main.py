"""Parser of the command line.

The records of `bench.cli.options` declare arguments and options. A command is imported when it is
run, so that ``--help`` and ``list`` are fast. Tables go to stdout; progress, warnings and errors go
to stderr.
"""

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
from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel

from bench.cli.options import commands
from bench.cli.options.shared import Argument, arguments_of, check_outputs, refuse_ignored_options
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
    "run": (commands.RunOptions, EVALUATE, "run.run"),
    "work": (commands.WorkOptions, EVALUATE, "run.work"),
    "index": (commands.IndexOptions, EVALUATE, "run.index"),
    "score": (commands.ScoreOptions, EVALUATE, "run.score"),
    "speed": (commands.SpeedOptions, EVALUATE, "speed.speed"),
    "compare": (commands.CompareOptions, DECIDE, "compare.compare"),
    "check": (commands.CheckOptions, DECIDE, "check.check"),
    "explain": (commands.ExplainOptions, DECIDE, "explain.explain"),
    "leaderboard": (commands.LeaderboardOptions, DECIDE, "compare.leaderboard"),
    "pretrain": (commands.PretrainOptions, TRAIN, "training.pretrain"),
    "finetune": (commands.FinetuneOptions, TRAIN, "training.finetune"),
    "adapt": (commands.AdaptOptions, TRAIN, "training.adapt"),
    "compose": (commands.ComposeOptions, TRAIN, "training.compose"),
    "ablate": (commands.AblateOptions, STUDY, "ablate.ablate"),
    "watch": (commands.WatchOptions, STUDY, "watch.watch"),
    "list": (commands.ListOptions, DATA, "names.list_names"),
    "show": (commands.ShowOptions, DATA, "names.show"),
    "fetch": (commands.FetchOptions, DATA, "data.fetch"),
    "verify": (commands.VerifyOptions, DATA, "data.verify"),
    "cache": (commands.CacheOptions, DATA, "data.cache"),
    "export": (commands.ExportOptions, DATA, "export.export"),
}

EXAMPLES = """\
    python -m bench run stdlib-code --model minilm            the embedded default, no download
    python -m bench run beir --model retromae                 the 14 public sets and their mean
    python -m bench run beir/scifact --model path/to/checkpoint --like retromae
    python -m bench check path/to/checkpoint --like retromae --baseline retromae
    python -m bench list models"""


class AppWithExamples(App):
    """Application whose ``--help`` ends with examples, unwrapped so that they can be copied."""

    def help_print(self, tokens: Any = None, *, console: Any = None) -> None:
        """Print the help of the command in ``tokens`` to ``console``, then its examples."""
        super().help_print(tokens, console=console)
        command = "".join(self.parse_commands(tokens)[0])
        print(f"\nExamples:\n\n{textwrap.indent(as_typed(examples_of(command)), '  ')}")


class ArgumentFormatter(DefaultFormatter):
    """Formatter of ``--help`` with plain names: ``NAMES`` and ``--split SPLIT``."""

    def __call__(self, console: Any, options: Any, panel: HelpPanel) -> None:
        """Print ``panel`` to ``console`` with the width in ``options``."""
        super().__call__(console, options, panel.copy(entries=list(map(_plain, panel.entries))))


def _plain(entry: HelpEntry) -> HelpEntry:
    """Return the help of an argument with its own name instead of ``STR``."""
    if entry.positional_label:
        return entry.copy(positive_names=())
    name = entry.names[0].lstrip("-").upper() if entry.names else ""
    return entry.copy(metavar=entry.metavar and entry.metavar.replace("STR", name))


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Parse and run one command, and return its exit code.

    Args:
        arguments: words after the name of the program. Default: ``sys.argv[1:]``.

    Raises:
        BenchError: an unknown command or option, or an invalid value.
        UnicodeEncodeError: a word is not in the encoding of the locale.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    for word in words:
        word.encode()  # Python decodes invalid bytes to surrogates, which no record can hold
    try:
        code = build_app(words)(words)
    except CycloptsError as error:
        raise _as_bench_error(error) from error
    return int(code or 0)


def build_app(words: Sequence[str] = ()) -> App:
    """Return the application with all commands and their options.

    Args:
        words: the command line, which shows what was typed with the value of its default.
    """
    from bench import __version__

    top = AppWithExamples(
        name=program_name(),
        help="Evaluate dense retrievers: from a checkpoint to scores that can be trusted.",
        help_format="markdown",
        help_formatter=ArgumentFormatter(),
        group_parameters=Group("Arguments and options", sort_key=0),
        group_arguments=Group("Arguments and options", sort_key=0),
        version=__version__,
        default_parameter=Parameter(negative=(), show_default=format_default, allow_repeating=True),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    for name, (record, group, function) in COMMANDS.items():
        description = (inspect.getdoc(record) or "").partition("Attributes:")[0]
        top.command(
            _make_command(record, function, words),
            name=name,
            group=group,
            usage=f"Usage: {usage_line(name, record)}",
            help=description,
        )
    return top


def count_arguments() -> dict[str, int]:
    """Return the number of options and positional arguments of each command."""
    return {name: len(list(arguments_of(record))) for name, (record, *_) in COMMANDS.items()}


def usage_line(name: str, record: type[Any]) -> str:
    """Return the command ``name`` with the arguments of ``record``, in an order that works.

    Positional arguments come first: an option with several values would take them.
    """
    arguments = sorted(arguments_of(record), key=lambda argument: not argument.positional)
    words = [_placeholder(each) for each in arguments if each.positional or each.required]
    return " ".join((program_name(), name, *words, "[OPTIONS]"))


def _placeholder(argument: Argument) -> str:
    """Return the placeholder of an argument in the usage line."""
    word = argument.name.upper() + ("..." if argument.takes_several else "")
    word = word if argument.positional else f"{argument.typed_name} {word}"
    return word if argument.required else f"[{word}]"


def _make_command(record: type[Any], function: str, words: Sequence[str]) -> Any:
    """Return a function that takes a record of options and imports the command when called."""

    def command(options: Any) -> int:
        refuse_ignored_options(options, words)
        _configure_libraries()
        check_outputs(options)
        module, _, name = function.partition(".")
        code: int = getattr(importlib.import_module(f"bench.cli.commands.{module}"), name)(options)
        return code

    if not any(argument.required for argument in arguments_of(record)):
        command.__defaults__ = (record(),)  # the parser needs it if no argument is required
    command.__annotations__ = {"options": Annotated[record, Parameter(name="*")], "return": int}
    return command


def examples_of(command: str) -> str:
    """Return the examples of ``command``, or of the program if it is ""."""
    doc = inspect.getdoc(COMMANDS[command][0]) or "" if command else EXAMPLES
    return textwrap.dedent(doc.rpartition("Examples:\n")[2]).strip()


def format_default(value: Any) -> str | None:
    """Return the default ``value`` as people write it, or None if the help states it."""
    if value is None or value is False or value == () or value == "":
        return None
    if isinstance(value, int) and value is not True:
        return f"{value:,}"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _as_bench_error(error: CycloptsError) -> BenchError:
    """Convert an error of the parser, with the command to type next as a hint."""
    command = " ".join(getattr(error, "command_chain", None) or ())
    hint = f"python -m bench {command} --help" if command else "python -m bench --help"
    if isinstance(error, UnknownCommandError):
        hint = "python -m bench --help"
    if isinstance(error, MissingArgumentError) and error.argument and command in COMMANDS:
        missing, record = error.argument.name, COMMANDS[command][0]
        names = {f"--{each.name}": each.typed_name for each in arguments_of(record)}
        return BenchError(f"{command} needs {names[missing]}", usage_line(command, record))
    return BenchError(shorten_words(str(error)), hint)


def _configure_libraries() -> None:
    """Configure logging and the environment before libraries are imported."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)  # some libraries set their own loggers to DEBUG
    logging.basicConfig(format="%(levelname)s: %(message)s", handlers=[handler])
    logging.addLevelName(logging.WARNING, "warning")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_MININTERVAL", "10")  # a log file is not redrawn
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
