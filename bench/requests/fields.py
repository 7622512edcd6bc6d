"""Groups of fields that several requests share, and the base of all requests."""

import inspect
import itertools
import os
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import attrs
import msgspec
from attrs import field, frozen

from foundation.errors import BenchError
from foundation.files import local_path
from retrievers.models.settings import CARD_FIELDS, ModelSettings, VectorSettings

Names = str | Path | Sequence[str | Path]
MOST = 1 << 62  # of numbers without a largest value
# Smallest and largest value of the numbers that may be below 1, or not as large as they like.
RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("changed", "older_than", "recall_queries", "seed", "workers"), (0, MOST)),
    **dict.fromkeys(("every", "stop_after", "timeout"), (0.001, 1e9)),
    "floor": (0, 0.2),
    "keep": (0, 1),
    "limit_ms": (1e-6, 1e9),
    "margin": (0, 0.1),
    "resamples": (1, 1_000_000),
    "tolerance": (0, 0.01),
}
RESULTS: Any = "results"  # folder of stored results, before its conversion


def to_names(names: Names) -> tuple[str, ...]:
    """Return one name or several as a tuple."""
    return tuple(map(str, (names,) if isinstance(names, str | Path) else names))


def to_items(items: Any) -> tuple[Any, ...]:
    """Return one object or a list of objects as a tuple."""
    return tuple(items) if isinstance(items, list | tuple) else (items,)


def to_paths(paths: Names) -> tuple[Path, ...]:
    """Return one path or several as a tuple."""
    return tuple(map(local_path, to_names(paths)))


def to_optional_path(path: str | Path | None) -> Path | None:
    """Return a path, and None as it is."""
    return None if path is None else local_path(path)


@frozen(kw_only=True, slots=False)
class Request:
    """Base of all requests, which raises a TypeError if a value has another type than its field.

    Attributes:
        rest: field of further positional arguments in Python; "" for none.
    """

    rest: ClassVar[str] = ""

    def __attrs_post_init__(self) -> None:
        kind_of = get_type_hints(type(self))
        for each in attrs.fields(type(self)):
            value, kind = getattr(self, each.name), kind_of[each.name]
            if not matches(value, kind):
                found = f"not {type(value).__name__}: {value!r}"
                raise TypeError(f"{each.name} must be {describe_kind(kind)}, {found}")
            if isinstance(value, int | float) and not isinstance(value, bool):
                check_range(each.name, value)

    def values_of(self, *groups: "type[Request]") -> dict[str, Any]:
        """Return the values of the fields of some groups of this request, by name."""
        names = dict.fromkeys(each.name for group in groups for each in attrs.fields(group))
        return {name: getattr(self, name) for name in names}


def check_range(name: str, value: float) -> None:
    """Raise a `BenchError` if the number of a field is outside its range, or is NaN."""
    least, most = RANGES.get(name, (1, MOST))
    if not least <= value <= most:
        option = f"--{name.replace('_', '-')}"
        bounds = f"at least {_plain(least)}"
        if most < MOST:
            bounds = f"between {_plain(least)} and {_plain(most)}"
        raise BenchError(
            f"{option} must be {bounds}, not {value}", f"Give a number that is {bounds}."
        )


def _plain(number: float) -> str:
    """Return a number without an exponent, and without zeros at its end."""
    whole, _, decimals = f"{number:,.10f}".partition(".")
    return f"{whole}.{decimals}".rstrip("0").rstrip(".")


def matches(value: Any, kind: Any) -> bool:
    """Return True if ``value`` has the type ``kind``, the items of tuples included."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(matches(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(matches(each, inner[0]) for each in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return value is None if kind is None else isinstance(value, origin or kind)


def describe_kind(kind: Any) -> str:
    """Return a type in words, such as ``'ray' or None``."""
    inner = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(map(describe_kind, inner))
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, inner))
    if get_origin(kind) is tuple:
        return f"a sequence of {describe_kind(inner[0])}"
    return "None" if kind is type(None) else getattr(kind, "__name__", str(kind))


def typed_options(fields: Mapping[str, Any]) -> list[str]:
    """Return the words of the command line that give ``fields``, without those that are empty.

    Fields of a card, and the settings of a table, are given by ``--set``.
    """
    words = list[str]()
    for name, value in fields.items():
        is_of_card = name in CARD_FIELDS
        if value is None or value is False or value == () or (value == "" and not is_of_card):
            continue
        if is_of_card or isinstance(value, Mapping):
            settings = {name: value} if is_of_card else value
            for setting, chosen in settings.items():
                text = str(chosen).lower() if isinstance(chosen, bool) else chosen
                words += ["--set", f"{setting}={text}"]
            continue
        option = f"--{name.replace('_', '-')}"
        if name == "measure":  # one value each time that it is typed
            words += [word for measure in value for word in (option, measure)]
            continue
        several = value if isinstance(value, tuple | list) else (value,)
        words += [option, *([] if value is True else map(str, several))]
    return words


def typed_words(command: str, fields: Mapping[str, Any], *positional: str) -> tuple[str, ...]:
    """Return the words of a command line that give ``fields``, the ``positional`` ones first."""
    named = {name: value for name, value in fields.items() if name not in positional}
    first = [fields[name] for name in positional]
    typed = [word for value in first for word in ([value] if isinstance(value, str) else value)]
    return (command, *typed, *typed_options(named))


def describe_request(request: Request | None) -> dict[str, Any]:
    """Return ``command`` and ``request`` as records have them, or nothing without a request."""
    if request is None:
        return {}
    command = type(request).__name__.removesuffix("Request").lower()
    return {"command": command, "request": given_fields(request)}


def given_fields(request: Request) -> dict[str, Any]:
    """Return the fields of a request with another value than their default, as plain data.

    Folders, hardware and how often a training is saved, on which no result depends, are left out.
    """
    elsewhere = {
        each.name for kind in (FolderFields, HardwareFields) for each in attrs.fields(kind)
    }
    elsewhere |= {"progress", "save_every", "log_dir", "results"}
    given = {}
    for each in sorted(attrs.fields(type(request)), key=lambda each: each.inherited):
        value, default = getattr(request, each.name), each.default
        if each.converter and default not in (None, attrs.NOTHING):
            default = each.converter(default)
        if value != default and each.name not in elsewhere:
            given[each.name] = msgspec.to_builtins(value, enc_hook=str)
    return given


def _offline(given: bool | None) -> bool:
    """Return whether downloads are forbidden: ``given``, else HF_HUB_OFFLINE."""
    return os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0") if given is None else given


@frozen(kw_only=True, slots=False)
class FolderFields(Request):
    """Folders of collections and of the cache.

    Attributes:
        data_dir: Folder of collections. Default: $BENCH_DATA, or a download.
        cache_dir: Folder of downloads, corpora and vectors. Default: $BENCH_CACHE, or the user's
            cache folder.
        offline: Download nothing. Default: whether $HF_HUB_OFFLINE is set.
    """

    data_dir: Path | None = field(default=None, converter=to_optional_path)
    cache_dir: Path | None = field(default=None, converter=to_optional_path)
    offline: bool = field(default=None, converter=_offline)


@frozen(kw_only=True, slots=False)
class HardwareFields(Request):
    """Device and memory of a model.

    Attributes:
        device: Device to encode on: auto, cpu, cuda or cuda:N.
        max_memory: Memory limit of this process, such as 1.5GB. Default: 80 % of the free
            memory.

    In Python:
        max_memory: bytes.
    """

    device: str = "auto"
    max_memory: int | None = None


@frozen(kw_only=True, slots=False)
class WorkerFields(Request):
    """Worker processes, on this machine or on a Ray cluster.

    Attributes:
        workers: Encode in N processes that share the CPUs and GPUs of this machine, or in N tasks
            on a Ray cluster. auto: one per GPU, or per eight CPUs. Default: 1.
        engine: ray encodes on a Ray cluster. Default: this machine.
        address: Address of the Ray cluster, or auto for the cluster this machine belongs to.
            Default: a new cluster on this machine.

    In Python:
        workers: 0 stands for auto.
    """

    workers: int | None = None
    engine: Literal["ray"] | None = None
    address: str | None = None


@frozen(kw_only=True, slots=False)
class ModelFields(VectorSettings, Request):
    """Settings that override the card of a model."""

    def typed_settings(self) -> list[str]:
        """Return the options of the command line that give these fields, without defaults."""
        return typed_options(ModelSettings.of(self).changed)


@frozen(kw_only=True, slots=False)
class CompressionFields(ModelSettings, ModelFields):
    """Settings of a model whose documents may be compressed for search.

    All compressions share the stored vectors.
    """


@frozen(kw_only=True, slots=False)
class SystemFields(Request):
    """How a search system is asked, and what its ids are.

    Attributes:
        concurrency: Ask a search system N queries at once, in threads. Latencies are those of N
            queries at once. Default: 1.
        passages: Separator between the id of a document and that of a passage, such as '#': d1#3
            counts for d1, with the best score of its passages.
        timeout: Time limit of each query of a search system, such as 10s. Default: 60s.

    In Python:
        timeout: seconds.
    """

    concurrency: int | None = None
    passages: str = ""
    timeout: float | None = None


@frozen(kw_only=True, slots=False)
class MismatchFields(Request):
    """Treatment of a collection that differs from the published one.

    Attributes:
        allow_mismatch: Continue even if a collection differs from the published one. The result is
            marked.
    """

    allow_mismatch: bool = False


@frozen(kw_only=True, slots=False)
class ProtocolFields(MismatchFields):
    """Depth and split of an evaluation.

    Attributes:
        depth: Documents retrieved per query. Default: the collection's, usually 1,000.
        split: Split whose judgements are used. Default: the collection's.
    """

    depth: int | None = None
    split: str | None = None


@frozen(kw_only=True, slots=False)
class ResamplingFields(Request):
    """Resampling of queries for intervals, and for the groups of a leaderboard.

    Attributes:
        resamples: Resamples of the queries for intervals, from 39 to 1,000,000.
        seed: Seed of the resampling. No p-value of a comparison and no verdict depends on it.
    """

    resamples: int = 9_999
    seed: int = 0


def describe_fields(request: Any, section: str = "Attributes") -> dict[str, tuple[str, type]]:
    """Return the description of each field of a request, and the class that describes it.

    The section "In Python" has what is true only there.
    """
    found: dict[str, tuple[str, type]] = {}
    for cls in reversed(request.__mro__):
        found |= {name: (text, cls) for name, text in described_in(cls, section).items()}
    return found


def ordered_fields(request: Any) -> list[Any]:
    """Return the fields of a request: its own, then those of its module, then shared ones."""
    described = describe_fields(request)

    def distance(each: Any) -> int:
        if not each.inherited:
            return 0
        return 1 if described[each.name][1].__module__ == request.__module__ else 2

    return sorted(attrs.fields(request), key=distance)


def described_in(cls: type, section: str = "Attributes") -> dict[str, str]:
    """Return the descriptions in a section of a docstring, by name."""
    _, _, below = f"\n{inspect.getdoc(cls)}".partition(f"\n{section}:\n")
    lines = itertools.takewhile(lambda line: not line or line[0] == " ", below.splitlines())
    found, name = dict[str, str](), ""
    for line in filter(str.strip, lines):
        if line[4] == " ":
            found[name] += f" {line.strip()}"
        else:
            name, _, found[name] = line.strip().partition(": ")
    return found
