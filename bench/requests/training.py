"""Requests that train: `pretrain`, `finetune`, `adapt`, `compose`, `ablate`, and `watch`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from attrs import field, frozen

from bench.requests.fields import (
    RESULTS,
    FolderFields,
    HardwareFields,
    MismatchFields,
    to_names,
    to_optional_path,
    to_paths,
)
from foundation.files import local_path
from retrievers.models.settings import to_optional_text

NO_CHANGES: Mapping[str, Any] = MappingProxyType({})


@frozen(kw_only=True, slots=False)
class TrainingFields(FolderFields):
    """Settings that override the preset, and the device.

    Attributes:
        changes: Fields of the preset to change, such as ``{"steps": 100, "optimizer.lr": 1e-5}``.
        save_every: Optimizer steps between two checkpoints, from which an interrupted training
            continues. Default: one every 5 minutes, and one when it is interrupted.
        progress: Function that is called after each step.
        log_dir: Folder for the loss curves as TensorBoard's logs, in a folder with the path of
            ``out``.
        device: auto (the first GPU, or the CPU if there is none), cpu or cuda.
    """

    changes: Mapping[str, Any] = NO_CHANGES
    save_every: int | None = None
    progress: Callable[..., None] | None = None
    log_dir: Path | None = field(default=None, converter=to_optional_path)
    device: str = "auto"


@frozen(kw_only=True, slots=False)
class PretrainRequest(TrainingFields):
    """Pre-train an encoder on the corpora of collections.

    Repeat the command to continue an interrupted training.

    Attributes:
        preset: Preset for pre-training (see `list presets`), or a .toml file.
        on: Collections, suites, folders (only their documents are read) or files with one document
            a line (text, or JSON with "text"; plain or .gz).
        out: Folder to write the checkpoint to.
        objective: Objective, or a .py file that defines one, whose code is run. Default: the
            preset's.
        start: Model to start from: a card, folder or Hub id. Default: the preset's.

    In Python:
        preset: also a `Pretraining`.

    Examples:
        python -m bench pretrain retromae-small --on stdlib-code/train --out models/code
        python -m bench pretrain retromae-paper --start path/to/bert --on msmarco/dev --out models/retromae
        python -m bench pretrain my-preset.toml --on beir/scifact beir/nfcorpus --out models/mine
        python -m bench pretrain mlm-small --objective path/to/objective.py --on stdlib-code/train --out models/own
        accelerate launch --num_processes 8 -m bench pretrain retromae-paper --on msmarco/dev --out models/r
    """

    preset: Any = field(kw_only=False)
    on: tuple[str, ...] = field(kw_only=False, converter=to_names)
    out: Path = field(kw_only=False, converter=local_path)
    objective: str | None = field(default=None, converter=to_optional_text)
    start: str | None = field(default=None, converter=to_optional_text)


@frozen(kw_only=True, slots=False)
class FinetuneRequest(TrainingFields):
    """Fine-tune an encoder on the judged queries of collections.

    Training queries with the text of a test query, of these collections or of ``held_out``, are
    left out. Repeat the command to continue an interrupted training.

    A training file of FlagEmbedding, Tevatron, DPR, sentence-transformers, MS MARCO (triples) or
    MarginMSE is recognised by its content. Its negatives replace those of BM25, and scores in it
    are distilled if the preset's loss is.

    Attributes:
        preset: Preset for fine-tuning (see `list presets`), or a .toml file.
        model: Model to start from: a card, folder or Hub id.
        on: Collections, suites or folders with a training split, or training files with texts.
        out: Folder to write the checkpoint to.
        like: Card whose pooling, prompts and lengths a plain checkpoint uses (see `list models`).
        split: Split to train on.
        negatives: Training file with ids of the collection: its queries are trained on.
        held_out: Further collections whose test queries must not be trained on.

    In Python:
        preset: also a `Finetuning`.

    Examples:
        python -m bench finetune dpr-small --model minilm --on stdlib-code/train --out models/code
        python -m bench finetune dpr-small --model minilm --on beir/nfcorpus --out models/mine
        python -m bench finetune retromae-beir --model models/retromae --on msmarco/train --held-out msmarco --out models/r
        python -m bench finetune dpr --model bert-base-uncased --on msmarco/train --negatives qidpidtriples.train.full.2.tsv.gz --out models/dpr
        python -m bench finetune dpr --model bert-base-uncased --on train.jsonl --held-out beir --out models/mine
        python -m bench finetune mined-small --model path/to/bert --like bert --on beir/scifact --out models/mined --set rounds.1.margin=0.5
    """

    preset: Any = field(kw_only=False)
    model: str = field(kw_only=False, converter=str)
    on: tuple[str, ...] = field(kw_only=False, converter=to_names)
    out: Path = field(kw_only=False, converter=local_path)
    like: str | None = None
    split: str = "train"
    negatives: Path | None = field(default=None, converter=to_optional_path)
    held_out: tuple[str, ...] = field(default=(), converter=to_names)


@frozen(kw_only=True, slots=False)
class AdaptRequest(PretrainRequest):
    """Continue pre-training on one collection after the other, with a checkpoint after each.

    Repeat the command to continue an interrupted training, or to add collections at the end of
    ``on``. Finally it prints the command that scores every checkpoint.

    Methods, with their settings (--set method.FIELD=VALUE): plain (no measure against forgetting);
    ewc (penalise changes of weights that matter for earlier collections: measured, strength); das
    (soften gradients of units that matter for earlier collections: measured); adapter (one adapter
    per collection on the frozen start model: adapter); replay (mix in texts of earlier collections:
    buffer, replayed); joint (train on all collections so far, the upper bound).

    Attributes:
        on: Collections, suites or folders, in training order.
        out: Folder to write the checkpoints to.
        method: plain, ewc, das, adapter, replay or joint, or a .py file that defines a method, whose
            code is run.
        method_settings: Settings of the method.

    Examples:
        python -m bench adapt mlm-small --on beir/nfcorpus beir/scifact --method das --set method.measured=1000 --out models/das
        python -m bench adapt mlm --start path/to/bert --on beir/nfcorpus beir/fiqa --method ewc --steps 10000 --out models/ewc
    """

    method: str = "plain"
    method_settings: Mapping[str, Any] = NO_CHANGES


@frozen(kw_only=True, slots=False)
class ComposeRequest(FolderFields):
    """Combine trained adapters of one base model.

    average: one adapter with the mean of the weights (AdapterSoup). All adapters need one method
    and size. route: each query uses the adapter of the closest domain, by the distance of its base
    embedding to the mean training query of each domain; documents are encoded with every adapter.

    Attributes:
        how: Method of combination.
        adapters: Folders written by `finetune` with an adapter or by `adapt --method adapter`, or
            adapters inside them.
        out: Folder to write.
        on: With route: one collection per adapter, in the order of the adapters.

    Examples:
        python -m bench compose average models/a models/b --out models/mean
        python -m bench compose route models/a models/b --on beir/nfcorpus beir/scifact --out models/routed
    """

    how: Literal["average", "route"] = field(kw_only=False)
    adapters: tuple[Path, ...] = field(kw_only=False, converter=to_paths)
    out: Path = field(converter=local_path)
    on: tuple[str, ...] = field(default=(), converter=to_names)


@frozen(kw_only=True, slots=False)
class AblateRequest(MismatchFields, HardwareFields, FolderFields):
    """Run an ablation: train and evaluate every row of a grid with several seeds.

    Each row changes one field, or combines levels of factors. Repeat the command to continue an
    interrupted experiment, or start it in several terminals to share the cells. Exit code 4: a cell
    failed; repeat the command to try it again. The report of a grid with [adapt] contains what each
    row gained and forgot.

    Attributes:
        grid: Grid: a .toml file or a name (see `list grids`).
        seeds: Seeds to train with. Default: the file's.
        out: Folder of cells and reports.
        log_dir: Folder for the loss curves as TensorBoard's logs, a folder for each row and seed.
        trust_code: Allow encoder code that is not of this program, see `run`.

    Examples:
        python -m bench ablate one-vector
        python -m bench ablate adapters-two-cores
        python -m bench ablate inference --dry-run
        python -m bench ablate inference
        python -m bench ablate my-grid.toml --seeds 0 1 2 3 4
    """

    grid: str = field(kw_only=False, converter=str)
    seeds: tuple[int, ...] = field(default=(), converter=tuple)
    out: Path = field(default=Path("ablations"), converter=local_path)
    log_dir: Path | None = field(default=None, converter=to_optional_path)
    trust_code: bool = False


@frozen(kw_only=True, slots=False)
class WatchRequest(MismatchFields, HardwareFields, FolderFields):
    """Evaluate the checkpoints of a running training as they are completed.

    A checkpoint is evaluated once it is complete and its files no longer change. Its name ends in
    its step, as checkpoint-500 or epoch_3 do. Its results are stored as TRAINING/checkpoint-N,
    after the folder of the training. Stop with Ctrl-C; the same command continues.

    Attributes:
        folder: Folder in which the training writes checkpoint-N.
        on: Collections, suites or folders.
        like: Card (a name or TOML file) whose pooling, prompts, lengths and precision the
            checkpoints use.
        split: Split whose judgements are used. Default: the collection's.
        once: Evaluate the present checkpoints, then stop.
        every: Time between scans of the folder, such as 30s, 5m or 1h.
        stop_after: Stop if no new checkpoint is complete after this time, such as 2h. Default: keep
            watching.
        measure: Measure to select by. Default: each collection's main measure.
        results: Folder of stored results. New results are added to it.
        out: Folder of the curve. Default: FOLDER/watch.

    In Python:
        every: seconds.

    Examples:
        python -m bench watch runs/retromae --like retromae --on beir/nfcorpus --split dev
        python -m bench watch runs/retromae --like retromae --on beir/nfcorpus beir/fiqa --once
        python -m bench watch runs/minilm --on beir/scifact --stop-after 1h
    """

    folder: Path = field(kw_only=False, converter=local_path)
    on: tuple[str, ...] = field(converter=to_names)
    like: str | None = None
    split: str | None = None
    once: bool = False
    every: float = 60.0
    stop_after: float | None = None
    measure: str | None = None
    results: Path = field(default=RESULTS, converter=local_path)
    out: Path | None = field(default=None, converter=to_optional_path)
