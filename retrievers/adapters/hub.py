"""AdapterHub's adapters in a network: created, saved, attached.

A new adapter is used alone, on top of others, or fuses them. Tensors of Compacter that all layers
share are saved in a separate file, since AdapterHub 1.3 omits them.
"""

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os.path import lexists
from pathlib import Path
from typing import Any

from foundation.errors import BenchError
from foundation.files import resolve_inside
from retrievers.adapters.settings import FUSION, AdapterSettings, check_options, import_library
from retrievers.models.read_adapter import NORMS, SETUP, SHARED, Composition, read_composition

ADAPTER_NAME = "bench"
# Methods that AdapterHub 1.3 does not save or load whole, or computes in float32 alone. UniPELT has
# gates, by which a vector depends on the other texts of its batch.
UNSUPPORTED = (
    "loreft",
    "noreft",
    "direft",
    "vera",
    "dvora",
    "mtl_lora",
    "prompt_tuning",
    "unipelt",
)


def list_methods() -> tuple[str, ...]:
    """Return the names of AdapterHub's methods, including additions to its `ADAPTER_CONFIG_MAP`.

    Raises:
        BenchError: AdapterHub is not installed.
    """
    known = import_library("adapters").ADAPTER_CONFIG_MAP
    return (*(name for name in known if name not in UNSUPPORTED), FUSION)


def make_configuration(method: str, options: Mapping[str, Any]) -> Any:
    """Return AdapterHub's record of ``method`` with ``options``.

    Raises:
        BenchError: an option is unknown.
    """
    adapters = import_library("adapters")
    fusion = adapters.ADAPTERFUSION_CONFIG_MAP[adapters.DEFAULT_ADAPTERFUSION_CONFIG]
    defaults = fusion if method == FUSION else adapters.ADAPTER_CONFIG_MAP[method]
    if isinstance(defaults, adapters.ConfigUnion):  # such as mam
        check_options(method, options, ())
        return defaults
    check_options(method, options, (field.name for field in dataclasses.fields(defaults)))
    return defaults.replace(**options)


def insert_adapter(
    network: Any, adapter: AdapterSettings, below: Sequence[Path]
) -> Callable[[Path], None]:
    """Freeze a network and insert a trainable adapter.

    Args:
        network: Hugging Face encoder, changed in place.
        adapter: settings of the adapter.
        below: folders of the adapters that it is stacked on, or that are fused.

    Returns:
        Function that writes the trained adapter, and those that it needs, to a folder.
    """
    import adapters

    settings = make_configuration(adapter.method, adapter.options)
    adapters.init(network)
    names = [f"below_{place}" for place in range(1, len(below) + 1)]
    for name, folder in zip(names, below, strict=True):
        load_named_adapter(network, folder, name)
    if adapter.method == FUSION:
        check_composition(network, Composition("Fuse", tuple(names)))
        fused = Composition("Fuse", tuple(names)).block()
        network.add_adapter_fusion(fused, settings)
        network.train_adapter_fusion(fused)
        return lambda folder: save_composition(network, folder, fused)
    network.add_adapter(ADAPTER_NAME, config=settings)
    check_supported(network, ADAPTER_NAME, f"the adapter method {adapter.method}")
    network.train_adapter(ADAPTER_NAME)
    if adapter.init_scale is not None:
        _initialise_bottlenecks(network, adapter.init_scale)
    if adapter.norms:
        for weight in norm_weights(network).values():
            weight.requires_grad_(True)
    if not names:
        return lambda folder: save_adapter(network, folder, ADAPTER_NAME, norms=adapter.norms)
    stacked = Composition("Stack", (*names, ADAPTER_NAME))
    check_composition(network, stacked)
    network.set_active_adapters(stacked.block())
    return lambda folder: save_composition(network, folder, stacked.block())


def _initialise_bottlenecks(network: Any, scale: float) -> None:
    """Draw trainable weights of bottlenecks within two standard deviations.

    Set biases to 0.
    """
    import torch

    for weight in network.parameters():
        if weight.requires_grad and weight.dim() > 1:
            torch.nn.init.trunc_normal_(weight, std=scale, a=-2 * scale, b=2 * scale)
        elif weight.requires_grad:
            torch.nn.init.zeros_(weight)


def save_adapter(network: Any, folder: Path, name: str, *, norms: bool = False) -> None:
    """Save an adapter in AdapterHub's layout.

    Args:
        network: network with the adapter.
        folder: folder to write.
        name: name of the adapter.
        norms: save the LayerNorms that were trained with it, too.
    """
    safe = not _shares_tensors(network, name)
    network.save_adapter(str(folder), name, with_head=False, use_safetensors=safe)
    _save_shared_tensors(network, folder, name)
    if norms:
        _save_tensors(norm_weights(network), folder / NORMS)


def save_composition(network: Any, folder: Path, setup: Any) -> None:
    """Save the composition ``setup`` of adapters in ``network`` to ``folder``."""
    names = list(setup)
    safe = not any(_shares_tensors(network, name) for name in names)
    network.save_adapter_setup(str(folder), setup, use_safetensors=safe)
    for name in names:
        _save_shared_tensors(network, folder / name, name)


def _shares_tensors(network: Any, name: str) -> bool:
    """Return whether all layers hold the same tensors, which safetensors cannot store once."""
    pool = getattr(network, "prefix_tuning", None)
    return pool is not None and name in pool.prefix_tunings


def _save_shared_tensors(network: Any, folder: Path, name: str) -> None:
    """Save tensors that all layers share, which AdapterHub 1.3 omits."""
    if name in network.shared_parameters:
        _save_tensors(network.shared_parameters[name], folder / SHARED)


def _save_tensors(tensors: Mapping[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    state = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(state, str(path))


def attach(network: Any, folder: Path) -> Any:
    """Attach the adapters of ``folder`` to ``network`` and activate them, in its precision."""
    import adapters

    of_base = {id(tensor) for tensor in (*network.parameters(), *network.buffers())}
    adapters.init(network)
    if (folder / SETUP).is_file():
        setup = read_composition(folder)
        for name in setup.names:
            load_named_adapter(network, resolve_inside(folder, name), name)
        if setup.kind == "Fuse":
            network.load_adapter_fusion(
                str(resolve_inside(folder, ",".join(setup.names))), use_safetensors=True
            )
    else:
        load_named_adapter(network, folder, ADAPTER_NAME)
        setup = Composition("Stack", (ADAPTER_NAME,))
    check_composition(network, setup)
    with silence_adapterhub():
        network.set_active_adapters(setup.block())
    for tensor in (*network.parameters(), *network.buffers()):
        if id(tensor) not in of_base and tensor.is_floating_point():
            tensor.data = tensor.data.to(network.dtype)
    return network


@contextmanager
def silence_adapterhub() -> Iterator[None]:
    """Hide AdapterHub's warning, within the block, that adapters are not active yet."""
    notices = logging.getLogger("adapters.model_mixin")
    level = notices.level
    notices.setLevel(logging.ERROR)
    try:
        yield
    finally:
        notices.setLevel(level)


def load_named_adapter(network: Any, folder: Path, name: str) -> None:
    """Load an adapter into a network that AdapterHub has prepared.

    Args:
        network: the network.
        folder: folder of the adapter.
        name: name for the adapter in the network.

    Raises:
        BenchError: weights are missing or do not fit.
    """
    report: dict[str, list[str]] = {}
    network.load_adapter(
        str(folder), load_as=name, use_safetensors=True, with_head=False, loading_info=report
    )
    missing, extra = (set(report.get(f"{kind}_keys", [])) for kind in ("missing", "unexpected"))
    check_supported(network, name, f"the adapter {folder}")
    refuse_misfit(folder, missing, extra)
    if lexists(folder / SHARED):
        shared = network.shared_parameters
        _load_tensors(folder / SHARED, dict(shared[name].items()) if name in shared else {})
    if lexists(folder / NORMS):
        if name != ADAPTER_NAME or len(network.adapters_config.adapters) > 1:
            raise BenchError(
                f"the adapter {folder} was trained with the LayerNorms of its base, and is used "
                "alone",
                "average such adapters, or train without adapter.norms",
            )
        _load_tensors(folder / NORMS, norm_weights(network))


def check_supported(network: Any, name: str, what: str) -> None:
    """Raise if AdapterHub cannot load an adapter completely, or its vectors depend on the batch.

    Args:
        network: network with the adapter.
        name: name of the adapter.
        what: description for the message.

    Raises:
        BenchError: the adapter is ReFT, VeRA or prompt tuning, or has gates.
    """
    for part in list_configurations(network, name):
        whole = part.get("architecture") not in ("reft", "prompt_tuning")
        if not whole or part.get("vera_d") is not None or part.get("use_gating"):
            raise BenchError(
                f"{what} is not supported: it is ReFT, VeRA or prompt tuning, or has gates",
                'train with another method, such as mam, or vera of library = "peft"',
            )


def norm_weights(network: Any) -> dict[str, Any]:
    """Return the LayerNorm weights of ``network`` itself, not of its adapters, by name."""
    from torch.nn import LayerNorm

    norms = {name: part for name, part in network.named_modules() if isinstance(part, LayerNorm)}
    return {
        f"{name}.{kind}": weight
        for name, part in norms.items()
        if "adapters" not in name.split(".")
        for kind, weight in part.named_parameters()
    }


def _load_tensors(path: Path, parameters: Mapping[str, Any]) -> None:
    """Copy the tensors of a file into the network's, which must have the same names."""
    from safetensors.torch import load_file

    tensors = load_file(str(path))
    refuse_misfit(path.parent, set(parameters) - set(tensors), set(tensors) - set(parameters))
    for key, value in tensors.items():
        parameters[key].data.copy_(value)


def refuse_misfit(folder: Path, missing: Collection[str], extra: Collection[str]) -> None:
    """Raise if the adapter in ``folder`` has ``missing`` weights or ``extra`` ones.

    Raises:
        BenchError: one of the two is not empty.
    """
    if missing or extra:
        raise BenchError(
            f"the adapter {folder} does not fit this base model: "
            f"missing {_list_names(missing)}; not used {_list_names(extra)}",
            "Attach it to the model that it was trained on.",
        )


def _list_names(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:3]) or "none"
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def check_composition(network: Any, setup: Composition) -> None:
    """Raise for adapters that AdapterHub would silently skip.

    Args:
        network: network with all of them.
        setup: their composition.

    Raises:
        BenchError: an invertible layer is not at the bottom of a stack, or a stack has a parallel
            bottleneck.
    """
    stacked = setup.kind == "Stack" and len(setup.names) > 1
    parts = [part for name in setup.names for part in list_configurations(network, name)]
    if stacked and any(part.get("is_parallel") for part in parts):
        raise BenchError(
            "AdapterHub ignores the adapters below a parallel one in a stack",
            "use a sequential bottleneck or LoRA",
        )
    for name in setup.names[1:] if setup.kind == "Stack" else setup.names:
        if any(part.get("inv_adapter") for part in list_configurations(network, name)):
            raise BenchError(
                "AdapterHub runs an invertible layer only at the bottom of a stack, and would "
                "ignore this one",
                "put it there, or use a bottleneck adapter or LoRA",
            )


def list_configurations(network: Any, name: str) -> list[Any]:
    """Return the configurations of adapter ``name`` in ``network``, several for a union."""
    whole = network.adapters_config.get(name)
    return list(getattr(whole, "configs", [whole]))
