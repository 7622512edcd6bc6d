"""Options of the commands that study trainings: ``ablate`` and ``watch``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from bench.cli.options.shared import (
    Counts,
    Hardware,
    LocalPath,
    Names,
    Only,
    OutFolder,
    OutPlace,
    Output,
    Places,
    Rate,
    Several,
)


@dataclass(frozen=True)
class AblateOptions:
    """Run an ablation: change one field per row, train and evaluate with several seeds, report the
    effects.

    The same command continues an interrupted experiment; typed in several terminals it shares the
    cells among them. Exit code 4: a cell failed and is a gap; the same command tries it again. A
    grid with endpoints gets a report for each. In a grid with [adapt] each row learns one collection
    after the other, and the report has its forgetting matrix.

    Attributes:
        file: A .toml file, or the name of a shipped grid.
        variant: Variant that the file declares, such as two-cores.
        out: Folder of cells and reports.
        seeds: Seeds to use instead of the file's.
        dry_run: Check everything and show the grid; train nothing.
        allow_mismatch: Continue although a collection differs from the published one; the
            report is marked.

    Examples:
        python -m bench ablate pretraining-matters --variant two-cores
        python -m bench ablate adapters --variant two-cores
        python -m bench ablate inference --dry-run
        python -m bench ablate inference
        python -m bench ablate retromae-table6
        python -m bench ablate three-domains --variant two-cores
        python -m bench ablate my-grid.toml --seeds 0 1 2 3 4
    """

    file: str
    _: KW_ONLY
    variant: str = ""
    out: OutFolder = Path("ablations")
    seeds: Annotated[Counts | None, Several] = None
    dry_run: bool = False
    allow_mismatch: bool = False
    hardware: Hardware = Hardware()
    places: Places = Places()
    output: Output = Output()


@dataclass(frozen=True)
class WatchOptions:
    """Evaluate the checkpoints of a running training as they are completed.

    A checkpoint is evaluated when it is complete and its files no longer change. Its results are
    called TRAINING/checkpoint-N, after the folder of the training; the curve that they make lies in
    DIR/watch (--out). A second watch continues where the first one ended; Ctrl-C ends it.

    Attributes:
        folder: Folder in which checkpoint-N folders appear.
        on: Collections, suites or folders.
        like: Use the checkpoints with this card's pooling, prompts, lengths and precision: a
            name, or a TOML file of your own.
        measure: Measure to use, instead of each collection's main one.
        split: Split whose judgements are used. Default: the collection's.
        select: all: p-values adjusted for every pair of checkpoints; half: choose on one half
            of the queries and report on the other.
        baseline: Model with stored results to compare the checkpoints with.
        once: Evaluate the checkpoints that are there, then stop.
        every: Seconds between scans of the folder.
        stop_after: Stop when no checkpoint has been completed for this many seconds.
        allow_mismatch: Continue although a collection differs from the published one; the
            results are marked.
        results: Stored results, to which new ones are added: a folder, or a URL such as
            s3://bucket/prefix.
        out: Folder of the curve. Default: DIR/watch.

    Examples:
        python -m bench watch runs/retromae --like retromae --on beir/nfcorpus --split dev
        python -m bench watch runs/retromae --like retromae --on beir/nfcorpus beir/fiqa --once
        python -m bench watch runs/minilm --on beir/scifact --select half --stop-after 3600
    """

    only: ClassVar[Only] = {"stop_after": {"once": False}}

    folder: LocalPath
    _: KW_ONLY
    on: Names
    like: str | None = None
    measure: str | None = None
    split: str | None = None
    select: Literal["all", "half"] = "all"
    baseline: str | None = None
    once: bool = False
    every: Rate = 60.0
    stop_after: Rate | None = None
    allow_mismatch: bool = False
    results: OutPlace = Path("results")
    out: OutFolder | None = None
    hardware: Hardware = Hardware()
    places: Places = Places()
    output: Output = Output()
