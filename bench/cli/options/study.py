"""Options of the commands that study trainings: ``ablate``, ``continual``, ``watch``, ``forgetting``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from bench.cli.options.shared import (
    Hardware,
    KeptResults,
    ModelUse,
    Output,
    Places,
    ProtocolOptions,
    Resamples,
    group,
)
from bench.cli.options.values import Counts, LocalPath, OutFile, OutFolder, Positive, Rate, Several

Collections = Annotated[tuple[str, ...], Several]


@dataclass(frozen=True)
class AblateOptions:
    """Change one field a row, train and evaluate with several seeds, and report what it did.

    The same command continues an interrupted experiment. Exit code 4: a cell failed and is a gap;
    the same command tries it again.

    Examples:
        python -m bench ablate objectives --variant small --dry-run
        python -m bench ablate objectives --variant small
        python -m bench ablate retromae-table6
        python -m bench ablate my-grid.toml --seeds 0 1 2 3 4
    """

    file: str
    """A .toml file, or the name of a shipped grid."""
    _: KW_ONLY
    variant: str = ""
    """Of the file, such as small."""
    out: OutFolder = Path("ablations")
    """Where cells and reports are kept."""
    seeds: Annotated[Counts | None, Several] = None
    """Instead of the file's."""
    no_rehearsal: bool = False
    """Do not first take two steps of every row's trainings."""
    dry_run: bool = False
    """Check everything and show the grid; train nothing."""
    allow_mismatch: bool = False
    """Continue although a collection differs from the published one; the report is marked."""
    resampling: Resamples = Resamples()
    hardware: Hardware = Hardware()
    places: Places = Places()
    output: Output = Output()


@dataclass(frozen=True)
class ContinualOptions(AblateOptions):
    """Compare ways to learn one collection after the other: what each gains and forgets.

    The same as `ablate` of a grid with [adapt]: each row learns the collections one after the
    other, and every checkpoint is evaluated on all of them. The report has the forgetting matrix of
    each row. The same command continues an interrupted experiment.

    Examples:
        python -m bench continual three-domains --dry-run
        python -m bench continual three-domains --variant small
        python -m bench continual my-sequence.toml --seeds 0
    """


@group("When to look, and when to end", 10)
@dataclass(frozen=True, kw_only=True)
class WatchEnd:
    """Ctrl-C ends at any time."""

    once: bool = False
    """Evaluate what is there, and end."""
    every: Rate = 60.0
    """Seconds between looks."""
    until: Positive | None = None
    """End after a checkpoint of this step."""
    stop_after: Rate | None = None
    """End when no checkpoint was completed for so many seconds."""


@group("Choice of the best checkpoint", 11)
@dataclass(frozen=True, kw_only=True)
class BestCheckpoint:
    """How the best of many checkpoints is chosen."""

    select: Literal["all", "half"] = "all"
    """all: p adjusted for every pair of checkpoints; half: choose on half of the queries and report
    on the other."""
    baseline: str | None = None
    """A model with stored results, compared with the others."""


@dataclass(frozen=True)
class WatchOptions:
    """Evaluate the checkpoints of a running training as they are completed.

    A checkpoint is evaluated when it is complete and no file of it changes any more. The ledger and
    the curve lie in DIR/watch (--out); a second watch continues where the first one ended.

    Examples:
        python -m bench watch runs/retromae --like retromae --on beir/nfcorpus --split dev
        python -m bench watch runs/retromae --like retromae --on beir/nfcorpus beir/fiqa --once
        python -m bench watch runs/minilm --on beir/scifact --select half --until 20000
    """

    folder: LocalPath
    """Where checkpoint-N folders appear."""
    _: KW_ONLY
    on: Collections
    """Collections, suites or folders."""
    measure: str | None = None
    """Instead of the main measure."""
    out: OutFolder | None = None
    """Ledger and curve. Default: DIR/watch."""
    keep_vectors: bool = False
    """Of each checkpoint; by default they are removed once it is evaluated."""
    end: WatchEnd = WatchEnd()
    best: BestCheckpoint = BestCheckpoint()
    use: ModelUse = ModelUse()
    protocol: ProtocolOptions = ProtocolOptions()
    results: KeptResults = KeptResults()
    resampling: Resamples = Resamples()
    hardware: Hardware = Hardware()
    places: Places = Places()
    output: Output = Output()


@dataclass(frozen=True)
class ForgettingOptions:
    """Evaluate checkpoints of successive trainings on each collection: backward and forward transfer.

    The first checkpoint was trained on the first collection, the second continued from it on the
    second one, and so on.

    Examples:
        python -m bench forgetting ckpt-bio ckpt-finance --like retromae --base retromae-pretrained --on beir/nfcorpus beir/fiqa --also beir/scidocs
        python -m bench forgetting after-bio after-finance --stored --on beir/nfcorpus beir/fiqa
    """

    checkpoints: tuple[str, ...]
    """In the order trained: folders, names, or results with --stored."""
    _: KW_ONLY
    on: Collections
    """Collection that each checkpoint was trained on, in the same order."""
    also: Collections = ()
    """Further collections, on which none was trained."""
    base: str | None = None
    """What the first training started from, for forward transfer."""
    stored: bool = False
    """Names are of stored results; evaluate nothing."""
    measure: str | None = None
    """Instead of the main measure."""
    format: Literal["markdown", "csv"] = "markdown"
    """Of the table."""
    plot: OutFile | None = None
    """Heat map, as SVG and PNG."""
    use: ModelUse = ModelUse()
    protocol: ProtocolOptions = ProtocolOptions()
    results: KeptResults = KeptResults()
    resampling: Resamples = Resamples()
    hardware: Hardware = Hardware()
    places: Places = Places()
    output: Output = Output()
