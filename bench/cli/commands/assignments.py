"""Fields of a preset on the command line: options of their own, and ``--set FIELD=VALUE``."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from bench.cli.options.shared import TrainingSettings
from foundation.errors import BenchError


def typed_changes(settings: TrainingSettings, lr: str = "optimizer.lr") -> dict[str, Any]:
    """Values typed instead of a preset's fields, by field; most options are called like theirs.

    Args:
        lr: field of the learning rate.

    Raises:
        BenchError: see `assignments`.
    """
    asked = asdict(settings)
    fields = {"lr": lr, "start": "start.model"}
    own = assignments(asked.pop("set"))
    return {fields.get(k, k): value for k, value in asked.items() if value is not None} | own


def assignments(typed: Sequence[str]) -> dict[str, Any]:
    """``optimizer.warmup=0.2`` as a name and a value; what is no TOML value is a string.

    Raises:
        BenchError: one has no name or no value.
    """
    overrides = {}
    for assignment in typed:
        name, sign, value = assignment.partition("=")
        if not (name and sign):
            raise BenchError(
                f"--set {assignment} is not FIELD=VALUE", "such as --set optimizer.warmup=0"
            )
        try:
            overrides[name] = msgspec.toml.decode(f"value = {value}")["value"]
        except msgspec.DecodeError:
            overrides[name] = value
    return overrides
