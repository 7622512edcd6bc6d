"""Trained adapters of one base, combined by averaging or stacking.

Averaged weights cost nothing to use (Chronopoulou et al., AdapterSoup, EACL Findings 2023). Each
tensor is averaged separately, so for LoRA both factors rather than their product. A stack combines
a domain and a task (MAD-X: Pfeiffer et al., EMNLP 2020): a task's adapter that was trained on top
of one domain's can be put on top of another's. Learned combinations are the method ``fusion``, see
`settings`. Routing of queries is in `retrievers.encoders.routed`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foundation.errors import BenchError
from foundation.records import read_object, write_json
from retrievers.adapters.folder import (
    AdaptedNetwork,
    AdapterSet,
    attach,
    find_adapters,
)
from retrievers.adapters.hub import ADAPTER_NAME
from retrievers.models.read_adapter import CONFIG, NORMS, SETUP, SHARED
from retrievers.models.read_checkpoint import read_tensors
from retrievers.models.resolve import Model

# Of configurations: what says nothing about which function the weights are of.
IGNORED_FIELDS = {
    *("config", "name", "model_name", "model_class", "version", "dropout", "init_weights"),
    *("init_weights_seed", "base_model_name_or_path", "inference_mode", "peft_version"),
    *("revision", "auto_mapping", "task_type", "lora_dropout", "init_lora_weights"),
}


def average_adapters(
    base: Model, folders: Sequence[Path], out: Path, weights: Sequence[float] | None = None
) -> None:
    """Write the weighted mean of trained adapters as one adapter for ``--model OUT``.

    Args:
        base: model that all were trained on.
        folders: folders of finished trainings or of adapters. The first card among them determines
            how vectors are made.
        out: folder to write.
        weights: one non-negative weight for each adapter, not all 0; None for equal weights.

    Raises:
        BenchError: adapters differ in method or size, one belongs to another base, or the weights
            do not match.
    """
    shares = normalize_weights(weights, len(folders))
    parts = find_adapters(base, folders)
    if len(parts.kinds) > 1:
        raise _averaging_error("some are of AdapterHub and some of PEFT")
    _check_configurations([read_object(folder / CONFIG) for folder in parts.folders])
    card = parts.card(0, f"average of {len(parts.folders)} adapters")
    files = _average_files(parts, shares)
    content = (parts.folders[0] / CONFIG).read_bytes()

    def write(folder: Path) -> None:
        import torch
        from safetensors.torch import save_file

        (folder / CONFIG).write_bytes(content)
        for name, tensors in files.items():
            save = save_file if name.endswith(".safetensors") else torch.save
            save(tensors, str(folder / name))

    AdaptedNetwork(base, parts.kinds.pop(), write).save(out, card)


def normalize_weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """Scale ``weights`` to sum 1, or return ``count`` equal weights for None.

    Raises:
        BenchError: their number differs from ``count``, one is negative, or the sum is not
            positive.
    """
    given = [1.0] * count if weights is None else list(weights)
    if len(given) != count:
        raise BenchError(
            f"{len(given)} weights for {count} adapters", "Give one weight for each adapter."
        )
    total = math.fsum(given)
    if not (0 < total < math.inf and min(given) >= 0):
        raise BenchError(f"{given} cannot be weights", "Give non-negative numbers, not all 0.")
    return tuple(weight / total for weight in given)


def _average_files(parts: AdapterSet, shares: Sequence[float]) -> dict[str, dict[str, Any]]:
    """Return the mean of each file of weights, by its name."""
    folders = parts.folders
    files = [sorted(set(identity.files) - {CONFIG}) for identity in parts.identities]
    if any(names != files[0] for names in files):
        raise _averaging_error(f"they have other files: {', '.join(sorted(set().union(*files)))}")
    names = [str(read_object(folder / CONFIG).get("name")) for folder in folders]
    means = {}
    for file in files[0]:
        states = [read_tensors(folder / file) for folder in folders]
        if file not in (SHARED, NORMS):
            states = [
                _rename(state, name, names[0]) for state, name in zip(states, names, strict=True)
            ]
        means[file] = _average_tensors(states, shares)
    return means


def _average_tensors(files: Sequence[Mapping[str, Any]], shares: Sequence[float]) -> dict[str, Any]:
    """Return the mean of each tensor, summed in float64. Shared tensors stay shared."""
    shapes = [{name: tuple(value.shape) for name, value in file.items()} for file in files]
    for other in shapes[1:]:
        if different := sorted(shapes[0].items() ^ other.items()):
            raise _averaging_error(f"they differ in {different[0][0]}")
    made: dict[tuple[int, Any], Any] = {}
    for name, first in files[0].items():
        parts = (share * file[name].double() for share, file in zip(shares, files, strict=True))
        made.setdefault((first.data_ptr(), first.shape), sum(parts).to(first.dtype))
    return {name: made[first.data_ptr(), first.shape] for name, first in files[0].items()}


def _rename(tensors: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    """Replace the adapter's name in the names of AdapterHub's tensors."""
    return {
        ".".join(new if part == old else part for part in name.split(".")): value
        for name, value in tensors.items()
    }


def _check_configurations(stated: Sequence[Mapping[str, Any]]) -> None:
    """Raise if adapters differ in method or size."""
    flat = [_settings(config) for config in stated]
    for other in flat[1:]:
        names = sorted(flat[0].keys() | other.keys())
        different = [name for name in names if flat[0].get(name) != other.get(name)]
        if different:
            raise _averaging_error(f"they differ in {', '.join(different[:3])}")


def _settings(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that determine method and size, with PEFT's sets sorted."""
    inner = stated.get("config")
    whole = {**stated, **inner} if isinstance(inner, Mapping) else stated
    return {
        name: sorted(map(str, value)) if isinstance(value, list) else value
        for name, value in whole.items()
        if name not in IGNORED_FIELDS
    }


def _averaging_error(why: str) -> BenchError:
    return BenchError(
        f"these adapters cannot be averaged: {why}", "average adapters of one method and one size"
    )


def stack_adapters(base: Model, folders: Sequence[Path], out: Path) -> None:
    """Write a stack of trained adapters as one adapter for ``--model OUT``.

    Args:
        base: model that all were trained on.
        folders: the lowest first, such as a domain's and a task's. The last card among them
            determines how vectors are made.
        out: folder to write.

    Raises:
        BenchError: an adapter belongs to another base, or the methods cannot be stacked.
    """
    parts = find_adapters(base, folders)
    if "peft" in parts.kinds:
        raise BenchError(
            "adapters of PEFT are not stacked but averaged", "python -m bench compose average"
        )
    names = (*(f"below_{place}" for place in range(1, len(folders))), ADAPTER_NAME)
    children = [{"type": "single", "children": [name]} for name in names]
    card = parts.card(-1, f"stack of {len(names)} adapters")

    def write(folder: Path) -> None:
        from retrievers.models.loading import load_network

        parts.copy(folder, names)
        write_json(folder / SETUP, {"adapter_setup": {"type": "Stack", "children": children}})
        attach(load_network(base.checkpoint, base.recipe), folder, "adapterhub")

    AdaptedNetwork(base, "adapterhub", write).save(out, card)
