"""Options of the commands that evaluate: ``run``, ``score``, ``estimate``, ``speed``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from bench.cli.options.shared import Hardware, ModelUse, Output, Places, ProtocolOptions
from bench.cli.options.values import (
    LocalPath,
    LocalPaths,
    OutFolder,
    OutPlace,
    Positive,
    Rate,
    Several,
)

Models = Annotated[tuple[str, ...], Several]
Part = Literal["phases", "encode", "latency", "indexes", "growth"]
Tool = Literal["sentence-transformers", "beir", "mteb"]


@dataclass(frozen=True)
class RunOptions:
    """Evaluate models on collections.

    A table for each collection, then the means of the suites. Vectors are kept (--cache-dir): a
    second run encodes nothing, and an interrupted one continues. Of several models or collections,
    one that cannot be had is a gap with its reason, and the others are evaluated. Exit codes: 0
    nothing is missing, 4 there is a gap, 2 nothing was evaluated.

    Examples:
        python -m bench run stdlib-code --model minilm
        python -m bench run beir/scifact --model minilm --limit 20
        python -m bench run beir/scifact beir/nfcorpus --model minilm bm25 --data-dir DIR
        python -m bench run beir/scifact --model minilm --index 'IVF64,Flat?nprobe=8'
        python -m bench run path/to/my-collection --model path/to/sentence-transformers-folder
        python -m bench run beir/scifact --model minilm --adapter path/to/lora --name minilm-legal
        python -m bench run msmarco/dev --model retromae-msmarco-ft --measure R@50 --json
    """

    names: tuple[str, ...]
    """Collections, suites (your own: a TOML file) or folders."""
    _: KW_ONLY
    model: Models
    """Names of `list models`, card files, folders or Hub ids."""
    name: str | None = None
    """Name of the one model in results. Default: its own; with --adapter, MODEL+ADAPTER."""
    index: str = "flat"
    """flat (exact), or a FAISS factory string with search parameters."""
    measure: tuple[str, ...] | None = None
    """Instead of the further measures of the collection; repeatable."""
    out: OutPlace = Path("results")
    """Where results go: a folder, or a URL such as s3://bucket/prefix."""
    limit: Positive | None = None
    """A first try in seconds: the first N queries, the documents judged for them and 10 N others.
    Scores are far too high; they are marked, kept as a collection of its own (NAME/firstN) and in
    no mean."""
    yes: bool = False
    """Do not ask before hours of encoding."""
    fail_fast: bool = False
    """Stop at the first evaluation that cannot be had (exit code 2)."""
    use: ModelUse = ModelUse()
    protocol: ProtocolOptions = ProtocolOptions()
    hardware: Hardware = Hardware()
    places: Places = Places()
    output: Output = Output()


@dataclass(frozen=True)
class ScoreOptions:
    """Score a TREC run file by the collection's own protocol.

    Examples:
        python -m bench score my-run.trec --dataset beir/scifact
    """

    run_file: LocalPath
    """TREC run of six columns, plain or .gz."""
    _: KW_ONLY
    dataset: str
    """Collection or folder that has the judgements."""
    name: str | None = None
    """Name of the run in tables. Default: the file's."""
    measure: tuple[str, ...] | None = None
    """Instead of the further measures of the collection; repeatable."""
    out: OutPlace = Path("results")
    """Where results go: a folder, or a URL such as s3://bucket/prefix."""
    protocol: ProtocolOptions = ProtocolOptions()
    places: Places = Places()
    output: Output = Output()


@dataclass(frozen=True)
class EstimateOptions:
    """Estimate time, memory and disk of a run before it starts.

    Examples:
        python -m bench estimate beir --model retromae
        python -m bench estimate beir/scifact --model minilm bm25 --probe-seconds 5
    """

    names: tuple[str, ...]
    """Collections, suites (your own: a TOML file) or folders."""
    _: KW_ONLY
    model: Models
    """Names of `list models`, card files, folders or Hub ids."""
    probe_seconds: Positive = 20
    """How long each encoder is tried on this machine."""
    use: ModelUse = ModelUse()
    protocol: ProtocolOptions = ProtocolOptions()
    hardware: Hardware = Hardware()
    places: Places = Places()
    output: Output = Output()


@dataclass(frozen=True)
class SpeedOptions:
    """Measure how fast a model is on this machine, alone and beside other tools.

    The last line of stdout is one JSON document. Timings compare only within one machine.

    Examples:
        python -m bench speed --model minilm --plots plots
        python -m bench speed --model minilm --parts encode --against sentence-transformers
        python -m bench speed beir/nfcorpus --model minilm --parts --against mteb beir
    """

    names: tuple[str, ...] = ()
    """Collections to race on, from start to scores."""
    _: KW_ONLY
    model: str
    """Name of `list models`, card file, folder or Hub id."""
    parts: Annotated[tuple[Part, ...], Several] = (
        "phases",
        "encode",
        "latency",
        "indexes",
        "growth",
    )
    """What is measured; with --empty-parts, only the race."""
    against: Annotated[tuple[Tool, ...], Several] = ()
    """Other tools that are installed here."""
    repeats: Positive = 5
    """Samples of each timing, after one that is not counted."""
    rounds: Positive = 1
    """Of the race: every tool once in each."""
    rows: Positive = 30_000
    """Vectors that are searched."""
    seconds: Rate = 3.0
    """About how long one sample of encoding takes."""
    limit: Positive | None = None
    """Race on the first N documents only: a quick look."""
    plots: OutFolder | None = None
    """Draw PNG and SVG files in this folder."""
    history: Annotated[LocalPaths, Several] = ()
    """Earlier outputs of speed, oldest first, for the plot of the history."""
    split: str | None = None
    """Which judgements the race uses. Default: the collection's."""
    use: ModelUse = ModelUse()
    hardware: Hardware = Hardware()
    places: Places = Places()
    output: Output = Output()
