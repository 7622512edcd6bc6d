"""How an encoder is pre-trained, as a strict TOML file: start, objective, optimizer, length."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from retrievers.errors import RetrieverError
from retrievers.training.objective import Objective, read_objective

PRESETS = Path(__file__).parent / "presets" / "pretrain"

Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Above0 = Annotated[float, msgspec.Meta(gt=0)]


class Scratch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new BERT with random weights.

    Attributes:
        tokenizer: card, folder or Hub id whose tokenizer and vocabulary it gets.
        positions: longest input in tokens.
    """

    tokenizer: str
    layers: Count
    width: Count
    heads: Count
    intermediate: Count
    positions: Count = 512

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be split among {self.heads} heads")


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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


class Optimizer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """AdamW (Loshchilov and Hutter, 2019) and its schedule.

    Attributes:
        lr: highest learning rate.
        warmup: share of the steps over which it rises from 0.
        schedule: how it falls to 0 afterwards; ``constant`` does not.
        max_grad_norm: gradients are scaled down to this norm.
    """

    lr: Above0 = 1e-4
    warmup: Share = 0.1
    weight_decay: Share = 0.01
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    max_grad_norm: Above0 = 1.0


class Pretraining(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides a pre-trained checkpoint, but for its texts.

    Attributes:
        title: for people.
        batch_size: texts of one forward pass on one device.
        accumulate: forward passes of one step.
        max_tokens: where texts are cut, special tokens included.
        steps: how many; or
        epochs: how often each text is read.
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
    steps: Count | None = None
    epochs: Above0 | None = None
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("set either steps or epochs")


# Setting one of these unsets the other.
INSTEAD_OF = {
    "steps": "epochs",
    "epochs": "steps",
    "start.model": "scratch",
    "start.scratch": "model",
}
RECORDS = (Pretraining, Start, Scratch, Optimizer)


def preset_names() -> tuple[str, ...]:
    """Names of the shipped presets, sorted."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


def load_preset(name_or_path: str | Path) -> Pretraining:
    """The preset of that name, or of that ``.toml`` file.

    Raises:
        RetrieverError: no such preset, not TOML, an unknown key, or a value of the wrong type.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        if str(name_or_path) not in preset_names():
            raise _unknown(str(name_or_path))
        path = PRESETS / f"{name_or_path}.toml"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RetrieverError(f"cannot read the preset {path}: {error.strerror}") from error
    return parse(content, str(path))


def parse(content: bytes, source: str) -> Pretraining:
    """A preset from TOML; ``source`` names the file in messages.

    Raises:
        RetrieverError: see `load_preset`.
    """
    try:
        table = msgspec.toml.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RetrieverError(f"{source} is not TOML: {error}") from error
    return from_table(table, source)


def from_table(table: Mapping[str, Any], source: str) -> Pretraining:
    """A preset from a TOML table or from what `to_table` made.

    Raises:
        RetrieverError: an unknown key, or a value of the wrong type.
    """
    # Before the rest, so that its errors keep their own hints.
    objective = table.get("objective")
    found = read_objective(objective) if isinstance(objective, Mapping) else None
    try:
        return msgspec.convert(dict(table), type=Pretraining, dec_hook=lambda *_: found)
    except msgspec.ValidationError as error:
        raise RetrieverError(f"{source}: {error}", _hint(str(error))) from error


def to_table(preset: Pretraining) -> dict[str, Any]:
    """Plain data that says all of a preset."""
    table: dict[str, Any] = msgspec.to_builtins(preset)
    return table


def changed(preset: Pretraining, changes: Mapping[str, Any], source: str) -> Pretraining:
    """The preset with other values, checked again as when it was read.

    Args:
        changes: by dotted name: ``steps``, ``optimizer.lr``, ``objective.decoding``. A new
            ``objective.name`` drops the settings of the old one; ``steps`` and ``epochs``, and
            ``start.model`` and ``start.scratch``, take each other's place.
        source: of the changes, for messages.

    Raises:
        RetrieverError: an unknown name, or a value of the wrong type.
    """
    table = to_table(preset)
    for name in sorted(changes, key=lambda one: one != "objective.name"):
        *path, last = name.split(".")
        inner = table
        for key in path:
            if not isinstance(inner.get(key), dict):
                raise RetrieverError(f"{source}: a preset has no {name}", _hint_of(key))
            inner = inner[key]
        if name == "objective.name" and inner["name"] != changes[name]:
            inner.clear()
        if name in INSTEAD_OF:
            inner[INSTEAD_OF[name]] = None
        inner[last] = changes[name]
    if table["start"].get("model") is None:
        table["start"]["model"] = ""
    return from_table(table, source)


def _unknown(name: str) -> RetrieverError:
    close = difflib.get_close_matches(name, preset_names(), n=3, cutoff=0.5)
    known = f"use one of {', '.join(preset_names())}, or a .toml file"
    hint = f"did you mean {' or '.join(close)}?" if close else known
    return RetrieverError(f"no preset for pre-training is called {name!r}", hint)


def _hint(problem: str) -> str:
    """The field that a misspelt key was meant to be, from msgspec's message."""
    found = re.search(r"unknown field `(\w+)`", problem)
    return _hint_of(found[1]) if found else ""


def _hint_of(wrong: str) -> str:
    fields = {field for record in RECORDS for field in record.__struct_fields__}
    close = difflib.get_close_matches(wrong, sorted(fields), n=1)
    return f"did you mean {close[0]}?" if close else "remove it: presets are strict"
