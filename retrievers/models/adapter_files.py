"""Files of adapters: which library an adapter is of, what determines it, and their routing."""

from collections.abc import Mapping
from os.path import lexists
from pathlib import Path
from typing import Any, Literal

from foundation.errors import BenchError
from foundation.files import resolve_inside, sha256_of_file
from foundation.records import Record, read_json, read_object
from retrievers.models.card import AdapterIdentity, AdapterKind, CardAdapter
from retrievers.models.checkpoint import (
    ADAPTER_CONFIG,
    WAIT_FOR_WRITER,
    Checkpoint,
    read_safetensors_header,
)

ATTACH_TO_BASE = "Attach it to the model that it was trained on."
ADAPTER_FOLDER = "adapter"  # inside the folder of a training
# Tensors that all layers share; AdapterHub itself does not save them.
SHARED = "shared_parameters.safetensors"
NORMS = "norms.safetensors"  # LayerNorms of the base, as they were trained with the adapter
BASE = "base.json"  # states the weights that an adapter was trained on here
ADAPTER_WEIGHTS: dict[AdapterKind, tuple[str, ...]] = {
    "adapterhub": ("adapter.safetensors", "pytorch_adapter.bin"),
    "peft": ("adapter_model.safetensors", "adapter_model.bin"),
}
ROUTING = "adapter_routing.json"  # several of any library, each in a folder inside, used one by one
ROUTER = "router.safetensors"  # the rule that chooses one for a query


class Routing(Record, kw_only=True):
    """Adapters of one base, one of which encodes each query: see `retrievers.adapters.compose`.

    Attributes:
        by: kind of the rule. A ``classifier`` is no longer fitted, but existing ones are linear,
            too.
        adapters: folders inside.
        domains: for each adapter, the collections that it is for.
        otherwise: adapter for collections outside all domains, in files of earlier versions.
    """

    by: Literal["centroid", "classifier"] = "centroid"
    adapters: tuple[str, ...]
    domains: tuple[tuple[str, ...], ...]
    otherwise: str = ""

    def __post_init__(self) -> None:
        if not self.adapters or len(self.adapters) != len(self.domains):
            raise ValueError(f"{len(self.domains)} domains for {len(self.adapters)} adapters")


def adapter_folder(adapter: CardAdapter, base: Path) -> Path:
    """Return the existing folder of ``adapter``, whose path is relative to ``base``."""
    folder = (base / Path(adapter.path).expanduser()).resolve()
    if not folder.is_dir():
        raise BenchError(f"there is no adapter folder {folder}")
    inner = folder / ADAPTER_FOLDER
    if inner.is_dir() and not any((folder / n).exists() for n in (ADAPTER_CONFIG, ROUTING)):
        problem = f"{folder} is a folder of `finetune`, and its adapter is in {inner}"
        raise BenchError(problem, f"Use --adapter {inner}, or {folder} as the model without it.")
    return folder


def adapter_name(folder: Path) -> str:
    """Return the name of the adapter in ``folder``: the folder's, or its training's."""
    path = folder.resolve()
    named = path.parent if path.name == ADAPTER_FOLDER and path.parent.name else path
    return "_".join(named.name.split())


def identify_adapter(
    folder: Path, base: Checkpoint, kind: AdapterKind | Literal["auto"] = "auto"
) -> AdapterIdentity:
    """Return the library of the adapter in ``folder`` and the sha256 of its files, without loading.

    Raise if it belongs to another checkpoint than ``base`` or another library than ``kind``.
    """
    found, files = _find_files(folder, base)
    if kind not in ("auto", found):
        raise BenchError(f"{folder} holds an adapter of {found}, not of {kind}")
    for path in files:
        if not path.is_file():
            raise BenchError(f"{path} is missing: the adapter {folder} is incomplete")
    hashes = {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}
    return AdapterIdentity(found, hashes)


def _find_files(folder: Path, base: Checkpoint) -> tuple[AdapterKind, list[Path]]:
    """Return an adapter's library and all files that determine what it does."""
    _check_trained_on(folder, base)
    if (routing := read_routing(folder)) is not None:
        inner = [resolve_inside(folder, name) for name in routing.adapters]
        if any(read_routing(part) for part in inner):
            raise BenchError(f"an adapter in {folder} is routed itself", "Route its adapters.")
        files = [path for part in inner for path in _find_files(part, base)[1]]
        return "routed", [folder / ROUTING, folder / ROUTER, *files]
    config = read_object(folder / ADAPTER_CONFIG)
    kind: AdapterKind = "peft" if "peft_type" in config else "adapterhub"
    if kind == "adapterhub":
        _check_base(folder, config, base)
    own = next((name for name in ADAPTER_WEIGHTS[kind] if (folder / name).is_file()), None)
    if own is None:
        expected = f"Copy {' or '.join(ADAPTER_WEIGHTS[kind])} into it."
        raise BenchError(f"{folder} has no adapter weights", expected)
    shared = (name for name in (SHARED, NORMS) if lexists(folder / name))
    weights = [folder / name for name in (own, *shared)]
    for path in weights:
        if path.suffix == ".safetensors":
            read_safetensors_header(path)
    return kind, [folder / ADAPTER_CONFIG, *weights]


def check_adapter_unchanged(folder: Path, identity: AdapterIdentity, base: Checkpoint) -> None:
    """Raise if the files of the adapter in ``folder`` differ from the hashes in ``identity``."""
    if identify_adapter(folder, base).files != identity.files:
        raise BenchError(f"the adapter {folder} changed while it was used", WAIT_FOR_WRITER)


def _check_trained_on(folder: Path, base: Checkpoint) -> None:
    """Raise if a ``base.json`` names other weights, whose adapter would fit by its sizes."""
    places = [place / BASE for place in (folder, *folder.parents[:2])]
    path = next((place for place in places if place.is_file()), None)
    if path is None:  # nothing states the base
        return
    stated = read_object(path)
    if stated.get("weights_sha256") != base.weights_sha256:
        raise BenchError(
            f"the adapter {folder} is for another base: it was trained on {stated.get('model')}, "
            f"whose weights differ from those in {base.folder}",
            ATTACH_TO_BASE,
        )


def _check_base(folder: Path, config: Mapping[str, Any], base: Checkpoint) -> None:
    """Raise if AdapterHub's configuration states another base, since sizes may still match."""
    base_config = {"model_type": base.config.get("model_type"), "hidden_size": base.hidden_width}
    for key, actual in base_config.items():
        if config.get(key) not in (None, actual):
            raise BenchError(
                f"the adapter {folder} was made for {config.get('model_name')} "
                f"({key} {config[key]}), not for a model with {key} {actual}",
                ATTACH_TO_BASE,
            )


def read_routing(folder: Path) -> Routing | None:
    """Read the routing in ``folder``, or return None if its adapters are not routed."""
    path = folder / ROUTING
    hint = "Adapters of collections: python -m bench run COLLECTION --model BASE --adapter FOLDER."
    return read_json(path, Routing, hint) if path.is_file() else None
