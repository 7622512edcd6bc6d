"""Hints of errors: the commands and options that they name exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from bench.cli.command_table import COMMANDS, typed_name

ROOT = Path(__file__).parents[3]
PACKAGES = ("bench", "datasets_cfg", "foundation", "reports", "retrievers")
OPTIONS = {
    name: {*map(typed_name, command.options.parameters.values())}
    for name, command in COMMANDS.items()
}
EVERY = set().union(*OPTIONS.values())
OF_OTHERS = {"--head", "--help"}  # options of other programs, and of all commands
# What several commands reach, `check` among them, which has the fewest options.
SHARED = (
    "bench/gate/",
    "bench/evaluation/encoding.py",
    "bench/runner/workspace.py",
    "foundation/",
    "retrievers/models/",
)
COMMAND = re.compile(r"(?:python -m bench|`bench) ([a-z]+)((?: [^`\n;]*)?)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def texts_of(node: ast.expr) -> Iterator[str]:
    """The strings that an expression may be, with X for every value in them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
        yield "".join(map(str, parts))
    elif isinstance(node, ast.IfExp):
        yield from texts_of(node.body)
        yield from texts_of(node.orelse)
    elif isinstance(node, ast.BinOp):
        yield from (left + right for left in texts_of(node.left) for right in texts_of(node.right))
    elif isinstance(node, ast.Call):
        yield from (text for argument in node.args for text in texts_of(argument))


@cache
def hints() -> list[tuple[str, str]]:
    """Place and text of each hint in the source."""
    return list(find_hints())


def find_hints() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                name, given = getattr(node, "func", None), []
                if isinstance(name, ast.Name) and name.id.endswith("Error"):
                    given = [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "hint")]
                elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "hint":
                    given = [node.value]
                for text in (text for argument in given for text in texts_of(argument)):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def wrong_names(place: str, hint: str) -> list[str]:
    """What a hint names that does not exist."""
    wrong, rest = [], hint
    for found in COMMAND.finditer(hint):
        command, words = found.groups()
        rest = rest.replace(found.group(), "")
        if command not in COMMANDS:
            wrong.append(f"{place}: no command {command}")
        else:
            options = {*OPTION.findall(words)} - OPTIONS[command] - {"--help"}
            wrong += [f"{place}: {command} has no option {option}" for option in options]
    known = OPTIONS["check"] if place.startswith(SHARED) else EVERY | OF_OTHERS
    return wrong + [f"{place}: no option {o}" for o in {*OPTION.findall(rest)} - known]


def test_every_command_and_option_in_a_hint_exists():
    assert len(hints()) > 200
    assert wrong_names(
        "bench/x.py:1", "`bench lst` or `bench run --dept 9`, or --no-such-option"
    ) == [
        "bench/x.py:1: no command lst",
        "bench/x.py:1: run has no option --dept",
        "bench/x.py:1: no option --no-such-option",
    ]
    assert [text for place, hint in hints() for text in wrong_names(place, hint)] == []


def test_hints_are_sentences_that_begin_with_a_capital_letter():
    assert [(place, hint) for place, hint in hints() if " " in hint and not hint[0].isupper()] == []
