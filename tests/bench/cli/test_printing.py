"""What several commands print."""

import pytest

from bench.cli.terminal import columns, print_next


def test_rows_of_text_stand_in_columns_as_they_are():
    table = columns([("a", "1e3"), ("long/name", "x | y"), ("b", "")])
    assert table.splitlines() == ["a          1e3", "long/name  x | y", "b"]


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("/env/bin/bench", "bench"),
        ("/site/bench/__main__.py", "python -m bench"),
        ("pytest", "python -m bench"),
    ],
)
def test_the_next_command_is_shown_as_the_program_was_called(monkeypatch, capsys, called, name):
    monkeypatch.setattr("sys.argv", [called, "pretrain"])
    print_next("evaluate it", "python -m bench run stdlib-code --model out")
    assert capsys.readouterr().out == f"evaluate it: {name} run stdlib-code --model out\n"
