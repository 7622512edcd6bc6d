"""Options of the commands that train: ``pretrain``, ``finetune``, ``adapt``, ``compose``."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from bench.cli.options.shared import (
    LocalPaths,
    Names,
    OutFolder,
    Output,
    Places,
    Positive,
    Rate,
    Several,
    TrainingSettings,
    TrainingWork,
    Weight,
    Weights,
    group,
)
from foundation.errors import BenchError


def _one_length(**lengths: float | None) -> None:
    typed = [f"--{name}" for name, length in lengths.items() if length is not None]
    if len(typed) > 1:
        raise BenchError(f"{' and '.join(typed)} each say how long to train", "type one of them")


@group("Instead of the preset's settings", 30)
@dataclass(frozen=True, kw_only=True)
class PretrainingSettings(TrainingSettings):
    """Settings of a pre-training preset."""

    start: str | None = None
    """Card, folder or Hub id to start from."""
    steps: Positive | None = None
    """Steps of the optimizer; or"""
    epochs: Rate | None = None
    """Passes over the texts; or"""
    tokens: Positive | None = None
    """Tokens that are read, the same for every objective."""
    batch_size: Positive | None = None
    """Texts per forward pass."""
    accumulate: Positive | None = None
    """Forward passes per step of the optimizer (gradient accumulation)."""
    max_tokens: Positive | None = None
    """Tokens of a text; longer documents are split into several texts."""

    def __post_init__(self) -> None:
        _one_length(steps=self.steps, epochs=self.epochs, tokens=self.tokens)


@group("Instead of the preset's settings", 30)
@dataclass(frozen=True, kw_only=True)
class FinetuningSettings(TrainingSettings):
    """Settings of a fine-tuning preset."""

    steps: Positive | None = None
    """Steps of each round; not with --epochs."""
    epochs: Rate | None = None
    """Passes over the queries; not with --steps."""
    batch_size: Positive | None = None
    """Queries per step."""

    def __post_init__(self) -> None:
        _one_length(steps=self.steps, epochs=self.epochs)


@dataclass(frozen=True)
class PretrainOptions:
    """Pre-train an encoder on the corpora of collections.

    The same command continues an interrupted training. `list presets` names the presets.

    Examples:
        python -m bench pretrain retromae-small --on stdlib-code --out models/retromae-code
        python -m bench pretrain retromae --start path/to/bert --on msmarco/dev --out models/retromae
        python -m bench pretrain my-preset.toml --on beir/scifact beir/nfcorpus --out models/mine
        accelerate launch --num_processes 8 -m bench pretrain retromae --on msmarco/dev --out models/r
        python -m bench run stdlib-code --model models/retromae-code
    """

    preset: str
    """Name of a shipped preset for pre-training, or a .toml file."""
    _: KW_ONLY
    on: Names
    """Collections, suites or folders; only their documents are read."""
    out: OutFolder
    """Folder of the checkpoint."""
    settings: PretrainingSettings = PretrainingSettings()
    work: TrainingWork = TrainingWork()
    places: Places = Places()
    output: Output = Output()


@dataclass(frozen=True)
class FinetuneOptions:
    """Fine-tune an encoder on the judged queries of collections.

    The same command continues an interrupted training. Training queries that read like the test
    queries of these collections, and of --held-out, are left out. `list presets` names the presets.

    Examples:
        python -m bench finetune dpr-small --model minilm --on stdlib-code/train --out models/code
        python -m bench finetune dpr-small --model minilm --on beir/nfcorpus --out models/mine
        python -m bench finetune retromae-beir --model models/retromae --on msmarco/dev --out models/r
        python -m bench finetune mined-small --model path/to/bert --like bert --on beir/scifact --out models/mined --set rounds.1.margin=0.5
        python -m bench run beir/nfcorpus --model minilm models/mine
    """

    preset: str
    """Name of a shipped preset, or a .toml file."""
    _: KW_ONLY
    model: str
    """Card, folder or Hub id to start from."""
    on: Names
    """Collections, suites or folders with a split to train on."""
    out: OutFolder
    """Folder of the checkpoint."""
    like: str | None = None
    """Use a plain checkpoint with this card's pooling, prompts and lengths."""
    split: str = "train"
    """Split to train on."""
    held_out: Names = ()
    """Further collections whose test queries must stay out of the training."""
    settings: FinetuningSettings = FinetuningSettings()
    work: TrainingWork = TrainingWork()
    places: Places = Places()
    output: Output = Output()


@group("Continual learning", 20)
@dataclass(frozen=True, kw_only=True)
class AgainstForgetting:
    """The method of continual pre-training against forgetting."""

    method: Literal["plain", "ewc", "das", "adapter", "replay", "joint", "distill"] = "plain"
    """plain: no measure against forgetting; ewc: penalise changes of weights that earlier
    collections depend on; das: soften updates of units that earlier collections and general
    knowledge depend on; adapter: one adapter per collection, on the frozen start model; replay:
    read kept texts of earlier collections again; joint: read all collections so far at once, the
    upper bound; distill: keep the predictions of the model before each collection (Learning without
    Forgetting)."""
    measured: Positive = 256
    """Texts per collection on which importance is measured; the authors of DAS read 10,000."""
    strength: Weight = 5_000.0
    """Strength of the penalty of ewc."""
    soften: Literal["gradient", "update"] = "gradient"
    """Target of das: the gradient, as published, which AdamW largely undoes; or the optimizer's
    update."""
    adapter: str = "double_seq_bn"
    """Configuration of AdapterHub, for method adapter."""
    buffer: Positive = 1_000
    """Texts of all earlier collections that replay keeps."""
    replayed: Rate = 0.5
    """Share of the texts that replay reads of its buffer, below 1."""
    weight: Weight = 1.0
    """Weight of what distill adds to the loss."""
    temperature: Weight = 2.0
    """Temperature of the predictions that distill compares."""


@dataclass(frozen=True)
class AdaptOptions:
    """Continue pre-training on one collection after the other, with a checkpoint for each.

    The same command continues an interrupted training; collections may be added at the end of --on.
    At the end it prints the command that scores every checkpoint.

    Examples:
        python -m bench adapt mlm-small --on beir/nfcorpus beir/scifact --method das --out models/das
        python -m bench adapt mlm --start path/to/bert --on beir/nfcorpus beir/fiqa --method ewc --steps 10000 --out models/ewc
        python -m bench adapt retromae-small --on beir/nfcorpus beir/fiqa --out models/plain
    """

    preset: str
    """Name of a shipped preset for pre-training, or a .toml file."""
    _: KW_ONLY
    on: Names
    """Collections, suites or folders, in the order in which they are learnt."""
    out: OutFolder
    """Folder of the checkpoints."""
    against: AgainstForgetting = AgainstForgetting()
    settings: PretrainingSettings = PretrainingSettings()
    work: TrainingWork = TrainingWork()
    places: Places = Places()
    output: Output = Output()


@dataclass(frozen=True)
class ComposeOptions:
    """Combine trained adapters, or trained models, of one base.

    average: the mean of the weights, one adapter as fast as each (AdapterSoup), of one method and
    size. outputs: all side by side, each layer adds up their outputs by fixed weights (AdapterHub).
    stack: the first at the bottom, such as a domain's below a task's (MAD-X, AdapterHub). A folder
    is what `finetune` with an adapter or `adapt --method adapter` wrote, or an adapter inside one.
    Weights that are learned come from `finetune` with adapter.method = "fusion".
    route: side by side, of which each query takes one. By default it is the adapter whose domain it
    is closest to, the nearest mean among the training queries of the collections of --on, as the
    base encodes them. Documents are encoded by every adapter, and each query is compared with those
    of its own. With --by collection, the collection that is searched takes its adapter.
    arithmetic: whole models that were trained from --base; what each changed is added to it, times
    its weight (task arithmetic), which may be below 0. With weights of sum 1, it is their mean.

    Examples:
        python -m bench compose average models/a models/b --out models/mean
        python -m bench compose average models/a models/b --weights 3 1 --out models/mean
        python -m bench compose stack models/domain models/task --out models/both
        python -m bench compose route models/a models/b --on beir/nfcorpus beir/scifact --out models/routed
        python -m bench compose arithmetic models/law models/code --base minilm --weights 0.5 -0.2 --out models/sum
        python -m bench run beir/scifact --model models/mean
        python -m bench finetune adapter-small --model minilm --on beir/nfcorpus --out models/fused --set 'adapter={method="fusion", over=["models/a", "models/b"]}'
    """

    how: Literal["average", "outputs", "stack", "route", "arithmetic"]
    """Way of combining them."""
    folders: LocalPaths
    """Folders of trained adapters, or, for arithmetic, of trained models."""
    _: KW_ONLY
    out: OutFolder
    """Folder of what comes out."""
    weights: Annotated[Weights | None, Several] = None
    """One weight per adapter or model, of any sum. Default: equal weights. For average, outputs and
    arithmetic."""
    on: Names = ()
    """For route: the collection of each adapter's domain, in the order of the folders."""
    by: Literal["centroid", "collection"] = "centroid"
    """For route: what chooses the adapter of a query."""
    split: str = "train"
    """For route: split of the collections whose queries are the domains' texts."""
    base: str = ""
    """Model that the trainings began from, for arithmetic: card, folder or Hub id."""
    places: Places = Places()
    output: Output = Output()
