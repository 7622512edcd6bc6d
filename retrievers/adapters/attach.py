"""Adapters: small sets of weights attached to a base model, from AdapterHub or PEFT."""

import logging
import pickle
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from os.path import lexists
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError

from foundation.errors import BenchError, first_line
from foundation.records import read_object
from retrievers.adapters.composition import SETUP, Setup, check_runs, read_setup
from retrievers.adapters.forward import correct_forward
from retrievers.adapters.libraries import import_library
from retrievers.adapters.virtual_tokens import (
    PROMPT_TYPES,
    check_positions,
    put_before,
    virtual_tokens,
)
from retrievers.models.card import CardAdapter
from retrievers.models.checkpoint import Checkpoint, inside, read_safetensors_header, sha256
from retrievers.models.recipe import AdapterIdentity

if TYPE_CHECKING:
    from torch.nn import Module

Kind = Literal["adapterhub", "peft"]
FOLDER = "adapter"  # inside the folder of a training
CONFIG = "adapter_config.json"
FUSION = ("adapter_fusion_config.json", "model_adapter_fusion.safetensors")
SHARED = "shared_parameters.safetensors"  # of all layers; AdapterHub itself does not save them
NORMS = "norms.safetensors"  # LayerNorms of the base, as they were trained with the adapter
BASE = "base.json"  # beside an adapter that was trained here: of which weights it is the adapter
SUBTRACTS = "subtract_projection"  # in the configuration; AdapterHub itself does not save it
WEIGHTS: dict[Kind, tuple[str, ...]] = {
    "adapterhub": ("adapter.safetensors", "pytorch_adapter.bin"),
    "peft": ("adapter_model.safetensors", "adapter_model.bin"),
}
PEFT_TYPES = (
    *("LORA", "IA3", "LOHA", "LOKR", "OFT", "HRA", "VERA", "FOURIERFT", "LN_TUNING"),
    *PROMPT_TYPES,
)
NAME = "bench"
# What PEFT, AdapterHub, torch and safetensors raise for a configuration or a file that is damaged.
ATTACH_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    SafetensorError,
    pickle.UnpicklingError,
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
    composed = (folder / SETUP).is_file()
    config = {} if composed else read_object(folder / CONFIG)
    kind: Kind = "peft" if "peft_type" in config else "adapterhub"
    if adapter is not None and adapter.kind not in ("auto", kind):
        raise BenchError(f"{folder} holds an adapter of {kind}, not of {adapter.kind}")
    if kind == "peft" and config["peft_type"] not in PEFT_TYPES:
        raise BenchError(
            f"{folder}: PEFT's {config['peft_type']} is not supported",
            f"supported: {', '.join(PEFT_TYPES)}",
        )
    if composed:
        return AdapterIdentity(kind, _hashes_of_setup(folder, base))
    if kind == "adapterhub":
        _check_base(folder, config, base)
    files = [folder / CONFIG, *_weights(folder, kind)]
    return AdapterIdentity(kind, {path.name: sha256(path) for path in files})


def _hashes_of_setup(folder: Path, base: Checkpoint) -> dict[str, str]:
    """Of all files of adapters that were composed, by path."""
    setup = read_setup(folder)
    files = [folder / SETUP]
    for name in setup.names:
        own = inside(folder, name)
        _check_base(own, read_object(own / CONFIG), base)
        files += [own / CONFIG, *_weights(own, "adapterhub")]
    if setup.kind == "Fuse":
        files += [inside(folder, ",".join(setup.names)) / name for name in FUSION]
    for path in files:
        if not path.is_file():
            raise BenchError(f"{path} is missing: the adapters of {folder} are not whole")
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files}


def check_room(folder: Path, tokens: int, base: Checkpoint) -> None:
    """Refuse an adapter whose virtual tokens leave too few positions for the longest text.

    Raises:
        BenchError: see above.
    """
    config = read_object(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    check_positions(virtual_tokens(config), tokens, base.position_limit)


def attach(network: "Module", folder: Path, kind: Kind, dropped: int = 0) -> "Module":
    """Attach an adapter and activate it; weights are read without unpickling code.

    An adapter of AdapterHub is computed in the network's precision, one of PEFT in its own.

    Args:
        dropped: first layers that go without it (AdapterDrop), which AdapterHub alone can do.

    Raises:
        BenchError: the adapter's library is not installed, or the adapter does not fit.
    """
    import_library("peft" if kind == "peft" else "adapters")
    try:
        if kind == "peft":
            attached = _attach_peft(network, folder)
        else:
            attached = _attach_adapterhub(network, folder, dropped)
    except ATTACH_ERRORS as error:
        raise BenchError(
            f"the adapter {folder} cannot be attached: {first_line(error)}",
            "was it made for this base model, and with this version of its library?",
        ) from error
    return attached.eval()


def _attach_peft(network: "Module", folder: Path) -> "Module":
    from peft import PeftConfig, PeftModel, get_peft_model_state_dict
    from peft.utils import load_peft_weights

    config = PeftConfig.from_pretrained(str(folder))
    if getattr(config, "megatron_config", None) is not None:
        raise BenchError(
            f"{folder / CONFIG}: with megatron_config, PEFT imports the module that megatron_core "
            "names, and nothing that arrives as data is run here",
            "set megatron_config to null: layers of Megatron are not those of an encoder here",
        )
    if getattr(config, "alora_invocation_tokens", None) is not None:
        raise BenchError(
            f"{folder / CONFIG}: an activated LoRA works from its invocation tokens on, and an "
            "encoder's texts have none",
            "train a plain LoRA: without alora_invocation_tokens",
        )
    # The task decides which head PEFT looks for; an encoder has none.
    config.task_type = None
    config.inference_mode = True
    attached = PeftModel(network, config, adapter_name=NAME)
    weights = load_peft_weights(str(folder), device="cpu")
    expected = set(get_peft_model_state_dict(attached, adapter_name=NAME))
    _refuse_misfit(folder, expected - set(weights), set(weights) - expected)
    attached.load_adapter(str(folder), NAME, is_trainable=False)
    if config.is_prompt_learning:
        put_before(network, attached)
    return attached  # type: ignore[no-any-return]


def _attach_adapterhub(network: "Module", folder: Path, dropped: int) -> "Module":
    import adapters

    of_base = {id(tensor) for tensor in (*network.parameters(), *network.buffers())}
    adapters.init(network)
    network_with_adapters: Any = network
    if (folder / SETUP).is_file():
        setup = read_setup(folder)
        for name in setup.names:
            load_adapterhub(network, inside(folder, name), name)
        if setup.kind == "Fuse":
            network_with_adapters.load_adapter_fusion(
                str(inside(folder, ",".join(setup.names))), use_safetensors=True
            )
    else:
        load_adapterhub(network, folder, NAME)
        setup = Setup("Stack", (NAME,))
    check_runs(network, setup)
    with quiet_adapterhub():
        network_with_adapters.set_active_adapters(
            setup.block(), skip_layers=list(range(dropped)) or None
        )
    _match_precision(network_with_adapters, folder, setup.names, of_base)
    correct_forward(network)
    return network


def _match_precision(
    network: Any, folder: Path, names: Collection[str], of_base: Collection[int]
) -> None:
    """Bring the tensors of adapters to the network's precision; ``of_base`` are ids of its own."""
    import torch

    if network.dtype != torch.float32 and any(reft_units(network, name) for name in names):
        raise BenchError(
            f"the adapter {folder} is of ReFT, which AdapterHub computes in float32 alone",
            "--dtype float32",
        )
    for tensor in (*network.parameters(), *network.buffers()):
        if id(tensor) not in of_base and tensor.is_floating_point():
            tensor.data = tensor.data.to(network.dtype)


@contextmanager
def quiet_adapterhub() -> Iterator[None]:
    """While adapters are activated, AdapterHub warns that they are not active yet."""
    notices = logging.getLogger("adapters.model_mixin")
    level = notices.level
    notices.setLevel(logging.ERROR)
    try:
        yield
    finally:
        notices.setLevel(level)


def load_adapterhub(network: Any, folder: Path, name: str) -> None:
    """Load an adapter under a name into a network that AdapterHub has prepared.

    Raises:
        BenchError: it lacks weights, or has some that do not fit.
    """
    report: dict[str, list[str]] = {}
    network.load_adapter(
        str(folder), load_as=name, use_safetensors=True, with_head=False, loading_info=report
    )
    missing, extra = (set(report.get(f"{kind}_keys", [])) for kind in ("missing", "unexpected"))
    named = _load_prompt(network, folder, name, missing, extra)
    _refuse_misfit(folder, missing - set(named.values()), extra - set(named))
    if lexists(folder / SHARED):
        _load_shared(network, folder, name)
    if lexists(folder / NORMS):
        if name != NAME or len(network.adapters_config.adapters) > 1:
            raise BenchError(
                f"the adapter {folder} was trained with the LayerNorms of its base, and is used "
                "alone",
                "average such adapters, or train without adapter.norms",
            )
        _load_tensors(folder / NORMS, norm_weights(network))
    if read_object(folder / CONFIG).get(SUBTRACTS) is False:
        for unit in reft_units(network, name):
            unit.subtract_projection = False


def _load_prompt(
    network: Any, folder: Path, name: str, missing: Collection[str], extra: Collection[str]
) -> dict[str, str]:
    """Load what AdapterHub 1.3 gives no new name, a prompt; its old and new names."""
    own = str(read_object(folder / CONFIG).get("name"))
    renamed = {
        old: ".".join(name if part == own else part for part in old.split(".")) for old in extra
    }
    taken = {old: new for old, new in renamed.items() if new in missing}
    if taken:
        from retrievers.models.loading import read_tensors

        weights = _weights(folder, "adapterhub")[0].name
        for old, value in read_tensors(folder, weights, list(taken)).items():
            network.get_parameter(taken[old]).data.copy_(value)
    return taken


def reft_units(network: Any, name: str) -> list[Any]:
    """Interventions of an adapter, if it is of the ReFT family."""
    refts = [module.refts for module in network.modules() if hasattr(module, "refts")]
    return [unit for held in refts if name in held for unit in held[name].units]


def _load_shared(network: Any, folder: Path, name: str) -> None:
    shared = network.shared_parameters
    _load_tensors(folder / SHARED, dict(shared[name].items()) if name in shared else {})


def norm_weights(network: Any) -> dict[str, Any]:
    """Weights of the LayerNorms of a network itself, not of its adapters, by name."""
    from torch.nn import LayerNorm

    norms = {name: part for name, part in network.named_modules() if isinstance(part, LayerNorm)}
    return {
        f"{name}.{kind}": weight
        for name, part in norms.items()
        if "adapters" not in name.split(".")
        for kind, weight in part.named_parameters()
    }


def _load_tensors(path: Path, own: Mapping[str, Any]) -> None:
    """Copy the tensors of a file, which must be these."""
    from safetensors.torch import load_file

    held = load_file(str(path))
    _refuse_misfit(path.parent, set(own) - set(held), set(held) - set(own))
    for key, value in held.items():
        own[key].data.copy_(value)


def _refuse_misfit(folder: Path, missing: Collection[str], extra: Collection[str]) -> None:
    if missing or extra:
        raise BenchError(
            f"the adapter {folder} does not fit this base model: "
            f"missing {_shown(missing)}; not used {_shown(extra)}",
            "attach it to the model it was trained on",
        )


def _check_trained_on(folder: Path, base: Checkpoint) -> None:
    """An adapter that was trained here says of which weights; the numbers of others would fit."""
    places = [place / BASE for place in (folder, folder.parent)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:  # in neither the adapter's folder nor that of its composition
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


def _weights(folder: Path, kind: Kind) -> list[Path]:
    shared = [folder / name for name in (SHARED, NORMS) if lexists(folder / name)]
    for name in WEIGHTS[kind]:
        path = folder / name
        if path.is_file():
            for file in (path, *shared):
                if file.suffix == ".safetensors":
                    read_safetensors_header(file)
            return [path, *shared]
    raise BenchError(f"{folder} has no adapter weights", f"expected {' or '.join(WEIGHTS[kind])}")


def _shown(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:3]) or "none"
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
