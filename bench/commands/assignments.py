"""Fields of a preset on the command line: ``--set FIELD=VALUE``."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bench.errors import BenchError


def assignments(typed: Sequence[str]) -> dict[str, Any]:
    """``optimizer.warmup=0.2`` as a name and a value; what is no TOML value is a string.

    Raises:
        BenchError: one has no name or no value.
    """
    found = {}
    for one in typed:
        name, sign, value = one.partition("=")
        if not (name and sign):
            raise BenchError(f"--set {one} is not FIELD=VALUE", "such as --set optimizer.warmup=0")
        try:
            found[name] = msgspec.toml.decode(f"value = {value}")["value"]
        except msgspec.DecodeError:
            found[name] = value
    return found
