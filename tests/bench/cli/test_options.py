"""The command line: words become the fields of a request."""

import shlex

import pytest

from bench.cli.command_table import COMMANDS
from bench.cli.main import examples_of, parse_command, run_command
from bench.cli.parsing import parse_duration
from bench.requests.deciding import CheckRequest, CompareRequest
from bench.requests.training import AdaptRequest
from foundation.errors import BenchError


def test_typed_words_become_the_fields_of_the_request() -> None:
    parsed = parse_command(["compare", "a", "b", "c", "--on", "x", "y", "--json"])
    assert parsed is not None
    assert parsed.request == CompareRequest("a", "b", others=("c",), on=("x", "y"))
    assert parsed.output.json


def test_set_changes_fields_of_the_card() -> None:
    words = ["--set", "max_query_tokens=32", "--set", "query_prompt=query: "]
    parsed = parse_command(["check", "a", "--baseline", "b", *words])
    assert parsed is not None
    assert parsed.request == CheckRequest("a", "b", max_query_tokens=32, query_prompt="query: ")


def test_set_changes_the_preset_and_the_settings_of_the_method() -> None:
    words = ["--set", "method.strength=2", "--set", "save_every=7", "--steps", "9"]
    parsed = parse_command(["adapt", "mlm", "--on", "x", "--out", "o", "--method", "ewc", *words])
    assert parsed is not None
    assert parsed.request == AdaptRequest(
        *("mlm", "x", "o"),
        method="ewc",
        method_settings={"strength": 2},
        changes={"steps": 9},
        save_every=7,
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("check a --baseline b --tolerance 0.001", "--tolerance has no effect without"),
        ("check a --baseline b --expect-same --margin 0.02", "no effect with --expect-same"),
        ("run a --model b --address c", "--address has no effect without --engine ray"),
        ("compare a b --split c", "--split has no effect without --dataset"),
        ("watch a --on b --once --stop-after 1h", "--stop-after has no effect with --once"),
    ],
)
def test_an_option_without_effect_is_refused(words: str, named: str) -> None:
    with pytest.raises(BenchError, match=named):
        parse_command(words.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_exists_once_and_conditions_are_about_existing_options(name: str) -> None:
    command = COMMANDS[name]
    names = [option.name for option in command.options()]
    assert len(set(names)) == len(names)
    conditions = command.only_if
    assert {*conditions, *(other for needs in conditions.values() for other in needs)} <= {*names}


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
        if command:
            parse_command(shlex.split(command))
