"""Trained adapters of one base as one adapter: averaged, or stacked.

The average of the weights costs nothing to use (Chronopoulou et al., AdapterSoup, EACL Findings
2023); each tensor is averaged by itself: of LoRA both factors, rather than their product. A stack
is of a domain and a task (MAD-X: Pfeiffer et al., EMNLP 2020): a task's adapter that was trained
over one domain's can be put over another's. Weights that are learned are those of the method
``fusion``, see `settings`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor

from foundation.errors import BenchError
from foundation.records import read_object
from retrievers.adapters.folder import (
    ATTACH_ERRORS,
    AdaptedNetwork,
    checkpoint_of,
    parts_of,
)
from retrievers.adapters.hub import NAME, check_runs, load_adapterhub, quiet_adapterhub, save_setup
from retrievers.adapters.identify import CONFIG, NORMS, SHARED, Setup, identify_adapter
from retrievers.adapters.settings import import_library
from retrievers.models.loading import load_network, load_tensors, weighted_sum
from retrievers.models.model import Model

# Of configurations: what says nothing about which function the weights are of.
NOT_COMPARED = {
    *("name", "model_name", "model_class", "version", "dropout", "init_weights"),
    *("init_weights_seed", "base_model_name_or_path", "inference_mode", "peft_version"),
    *("revision", "auto_mapping", "task_type", "lora_dropout", "init_lora_weights"),
}


def average_adapters(
    base: Model, folders: Sequence[Path], out: Path, weights: Sequence[float] | None = None
) -> None:
    """Write the weighted mean of trained adapters as one that ``--model OUT`` takes.

    Args:
        base: that all were trained on.
        folders: of finished trainings, or of adapters; the first card among them says how vectors
            are made.
        weights: one for each, from 0, of any sum above 0; None for equal ones.

    Raises:
        BenchError: adapters of different methods or sizes, one of another base, or weights
            that are not one for each.
    """
    shares = shares_of(weights, len(folders))
    parts = parts_of(base, folders)
    kinds = {identify_adapter(folder, None, checkpoint_of(base)).kind for folder in parts.folders}
    if len(kinds) > 1:
        raise _cannot("some are of AdapterHub and some of PEFT")
    _check_configurations([read_object(folder / CONFIG) for folder in parts.folders])
    title = f"average of {len(parts.folders)} adapters"
    card = parts.card(0, title)
    files = _means(base, parts.folders, shares)
    content = (parts.folders[0] / CONFIG).read_bytes()

    def write(folder: Path) -> None:
        (folder / CONFIG).write_bytes(content)
        for name, tensors in files.items():
            if name.endswith(".safetensors"):
                save_file(tensors, str(folder / name))
            else:
                torch.save(tensors, str(folder / name))

    AdaptedNetwork(base, kinds.pop(), write).save(out, card)


def shares_of(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """Weights of sum 1; equal ones for None.

    Raises:
        BenchError: they are not one for each, or not numbers from 0 with a sum above it.
    """
    given = [1.0] * count if weights is None else list(weights)
    if len(given) != count:
        raise BenchError(f"{len(given)} weights for {count} adapters", "one for each")
    total = math.fsum(given)
    if not (0 < total < math.inf and min(given) >= 0):
        raise BenchError(f"{given} cannot be weights", "numbers from 0, not all of them 0")
    return tuple(weight / total for weight in given)


def _means(
    base: Model, folders: Sequence[Path], shares: Sequence[float]
) -> dict[str, dict[str, Tensor]]:
    """The mean of each file of weights, by its name."""
    identities = [identify_adapter(folder, None, checkpoint_of(base)) for folder in folders]
    files = [sorted(set(identity.files) - {CONFIG}) for identity in identities]
    if any(names != files[0] for names in files):
        raise _cannot(f"they have other files: {', '.join(sorted(set().union(*files)))}")
    own = [str(read_object(folder / CONFIG).get("name")) for folder in folders]
    means = {}
    for file in files[0]:
        held = [load_tensors(folder / file) for folder in folders]
        if file not in (SHARED, NORMS):
            held = [_named(tensors, name, own[0]) for tensors, name in zip(held, own, strict=True)]
        means[file] = weighted_sum(held, shares)
    return means


def _named(tensors: Mapping[str, Tensor], own: str, wanted: str) -> dict[str, Tensor]:
    """AdapterHub has the adapter's name in those of its tensors."""
    return {
        ".".join(wanted if part == own else part for part in name.split(".")): value
        for name, value in tensors.items()
    }


def _check_configurations(stated: Sequence[Mapping[str, Any]]) -> None:
    """Refuse adapters of different methods or sizes."""
    flat = [_settings(config) for config in stated]
    for other in flat[1:]:
        names = sorted(flat[0].keys() | other.keys())
        different = [name for name in names if flat[0].get(name) != other.get(name)]
        if different:
            raise _cannot(f"they differ in {', '.join(different[:3])}")


def _settings(stated: Mapping[str, Any]) -> dict[str, bytes]:
    """Settings that decide the method and the size, in a form that can be compared."""
    inner = stated.get("config")
    whole = {**stated, **inner} if isinstance(inner, Mapping) else dict(stated)
    whole.pop("config", None)
    kept = {name: value for name, value in whole.items() if name not in NOT_COMPARED}
    return {name: _comparable(value) for name, value in kept.items()}


def _comparable(value: Any) -> bytes:
    """PEFT writes its sets in any order."""
    words = isinstance(value, list) and all(isinstance(word, str) for word in value)
    return msgspec.json.encode(sorted(value) if words else value, order="deterministic")


def _cannot(why: str) -> BenchError:
    return BenchError(
        f"these adapters cannot be averaged: {why}", "average adapters of one method and one size"
    )


def stack_adapters(base: Model, folders: Sequence[Path], out: Path) -> None:
    """Write a stack of trained adapters as one that ``--model OUT`` takes.

    Args:
        base: that all were trained on.
        folders: the lowest first, such as a domain's and a task's; the last card among them says
            how vectors are made.

    Raises:
        BenchError: an adapter of another base, or methods that cannot be stacked.
    """
    import_library("adapters")
    import adapters

    parts = parts_of(base, folders)
    below = [f"below_{place}" for place in range(1, len(parts.folders))]
    setup = Setup("Stack", (*below, NAME))
    for folder in parts.folders:
        if "peft_type" in read_object(folder / CONFIG):
            raise BenchError(
                f"{folder} is an adapter of PEFT, and those are not stacked but averaged",
                "python -m bench compose average",
            )
    card = parts.card(-1, f"stack of {len(setup.names)} adapters")
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
            f"these adapters cannot be stacked: {why}",
            "bottleneck adapters and LoRA can be",
        ) from error
    adapted = AdaptedNetwork(
        base, "adapterhub", lambda folder: save_setup(network, folder, setup.block())
    )
    adapted.save(out, card)
