"""Options of the commands that train, and of ``ablate`` and ``watch``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from bench.cli.options.shared import (
    Device,
    Duration,
    FieldValues,
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
    PositiveInt,
    Seconds,
    SeveralValues,
    group,
)


@group("Training", 30)
@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings that override the preset, and the device.

    Attributes:
        steps: Optimizer steps (in fine-tuning, per round). Default: the preset's length.
        set: Override a field of the preset; repeatable. Examples: optimizer.lr=1e-5,
            batch_size=16, seed=1, epochs=2, tokens=1_000_000. save_every=N sets the steps
            between checkpoints, from which an interrupted training continues (default 500).
        device: auto (the first GPU, or the CPU if there is none), cpu or cuda.
    """

    steps: PositiveInt | None = None
    set: FieldValues = ()
    device: Device = "auto"


@dataclass(frozen=True)
class PretrainOptions:
    """Pre-train an encoder on the corpora of collections.

    Repeat the command to continue an interrupted training.

    Attributes:
        preset: Preset for pre-training (see `list presets`), or a .toml file.
        on: Collections, suites or folders. Only their documents are read.
        out: Folder to write the checkpoint to.
        start: Model to start from: a card, folder or Hub id. Default: the preset's.

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
    folders: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class FinetuneOptions:
    """Fine-tune an encoder on the judged queries of collections.

    Training queries with the text of a test query, of these collections or of --held-out, are left
    out. Repeat the command to continue an interrupted training.

    Attributes:
        preset: Preset for fine-tuning (see `list presets`), or a .toml file.
        model: Model to start from: a card, folder or Hub id.
        on: Collections, suites or folders with a training split.
        out: Folder to write the checkpoint to.
        like: Card whose pooling, prompts and lengths a plain checkpoint uses (see `list
            models`).
        split: Split to train on.
        held_out: Further collections whose test queries must not be trained on.

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
    folders: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class AdaptOptions:
    """Continue pre-training on one collection after the other, with a checkpoint after each.

    Repeat the command to continue an interrupted training, or to add collections at the end of
    --on. Finally it prints the command that scores every checkpoint.

    Methods, with their settings (--set method.FIELD=VALUE): plain (no measure against forgetting);
    ewc (penalise changes of weights that matter for earlier collections: measured, strength); das
    (soften updates of units that matter for earlier collections: measured, soften=gradient as
    published, or soften=update, which AdamW does not undo); adapter (one adapter per collection on
    the frozen start model: adapter); replay (mix in texts of earlier collections: buffer, share);
    joint (train on all collections so far, the upper bound); distill (stay close to the predictions
    of the previous checkpoint: weight, temperature).

    Attributes:
        preset: Preset for pre-training (see `list presets`), or a .toml file.
        on: Collections, suites or folders, in training order.
        out: Folder to write the checkpoints to.
        method: plain, ewc, das, adapter, replay, joint or distill.
        start: Model to start from: a card, folder or Hub id. Default: the preset's.

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
    folders: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class ComposeOptions:
    """Combine trained adapters of one base model.

    average: one adapter with the mean of the weights (AdapterSoup). All adapters need one method
    and size. stack: adapters on top of each other, the first at the bottom, such as a task adapter
    on a domain adapter (MAD-X). route: each query uses the adapter of the closest domain, by the
    distance of its base embedding to the mean training query of each domain; documents are encoded
    with every adapter. To learn the weights of a combination, run `finetune` with adapter.method =
    "fusion".

    Attributes:
        how: Method of combination.
        adapters: Folders written by `finetune` with an adapter or by `adapt --method adapter`, or
            adapters inside them.
        out: Folder to write.
        weights: With average: one weight per adapter, of any sum. Default: equal weights.
        on: With route: one collection per adapter, in the order of the adapters.

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
    adapters: LocalPaths
    _: KW_ONLY
    out: OutFolder
    weights: Annotated[Numbers | None, SeveralValues] = None
    on: Names = ()
    folders: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class AblateOptions:
    """Run an ablation: train and evaluate every row of a grid with several seeds, report the effects.

    Each row changes one field. Repeat the command to continue an interrupted experiment, or start it
    in several terminals to share the cells. Exit code 4: a cell failed; repeat the command to try it
    again. A grid with endpoints gets one report per endpoint. The report of a grid with [adapt]
    contains a forgetting matrix per row.

    Attributes:
        file: Grid: a .toml file or a name (see `list grids`).
        variant: Variant declared in the file, such as two-cores. Default: none.
        seeds: Seeds to train with. Default: the file's.
        dry_run: Check everything and show the grid; train nothing.
        out: Folder of cells and reports.
        allow_mismatch: Continue even if a collection differs from the published one. The report
            is marked.

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
    seeds: Annotated[NonNegativeInts | None, SeveralValues] = None
    dry_run: bool = False
    out: OutFolder = Path("ablations")
    allow_mismatch: bool = False
    hardware: HardwareOptions = HardwareOptions()
    folders: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True)
class WatchOptions:
    """Evaluate the checkpoints of a running training as they are completed.

    A checkpoint is evaluated once it is complete and its files no longer change. Its name ends in
    its step, as checkpoint-500 or epoch_3 do; run_500 counts only if a Trainer's state in it has
    that step. Its results are stored as TRAINING/checkpoint-N, after the folder of the training.
    Stop with Ctrl-C; the same command continues.

    Attributes:
        folder: Folder in which the training writes checkpoint-N.
        on: Collections, suites or folders.
        like: Card (a name or TOML file) whose pooling, prompts, lengths and precision the
            checkpoints use.
        split: Split whose judgements are used. Default: the collection's.
        once: Evaluate the present checkpoints, then stop.
        every: Time between scans of the folder, such as 30s, 5m or 1h.
        stop_after: Stop if no new checkpoint is complete after this time, such as 2h. Default:
            keep watching.
        measure: Measure to select by. Default: each collection's main measure.
        results: Folder of stored results, or a URL such as s3://bucket/prefix. New results are
            added to it.
        out: Folder of the curve. Default: FOLDER/watch.
        allow_mismatch: Continue even if a collection differs from the published one. The
            results are marked.

    Examples:
        python -m bench watch runs/retromae --like retromae --on beir/nfcorpus --split dev
        python -m bench watch runs/retromae --like retromae --on beir/nfcorpus beir/fiqa --once
        python -m bench watch runs/minilm --on beir/scifact --stop-after 1h
    """

    only_if: ClassVar[OptionConditions] = {"stop_after": {"once": False}}

    folder: LocalPath
    _: KW_ONLY
    on: Names
    like: str | None = None
    split: str | None = None
    once: bool = False
    every: Duration = Seconds(60)
    stop_after: Duration | None = None
    measure: str | None = None
    results: OutLocation = Path("results")
    out: OutFolder | None = None
    allow_mismatch: bool = False
    hardware: HardwareOptions = HardwareOptions()
    folders: FolderOptions = FolderOptions()
    output: OutputOptions = OutputOptions()
