"""Identity of an adapter, by its files: its library, its hashes, and the base it was made for.

Nothing of it is loaded.
"""

from collections.abc import Mapping
from os.path import lexists
from pathlib import Path
from typing import Any

from foundation.errors import BenchError
from foundation.files import sha256_of_file
from foundation.records import read_object
from retrievers.adapters.composition import (
    ROUTER,
    ROUTING,
    SETUP,
    Routing,
    read_routing,
    read_setup,
)
from retrievers.adapters.virtual_tokens import PROMPT_TYPES, check_positions, virtual_tokens
from retrievers.models.card import CardAdapter
from retrievers.models.checkpoint import Checkpoint, inside, read_safetensors_header
from retrievers.models.recipe import AdapterIdentity, AdapterKind

FOLDER = "adapter"  # inside the folder of a training
CONFIG = "adapter_config.json"
FUSION = ("adapter_fusion_config.json", "model_adapter_fusion.safetensors")
SHARED = "shared_parameters.safetensors"  # of all layers; AdapterHub itself does not save them
NORMS = "norms.safetensors"  # LayerNorms of the base, as they were trained with the adapter
BASE = "base.json"  # beside an adapter that was trained here: of which weights it is the adapter
SUBTRACTS = "subtract_projection"  # in the configuration; AdapterHub itself does not save it
WEIGHTS: dict[AdapterKind, tuple[str, ...]] = {
    "adapterhub": ("adapter.safetensors", "pytorch_adapter.bin"),
    "peft": ("adapter_model.safetensors", "adapter_model.bin"),
}
PEFT_TYPES = (
    *("LORA", "IA3", "LOHA", "LOKR", "OFT", "HRA", "VERA", "FOURIERFT", "LN_TUNING"),
    *PROMPT_TYPES,
)


def adapter_folder(adapter: CardAdapter, base: Path) -> Path:
    """The folder of an adapter; relative paths are relative to the card.

    Raises:
        BenchError: there is no such folder.
    """
    folder = (base / Path(adapter.path).expanduser()).resolve()
    if not folder.is_dir():
        raise BenchError(f"there is no adapter folder {folder}")
    return folder


def adapter_name(folder: Path) -> str:
    """Name of an adapter: of its folder, or of the training whose ``adapter/`` it is."""
    path = folder.resolve()
    named = path.parent if path.name == FOLDER and path.parent.name else path
    return "_".join(named.name.split())


def identify_adapter(
    folder: Path, adapter: CardAdapter | None, base: Checkpoint
) -> AdapterIdentity:
    """The adapter's library and the sha256 of its files. Loads nothing.

    Raises:
        BenchError: files are missing or damaged, or it was made for another base model.
    """
    _check_trained_on(folder, base)
    routing = read_routing(folder)
    composed = routing is not None or (folder / SETUP).is_file()
    config = {} if composed else read_object(folder / CONFIG)
    kind: AdapterKind = "peft" if "peft_type" in config else "adapterhub"
    if routing is not None:
        kind = "routed"
    if adapter is not None and adapter.kind not in ("auto", kind):
        raise BenchError(f"{folder} holds an adapter of {kind}, not of {adapter.kind}")
    if kind == "peft" and config["peft_type"] not in PEFT_TYPES:
        raise BenchError(
            f"{folder}: PEFT's {config['peft_type']} is not supported",
            f"supported: {', '.join(PEFT_TYPES)}",
        )
    if routing is not None:
        return AdapterIdentity(kind, _hashes_of_routing(folder, routing, base))
    if composed:
        return AdapterIdentity(kind, _hashes_of_setup(folder, base))
    if kind == "adapterhub":
        _check_base(folder, config, base)
    files = [folder / CONFIG, *adapter_weights(folder, kind)]
    return AdapterIdentity(kind, {path.name: sha256_of_file(path) for path in files})


def _hashes_of_routing(folder: Path, routing: Routing, base: Checkpoint) -> dict[str, str]:
    """Hashes of the rule, and of all files of the adapters, by path."""
    files = [folder / name for name in (ROUTING, *([] if routing.parts == 1 else [ROUTER]))]
    for path in files:
        if not path.is_file():
            raise BenchError(f"{path} is missing: the adapters of {folder} are not whole")
    hashes = {path.name: sha256_of_file(path) for path in files}
    for name in routing.folders:
        part = identify_adapter(inside(folder, name), None, base)
        if part.kind == "routed":
            raise BenchError(f"{folder / name} is routed itself", "route its adapters")
        hashes |= {f"{name}/{file}": digest for file, digest in part.files.items()}
    return hashes


def _hashes_of_setup(folder: Path, base: Checkpoint) -> dict[str, str]:
    """Hashes of all files of adapters that were composed, by path."""
    setup = read_setup(folder)
    files = [folder / SETUP]
    for name in setup.names:
        own = inside(folder, name)
        _check_base(own, read_object(own / CONFIG), base)
        files += [own / CONFIG, *adapter_weights(own, "adapterhub")]
    if setup.kind == "Fuse":
        files += [inside(folder, ",".join(setup.names)) / name for name in FUSION]
    for path in files:
        if not path.is_file():
            raise BenchError(f"{path} is missing: the adapters of {folder} are not whole")
    return {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}


def check_room(folder: Path, tokens: int, base: Checkpoint) -> None:
    """Refuse an adapter whose virtual tokens leave too few positions for the longest text.

    Raises:
        BenchError: see above.
    """
    if (routing := read_routing(folder)) is not None:
        for name in routing.folders:
            check_room(inside(folder, name), tokens, base)
    config = read_object(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    check_positions(virtual_tokens(config), tokens, base.position_limit)


def _check_trained_on(folder: Path, base: Checkpoint) -> None:
    """An adapter that was trained here says of which weights; the numbers of others would fit."""
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
            "attach it to the model it was trained on",
        )


def _check_base(folder: Path, config: Mapping[str, Any], base: Checkpoint) -> None:
    """AdapterHub writes which base it was made for; a file that fits by size may still be wrong."""
    for key, own in (("model_type", base.config.get("model_type")), ("hidden_size", None)):
        stated = config.get(key)
        actual = base.hidden_width if key == "hidden_size" else own
        if stated is not None and stated != actual:
            raise BenchError(
                f"the adapter {folder} was made for {config.get('model_name')} "
                f"({key} {stated}), not for a model with {key} {actual}",
                "attach it to the model it was trained on",
            )


def adapter_weights(folder: Path, kind: AdapterKind) -> list[Path]:
    """Files of weights of an adapter, its own first.

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
