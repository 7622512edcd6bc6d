"""The back ends that can run a model, on this processor."""

import logging
import os
from typing import get_args

from foundation.errors import BenchError
from foundation.machine import instructions
from retrievers.models.recipe import BY_THE_MODEL, Backend, Recipe

VNNI = {"avx512_vnni", "avx_vnni"}

logger = logging.getLogger(__name__)


def choose_backend(name: str | None, recipe: Recipe) -> Backend:
    """The back end of that name, PyTorch where it is None.

    ``int8`` is ``int7`` on a processor without VNNI instructions, and it is said.

    Raises:
        BenchError: no back end has that name, or it cannot run the model.
    """
    chosen: Backend | None = next(
        (backend for backend in get_args(Backend) if backend == name), None
    )
    if name is not None and chosen is None:
        raise BenchError(f"unknown back end {name!r}", f"use {', '.join(get_args(Backend))}")
    if chosen is None or chosen == "torch":
        return "torch"
    _check(chosen, recipe)
    if chosen == "int8" and not has_vnni():
        logger.warning(
            "this processor has no VNNI instructions: back end int7, with weights of 7 bits, "
            "takes the place of int8; its results are those of another recipe"
        )
        return "int7"
    return chosen


def has_vnni() -> bool:
    """True where 8-bit products are known to be summed without saturation.

    False where the processor does not say, and where oneDNN was told to use fewer instructions
    than there are.
    """
    return bool(VNNI & instructions()) and "ONEDNN_MAX_CPU_ISA" not in os.environ


def _check(backend: Backend, recipe: Recipe) -> None:
    if recipe.kind != "transformer" or recipe.encoder:
        raise BenchError(
            f"{recipe.model} has no transformer that back end {backend} could run",
            "leave --backend out",
        )
    if recipe.adapter is not None:
        raise BenchError(f"back end {backend} runs no adapters", "use --backend torch")
    if recipe.dtype != "float32":
        raise BenchError(
            f"back end {backend} starts from float32, not {recipe.dtype}",
            "use --dtype float32, or --backend torch",
        )
    if recipe.pooling in BY_THE_MODEL:
        raise BenchError(
            f"back end {backend} gives hidden states, and {recipe.model} is pooled by "
            f"{recipe.pooling!r}",
            "use --backend torch",
        )
