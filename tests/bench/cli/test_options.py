"""The command line: words become the fields of a request."""

import shlex

import pytest

from bench.cli.command_table import COMMANDS
from bench.cli.main import examples_of, parse_command, run_command
from bench.cli.parsing import parse_duration
from bench.requests.training import AdaptRequest, PretrainRequest


def test_set_changes_the_preset_and_the_settings_of_the_method():
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
    "words",
    [
        ["mlm", "--set", "seed=1", "optimizer.lr=0.5"],
        ["--set", "seed=1", "optimizer.lr=0.5", "mlm"],
        ["--set=seed=1", "optimizer.lr=0.5", "mlm"],
        ["--set", "seed=1", "mlm", "--set", "optimizer.lr=0.5"],
    ],
)
def test_one_set_takes_several_settings_and_no_other_word(words):
    parsed = parse_command(["pretrain", *words, "--on", "x", "--out", "o"])
    assert parsed is not None
    assert parsed.request == PretrainRequest(
        *("mlm", "x", "o"), changes={"seed": 1, "optimizer.lr": 0.5}
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_conditions_are_about_existing_options(name):
    command = COMMANDS[name]
    names = command.options.parameters.keys()
    conditions = command.only_if
    assert {*conditions, *(other for needs in conditions.values() for other in needs)} <= names


@pytest.mark.parametrize("name", COMMANDS)
def test_the_description_of_each_option_is_whole_and_says_nothing_of_python_values(name):
    for option in COMMANDS[name].options.parameters.values():
        text = option.annotation.__metadata__[-1].help
        assert text.endswith(".")
        assert "in python" not in text.lower()


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("30s", 30), ("1.5h", 5400)])
def test_a_duration_is_read_with_its_unit(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_that_can_be_copied_and_typed(name, capsys, monkeypatch):
    """None is wrapped, however narrow the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    run_command([name, "--help"])
    shown = capsys.readouterr().out.partition("Examples:\n\n")[2]
    assert [line.strip() for line in shown.strip().splitlines()] == examples_of(name).splitlines()
    for line in examples_of(name).splitlines():
        command = line.rpartition("-m bench ")[2].partition("'" if "--wrap" in line else " > ")[0]
        if command:
            parse_command(shlex.split(command))
