"""Adapters that AdapterHub composed: how, and which folders they lie in."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.errors import BenchError
from foundation.records import read_object

SETUP = "adapter_setup.json"  # of AdapterHub: several adapters, each in a folder inside
COMPOSITIONS = ("Stack", "Fuse", "Average")
OF_THE_FIRST = ("reft", "prompt_tuning")  # kinds of which AdapterHub 1.3 runs the first alone


@dataclass(frozen=True)
class Setup:
    """Composition of adapters.

    Attributes:
        kind: of `COMPOSITIONS`.
        names: of the adapters, which are those of their folders; of a stack the first is lowest.
        weights: of the outputs that ``Average`` adds up, of sum 1; empty for the other kinds.
    """

    kind: str
    names: tuple[str, ...]
    weights: tuple[float, ...] = ()

    def block(self) -> Any:
        """AdapterHub's own record of it."""
        from adapters import composition

        if self.kind != "Average":
            return getattr(composition, self.kind)(*self.names)
        # AdapterHub 1.3 takes the mean of the weighted outputs, and not their sum.
        weights = [weight * len(self.names) for weight in self.weights]
        return composition.Average(*self.names, weights=weights, normalize_weights=False)


def check_runs(network: Any, setup: Setup) -> None:
    """Refuse adapters that AdapterHub would pass by in silence.

    Args:
        network: that has them all.

    Raises:
        BenchError: a prompt, ReFT or an invertible layer that is not at the bottom of a stack.
    """
    for name in setup.names[1:] if setup.kind == "Stack" else setup.names:
        whole = network.adapters_config.get(name)
        for part in getattr(whole, "configs", [whole]):
            kind = part.get("architecture")
            if kind in OF_THE_FIRST or part.get("inv_adapter"):
                raise BenchError(
                    f"AdapterHub runs {kind or 'an invertible layer'} only at the bottom of a "
                    "stack, and would ignore this one",
                    "put it there, or use a bottleneck adapter or LoRA",
                )


def read_setup(folder: Path) -> Setup:
    """Composition of the adapters of a folder, as AdapterHub saved it.

    Raises:
        BenchError: it is another composition, or one inside another.
    """
    setup = read_object(folder / SETUP).get("adapter_setup")
    kind = setup.get("type") if isinstance(setup, dict) else None
    children = setup.get("children") if isinstance(setup, dict) else None
    if isinstance(setup, dict) and isinstance(children, list) and kind in COMPOSITIONS:
        names = tuple(name for child in children if (name := _only_child(child)))
        weights = _weights(setup, len(names)) if kind == "Average" else ()
        if len(names) == len(children) and weights is not None:
            return Setup(str(kind), names, weights)
    raise BenchError(
        f"{folder / SETUP} is not supported", f"supported: {', '.join(COMPOSITIONS)} of adapters"
    )


def _only_child(block: Any) -> str:
    """The adapter's name in a block that holds nothing else; "" for any other block."""
    names: Any = block.get("children") if isinstance(block, dict) else [block]
    alone = isinstance(names, list) and len(names) == 1 and isinstance(names[0], str)
    return str(names[0]) if alone else ""


def _weights(setup: dict[str, Any], count: int) -> tuple[float, ...] | None:
    """Weights of the parts of an average, of sum 1; None where they are not as many numbers."""
    told = setup.get("kwargs")
    weights = told.get("weights") if isinstance(told, dict) else None
    if not isinstance(weights, list) or len(weights) != count:
        return None
    finite = all(isinstance(weight, int | float) and math.isfinite(weight) for weight in weights)
    total = sum(weights) if finite else 0
    return tuple(weight / total for weight in weights) if total > 0 else None
