"""Options of the commands that study trainings: ``ablate`` and ``watch``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from bench.cli.options.shared import (
    Counts,
    Hardware,
    LocalPath,
    ModelUse,
    Names,
    OutFolder,
    OutPlace,
    Output,
    Places,
    Positive,
    ProtocolOptions,
    Rate,
    Resamples,
    Several,
    group,
)


@dataclass(frozen=True)
class AblateOptions:
    """Run an ablation: change one field per row, train and evaluate with several seeds, report the
    effects.

    The same command continues an interrupted experiment; typed in several terminals it shares the
    cells among them. Exit code 4: a cell failed and is a gap; the same command tries it again. A
    grid with endpoints gets a report for each. In a grid with [adapt] each row learns one collection
    after the other, and the report has its forgetting matrix.

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
    """A .toml file, or the name of a shipped grid."""
    _: KW_ONLY
    variant: str = ""
    """Variant that the file declares, such as two-cores."""
    out: OutFolder = Path("ablations")
    """Folder of cells and reports."""
    seeds: Annotated[Counts | None, Several] = None
    """Seeds to use instead of the file's."""
    no_rehearsal: bool = False
    """Skip the rehearsal, which tries two training steps of every row first."""
    dry_run: bool = False
    """Check everything and show the grid; train nothing."""
    allow_mismatch: bool = False
    """Continue although a collection differs from the published one; the report is marked."""
    resampling: Resamples = Resamples()
    hardware: Hardware = Hardware()
    places: Places = Places()
    output: Output = Output()


@group("Schedule", 10)
@dataclass(frozen=True, kw_only=True)
class WatchEnd:
    """Ctrl-C ends at any time."""

    once: bool = False
    """Evaluate the checkpoints that are there, then stop."""
    every: Rate = 60.0
    """Seconds between scans of the folder."""
    until: Positive | None = None
    """Stop after a checkpoint of this step."""
    stop_after: Rate | None = None
    """Stop when no checkpoint has been completed for this many seconds."""


@group("Choice of the best checkpoint", 11)
@dataclass(frozen=True, kw_only=True)
class BestCheckpoint:
    """Selection of the best of many checkpoints."""

    select: Literal["all", "half"] = "all"
    """all: p-values adjusted for every pair of checkpoints; half: choose on one half of the queries
    and report on the other."""
    baseline: str | None = None
    """Model with stored results to compare the checkpoints with."""


@dataclass(frozen=True)
class WatchOptions:
    """Evaluate the checkpoints of a running training as they are completed.

    A checkpoint is evaluated when it is complete and its files no longer change. The ledger and the
    curve lie in DIR/watch (--out); a second watch continues where the first one ended.

    Examples:
        python -m bench watch runs/retromae --like retromae --on beir/nfcorpus --split dev
        python -m bench watch runs/retromae --like retromae --on beir/nfcorpus beir/fiqa --once
        python -m bench watch runs/minilm --on beir/scifact --select half --until 20000
    """

    folder: LocalPath
    """Folder in which checkpoint-N folders appear."""
    _: KW_ONLY
    on: Names
    """Collections, suites or folders."""
    out: OutFolder | None = None
    """Folder of the ledger and the curve. Default: DIR/watch."""
    keep_vectors: bool = False
    """Keep the vectors of each checkpoint, which are otherwise removed after its evaluation."""
    measure: str | None = None
    """Measure to use, instead of each collection's main one."""
    results: OutPlace = Path("results")
    """Stored results, to which new ones are added: a folder, or a URL such as s3://bucket/prefix."""
    end: WatchEnd = WatchEnd()
    best: BestCheckpoint = BestCheckpoint()
    protocol: ProtocolOptions = ProtocolOptions()
    resampling: Resamples = Resamples()
    use: ModelUse = ModelUse()
    hardware: Hardware = Hardware()
    places: Places = Places()
    output: Output = Output()
