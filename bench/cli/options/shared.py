"""Types of option values, option groups shared by commands, and checks before any work.

A record of options is flat to whoever types: `arguments_of` goes through the groups inside it.
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
from retrievers.models.recipe import Dtype

# Options that another option must allow: {"weights": {"how": "average"}} refuses --weights where
# HOW is another; True is for "given", False for "not given".
OptionConditions = Mapping[str, Mapping[str, Any]]
NOT_GIVEN: tuple[object, ...] = (None, False, (), "")


def group(title: str, sort_key: int) -> Parameter:
    """A section of ``--help`` for the fields of one record: above it, or in `Annotated` of a field."""
    return Parameter(name="*", group=Group(title, sort_key=sort_key))


@dataclass(frozen=True)
class Argument:
    """An option or positional of a command.

    Attributes:
        name: as in the record.
        kind: its declared type with all marks.
        default: MISSING where it must be typed.
        value: what was typed, or the default.
    """

    name: str
    kind: Any
    positional: bool
    default: Any
    value: Any

    @property
    def takes_several(self) -> bool:
        """Whether it takes several values."""
        return "tuple[" in str(self.kind)

    @property
    def typed_name(self) -> str:
        """The name as in ``--help``."""
        return self.name.upper() if self.positional else f"--{self.name.replace('_', '-')}"


def arguments_of(record: Any, positional: bool = True) -> Iterator[Argument]:
    """Every option and positional of a record (a class, or one that was typed), groups included."""
    kind_of = get_type_hints(
        record if isinstance(record, type) else type(record), include_extras=True
    )
    for field in dataclasses.fields(record):
        kind = kind_of[field.name]
        plain = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
        value = field.default if isinstance(record, type) else getattr(record, field.name)
        first = positional and not field.kw_only
        if dataclasses.is_dataclass(plain):
            yield from arguments_of(value, first)
        else:
            yield Argument(field.name, kind, first, field.default, value)


def refuse_ignored_options(options: Any) -> None:
    """Refuse what was typed and would be ignored, as ``only`` of the record says.

    Raises:
        BenchError: an option that has no effect beside the others.
    """
    only_if: OptionConditions = getattr(options, "only_if", {})
    typed = {argument.name: argument for argument in arguments_of(options)}
    for name, conditions in only_if.items():
        argument = typed[name]
        for other, needed in conditions.items():
            if argument.value != argument.default and not _is_satisfied(typed[other].value, needed):
                raise BenchError(
                    f"{argument.typed_name} has no effect here: it is for {_describe_condition(typed[other], needed)}",
                    f"leave {argument.typed_name} out",
                )


def _is_satisfied(value: Any, needed: Any) -> bool:
    if isinstance(needed, bool):
        return (value not in NOT_GIVEN) == needed
    wanted = needed if isinstance(needed, tuple) else (needed,)
    return any(each in wanted for each in (value if isinstance(value, tuple) else (value,)))


def _describe_condition(other: Argument, needed: Any) -> str:
    if isinstance(needed, bool):
        return other.typed_name if needed else f"a command without {other.typed_name}"
    wanted = needed if isinstance(needed, tuple) else (needed,)
    return f"{other.typed_name} {' or '.join(map(str, wanted))}"


@dataclass(frozen=True)
class OutputMark:
    """Mark of an option that names what the command writes: it is checked before any work."""

    kind: Literal["folder", "file"]


def check_outputs_and_device(options: Any) -> None:
    """Check what the command writes, as its record marks it, and that its device is there.

    Raises:
        BenchError: a place cannot be written, or there is no such device.
    """
    for argument in arguments_of(options):
        for mark in output_marks(argument.kind) if argument.value is not None else ():
            _check_writable(argument.value, mark)
        if argument.name == "device" and argument.value.startswith("cuda"):
            from retrievers.encoders.device import pick_device

            pick_device(argument.value)


def output_marks(kind: Any) -> Iterator[OutputMark]:
    """`Written` of a type such as ``Annotated[Path, ...] | None``."""
    yield from (mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, OutputMark))
    for inner in get_args(kind) if get_origin(kind) in (Union, UnionType) else ():
        yield from output_marks(inner)


def _check_writable(location: Location, mark: OutputMark) -> None:
    """Raise if a location cannot be written, and leave nothing there.

    A file without a name is written: permissions alone do not tell of a read-only or full disk.
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
        raise BenchError(
            f"{location} cannot be written: {nearest}: {error.strerror}", "name another folder"
        ) from error
    if mark.kind == "file" and location.is_dir():
        raise BenchError(f"{location} cannot be written: it is a folder", "name a file")


def _convert_one(read: Callable[[str], Any]) -> Callable[[Any, Sequence[Token]], Any]:
    """A converter of cyclopts from a function of the one text that was typed."""
    return lambda _, tokens: read(tokens[0].value)


def _convert_each(read: Callable[[str], Any]) -> Callable[[Any, Sequence[Token]], Any]:
    """A converter for several texts: cyclopts leaves converters of a tuple's members aside."""
    return lambda _, tokens: tuple(read(token.value) for token in tokens)


def parse_whole_number(text: str, least: int = 0) -> int:
    """A number in decimal digits, without a sign.

    Raises:
        ValueError: it is none, of more than 18 digits, or below ``least``.
    """
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
        raise ValueError(f"{text} is not {least} or more")
    return int(text)


def parse_worker_number(text: str) -> int:
    """A number of workers; 0 for ``auto``.

    Raises:
        ValueError: any other text.
    """
    return 0 if text == "auto" else parse_whole_number(text, least=1)


def number(text: str, above: float = -math.inf) -> float:
    """A finite number above another.

    Raises:
        ValueError: it is none.
    """
    value = float(text)
    if not above < value < math.inf:
        least = f" above {above:g}" if above > -math.inf else ""
        raise ValueError(f"{text} is not a finite number{least}")
    return value


def device(text: str) -> str:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        ValueError: any other text.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", text):
        raise ValueError(f"{text} is not auto, cpu, cuda or cuda:N")
    return text


def parse_local_path(text: str) -> Path:
    """A path.

    Raises:
        ValueError: it is empty, which would be the working folder where ``$DIR`` is not set; or
            it is a URL.
    """
    if not text:
        raise ValueError("an empty path: name a folder or file")
    if "://" in text:
        raise ValueError(f"{text} is a URL: name a folder or file")
    return Path(text)


def parse_path_or_url(text: str) -> Location:
    """A path, or the URL of an object store.

    Raises:
        ValueError: it is empty.
        BenchError: a URL that names no store.
    """
    return parse_location(text) if ":/" in text else parse_local_path(text)


NonNegativeInt = Annotated[int, Parameter(converter=_convert_one(parse_whole_number))]
PositiveInt = Annotated[
    int, Parameter(converter=_convert_one(partial(parse_whole_number, least=1)))
]
PositiveFloat = Annotated[float, Parameter(converter=_convert_one(partial(number, above=0)))]
Device = Annotated[str, Parameter(converter=_convert_one(device))]
WorkerNumber = Annotated[
    int, Parameter(converter=_convert_one(parse_worker_number), metavar="auto|N")
]
LocalPath = Annotated[Path, Parameter(converter=_convert_one(parse_local_path))]
OutFolder = Annotated[LocalPath, OutputMark("folder")]
OutFile = Annotated[LocalPath, OutputMark("file")]
LocationOption = Annotated[
    Location,
    Parameter(converter=_convert_one(parse_path_or_url), accepts_keys=False, metavar="FOLDER|URL"),
]
OutLocation = Annotated[LocationOption, OutputMark("folder")]
ResultLocations = Annotated[
    tuple[Location, ...], Parameter(converter=_convert_each(parse_path_or_url), accepts_keys=False)
]
LocalPaths = Annotated[tuple[Path, ...], Parameter(converter=_convert_each(parse_local_path))]
NonNegativeInts = Annotated[tuple[int, ...], Parameter(converter=_convert_each(parse_whole_number))]
Numbers = Annotated[tuple[float, ...], Parameter(converter=_convert_each(number))]
SeveralValues = Parameter(consume_multiple=1)  # values after one option, at least one: --on A B C
Names = Annotated[tuple[str, ...], SeveralValues]


@group("Output", 99)
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The form of a command's answer.

    Attributes:
        json: One JSON document on stdout.
    """

    json: bool = False


@group("Folders", 90)
@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Where collections lie, and where downloads, corpora and vectors are kept.

    Attributes:
        data_dir: Folder of collections. Default: $BENCH_DATA, then a download.
        cache_dir: Folder of downloads, corpora and vectors. Default: $BENCH_CACHE, then the
            user's cache folder.
    """

    data_dir: LocalPath | None = None
    cache_dir: LocalPath | None = None


@group("Model settings", 20)
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Settings that take the place of the card's.

    Attributes:
        like: Use a plain checkpoint with this card's pooling, prompts and lengths; models named
            by cards stay as they are.
        adapter: Folder of an AdapterHub or PEFT adapter to attach.
        dtype: Precision of weights and activations. Default: the card's. int8, on the CPU, is
            faster and changes the vectors, so its results are another recipe.
        set: FIELD=VALUE instead of the card's, repeatable: max_query_tokens,
            max_document_tokens (length at which texts are cut), query_prompt (put before every
            query, on all collections), store_dtype (float16 halves the disk space of vectors,
            and its results are another recipe).
        trust_code: Allow a card to run a third party's encoder class.
    """

    like: str | None = None
    adapter: str | None = None
    dtype: Dtype | Literal["int8"] | None = None
    set: Annotated[tuple[str, ...], Parameter(name="--set")] = ()
    trust_code: bool = False


@group("Hardware", 80)
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


@group("Workers", 85)
@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Several processes that encode together, on this machine or on a cluster.

    Attributes:
        workers: Encode in N processes, which share the processors and GPUs of this machine, or
            in N tasks on a Ray cluster; auto: one for each GPU, or for every eight processors.
        engine: Encode on a Ray cluster. Default: on this machine.
        address: Ray cluster, such as auto for the one that this machine belongs to. Default: a
            cluster on this machine alone.
    """

    workers: WorkerNumber | None = None
    engine: Literal["ray"] | None = None
    address: str | None = None


@group("Protocol", 40)
@dataclass(frozen=True, kw_only=True)
class ProtocolOptions:
    """The depth and split of an evaluation, and its rule for collections that differ.

    Attributes:
        depth: Documents retrieved per query. Default: the collection's, usually 1,000.
        split: Split whose judgements are used. Default: the collection's.
        allow_mismatch: Continue although the collection differs from the published one; the
            result is marked.
    """

    depth: PositiveInt | None = None
    split: str | None = None
    allow_mismatch: bool = False


@group("Intervals and p-values", 60)
@dataclass(frozen=True, kw_only=True)
class ResamplingOptions:
    """Resamples behind intervals and p-values.

    Attributes:
        resamples: Number of resamples of the queries, at most 1,000,000.
    """

    resamples: Annotated[PositiveInt, Parameter(validator=validators.Number(lte=1_000_000))] = 9_999
