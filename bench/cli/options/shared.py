"""Groups of options that several commands have."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from bench.cli.options.values import Count, Device, LocalPath, OutPlace, PlaceOption, Positive, Rate

Dtype = Literal["float32", "bfloat16", "float16"]
Backend = Literal["torch", "onnx", "int8"]


def group(title: str, place: int) -> Parameter:
    """A section of ``--help``, for the fields of one record."""
    return Parameter(name="*", group=Group(title, sort_key=place))


@group("Output", 99)
@dataclass(frozen=True, kw_only=True)
class Output:
    """How a command answers."""

    json: bool = False
    """One JSON document on stdout."""
    quiet: bool = False
    """No progress on stderr."""


@group("Places", 90)
@dataclass(frozen=True, kw_only=True)
class Places:
    """Where collections lie, and where downloads, corpora and vectors are kept."""

    data_dir: LocalPath | None = None
    """Where collections lie. Default: $BENCH_DATA, then a download."""
    cache_dir: LocalPath | None = None
    """Where downloads, corpora and vectors are kept. Default: $BENCH_CACHE, then the user's cache
    folder."""
    offline: bool = False
    """Download nothing."""


@group("How a model is used", 20)
@dataclass(frozen=True, kw_only=True)
class ModelUse:
    """What is typed instead of a card's settings."""

    like: str | None = None
    """Use a plain checkpoint as this card says: pooling, prompts, lengths."""
    adapter: str | None = None
    """Folder of an AdapterHub or PEFT adapter to attach."""
    dtype: Dtype | None = None
    """Of the weights and activations. Default: the card's."""
    backend: Backend | None = None
    """What runs the model. Default: torch. onnx and int8 are for the CPU; int8 is faster, and
    changes vectors: another recipe."""
    store_dtype: Literal["float32", "float16"] | None = None
    """Of stored vectors. Default: float32. float16 halves the disk, and is another recipe."""
    query_prompt: str | None = None
    """Put before every query, of all collections. Default: the card's. Vectors of documents that are
    stored serve on."""
    max_query_tokens: Positive | None = None
    """Where queries are cut. Default: the card's."""
    max_document_tokens: Positive | None = None
    """Where documents are cut. Default: the card's."""
    trust_code: bool = False
    """Run the third party's class that a card names."""


@group("Hardware", 80)
@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Where a model runs, and what it may take."""

    device: Device = "auto"
    """Where to encode: auto, cpu, cuda or cuda:N."""
    max_memory: str | None = None
    """Most memory of this process, such as 1.5GB. Default: 80 % of what is free."""


@group("Protocol", 40)
@dataclass(frozen=True, kw_only=True)
class ProtocolOptions:
    """Which part of a collection is searched, how deep, and whether it must be the published one."""

    depth: Positive | None = None
    """Documents per query. Default: the collection's, mostly 1,000."""
    split: str | None = None
    """Which judgements are used. Default: the collection's."""
    allow_mismatch: bool = False
    """Continue although the collection differs from the published one; the result is marked."""


@group("Results", 50)
@dataclass(frozen=True, kw_only=True)
class StoredResults:
    """Where earlier results are read, and new ones kept."""

    results: PlaceOption = Path("results")
    """Stored results: a folder, or a URL such as s3://bucket/prefix."""


@group("Results", 50)
@dataclass(frozen=True, kw_only=True)
class KeptResults:
    """Where earlier results are read, and new ones are kept."""

    results: OutPlace = Path("results")
    """Stored results, to which new ones are added: a folder, or a URL such as s3://bucket/prefix."""


@group("Intervals and p-values", 60)
@dataclass(frozen=True, kw_only=True)
class Resamples:
    """How intervals and p-values are drawn."""

    resamples: Annotated[Positive, Parameter(validator=lambda _, n: _at_most(n, 1_000_000))] = 9_999
    """Resamples of the queries; at most 1,000,000."""
    seed: Count = 0
    """Of the resamples."""


@group("Instead of the preset's settings", 30)
@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings that every training preset has."""

    lr: Rate | None = None
    """Highest learning rate."""
    precision: Literal["float32", "bfloat16"] | None = None
    """Of the forward and backward pass."""
    gradient_checkpointing: bool | None = None
    """Less memory for about a third more time."""
    seed: Count | None = None
    """Of the weights that are new, of masks, and of the order of the texts."""
    set: Annotated[tuple[str, ...], Parameter(name="--set")] = ()
    """Any other field, as FIELD=VALUE, such as optimizer.warmup=0.2; repeatable."""


@group("Work", 70)
@dataclass(frozen=True, kw_only=True)
class TrainingWork:
    """Where a training runs, and how often it is saved."""

    device: Literal["auto", "cpu"] = "auto"
    """A GPU where there is one, or the CPU."""
    save_every: Positive = 500
    """Steps between checkpoints, from which an interrupted training continues."""


def _at_most(value: int, most: int) -> None:
    if value > most:
        raise ValueError(f"{value} is more than {most:,}")
