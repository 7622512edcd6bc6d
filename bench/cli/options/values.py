"""Values of options: how a typed text becomes a number, a place, a device or a duration."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token, validators

from bench.results.location import Place, place_of


@dataclass(frozen=True)
class Written:
    """Mark of an option that names what the command writes: it is checked before any work."""

    kind: Literal["folder", "file"]


def _reads(read: Callable[[str], Any]) -> Callable[[Any, Sequence[Token]], Any]:
    """A converter of cyclopts from a function of the one text that was typed."""
    return lambda _, tokens: read(tokens[0].value)


def _reads_each(read: Callable[[str], Any]) -> Callable[[Any, Sequence[Token]], Any]:
    """A converter for several texts: cyclopts leaves converters of a tuple's members aside."""
    return lambda _, tokens: tuple(read(token.value) for token in tokens)


def duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``5m`` or ``1.5h``.

    Raises:
        ValueError: it is none, or not above 0.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smh]?)", text)
    seconds = float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"] if match else 0.0
    if seconds <= 0:
        raise ValueError(f"{text} is no time like 90s, 5m or 1h")
    return seconds


def whole_number(text: str, least: int = 0) -> int:
    """A number in decimal digits, without a sign.

    Raises:
        ValueError: it is none, of more than 18 digits, or below ``least``.
    """
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
        raise ValueError(f"{text} is not {least} or more")
    return int(text)


def worker_number(text: str) -> int:
    """A number of workers; 0 for ``auto``.

    Raises:
        ValueError: any other text.
    """
    return 0 if text == "auto" else whole_number(text, least=1)


def number(text: str) -> float:
    """A finite number.

    Raises:
        ValueError: it is none.
    """
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def above_zero(text: str) -> float:
    """A finite number above 0.

    Raises:
        ValueError: it is none.
    """
    value = number(text)
    if value <= 0:
        raise ValueError(f"{text} is not a number above 0")
    return value


def device(text: str) -> str:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        ValueError: any other text.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", text):
        raise ValueError(f"{text} is not auto, cpu, cuda or cuda:N")
    return text


def local_path(text: str) -> Path:
    """A path.

    Raises:
        ValueError: it is empty, which would be the working folder where ``$DIR`` is not set.
    """
    if not text:
        raise ValueError("an empty path: name a folder or file")
    return Path(text)


def place(text: str) -> Place:
    """A path, or the URL of an object store.

    Raises:
        ValueError: it is empty.
        BenchError: a URL that names no store.
    """
    local_path(text)
    return place_of(text)


def _at_least(least: float) -> validators.Number:
    return validators.Number(gte=least)


_FINITE = Parameter(converter=_reads(number))
Count = Annotated[int, Parameter(converter=_reads(whole_number))]
Positive = Annotated[int, Parameter(converter=_reads(partial(whole_number, least=1)))]
Share = Annotated[float, _FINITE, Parameter(validator=validators.Number(gte=0, lte=1))]
Rate = Annotated[float, Parameter(converter=_reads(above_zero))]
Weight = Annotated[float, _FINITE]
Duration = Annotated[float, Parameter(converter=_reads(duration), metavar="TIME")]
Device = Annotated[str, Parameter(converter=_reads(device))]
WorkerNumber = Annotated[int, Parameter(converter=_reads(worker_number), metavar="auto|N")]
LocalPath = Annotated[Path, Parameter(converter=_reads(local_path))]
OutFolder = Annotated[LocalPath, Written("folder")]
OutFile = Annotated[LocalPath, Written("file")]
PlaceOption = Annotated[
    Place, Parameter(converter=_reads(place), accepts_keys=False, metavar="FOLDER|URL")
]
OutPlace = Annotated[PlaceOption, Written("folder")]
ResultPlaces = Annotated[
    tuple[Place, ...], Parameter(converter=_reads_each(place), accepts_keys=False)
]
LocalPaths = Annotated[tuple[Path, ...], Parameter(converter=_reads_each(local_path))]
Counts = Annotated[tuple[int, ...], Parameter(converter=_reads_each(whole_number))]
Weights = Annotated[tuple[float, ...], Parameter(converter=_reads_each(number))]
Several = Parameter(consume_multiple=True)  # values after one option: --on A B C
Names = Annotated[tuple[str, ...], Several]
