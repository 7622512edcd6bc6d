"""Parsers of typed words: numbers, units, paths, assignments, and checks before any work."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
import msgspec
from cyclopts import Parameter, Token

from bench.requests.fields import check_range
from foundation.errors import BenchError, import_package
from foundation.files import local_path
from foundation.machine import parse_size
from foundation.records import Record, convert_table
from retrievers.models.settings import CARD_FIELDS, Count, VectorSettings


@attrs.frozen
class OutputMark:
    """Mark of an option that names an output folder or file, which is tested before any work."""

    kind: Literal["folder", "file"]


def output_marks(kind: Any) -> Iterator[OutputMark]:
    """Yield each `OutputMark` of ``kind``, a type such as ``Annotated[Path, ...] | None``."""
    yield from (mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, OutputMark))
    for inner in get_args(kind) if get_origin(kind) in (Union, UnionType, Annotated) else ():
        yield from output_marks(inner)


def check_writable(location: Path, mark: OutputMark) -> None:
    """Raise if a location cannot be written, and leave nothing there.

    It writes an unnamed file, since permissions do not reveal a read-only or full disk.
    """
    folder = location.absolute() if mark.kind == "folder" else location.absolute().parent
    nearest = next(above for above in (folder, *folder.parents) if os.path.lexists(above))
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"\0")
    except OSError as error:
        why = f"{nearest}: {error.strerror}"
        raise BenchError(
            f"{location} cannot be written: {why}", "Choose another folder."
        ) from error
    if mark.kind == "file" and location.is_dir():
        raise BenchError(f"{location} cannot be written: it is a folder", "Name a file.")


def _parse_one(parse: Callable[[str], Any], metavar: str) -> Parameter:
    """Return the mark of an option with one value, which ``parse`` reads."""
    return Parameter(converter=lambda _, tokens: parse(tokens[0].value), metavar=metavar)


def _convert_each(read: Callable[[str], Any]) -> Callable[[Any, Sequence[Token]], Any]:
    """Return a converter for several words. Cyclopts hides errors of a tuple's members."""
    return lambda _, tokens: tuple(read(token.value) for token in tokens)


def parse_whole_number(text: str) -> int:
    """Parse ``text`` as a number of decimal digits without a sign."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError(f"{text} is not a whole number without a sign")
    return int(text)


def parse_workers(text: str) -> int:
    """Parse a number of workers. ``auto`` is 0."""
    if not re.fullmatch("auto|[1-9][0-9]{0,17}", text):
        raise ValueError(f"{text} is neither auto nor at least 1")
    return 0 if text == "auto" else int(text)


SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """Return the seconds of ``text``, a number with the unit ``s``, ``m`` or ``h``."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh]?)", text)
    seconds = float(match[1]) * SECONDS[match[2]] if match else 0
    if seconds <= 0:
        raise ValueError(f"{text} is not a time above 0, such as 30s, 5m or 1h")
    return seconds


def parse_device(text: str) -> str:
    """Return ``text`` if it is ``auto``, ``cpu``, ``cuda`` or ``cuda:N``."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", text):
        raise ValueError(f"{text} is not auto, cpu, cuda or cuda:N")
    return text


def parse_local_path(text: str) -> Path:
    """Parse ``text`` as a local path, and refuse "" (an unset shell variable)."""
    if not text:
        raise ValueError("an empty path: name a folder or file")
    return local_path(text)


def parse_figure(text: str) -> Path:
    """Parse ``text`` as the path of a figure, whose ending is its format."""
    path = parse_local_path(text)
    if path.suffix not in (".pdf", ".svg", ".png"):
        raise ValueError(f"{text} does not end in .pdf, .svg or .png")
    import_package("matplotlib", "--figure needs it", "Run `pip install 'retrieval-bench[plots]'`.")
    return path


WholeNumber = Annotated[int, _parse_one(parse_whole_number, "N")]  # requests check ranges
Duration = Annotated[float, _parse_one(parse_duration, "TIME")]
Size = Annotated[int, _parse_one(parse_size, "SIZE")]
Device = Annotated[str, _parse_one(parse_device, "DEVICE")]
WorkerNumber = Annotated[int, _parse_one(parse_workers, "auto|N")]
LocalPath = Annotated[Path, _parse_one(parse_local_path, "FOLDER")]
OutFolder = Annotated[LocalPath, OutputMark("folder")]
Figure = Annotated[Path, _parse_one(parse_figure, "FILE"), OutputMark("file")]
OutFile = Annotated[LocalPath, OutputMark("file"), Parameter(metavar="FILE")]
SeveralValues = Parameter(consume_multiple=1)  # values after one option, at least one: --on A B C
LocalPaths = Annotated[
    tuple[LocalPath, ...], Parameter(converter=_convert_each(parse_local_path)), SeveralValues
]
WholeNumbers = Annotated[
    tuple[WholeNumber, ...], Parameter(converter=_convert_each(parse_whole_number)), SeveralValues
]
FieldValues = Annotated[tuple[str, ...], Parameter(metavar="FIELD=VALUE...")]


def parse_assignments(typed: Sequence[str]) -> dict[str, Any]:
    """Parse words such as ``optimizer.warmup=0.2`` into a dictionary.

    Values are read as TOML. A value that is not valid TOML is a string.
    """
    overrides = {}
    for word in typed:
        name, sign, value = word.partition("=")
        if not (name and sign):
            raise BenchError(f"--set {word} is not FIELD=VALUE", "Write it like --set seed=1")
        try:
            overrides[name] = msgspec.toml.decode(f"value = {value}")["value"]
        except msgspec.DecodeError:
            overrides[name] = value
    return overrides


def read_card_settings(typed: dict[str, Any]) -> dict[str, Any]:
    """Replace ``set`` in the typed values of a command by the fields of the card."""
    given = parse_assignments(typed.pop("set"))
    kinds = get_type_hints(VectorSettings)
    counts = {int | None: Count | None}
    fields = [(name, counts.get(kinds[name], kinds[name]), None) for name in CARD_FIELDS]
    convert_table(given, msgspec.defstruct("CardFields", fields, bases=(Record,)), "--set")
    return typed | given


class SavingSettings(Record):
    """Field of a training that ``--set`` may set, although it is not in the preset."""

    save_every: Annotated[int, msgspec.Meta(ge=1)] | None = None


METHOD = "method."


def read_training_changes(typed: dict[str, Any]) -> dict[str, Any]:
    """Replace ``set`` and ``steps`` in the typed values by ``changes`` and other fields."""
    changes, steps = parse_assignments(typed.pop("set")), typed.pop("steps")
    if steps is not None:
        for length in changes.keys() & {"epochs", "tokens"}:
            raise BenchError(f"--steps and {length} both set the length", "Give one of them.")
        check_range("steps", steps)
        changes["steps"] = steps
    if "save_every" in changes:
        saving = {"save_every": changes.pop("save_every")}
        typed |= msgspec.structs.asdict(convert_table(saving, SavingSettings, "--set"))
    if "method" in typed:
        names = [name for name in changes if name.startswith(METHOD)]
        typed["method_settings"] = {name.removeprefix(METHOD): changes.pop(name) for name in names}
    return {**typed, "changes": changes}


def read_compared_models(typed: dict[str, Any]) -> dict[str, Any]:
    """Replace the names of the typed values by the fields of a `CompareRequest`."""
    names: tuple[str, ...] = typed.pop("names")
    if len(names) < 2:
        raise BenchError(
            "compare needs two models or more", "Run `python -m bench compare minilm bm25`."
        )
    return {**typed, "a": names[0], "b": names[1], "others": names[2:]}
