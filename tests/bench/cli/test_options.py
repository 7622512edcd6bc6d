"""Options by composition: what a record says is what can be typed."""

import re
import shlex
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

import pytest
from cyclopts import App, Parameter

from bench.cli.main import (
    COMMANDS,
    build_app,
    count_arguments,
    examples_of,
    run_command,
    usage_line,
)
from bench.cli.options.shared import (
    Names,
    OptionConditions,
    arguments_of,
    group,
    parse_duration,
    refuse_ignored_options,
)
from foundation.errors import BenchError


@dataclass(frozen=True)
class Terms:
    """Settings of some package, which knows nothing of the command line.

    Attributes:
        rule: how to decide.
        margin: what is accepted.
    """

    rule: str = "loss"
    margin: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.margin <= 1:
            raise BenchError(f"a margin of {self.margin} is no share", "--margin 0.01")


@dataclass(frozen=True)
class DecideOptions:
    """Decide."""

    only_if: ClassVar[OptionConditions] = {"margin": {"rule": "margin"}, "quick": {"on": True}}

    names: tuple[str, ...]
    _: KW_ONLY
    on: Names = ()
    quick: bool = False
    terms: Annotated[Terms, group("Rule", 1)] = Terms()


def parsed(*words: str) -> Any:
    build_app = App(result_action="return_value", exit_on_error=False)

    def command(options: Any) -> Any:
        refuse_ignored_options(options, words)
        return options

    command.__annotations__ = {"options": Annotated[DecideOptions, Parameter(name="*")]}
    build_app.default(command)
    return build_app(words)


def test_settings_of_another_package_are_options() -> None:
    options = parsed("a", "b", "--rule", "margin", "--margin", "0.2", "--on", "x", "y")
    assert options == DecideOptions(("a", "b"), on=("x", "y"), terms=Terms("margin", 0.2))
    assert [slot.typed_name for slot in arguments_of(DecideOptions)] == [
        "NAMES",
        "--on",
        "--quick",
        "--rule",
        "--margin",
    ]
    assert usage_line("decide", DecideOptions).endswith("decide NAMES... [OPTIONS]")
    with pytest.raises(BenchError, match="is no share"):
        parsed("a", "--rule", "margin", "--margin", "2")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["a", "--margin", "0.2"], "--margin has no effect without --rule margin"),
        (["a", "--margin", "0.01"], "--rule margin"),
        (["a", "--margin=0.01"], "--rule margin"),
        (["a", "--quick"], "--quick has no effect without --on"),
    ],
)
def test_what_would_be_ignored_is_refused(words: list[str], named: str) -> None:
    with pytest.raises(BenchError, match=named):
        parsed(*words)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_record_names_each_option_once_and_conditions_of_options_it_has(name: str) -> None:
    record = COMMANDS[name][0]
    names = [slot.name for slot in arguments_of(record)]
    assert len(set(names)) == len(names) == count_arguments()[name]
    only_if: OptionConditions = getattr(record, "only_if", {})
    assert {*only_if, *(other for needs in only_if.values() for other in needs)} <= {*names}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_on_two_screens_and_shows_defaults_as_people_write_them(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    run_command([name, "--help"])
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 100
    assert not re.search(r"\[default: ([0-9]+\.0|[0-9]{4,})\]", shown)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("30s", 30), ("1.5h", 5400)])
def test_a_duration_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_that_can_be_copied_and_typed(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is wrapped, however narrow the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    run_command([name, "--help"])
    shown = capsys.readouterr().out.partition("Examples:\n\n")[2]
    assert [line.strip() for line in shown.strip().splitlines()] == examples_of(name).splitlines()
    for line in examples_of(name).splitlines():
        command = line.rpartition("-m bench ")[2].partition("'" if "--wrap" in line else " > ")[0]
        build_app().parse_args(shlex.split(command), exit_on_error=False, print_error=False)
