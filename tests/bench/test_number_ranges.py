"""Every number of every request has a range, whichever door it comes by."""

import math
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import attrs
import pytest

from bench.cli.command_table import COMMANDS
from bench.requests.fields import MOST, RANGES, Request, check_range
from foundation.errors import BenchError

REQUESTS = {name: command.request for name, command in COMMANDS.items()}
REQUIRED: dict[Any, Any] = {str: "x", Path: Path("x"), Any: "x"}


def numbers(request: type[Request]) -> list[str]:
    kinds = get_type_hints(request)
    singles = {name: kind for name, kind in kinds.items() if get_origin(kind) is not tuple}
    found = {name: {int, float} & {kind, *get_args(kind)} for name, kind in singles.items()}
    return [each.name for each in attrs.fields(request) if found.get(each.name)]


CASES = [(command, name) for command, request in REQUESTS.items() for name in numbers(request)]


def make(command: str, **given: object) -> Request:
    request, kinds = REQUESTS[command], get_type_hints(REQUESTS[command])
    needed = [each for each in attrs.fields(request) if each.default is attrs.NOTHING]
    fields = {each.name: REQUIRED.get(kinds[each.name], ("x",)) for each in needed}
    literals = {name: get_args(kinds[name])[0] for name in fields if get_args(kinds[name])}
    fields |= {name: value for name, value in literals.items() if isinstance(value, str)}
    return request(**{**fields, **given})


@pytest.mark.parametrize(("command", "name"), CASES)
def test_a_number_outside_its_range_is_refused_by_name(command, name):
    least, most = RANGES.get(name, (1, MOST))
    kinds = get_type_hints(REQUESTS[command])[name]
    is_whole = int in {kinds, *get_args(kinds)}
    outside: list[float] = [-1, 2 * most]
    outside += [] if is_whole else [math.nan, math.inf, -math.inf]
    outside += [0] if least > 0 else []
    for value in outside:
        with pytest.raises(BenchError, match=f"--{name.replace('_', '-')} must be "):
            make(command, **{name: int(value) if is_whole else value})
    for value in (least, min(most, max(least, 5))):
        assert getattr(make(command, **{name: int(value) if is_whole else value}), name) == value


def test_numbers_are_found_in_most_commands():
    assert len({command for command, _ in CASES}) > 8
    assert {name for _, name in CASES} >= RANGES.keys()


def test_a_range_without_an_end_is_told_without_one():
    with pytest.raises(BenchError, match=r"^--depth must be at least 1, not 0$"):
        check_range("depth", 0)


def test_a_range_is_printed_as_people_write_numbers():
    with pytest.raises(BenchError, match=r"between 0\.000001 and 1,000,000,000, not 0$"):
        check_range("limit_ms", 0)
    with pytest.raises(BenchError, match=r"between 1 and 1,000,000, not 0$"):
        check_range("resamples", 0)
    with pytest.raises(BenchError, match=r"between 0 and 0\.2, not 1$"):
        check_range("floor", 1)
