"""Presets of pre-training, strict TOML files: start, objective, optimizer, length."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from foundation.records import Record, TomlFiles
from retrievers.training.engine.arguments import Above0, Count, Optimizer, Precision
from retrievers.training.objectives.objective import Objective, read_objective

PRESETS = Path(__file__).parents[1] / "presets" / "pretrain"


class Scratch(Record, kw_only=True):
    """A new BERT with random weights.

    Attributes:
        tokenizer: card, folder or Hub id whose tokenizer and vocabulary it gets; or
        vocabulary: pieces of a WordPiece vocabulary that is trained on the texts themselves.
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
    """Where the weights come from: one of the two.

    Attributes:
        model: card, folder or Hub id.
        scratch: a new model.
    """

    model: str = ""
    scratch: Scratch | None = None

    def __post_init__(self) -> None:
        if bool(self.model) == bool(self.scratch):
            raise ValueError("start from either a model or scratch")


class Pretraining(Record, kw_only=True):
    """Everything that decides a pre-trained checkpoint, but for its texts.

    Attributes:
        title: in tables and reports.
        batch_size: texts of one forward pass on one device.
        accumulate: forward passes of one step.
        max_tokens: of a text, special tokens included.
        long_texts: a document of more tokens is split into blocks, each a text of its own; or it is
            truncated, and its tail is never read. Objectives that draw spans of documents read
            whole documents.
        steps: how many; or
        epochs: how often each text is read; or
        tokens: how many are read, as the loss curve counts them: the same for every objective.
        precision: of the forward pass; weights and optimizer are float32.
        gradient_checkpointing: less memory for about a third more time.
        source: paper and section that the figures are from.
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
    """Plain data that says all of a preset."""
    table: dict[str, Any] = msgspec.to_builtins(preset)
    return table
