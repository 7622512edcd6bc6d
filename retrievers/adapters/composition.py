"""Adapters that AdapterHub composed, or that are routed: how, and which folders they lie in."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from foundation.errors import BenchError
from foundation.records import Record, read_json, read_object

SETUP = "adapter_setup.json"  # of AdapterHub: several adapters, each in a folder inside
ROUTING = "adapter_routing.json"  # several of any library, each in a folder inside, used one by one
ROUTER = "router.safetensors"  # the rule that chooses one for a query
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
        BenchError: a prompt, ReFT or an invertible layer that is not at the bottom of a stack, or
            a parallel bottleneck in one.
    """
    if setup.kind == "Stack" and len(setup.names) > 1:
        _check_sequential(network, setup.names)
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


def _check_sequential(network: Any, names: Sequence[str]) -> None:
    """Refuse parallel bottlenecks: each of a stack reads the layer's input anew."""
    for name in names:
        whole = network.adapters_config.get(name)
        if any(part.get("is_parallel") for part in getattr(whole, "configs", [whole])):
            raise BenchError(
                "AdapterHub drops what is below a parallel adapter in a stack",
                "put the outputs side by side, or use a sequential bottleneck or LoRA",
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


class Routing(Record, kw_only=True):
    """Adapters of one base, of which one is used at a time.

    Attributes:
        by: what chooses one: the ``collection`` that is searched; or each query, see
            `retrievers.adapters.routing`.
        adapters: folders inside.
        domains: of each adapter, the collections, or families of them, that it is for.
        otherwise: folder of the adapter of all other collections; "" for none.
    """

    by: Literal["collection", "centroid", "classifier"]
    adapters: tuple[str, ...]
    domains: tuple[tuple[str, ...], ...]
    otherwise: str = ""

    def __post_init__(self) -> None:
        if not self.adapters or len(self.adapters) != len(self.domains):
            raise ValueError(f"{len(self.domains)} domains for {len(self.adapters)} adapters")

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of all adapters."""
        return (*self.adapters, *filter(None, (self.otherwise,)))

    @property
    def parts(self) -> int:
        """Number of adapters whose vectors of a document lie beside each other."""
        return 1 if self.by == "collection" else len(self.adapters)

    def folder_for(self, collection: str) -> str:
        """Folder of the adapter for a collection; that of the longest name, such as ``a/b``.

        Raises:
            BenchError: there is none.
        """
        fitting = [
            (len(domain), folder)
            for folder, domains in zip(self.adapters, self.domains, strict=True)
            for domain in domains
            if f"{collection}/".startswith(f"{domain}/")
        ]
        if fitting:
            return max(fitting, key=lambda each: each[0])[1]
        if not self.otherwise:
            known = ", ".join(domain for domains in self.domains for domain in domains)
            raise BenchError(
                f"none of the adapters is for {collection}: they are for {known}",
                "compose route, where each query takes one",
            )
        return self.otherwise


def read_routing(folder: Path) -> Routing | None:
    """Routing of the adapters of a folder; None where they are not routed.

    Raises:
        BenchError: the file is damaged.
    """
    path = folder / ROUTING
    return read_json(path, Routing) if path.is_file() else None
