"""Trained adapters that work together as they are: on top of each other, or side by side.

A stack is of a domain and a task (MAD-X: Pfeiffer et al., EMNLP 2020): a task's adapter that was
trained over one domain's can be put over another's. Side by side, each layer adds up the outputs
of all adapters by fixed weights (Wang et al., EMNLP Findings 2021). Weights that are learned are
those of the method ``fusion``, see `settings`.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from foundation.errors import BenchError
from foundation.records import read_object
from retrievers.adapters.attach import ATTACH_ERRORS, NAME, load_adapterhub, quiet_adapterhub
from retrievers.adapters.average import shares_of
from retrievers.adapters.composition import Setup, check_runs
from retrievers.adapters.hub import save_setup
from retrievers.adapters.identify import CONFIG
from retrievers.adapters.libraries import import_library
from retrievers.adapters.parts import Parts, parts_of
from retrievers.adapters.train import AdaptedNetwork, checkpoint_of
from retrievers.models.loading import load_network
from retrievers.models.model import Model


def stack_adapters(base: Model, folders: Sequence[Path], out: Path) -> None:
    """Write a stack of trained adapters as one that ``--model OUT`` takes.

    Args:
        base: that all were trained on.
        folders: the lowest first, such as a domain's and a task's; the last card among them says
            how vectors are made.

    Raises:
        BenchError: an adapter of another base, or methods that cannot be stacked.
    """
    parts = parts_of(base, folders)
    below = [f"below_{place}" for place in range(1, len(parts.folders))]
    _write(base, parts, Setup("Stack", (*below, NAME)), out, -1)


def add_outputs(
    base: Model, folders: Sequence[Path], out: Path, weights: Sequence[float] | None = None
) -> None:
    """Write adapters side by side, their outputs averaged, as one that ``--model OUT`` takes.

    Args:
        base, folders, weights: see `average_adapters`; sizes may differ.

    Raises:
        BenchError: an adapter of another base, or methods whose outputs cannot be averaged.
    """
    shares = shares_of(weights, len(folders))
    parts = parts_of(base, folders)
    names = tuple(f"part_{place}" for place in range(1, len(parts.folders) + 1))
    _write(base, parts, Setup("Average", names, shares), out, 0)


def _write(base: Model, parts: Parts, setup: Setup, out: Path, place: int) -> None:
    import_library("adapters")
    import adapters

    for folder in parts.folders:
        if "peft_type" in read_object(folder / CONFIG):
            raise BenchError(
                f"{folder} is an adapter of PEFT, and those are not put together but averaged",
                "python -m bench compose average",
            )
    card = parts.card(place, f"{setup.kind.lower()} of {len(setup.names)} adapters")
    network = load_network(checkpoint_of(base), base.recipe)
    network.config._name_or_path = base.card.name
    adapters.init(network)
    try:
        for name, folder in zip(setup.names, parts.folders, strict=True):
            load_adapterhub(network, folder, name)
        check_runs(network, setup)
        with quiet_adapterhub():
            network.set_active_adapters(setup.block())
        with torch.inference_mode():
            network(input_ids=torch.ones(1, 3, dtype=torch.long))
    except ATTACH_ERRORS as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise BenchError(
            f"these adapters cannot be put together: {why}",
            "bottleneck adapters and LoRA can be, of the same method",
        ) from error
    adapted = AdaptedNetwork(
        base, "adapterhub", lambda folder: save_setup(network, folder, setup.block())
    )
    adapted.save(out, card)
