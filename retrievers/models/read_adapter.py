"""Identity of an adapter from its files: its library, its hashes, and its base. Loads nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os.path import lexists
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from foundation.errors import BenchError
from foundation.files import resolve_inside, sha256_of_file
from foundation.records import Record, read_json, read_object
from retrievers.models.card import CardAdapter
from retrievers.models.read_checkpoint import Checkpoint, read_safetensors_header
from retrievers.models.recipe import AdapterIdentity, AdapterKind

FOLDER = "adapter"  # inside the folder of a training
CONFIG = "adapter_config.json"
FUSION_FILES = ("adapter_fusion_config.json", "model_adapter_fusion.safetensors")
# Tensors that all layers share; AdapterHub itself does not save them.
SHARED = "shared_parameters.safetensors"
NORMS = "norms.safetensors"  # LayerNorms of the base, as they were trained with the adapter
BASE = "base.json"  # states the weights that an adapter was trained on here
WEIGHTS: dict[AdapterKind, tuple[str, ...]] = {
    "adapterhub": ("adapter.safetensors", "pytorch_adapter.bin"),
    "peft": ("adapter_model.safetensors", "adapter_model.bin"),
}
SETUP = "adapter_setup.json"  # written by AdapterHub for several adapters, each in a subfolder
ROUTING = "adapter_routing.json"  # several of any library, each in a folder inside, used one by one
ROUTER = "router.safetensors"  # the rule that chooses one for a query


class _Single(msgspec.Struct, frozen=True):
    children: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=1)]


class _Block(msgspec.Struct, frozen=True):
    type: Literal["Stack", "Fuse"]
    children: tuple[_Single, ...]


class _SetupFile(msgspec.Struct, frozen=True):
    adapter_setup: _Block


@dataclass(frozen=True)
class Composition:
    """Composition of adapters.

    Attributes:
        kind: ``Stack`` or ``Fuse``.
        names: names of the adapters and their folders; the first of a stack is the lowest.
    """

    kind: str
    names: tuple[str, ...]

    def block(self) -> Any:
        """Return AdapterHub's record of the composition."""
        from adapters import composition

        return getattr(composition, self.kind)(*self.names)


class Routing(Record, kw_only=True):
    """Adapters of one base, one of which encodes each query.

    See `retrievers.adapters.compose`.

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
    """Return the folder of ``adapter``.

    Its path is relative to ``base``, the folder of its card.

    Raises:
        BenchError: the folder does not exist.
    """
    folder = (base / Path(adapter.path).expanduser()).resolve()
    if not folder.is_dir():
        raise BenchError(f"there is no adapter folder {folder}")
    return folder


def adapter_name(folder: Path) -> str:
    """Return the name of the adapter in ``folder``: the folder's, or its training's."""
    path = folder.resolve()
    named = path.parent if path.name == FOLDER and path.parent.name else path
    return "_".join(named.name.split())


def identify_adapter(
    folder: Path, base: Checkpoint, kind: AdapterKind | Literal["auto"] = "auto"
) -> AdapterIdentity:
    """Return an adapter's library and the sha256 of its files, without loading it.

    Args:
        folder: folder of the adapter.
        base: checkpoint that the adapter must belong to.
        kind: expected library.

    Raises:
        BenchError: files are missing or damaged, or the adapter belongs to another base or library.
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
            raise BenchError(f"an adapter in {folder} is routed itself", "route its adapters")
        parts = [_find_files(part, base) for part in inner]
        return "routed", [folder / ROUTING, folder / ROUTER, *_flatten_files(parts)]
    if (folder / SETUP).is_file():
        setup = read_composition(folder)
        parts = [_find_adapter_files(resolve_inside(folder, name), base) for name in setup.names]
        fused = resolve_inside(folder, ",".join(setup.names))
        learnt = [fused / name for name in FUSION_FILES] if setup.kind == "Fuse" else []
        return "adapterhub", [folder / SETUP, *_flatten_files(parts), *learnt]
    return _find_adapter_files(folder, base)


def _find_adapter_files(folder: Path, base: Checkpoint) -> tuple[AdapterKind, list[Path]]:
    config = read_object(folder / CONFIG)
    kind: AdapterKind = "peft" if "peft_type" in config else "adapterhub"
    if kind == "adapterhub":
        _check_base(folder, config, base)
    return kind, [folder / CONFIG, *_list_weights(folder, kind)]


def _flatten_files(parts: Iterable[tuple[AdapterKind, list[Path]]]) -> list[Path]:
    return [path for _, files in parts for path in files]


def check_unchanged(folder: Path, identity: AdapterIdentity, base: Checkpoint) -> None:
    """Raise if the files of the adapter in ``folder`` differ from ``identity``.

    Args:
        folder: folder of the adapter.
        identity: hashes from an earlier `identify_adapter`.
        base: checkpoint of the adapter's base.

    Raises:
        BenchError: a file has changed.
    """
    if identify_adapter(folder, base).files != identity.files:
        raise BenchError(
            f"the adapter {folder} changed while it was used",
            "Run again when nothing writes to it any more, or copy the folder first.",
        )


def _check_trained_on(folder: Path, base: Checkpoint) -> None:
    """Raise if a ``base.json`` names other weights, whose adapter would fit by its sizes."""
    places = [place / BASE for place in (folder, *folder.parents[:2])]
    path = next((place for place in places if place.is_file()), None)
    if path is None:  # neither in the adapter's folder nor in those that it is a part of
        return
    stated = read_object(path)
    if stated.get("weights_sha256") != base.weights_sha256:
        raise BenchError(
            f"the adapter {folder} is for another base: it was trained on {stated.get('model')} "
            f"(weights {str(stated.get('weights_sha256'))[:12]}), and {base.folder} has weights "
            f"{base.weights_sha256[:12]}",
            "Attach it to the model that it was trained on.",
        )


def _check_base(folder: Path, config: Mapping[str, Any], base: Checkpoint) -> None:
    """Raise if AdapterHub's configuration states another base, since sizes may still match."""
    base_config = {"model_type": base.config.get("model_type"), "hidden_size": base.hidden_width}
    for key, actual in base_config.items():
        if config.get(key) not in (None, actual):
            raise BenchError(
                f"the adapter {folder} was made for {config.get('model_name')} "
                f"({key} {config[key]}), not for a model with {key} {actual}",
                "Attach it to the model that it was trained on.",
            )


def _list_weights(folder: Path, kind: AdapterKind) -> list[Path]:
    """Return the files of weights in ``folder`` for the library ``kind``, the adapter's own first.

    Raises:
        BenchError: there are none, or one is damaged.
    """
    shared = [folder / name for name in (SHARED, NORMS) if lexists(folder / name)]
    for name in WEIGHTS[kind]:
        path = folder / name
        if path.is_file():
            for file in (path, *shared):
                if file.suffix == ".safetensors":
                    read_safetensors_header(file)
            return [path, *shared]
    raise BenchError(f"{folder} has no adapter weights", f"expected {' or '.join(WEIGHTS[kind])}")


def read_composition(folder: Path) -> Composition:
    """Read the composition of adapters in ``folder``, as AdapterHub saved it.

    Raises:
        BenchError: it is neither a stack nor a fusion of single adapters.
    """
    hint = "supported: Stack and Fuse of adapters; or use compose average"
    block = read_json(folder / SETUP, _SetupFile, hint).adapter_setup
    return Composition(block.type, tuple(child.children[0] for child in block.children))


def read_routing(folder: Path) -> Routing | None:
    """Read the routing in ``folder``.

    None if its adapters are not routed.

    Raises:
        BenchError: the file is damaged, or names an unknown rule.
    """
    path = folder / ROUTING
    hint = "adapters of collections: python -m bench run COLLECTION --model BASE --adapter FOLDER"
    return read_json(path, Routing, hint) if path.is_file() else None
