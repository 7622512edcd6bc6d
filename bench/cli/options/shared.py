"""Groups of options that several commands have, and the commands that have the same ones."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from bench.cli.options.values import (
    Count,
    Device,
    LocalPath,
    OutPlace,
    PlaceOption,
    Positive,
    Rate,
    ResultPlaces,
    Several,
    Share,
    WorkerNumber,
)
from retrievers.models.recipe import Backend, Dtype, StoreDtype


def group(title: str, place: int) -> Parameter:
    """A section of ``--help``, for the fields of one record."""
    return Parameter(name="*", group=Group(title, sort_key=place))


@group("Output", 99)
@dataclass(frozen=True, kw_only=True)
class Output:
    """The form of a command's answer."""

    json: bool = False
    """One JSON document on stdout."""
    quiet: bool = False
    """No progress on stderr."""


@group("Folders", 90)
@dataclass(frozen=True, kw_only=True)
class Places:
    """Where collections lie, and where downloads, corpora and vectors are kept."""

    data_dir: LocalPath | None = None
    """Folder of collections. Default: $BENCH_DATA, then a download."""
    cache_dir: PlaceOption | None = None
    """Folder of downloads, corpora and vectors. Default: $BENCH_CACHE, then the user's cache folder.
    At a URL such as s3://bucket/prefix several machines share vectors; all else, and copies of
    these, stay in the default folder."""
    offline: bool = False
    """Download nothing."""


@group("Model settings", 20)
@dataclass(frozen=True, kw_only=True)
class ModelUse:
    """Settings that take the place of the card's."""

    like: str | None = None
    """Use a plain checkpoint with this card's pooling, prompts and lengths."""
    adapter: str | None = None
    """Folder of an AdapterHub or PEFT adapter to attach."""
    dtype: Dtype | None = None
    """Precision of weights and activations. Default: the card's."""
    backend: Backend | None = None
    """Library that runs the model. Default: torch. onnx, int8 and int7 run on the CPU. int8 is
    faster and changes the vectors, so its results are another recipe; int7 has weights of 7 bits
    and is what int8 means on a processor without VNNI instructions."""
    store_dtype: StoreDtype | None = None
    """Precision of stored vectors. Default: float32. float16 halves the disk space, and its results
    are another recipe."""
    query_prompt: str | None = None
    """Text put before every query, on all collections. Default: the card's. Stored vectors of
    documents are reused."""
    max_query_tokens: Positive | None = None
    """Truncate queries to this many tokens. Default: the card's."""
    max_document_tokens: Positive | None = None
    """Truncate documents to this many tokens. Default: the card's."""
    trust_code: bool = False
    """Allow a card to run a third party's encoder class."""


@group("Hardware", 80)
@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Device and memory of a model."""

    device: Device = "auto"
    """Device to encode on: auto, cpu, cuda or cuda:N."""
    max_memory: Annotated[str | None, Parameter(metavar="SIZE")] = None
    """Memory limit of this process, such as 1.5GB. Default: 80 % of the free memory."""


@group("Workers", 85)
@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Several processes that encode together, on this machine or on a cluster."""

    workers: WorkerNumber | None = None
    """Encode in N processes, which share the processors and GPUs of this machine; auto: one for
    each GPU, or for every eight processors. Where there are several GPUs, they search, too."""
    engine: Literal["processes", "ray"] | None = None
    """Place of the workers: processes of this machine (the default), or a Ray cluster."""
    address: str | None = None
    """Ray cluster, such as auto for the one that this machine belongs to. Default: a cluster on
    this machine alone."""
    gpus_per_worker: Share | None = None
    """Of a Ray cluster. Default: 1 where it has any."""


@group("Protocol", 40)
@dataclass(frozen=True, kw_only=True)
class ProtocolOptions:
    """The depth and split of an evaluation, and its rule for collections that differ."""

    depth: Positive | None = None
    """Documents retrieved per query. Default: the collection's, usually 1,000."""
    split: str | None = None
    """Split whose judgements are used. Default: the collection's."""
    allow_mismatch: bool = False
    """Continue although the collection differs from the published one; the result is marked."""


@group("Results", 50)
@dataclass(frozen=True, kw_only=True)
class StoredResults:
    """The places of stored results."""

    results: Annotated[ResultPlaces, Several] = (Path("results"),)
    """Stored results: folders, or URLs such as s3://bucket/prefix."""


@group("Results", 50)
@dataclass(frozen=True, kw_only=True)
class KeptResults:
    """The place where results are read and new ones are stored."""

    results: OutPlace = Path("results")
    """Stored results, to which new ones are added: a folder, or a URL such as s3://bucket/prefix."""


@group("Intervals and p-values", 60)
@dataclass(frozen=True, kw_only=True)
class Resamples:
    """Resamples behind intervals and p-values."""

    resamples: Annotated[Positive, Parameter(validator=lambda _, n: _at_most(n, 1_000_000))] = 9_999
    """Number of resamples of the queries, at most 1,000,000."""
    seed: Count = 0
    """Random seed of the resamples."""


@group("Instead of the preset's settings", 30)
@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings that every training preset has."""

    lr: Rate | None = None
    """Peak learning rate."""
    precision: Literal["float32", "bfloat16"] | None = None
    """Precision of the forward and backward pass."""
    gradient_checkpointing: bool | None = None
    """Use less memory, for about a third more time."""
    seed: Count | None = None
    """Random seed of new weights, of masks, and of the order of the texts."""
    set: Annotated[tuple[str, ...], Parameter(name="--set")] = ()
    """Any other field, as FIELD=VALUE, such as optimizer.warmup=0.2; repeatable."""


@group("Training run", 70)
@dataclass(frozen=True, kw_only=True)
class TrainingWork:
    """Where a training runs, and how often it is saved."""

    device: Literal["auto", "cpu"] = "auto"
    """auto is the GPU where there is one, else the CPU."""
    save_every: Positive = 500
    """Steps between checkpoints, from which an interrupted training continues."""


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options of a command that reads collections."""

    places: Places = Places()
    output: Output = Output()


@dataclass(frozen=True, kw_only=True)
class EncodingOptions(DataOptions):
    """Options of a command that encodes."""

    use: ModelUse = ModelUse()
    hardware: Hardware = Hardware()


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(EncodingOptions):
    """Options of a command that evaluates."""

    protocol: ProtocolOptions = ProtocolOptions()


@dataclass(frozen=True, kw_only=True)
class DecisionOptions(EvaluationOptions):
    """Options of a command that evaluates what has no stored result, and compares."""

    measure: str | None = None
    """Measure to use, instead of each collection's main one."""
    results: KeptResults = KeptResults()
    resampling: Resamples = Resamples()


def _at_most(value: int, most: int) -> None:
    if value > most:
        raise ValueError(f"{value} is more than {most:,}")
