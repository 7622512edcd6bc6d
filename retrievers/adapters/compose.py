"""Trained adapters of one base, combined by averaging or routing.

Averaging follows AdapterSoup (Chronopoulou et al., EACL Findings 2023): each tensor separately, so
for LoRA both factors rather than their product. A stack combines a domain and a task (MAD-X:
Pfeiffer et al., EMNLP 2020).

Routing gives each query the adapter of the closest domain. The rule is linear in the unit vector x
of the query as the base encodes it: the largest w_i x + b_i. It is fitted as the nearest mean of
each domain's training queries.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from foundation.arrays import Float32Array, Float64Array, Int64Array
from foundation.errors import BenchError
from foundation.records import find_differing_keys, read_object, write_json
from retrievers.adapters.adapter import AdaptedNetwork, find_adapter
from retrievers.models.adapter_files import BASE, NORMS, ROUTER, ROUTING, SHARED, Routing
from retrievers.models.card import (
    CARD_FILE,
    AdapterIdentity,
    Card,
    load_card,
    replace_fields,
)
from retrievers.models.checkpoint import ADAPTER_CONFIG, read_tensors
from retrievers.models.resolve import Model, resolve_model

# Of configurations: what says nothing about which function the weights are of.
IGNORED_FIELDS = {
    *("config", "name", "model_name", "model_class", "version", "dropout", "init_weights"),
    *("init_weights_seed", "base_model_name_or_path", "inference_mode", "peft_version"),
    *("revision", "auto_mapping", "task_type", "lora_dropout", "init_lora_weights"),
}


@dataclass(frozen=True)
class AdapterSet:
    """Adapters of one base, with the cards of those that were trained here."""

    base: Model
    folders: tuple[Path, ...]
    identities: tuple[AdapterIdentity, ...]
    cards: tuple[Card, ...]

    def card(self, title: str) -> Card:
        """Return the first card for all of the adapters, with ``title``."""
        if not self.cards:
            raise _no_card_error()
        return replace_fields(self.cards[0], {"title": title, "trained_on": self.trained_on})

    @property
    def trained_on(self) -> tuple[str, ...]:
        """Collections that the cards name."""
        return tuple(dict.fromkeys(name for card in self.cards for name in card.trained_on))

    @property
    def hashes(self) -> dict[str, str]:
        """Hashes of the files of each adapter, by its number from 1 and their names."""
        return {
            f"adapter {number} {name}": digest
            for number, identity in enumerate(self.identities, 1)
            for name, digest in identity.files.items()
        }


def find_adapters(base: Model, folders: Sequence[Path]) -> AdapterSet:
    """Find two or more adapters of ``base`` by `find_adapter`."""
    if len(folders) < 2:
        raise BenchError("a single adapter cannot be composed", "Give two or more.")
    found = [find_adapter(folder, base) for folder in folders]
    inside, identities = zip(*found, strict=True)
    homes = [_training_folder(folder) for folder in folders]
    cards = tuple(load_card(home / CARD_FILE) for home in homes if home)
    return AdapterSet(base, inside, identities, cards)


def find_adapter_base(folders: Sequence[Path]) -> Model:
    """Return the model that adapters were trained on, from the first card among ``folders``."""
    for folder in folders:
        if not folder.expanduser().is_dir():
            raise BenchError(f"there is no adapter folder {folder}")
    home = next(filter(None, map(_training_folder, folders)), None)
    if home is None:
        raise _no_card_error()
    model = resolve_model(str(home))
    if model.adapter is None:
        raise BenchError(f"{home} is a complete model, not an adapter")
    known = (model.adapter / BASE).is_file()
    name = str(read_object(model.adapter / BASE).get("model")) if known else model.card.checkpoint
    recipe = msgspec.structs.replace(model.with_adapter(None).recipe, model=name)
    card = replace_fields(model.card, {"adapter": None, "name": name})
    return Model(card, recipe, model.document)


def _training_folder(folder: Path) -> Path | None:
    """Return the folder with the card of an adapter's training, up to three levels above."""
    here = folder.expanduser().resolve()
    return next((at for at in (here, *here.parents[:3]) if (at / CARD_FILE).is_file()), None)


def _no_card_error() -> BenchError:
    return BenchError(
        "none of these adapters has a card, which names the base and how vectors are made",
        "Give at least one folder written by `finetune` or `adapt --method adapter`.",
    )


def average_adapters(parts: AdapterSet, out: Path) -> None:
    """Write the mean of trained adapters as one adapter.

    The first of their cards determines how vectors are made.
    """
    kinds = {identity.kind for identity in parts.identities}
    if len(kinds) > 1:
        raise _averaging_error("some are of AdapterHub and some of PEFT")
    _check_configurations([read_object(folder / ADAPTER_CONFIG) for folder in parts.folders])
    card = parts.card(f"average of {len(parts.folders)} adapters")
    files = _average_files(parts)
    content = (parts.folders[0] / ADAPTER_CONFIG).read_bytes()

    def write(folder: Path) -> None:
        import torch
        from safetensors.torch import save_file

        (folder / ADAPTER_CONFIG).write_bytes(content)
        for name, tensors in files.items():
            save = save_file if name.endswith(".safetensors") else torch.save
            save(tensors, str(folder / name))

    AdaptedNetwork(parts.base, kinds.pop(), write).save(out, card)


def _average_files(parts: AdapterSet) -> dict[str, dict[str, Any]]:
    """Return the mean of each file of weights, by its name."""
    folders = parts.folders
    files = [sorted(set(identity.files) - {ADAPTER_CONFIG}) for identity in parts.identities]
    if any(names != files[0] for names in files):
        raise _averaging_error(f"they have other files: {', '.join(sorted(set().union(*files)))}")
    names = [str(read_object(folder / ADAPTER_CONFIG).get("name")) for folder in folders]
    means = {}
    for file in files[0]:
        states = [read_tensors(folder / file) for folder in folders]
        if file not in (SHARED, NORMS):
            states = [_rename(*pair, names[0]) for pair in zip(states, names, strict=True)]
        means[file] = _average_tensors(states)
    return means


def _average_tensors(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of each tensor, summed in float64. Shared tensors stay shared."""
    shapes = [{name: tuple(value.shape) for name, value in file.items()} for file in files]
    for other in shapes[1:]:
        if different := sorted(shapes[0].items() ^ other.items()):
            raise _averaging_error(f"they differ in {different[0][0]}")
    made: dict[tuple[int, Any], Any] = {}
    for name, first in files[0].items():
        mean = sum(file[name].double() for file in files) / len(files)
        made.setdefault((first.data_ptr(), first.shape), mean.to(first.dtype))
    return {name: made[first.data_ptr(), first.shape] for name, first in files[0].items()}


def _rename(tensors: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    return {
        ".".join(new if part == old else part for part in name.split(".")): value
        for name, value in tensors.items()
    }


def _check_configurations(stated: Sequence[Mapping[str, Any]]) -> None:
    first, *others = map(_settings, stated)
    for other in others:
        if different := sorted(find_differing_keys(first, other)):
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
    problem = f"these adapters cannot be averaged: {why}"
    return BenchError(problem, "Average adapters of one method and one size.")


@dataclass(frozen=True, eq=False)
class Router:
    """Linear rule that chooses an adapter for a query.

    ``weight`` is float64 ``(adapters, dim)``, ``bias`` float64 ``(adapters,)``.
    """

    weight: Float64Array
    bias: Float64Array

    @classmethod
    def fit(cls, domains: Sequence[Float32Array]) -> "Router":
        """Fit the rule to each domain's vectors of one or more texts, float32 ``(n_i, dim)``."""
        means = np.stack([normalize_rows(vectors).mean(axis=0) for vectors in domains])
        return cls(means, -0.5 * (means**2).sum(axis=1))  # |x - m|^2 = |x|^2 - 2 (x m - |m|^2/2)

    @classmethod
    def read(cls, path: Path, adapters: int, dim: int) -> "Router":
        """Read the rule for ``adapters`` adapters and ``dim`` dimensions from ``path``."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise BenchError(f"{path} is damaged", "Compose the adapters again.") from error
        shapes = {name: value.shape for name, value in tensors.items()}
        if shapes != {"weight": (adapters, dim), "bias": (adapters,)}:
            raise BenchError(f"{path} is not for {adapters} adapters and {dim} dimensions")
        return cls(tensors["weight"], tensors["bias"])

    def save(self, path: Path) -> None:
        """Write the rule to ``path`` as safetensors."""
        from safetensors.numpy import save_file

        save_file({"weight": self.weight, "bias": self.bias}, path)

    def choose(self, vectors: Float32Array) -> Int64Array:
        """Return the adapter's number for each of the base's ``vectors`` ``(n, dim)``, as int64."""
        chosen: Int64Array = np.argmax(normalize_rows(vectors) @ self.weight.T + self.bias, axis=1)
        return chosen


def normalize_rows(vectors: Float32Array) -> Float64Array:
    """Scale ``vectors`` ``(n, dim)`` to length 1 in float64. Zero vectors stay."""
    doubles = vectors.astype(np.float64)
    lengths = np.linalg.norm(doubles, axis=1, keepdims=True)
    return doubles / np.where(lengths > 0, lengths, 1)


def route_adapters(
    parts: AdapterSet,
    out: Path,
    domains: Sequence[Sequence[str]],
    router: Router,
) -> None:
    """Write trained adapters as one model that chooses an adapter for each query.

    The first of their cards determines how vectors are made. ``domains`` has the collections that
    each adapter is for.
    """
    names = tuple(f"part_{place}" for place in range(1, len(parts.folders) + 1))
    routing = Routing(adapters=names, domains=tuple(map(tuple, domains)))
    card = parts.card(f"{len(names)} adapters, routed by {routing.by}")

    def write(folder: Path) -> None:
        for name, trained in zip(names, parts.folders, strict=True):
            shutil.copytree(trained, folder / name)
        router.save(folder / ROUTER)
        write_json(folder / ROUTING, routing)

    AdaptedNetwork(parts.base, "routed", write).save(out, card)
