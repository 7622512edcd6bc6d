"""Writes the card of a model that was trained or made here: ``card.toml`` in its folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from foundation.files import replacing
from retrievers.models.card import Card
from retrievers.models.lookup import CARD_FILE


def write_card(card: Card, folder: Path, checkpoint: str = ".") -> Path:
    """Write the card of a checkpoint, by default that in this folder; defaults are left out.

    Args:
        card: its name and checkpoint are replaced by those of the folder.
    """
    card = msgspec.structs.replace(card, name=Path(CARD_FILE).stem, checkpoint=checkpoint)
    blank = msgspec.to_builtins(Card(name="", title="", kind="bm25"))
    stated = {
        field: value
        for field, value in msgspec.to_builtins(card).items()
        if value != blank[field] and not (field == "kind" and value == "transformer")
    }
    with replacing(folder / CARD_FILE) as file:
        for field, value in stated.items():
            file.write(f"{field} = {_toml(value)}\n".encode())
    return folder / CARD_FILE


def _toml(value: Any) -> str:
    """A value as TOML writes it inline; JSON's strings, numbers and booleans are TOML's."""
    if isinstance(value, Mapping):
        pairs = (f"{_toml(key)} = {_toml(inner)}" for key, inner in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
