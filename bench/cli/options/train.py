"""Options of the commands that train and study trainings: ``pretrain`` ... ``ablate``, ``watch``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from bench.cli.options.shared import (
    Device,
    FolderOptions,
    HardwareOptions,
    LocalPath,
    LocalPaths,
    Names,
    NonNegativeInts,
    Numbers,
    OptionConditions,
    OutFolder,
    OutLocation,
    OutputOptions,
    PositiveFloat,
    PositiveInt,
    SeveralValues,
    group,
)


@group("Training", 30)
@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings instead of the preset's, and the device.

    Attributes:
        steps: Optimizer steps (in fine-tuning, of each round), instead of the preset's length.
        set: FIELD=VALUE instead of any field of the preset, repeatable, such as
            optimizer.lr=1e-5, batch_size=16, seed=1, epochs=2 or tokens=1_000_000. save_every=N
            writes a checkpoint, from which an interrupted training continues, every N steps
            (500).
        device: auto (the first GPU, else the CPU), cpu or cuda.
    """

    steps: PositiveInt | None = None
    set: Annotated[tuple[str, ...], Parameter(name="--set")] = ()
    device: Device = "auto"


@dataclass(frozen=True)
class PretrainOptions:
    """Pre-train an encoder on the corpora of collections.

    The same command continues an interrupted training. `list presets` names the presets.

    Attributes:
        preset: Name of a shipped preset for pre-training, or a .toml file.
        on: Collections, suites or folders; only their documents are read.
        out: Folder of the checkpoint.
        start: Card, folder or Hub id to start from.

    Examples:
        python -m bench pretrain retromae-small --on stdlib-code/train --out models/code
        python -m bench pretrain retromae --start path/to/bert --on msmarco/dev --out models/retromae
        python -m bench pretrain my-preset.toml --on beir/scifact beir/nfcorpus --out models/mine
        accelerate launch --num_processes 8 -m bench pretrain retromae --on msmarco/dev --out models/r
        python -m bench finetune dpr-small --model models/code --on stdlib-code/train --out models/tuned
    """

    preset: str
    _: KW_ONLY
    on: Names
    out: OutFolder
    start: str | None = None
    training: TrainingSettings = TrainingSettings()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class FinetuneOptions:
    """Fine-tune an encoder on the judged queries of collections.

    The same command continues an interrupted training. Training queries that read like the test
    queries of these collections, and of --held-out, are left out. `list presets` names the presets.

    Attributes:
        preset: Name of a shipped preset, or a .toml file.
        model: Card, folder or Hub id to start from.
        on: Collections, suites or folders with a split to train on.
        out: Folder of the checkpoint.
        like: Use a plain checkpoint with this card's pooling, prompts and lengths.
        split: Split to train on.
        held_out: Further collections whose test queries must stay out of the training.

    Examples:
        python -m bench finetune dpr-small --model minilm --on stdlib-code/train --out models/code
        python -m bench finetune dpr-small --model minilm --on beir/nfcorpus --out models/mine
        python -m bench finetune retromae-beir --model models/retromae --on msmarco/dev --out models/r
        python -m bench finetune mined-small --model path/to/bert --like bert --on beir/scifact --out models/mined --set rounds.1.margin=0.5
        python -m bench run beir/nfcorpus --model minilm models/mine
    """

    preset: str
    _: KW_ONLY
    model: str
    on: Names
    out: OutFolder
    like: str | None = None
    split: str = "train"
    held_out: Names = ()
    training: TrainingSettings = TrainingSettings()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class AdaptOptions:
    """Continue pre-training on one collection after the other, with a checkpoint for each.

    The same command continues an interrupted training; collections may be added at the end of --on.
    At the end it prints the command that scores every checkpoint. Settings of the method are --set
    method.FIELD=VALUE.

    Attributes:
        preset: Name of a shipped preset for pre-training, or a .toml file.
        on: Collections, suites or folders, in the order in which they are learnt.
        out: Folder of the checkpoints.
        method: plain: no measure against forgetting; ewc: penalise changes of weights that
            earlier collections depend on (measured texts, strength); das: soften updates of
            units that earlier collections and general knowledge depend on (measured, soften:
            gradient, as published, which AdamW largely undoes, or update); adapter: one adapter
            per collection, on the frozen start model (adapter: AdapterHub's configuration);
            replay: read kept texts of earlier collections again (buffer of texts, share
            replayed); joint: read all collections so far at once, the upper bound; distill:
            keep the predictions of the model before each collection (weight, temperature).
        start: Card, folder or Hub id to start from.

    Examples:
        python -m bench adapt mlm-small --on beir/nfcorpus beir/scifact --method das --set method.soften=update --out models/das
        python -m bench adapt mlm --start path/to/bert --on beir/nfcorpus beir/fiqa --method ewc --steps 10000 --out models/ewc
        python -m bench adapt retromae-small --on beir/nfcorpus beir/fiqa --out models/plain
    """

    preset: str
    _: KW_ONLY
    on: Names
    out: OutFolder
    method: str = "plain"
    start: str | None = None
    training: TrainingSettings = TrainingSettings()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class ComposeOptions:
    """Combine trained adapters of one base.

    average: the mean of the weights, one adapter as fast as each (AdapterSoup), of one method and
    size. stack: the first at the bottom, such as a domain's below a task's (MAD-X, AdapterHub). A folder
    is what `finetune` with an adapter or `adapt --method adapter` wrote, or an adapter inside one.
    Weights that are learned come from `finetune` with adapter.method = "fusion".
    route: side by side, of which each query takes the one whose domain it is closest to: the nearest
    mean among the training queries of the collections of --on, as the base encodes them. Documents
    are encoded by every adapter, and each query is compared with those of its own.

    Attributes:
        how: Way of combining them.
        folders: Folders of trained adapters.
        out: Folder of what comes out.
        weights: For average: one weight per adapter, of any sum. Default: equal weights.
        on: For route: the collection of each adapter's domain, in the order of the folders.

    Examples:
        python -m bench compose average models/a models/b --out models/mean
        python -m bench compose average models/a models/b --weights 3 1 --out models/mean
        python -m bench compose stack models/domain models/task --out models/both
        python -m bench compose route models/a models/b --on beir/nfcorpus beir/scifact --out models/routed
        python -m bench run beir/scifact --model models/mean
        python -m bench finetune adapter-small --model minilm --on beir/nfcorpus --out models/fused --set 'adapter={method="fusion", over=["models/a", "models/b"]}'
    """

    only_if: ClassVar[OptionConditions] = {"weights": {"how": "average"}, "on": {"how": "route"}}

    how: Literal["average", "stack", "route"]
    folders: LocalPaths
    _: KW_ONLY
    out: OutFolder
    weights: Annotated[Numbers | None, SeveralValues] = None
    on: Names = ()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


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
    seeds: Annotated[NonNegativeInts | None, SeveralValues] = None
    dry_run: bool = False
    allow_mismatch: bool = False
    hardware: HardwareOptions = HardwareOptions()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


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
        python -m bench watch runs/minilm --on beir/scifact --stop-after 3600
    """

    only_if: ClassVar[OptionConditions] = {"stop_after": {"once": False}}

    folder: LocalPath
    _: KW_ONLY
    on: Names
    like: str | None = None
    measure: str | None = None
    split: str | None = None
    once: bool = False
    every: PositiveFloat = 60.0
    stop_after: PositiveFloat | None = None
    allow_mismatch: bool = False
    results: OutLocation = Path("results")
    out: OutFolder | None = None
    hardware: HardwareOptions = HardwareOptions()
    folder_options: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()
