"""The back ends that can run a model, on this processor."""

import os
from typing import get_args

from foundation.errors import BenchError
from foundation.machine import instructions
from retrievers.models.recipe import Backend, Recipe

VNNI = {"avx512_vnni", "avx_vnni"}


def choose_backend(name: str | None, recipe: Recipe) -> Backend:
    """Return the back end of that name, PyTorch if it is None.

    Raises:
        BenchError: no back end has that name, or it cannot run the model here.
    """
    if name in (None, "torch"):
        return "torch"
    if name != "int8":
        raise BenchError(f"unknown back end {name!r}", f"use {', '.join(get_args(Backend))}")
    _check(recipe)
    if not has_vnni():
        raise BenchError(
            "int8 needs VNNI instructions: on this processor sums of 8-bit products saturate",
            "leave --dtype int8 out",
        )
    return "int8"


def has_vnni() -> bool:
    """True where 8-bit products are known to be summed without saturation.

    False where the processor does not say, and where oneDNN was told to use fewer instructions
    than there are.
    """
    return bool(VNNI & instructions()) and "ONEDNN_MAX_CPU_ISA" not in os.environ


def _check(recipe: Recipe) -> None:
    hint = "leave --dtype int8 out"
    if recipe.kind != "transformer" or recipe.encoder:
        raise BenchError(f"{recipe.model} has no transformer that int8 could run", hint)
    if recipe.adapter is not None:
        raise BenchError("int8 runs no adapters", hint)
    if recipe.dtype != "float32":
        raise BenchError(f"int8 starts from float32, not {recipe.dtype}", hint)
    if recipe.pooling == "pooler":
        raise BenchError(
            f"int8 gives hidden states, and {recipe.model} is pooled by {recipe.pooling!r}", hint
        )
