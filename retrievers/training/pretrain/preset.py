"""Presets of pre-training, strict TOML files with start, objective, optimizer and length."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from foundation.records import Record, TomlFiles
from retrievers.training.engine.arguments import Above0, Count, Optimizer, Precision
from retrievers.training.objectives.objective import Objective, read_objective

PRESETS = Path(__file__).parents[1] / "presets" / "pretrain"


class Scratch(Record, kw_only=True):
    """New BERT with random weights. Set either ``tokenizer`` or ``vocabulary``.

    Attributes:
        tokenizer: card, folder or Hub id whose tokenizer and vocabulary it gets.
        vocabulary: size of a WordPiece vocabulary that is trained on the texts themselves.
        layers: number of layers.
        width: dimension of the hidden states.
        heads: attention heads of each layer.
        intermediate: width of the feed-forward networks.
        positions: longest input in tokens.
    """

    tokenizer: str = ""
    vocabulary: Count | None = None
    layers: Count
    width: Count
    heads: Count
    intermediate: Count
    positions: Count = 512

    def __post_init__(self) -> None:
        if bool(self.tokenizer) == bool(self.vocabulary):
            raise ValueError("set either tokenizer or vocabulary")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be split among {self.heads} heads")


class Start(Record, kw_only=True):
    """Initial weights. Set either ``model`` or ``scratch``.

    Attributes:
        model: card, folder or Hub id.
        scratch: settings of a new model.
    """

    model: str = ""
    scratch: Scratch | None = None

    def __post_init__(self) -> None:
        if bool(self.model) == bool(self.scratch):
            raise ValueError("start from either a model or scratch")


class Pretraining(Record, kw_only=True):
    """Preset of a pre-training: everything that decides the checkpoint except the texts.

    Set the length with one of ``steps``, ``epochs`` and ``tokens``.

    Attributes:
        title: title in tables and reports.
        start: initial weights.
        objective: objective and its settings.
        optimizer: optimizer and schedule.
        batch_size: texts of one forward pass on one device.
        accumulate: forward passes of one step.
        max_tokens: longest text in tokens, including special tokens.
        long_texts: ``split`` turns a longer document into several blocks, each a text. ``truncate``
            drops the end of a longer document. Objectives that draw spans read complete documents.
        steps: optimizer steps.
        epochs: number of times that each text is read.
        tokens: number of tokens read, as counted in the loss curve: equal for all objectives.
        seed: seed of new weights, of the order of texts, of masks and of dropout.
        precision: precision of the forward pass; weights and optimizer states are float32, and TF32
            is off. On a CPU, float16 trains in float32.
        gradient_checkpointing: save memory at the cost of about a third more time.
        source: paper and section of the settings.
    """

    title: str
    start: Start
    objective: Objective
    optimizer: Optimizer = Optimizer()
    batch_size: Count = 32
    accumulate: Count = 1
    max_tokens: Annotated[int, msgspec.Meta(ge=8)] = 512
    long_texts: Literal["split", "truncate"] = "split"
    steps: Count | None = None
    epochs: Above0 | None = None
    tokens: Count | None = None
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    precision: Precision = "float32"
    gradient_checkpointing: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        if sum(length is not None for length in (self.steps, self.epochs, self.tokens)) != 1:
            raise ValueError("set one of steps, epochs and tokens")


FILES = TomlFiles(
    kind="preset for pre-training",
    folder=PRESETS,
    record=Pretraining,
    dec_hook=lambda _, objective: read_objective(objective),
    choice="objective.name",
    instead_of={
        "steps": ("epochs", "tokens"),
        "epochs": ("steps", "tokens"),
        "tokens": ("steps", "epochs"),
        "start.model": ("scratch",),
        "start.scratch": ("model",),
        "start.scratch.tokenizer": ("vocabulary",),
        "start.scratch.vocabulary": ("tokenizer",),
    },
)
load_preset = FILES.load
from_table = FILES.convert
changed = FILES.changed


def to_table(preset: Pretraining) -> dict[str, Any]:
    """Return all fields of ``preset`` as plain data."""
    table: dict[str, Any] = msgspec.to_builtins(preset)
    return table
