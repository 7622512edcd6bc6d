"""Types of option values, shared groups of options, and checks before any work.

A record of options is flat on the command line: `arguments_of` yields the fields of groups, too.
"""

import dataclasses
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter, Token, validators

from foundation.errors import BenchError
from foundation.locations import Location, RemotePath, parse_location
from retrievers.models.recipe import ModelDtype

# Options that need a value of another option: {"weights": {"how": "average"}} refuses --weights if
# HOW is not "average". True means that the other option is given, False that it is not.
OptionConditions = Mapping[str, Mapping[str, Any]]


def group(title: str, sort_key: int) -> Parameter:
    """Return the mark of a record of options for the section ``title`` of ``--help``.

    It decorates the record, or stands in `Annotated` of a field. ``sort_key`` orders the sections.
    """
    return Parameter(name="*", group=Group(title, sort_key=sort_key))


def in_group(title: str, sort_key: int) -> Parameter:
    """Return the mark of one option for the section ``title`` of ``--help``. ``sort_key`` orders sections."""
    return Parameter(group=Group(title, sort_key=sort_key))


@dataclass(frozen=True)
class Argument:
    """Option or positional argument of a command.

    Attributes:
        name: name of the field.
        kind: type of the field with its marks.
        positional: whether it is typed without a name.
        default: default value; MISSING if it is required.
        value: typed value, or the default.
    """

    name: str
    kind: Any
    positional: bool
    default: Any
    value: Any

    @property
    def required(self) -> bool:
        """True if it has no default."""
        return self.default is dataclasses.MISSING

    @property
    def takes_several(self) -> bool:
        """True if it takes several values."""
        return "tuple[" in str(self.kind)

    @property
    def typed_name(self) -> str:
        """Name as in ``--help``."""
        return self.name.upper() if self.positional else f"--{self.name.replace('_', '-')}"


def arguments_of(record: Any, positional: bool = True) -> Iterator[Argument]:
    """Yield the options and positional arguments of ``record``, including its groups.

    Args:
        record: class of options, or an instance with typed values.
        positional: whether fields before ``KW_ONLY`` are positional arguments.
    """
    cls = record if isinstance(record, type) else type(record)
    kind_of = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(record):
        kind = kind_of[field.name]
        plain = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
        value = field.default if isinstance(record, type) else getattr(record, field.name)
        first = positional and not field.kw_only
        if dataclasses.is_dataclass(plain):
            yield from arguments_of(value, first)
        else:
            yield Argument(field.name, kind, first, field.default, value)


def refuse_ignored_options(options: Any, words: Sequence[str]) -> None:
    """Refuse an option that was typed and would be ignored, by the conditions of its record.

    Args:
        options: record of options of a command, which may declare conditions as ``only_if``.
        words: the command line. It shows an option that was typed with the value of its default.

    Raises:
        BenchError: an option has no effect with the values of the others.
    """
    only_if: OptionConditions = getattr(options, "only_if", {})
    arguments = {argument.name: argument for argument in arguments_of(options)}
    typed = {word.partition("=")[0] for word in words}
    for name, conditions in only_if.items():
        option = arguments[name].typed_name
        for other, needed in conditions.items() if option in typed else ():
            if not _is_satisfied(arguments[other], needed):
                raise BenchError(
                    f"{option} has no effect without "
                    f"{_describe_condition(arguments[other], needed)}"
                    if needed is not False
                    else f"{option} has no effect with {arguments[other].typed_name}",
                    f"leave {option} out",
                )


def _is_satisfied(argument: Argument, needed: Any) -> bool:
    """Return True if a condition on an argument holds."""
    if isinstance(needed, bool):
        return bool(argument.value != argument.default) == needed
    values = argument.value if isinstance(argument.value, tuple) else (argument.value,)
    return any(value in _as_tuple(needed) for value in values)


def _describe_condition(argument: Argument, needed: Any) -> str:
    """Return the condition as it is typed."""
    if isinstance(needed, bool):
        return argument.typed_name
    values = " or ".join(map(str, _as_tuple(needed)))
    return values if argument.positional else f"{argument.typed_name} {values}"


def _as_tuple(value: Any) -> tuple[Any, ...]:
    """Return a tuple as it is, and any other value in a tuple."""
    return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True)
class OutputMark:
    """Mark of an option that names an output, which is tested before any work.

    Attributes:
        kind: whether the command writes a folder or a file.
    """

    kind: Literal["folder", "file"]


def check_outputs(options: Any) -> None:
    """Check that each output of ``options`` can be written and that the device exists.

    Raises:
        BenchError: an output cannot be written, or there is no such device.
    """
    for argument in arguments_of(options):
        for mark in output_marks(argument.kind) if argument.value is not None else ():
            _check_writable(argument.value, mark)
        if argument.name == "device" and argument.value.startswith("cuda"):
            from retrievers.encoders.device import pick_device

            pick_device(argument.value)


def output_marks(kind: Any) -> Iterator[OutputMark]:
    """Yield each `OutputMark` of ``kind``, a type such as ``Annotated[Path, ...] | None``."""
    yield from (mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, OutputMark))
    for inner in get_args(kind) if get_origin(kind) in (Union, UnionType) else ():
        yield from output_marks(inner)


def _check_writable(location: Location, mark: OutputMark) -> None:
    """Raise if a location cannot be written, and leave nothing there.

    It writes an unnamed file, since permissions do not reveal a read-only or full disk.
    """
    if isinstance(location, RemotePath):
        location.check_writable()
        return
    folder = location.absolute() if mark.kind == "folder" else location.absolute().parent
    nearest = next(above for above in (folder, *folder.parents) if os.path.lexists(above))
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"\0")
    except OSError as error:
        why = f"{nearest}: {error.strerror}"
        raise BenchError(f"{location} cannot be written: {why}", "choose another folder") from error
    if mark.kind == "file" and location.is_dir():
        raise BenchError(f"{location} cannot be written: it is a folder", "name a file")


def _parse_one(parse: Callable[[str], Any], metavar: str) -> Parameter:
    """Return the mark of an option with one value, which ``parse`` reads."""
    return Parameter(converter=lambda _, tokens: parse(tokens[0].value), metavar=metavar)


def _convert_each(read: Callable[[str], Any]) -> Callable[[Any, Sequence[Token]], Any]:
    """Return a converter for several words. Cyclopts ignores converters of a tuple's members."""
    return lambda _, tokens: tuple(read(token.value) for token in tokens)


def parse_whole_number(text: str, least: int = 0) -> int:
    """Parse ``text`` as a number of decimal digits without a sign.

    Raises:
        ValueError: it is not such a number, has more than 18 digits, or is below ``least``.
    """
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
        raise ValueError(f"{text} is not {least} or more")
    return int(text)


def parse_worker_number(text: str) -> int:
    """Parse ``text`` as a number of workers, where ``auto`` is 0.

    Raises:
        ValueError: ``text`` is neither ``auto`` nor a number from 1.
    """
    return 0 if text == "auto" else parse_whole_number(text, least=1)


def parse_number(text: str) -> float:
    """Parse ``text`` as a finite number.

    Raises:
        ValueError: ``text`` is not a number, or infinite or NaN.
    """
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """Return the seconds of ``text``, a number with the unit ``s``, ``m`` or ``h`` (default: seconds).

    Raises:
        ValueError: ``text`` is not such a number, or not above 0.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh]?)", text)
    seconds = float(match[1]) * UNITS[match[2]] if match else 0
    if seconds <= 0:
        raise ValueError(f"{text} is not a time above 0, such as 30s, 5m or 1h")
    return seconds


def device(text: str) -> str:
    """Return ``text`` if it is ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        ValueError: any other text.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", text):
        raise ValueError(f"{text} is not auto, cpu, cuda or cuda:N")
    return text


def parse_local_path(text: str) -> Path:
    """Parse ``text`` as a local path.

    Raises:
        ValueError: it is empty (as "$DIR" is if DIR is not set), or it is a URL.
    """
    if not text:
        raise ValueError("an empty path: name a folder or file")
    if "://" in text:
        raise ValueError(f"{text} is a URL: name a folder or file")
    return Path(text)


def parse_path_or_url(text: str) -> Location:
    """Parse ``text`` as a path, or as the URL of an object store.

    Raises:
        ValueError: it is empty.
        BenchError: the URL does not name a store.
    """
    return parse_location(text) if ":/" in text else parse_local_path(text)


NonNegativeInt = Annotated[int, _parse_one(parse_whole_number, "N")]
PositiveInt = Annotated[int, _parse_one(partial(parse_whole_number, least=1), "N")]
Duration = Annotated[float, _parse_one(parse_duration, "TIME")]
Device = Annotated[str, _parse_one(device, "DEVICE")]
WorkerNumber = Annotated[int, _parse_one(parse_worker_number, "auto|N")]
LocalPath = Annotated[Path, _parse_one(parse_local_path, "FOLDER")]
OutFolder = Annotated[LocalPath, OutputMark("folder")]
OutFile = Annotated[LocalPath, OutputMark("file"), Parameter(metavar="FILE")]
LocationOption = Annotated[
    Location, _parse_one(parse_path_or_url, "FOLDER|URL"), Parameter(accepts_keys=False)
]
OutLocation = Annotated[LocationOption, OutputMark("folder")]
ResultLocations = Annotated[
    tuple[Location, ...],
    Parameter(
        converter=_convert_each(parse_path_or_url),
        accepts_keys=False,
        consume_multiple=1,
        metavar="FOLDER|URL...",
    ),
]
LocalPaths = Annotated[tuple[Path, ...], Parameter(converter=_convert_each(parse_local_path))]
NonNegativeInts = Annotated[tuple[int, ...], Parameter(converter=_convert_each(parse_whole_number))]
Numbers = Annotated[tuple[float, ...], Parameter(converter=_convert_each(parse_number))]
SeveralValues = Parameter(consume_multiple=1)  # values after one option, at least one: --on A B C
Names = Annotated[tuple[str, ...], SeveralValues]
FieldValues = Annotated[tuple[str, ...], Parameter(name="--set", metavar="FIELD=VALUE")]


@group("Folders and output", 90)
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Format of the output.

    Attributes:
        json: Print one JSON document.
    """

    json: bool = False


@group("Folders and output", 90)
@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """Folders of collections and of the cache, and the format of the output.

    Attributes:
        data_dir: Folder of collections. Default: $BENCH_DATA, or a download.
        cache_dir: Folder of downloads, corpora and vectors. Default: $BENCH_CACHE, or the user's
            cache folder.
        json: Print one JSON document.
    """

    data_dir: LocalPath | None = None
    cache_dir: LocalPath | None = None
    json: bool = False


@group("Model settings", 20)
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Settings that override the card of a model.

    Attributes:
        like: Card whose pooling, prompts and lengths a plain checkpoint uses (see `list
            models`). Models with a card of their own are not affected.
        endpoint_model: Name of the model on a server, if --model is a URL such as
            http://localhost:8000/v1. The key of the server comes from $BENCH_API_KEY.
        adapter: Folder of an AdapterHub or PEFT adapter to attach.
        dtype: Precision of weights and activations; int8 is a faster back end for the CPU.
            Results are kept separately. Default: the card's.
        set: Override a field of the card; repeatable. Fields: max_query_tokens and
            max_document_tokens (truncation length), query_prompt (prefix of every query),
            store_dtype (float16 halves the disk space of vectors; results are kept
            separately).
        trust_code: Allow a card to run encoder code of a third party.
    """

    like: str | None = None
    endpoint_model: str | None = None
    adapter: str | None = None
    dtype: ModelDtype | None = None
    set: FieldValues = ()
    trust_code: bool = False


@group("Hardware and workers", 80)
@dataclass(frozen=True, kw_only=True)
class HardwareOptions:
    """Device and memory of a model.

    Attributes:
        device: Device to encode on: auto, cpu, cuda or cuda:N.
        max_memory: Memory limit of this process, such as 1.5GB. Default: 80 % of the free
            memory.
    """

    device: Device = "auto"
    max_memory: Annotated[str | None, Parameter(metavar="SIZE")] = None


@group("Hardware and workers", 80)
@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Worker processes, on this machine or on a Ray cluster.

    Attributes:
        workers: Encode in N processes that share the CPUs and GPUs of this machine, or in N
            tasks on a Ray cluster. auto: one per GPU, or per eight CPUs. Default: 1.
        engine: ray encodes on a Ray cluster. Default: this machine.
        address: Address of the Ray cluster, or auto for the cluster this machine belongs to.
            Default: a new cluster on this machine.
    """

    workers: WorkerNumber | None = None
    engine: Literal["ray"] | None = None
    address: str | None = None


@group("Protocol", 40)
@dataclass(frozen=True, kw_only=True)
class ProtocolOptions:
    """Depth and split of an evaluation.

    Attributes:
        depth: Documents retrieved per query. Default: the collection's, usually 1,000.
        split: Split whose judgements are used. Default: the collection's.
        allow_mismatch: Continue even if the collection differs from the published one. The
            result is marked.
    """

    depth: PositiveInt | None = None
    split: str | None = None
    allow_mismatch: bool = False


@group("Intervals and p-values", 60)
@dataclass(frozen=True, kw_only=True)
class ResamplingOptions:
    """Resampling for intervals and p-values.

    Attributes:
        resamples: Resamples of the queries, at most 1,000,000.
    """

    resamples: Annotated[PositiveInt, Parameter(validator=validators.Number(lte=1_000_000))] = 9_999
