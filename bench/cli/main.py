"""Parser of the command line.

`bench.cli.command_table` declares the commands. A command is imported when it is run, so that
``--help`` and ``list`` are fast. Tables go to stdout; progress, warnings and errors go to stderr.
"""

import dataclasses
import importlib
import inspect
import logging
import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.exceptions import MissingArgumentError, UnknownCommandError, UnusedCliTokensError
from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel

from bench.cli.command_table import (
    COMMANDS,
    Command,
    OutputOptions,
    is_positional,
    is_required,
    typed_name,
)
from bench.cli.parsing import check_writable, output_marks
from bench.cli.terminal import as_typed, program_name, reserve_stdout
from bench.requests.fields import Request
from foundation.errors import BenchError

SETTING = re.compile(r"[A-Za-z_][\w.]*=")
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


@dataclasses.dataclass(frozen=True)
class ParsedCommand:
    """A command line as a request, options of the terminal, and all typed values and defaults."""

    command: Command
    request: Request
    output: OutputOptions
    values: Mapping[str, Any]


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Parse and run one command, and return its exit code."""
    parsed = parse_command(list(sys.argv[1:] if arguments is None else arguments))
    if parsed is None:  # only help was asked for
        return 0
    _configure_libraries()
    check_outputs(parsed.command, {**parsed.values, **vars(parsed.output)})
    module, _, function = parsed.command.function.partition(".")
    with reserve_stdout(parsed.output.json or parsed.output.format != "markdown"):
        run = getattr(importlib.import_module(f"bench.cli.commands.{module}"), function)
        code: int = run(parsed.request, parsed.output)
    return code


def parse_command(words: Sequence[str]) -> ParsedCommand | None:
    """Parse a command line, or print help and return None."""
    for word in words:
        word.encode()  # Python decodes invalid bytes to surrogates, which no record can hold
    words = repeat_settings(words)
    try:
        parsed: ParsedCommand | None = build_app(words)(words)
    except CycloptsError as error:
        raise _as_bench_error(error) from error
    return parsed


def repeat_settings(words: Sequence[str]) -> list[str]:
    """Return ``words`` with ``--set`` before each setting, as in ``--set seed=1 batch_size=8``."""
    repeated, after_setting = list[str](), False
    for word in words:
        if after_setting and SETTING.match(word):
            if Path(word).exists():
                problem = f"{word} after --set may be a setting or the path of that name"
                raise BenchError(problem, f"Type --set {word}, or ./{word}.")
            repeated.append("--set")
        after_setting = repeated[-1:] == ["--set"] or word.startswith("--set=")
        repeated.append(word)
    return repeated


def build_app(words: Sequence[str]) -> App:
    """Return the application with the options of the command in ``words``, the command line."""
    from bench import __version__

    top = AppWithExamples(
        name=program_name(),
        help="Evaluate dense retrievers: from a checkpoint to scores that can be trusted.",
        help_format="plaintext",
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
    # A command that is named first needs none of the others.
    first = [name for name in words[:1] if name in COMMANDS]
    for name in first or COMMANDS:
        command, is_typed = COMMANDS[name], name in words
        top.command(
            _make_function(name, command, words) if is_typed else lambda: None,
            name=name,
            group=command.group,
            usage=f"Usage: {usage_line(name)}" if is_typed else None,
            help=command.about,
        )
    return top


def _make_function(name: str, command: Command, words: Sequence[str]) -> Any:
    """Return a function with the options of a command, which imports the command when called."""
    options = command.options

    def function(*positional: Any, **named: Any) -> ParsedCommand:
        typed = options.bind(*positional, **named)
        typed.apply_defaults()
        values = dict(typed.arguments)
        refuse_ignored_options(command, options.parameters, values, words)
        output = OutputOptions(**{name: values.pop(name) for name in command.output})
        fields = command.to_fields(dict(values)) if command.to_fields else values
        given = {name: value for name, value in fields.items() if value is not None}
        return ParsedCommand(command, command.request(**given), output, values)

    function.__signature__ = options  # type: ignore[attr-defined]
    return function


def refuse_ignored_options(
    command: Command,
    options: Mapping[str, inspect.Parameter],
    values: Mapping[str, Any],
    words: Sequence[str],
) -> None:
    """Raise if an option was typed and would be ignored, by the conditions of its command.

    The command line in ``words`` shows an option that was typed with the value of its default.
    """
    typed = {word.partition("=")[0] for word in words}
    for name, conditions in command.only_if.items():
        option = typed_name(options[name])
        for other, needed in conditions.items() if option in typed else ():
            value, condition = values[other], typed_name(options[other])
            if isinstance(needed, bool):
                satisfied = (value != options[other].default) == needed
            else:
                satisfied = needed in (value if isinstance(value, tuple) else (value,))
                condition = needed if is_positional(options[other]) else f"{condition} {needed}"
            if not satisfied:
                link = "with" if needed is False else "without"
                problem = f"{option} has no effect {link} {condition}"
                raise BenchError(problem, f"Leave {option} out.")


def check_outputs(command: Command, values: Mapping[str, Any]) -> None:
    """Check that each output in ``values`` can be written and that the device exists."""
    for name, option in command.options.parameters.items():
        value = values.get(name)
        if value is None:
            continue
        for mark in output_marks(option.annotation):
            check_writable(value, mark)
        if name == "device" and value.startswith("cuda"):
            from retrievers.encoders.device import pick_device

            pick_device(value)


def usage_line(name: str) -> str:
    """Return the command ``name`` with its arguments, in an order that works."""
    options = COMMANDS[name].options.parameters.values()
    words = [_placeholder(each) for each in options if is_positional(each) or is_required(each)]
    return " ".join((program_name(), name, *words, "[OPTIONS]"))


def _placeholder(option: inspect.Parameter) -> str:
    """Return the placeholder of an argument in the usage line."""
    kind, *_ = get_args(option.annotation)
    word = option.name.upper() + ("..." if "tuple[" in str(kind) else "")
    word = word if is_positional(option) else f"{typed_name(option)} {word}"
    return word if is_required(option) else f"[{word}]"


def examples_of(name: str) -> str:
    """Return the examples of a command, or of the program if it is ""."""
    return COMMANDS[name].examples if name else EXAMPLES


def format_default(value: Any) -> str | None:
    """Return the default ``value`` as people write it, or None if the help states it."""
    if value is None or value is False or value == () or value == "":
        return None
    if isinstance(value, int) and value is not True:
        return f"{value:,}"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _as_bench_error(error: CycloptsError) -> BenchError:
    """Convert an error of the parser, with the command to type next as a hint."""
    name = " ".join(getattr(error, "command_chain", None) or ())
    known = name and not isinstance(error, UnknownCommandError)
    hint = f"Run `python -m bench {name} --help`." if known else "Run `python -m bench --help`."
    if isinstance(error, MissingArgumentError) and error.argument and name in COMMANDS:
        option = COMMANDS[name].options.parameters[error.argument.field_info.name]
        return BenchError(f"{name} needs {typed_name(option)}", f"Run `{usage_line(name)}`.")
    if isinstance(error, UnusedCliTokensError) and name in COMMANDS:
        problem = f"{name} takes no further argument: {' '.join(error.unused_tokens or ())}"
        return BenchError(problem, f"Run `{usage_line(name)}`.")
    return BenchError(str(error), hint)


def _configure_libraries() -> None:
    """Configure logging and the environment before libraries are imported."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)  # some libraries set their own loggers to DEBUG
    logging.basicConfig(format="%(levelname)s: %(message)s", handlers=[handler])
    logging.addLevelName(logging.WARNING, "warning")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_MININTERVAL", "10")  # a log file is not redrawn
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
