"""AdapterHub's adapters in a network that is trained: one alone, on top of others, or a fusion."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foundation.errors import BenchError
from foundation.records import read_object, write_json
from retrievers.adapters.attach import NAME, load_adapterhub, norm_weights, reft_units
from retrievers.adapters.composition import Setup, check_runs
from retrievers.adapters.identify import CONFIG, NORMS, SHARED, SUBTRACTS
from retrievers.adapters.libraries import check_options, import_library
from retrievers.adapters.settings import FUSION, UNION, Adapter

METHODS = (
    *("seq_bn", "double_seq_bn", "par_bn", "scaled_par_bn", "seq_bn_inv", "double_seq_bn_inv"),
    *("compacter", "compacter++", "prefix_tuning", "prefix_tuning_flat", "prompt_tuning"),
    *("lora", "dora", "ia3", "vera", "dvora", "loreft", "noreft", "direft", "mam", "unipelt"),
    *(UNION, FUSION),
)
# Parts of the unions that have a name, whose options are tables: options.adapter.reduction_factor.
PARTS = {
    "mam": {
        "prefix_tuning": ("prefix_tuning", {"bottleneck_size": 800}),
        "adapter": ("par_bn", {}),
    },
    "unipelt": {
        "prefix_tuning": ("prefix_tuning", {"prefix_length": 10}),
        "adapter": ("seq_bn", {"reduction_factor": 16}),
        "lora": ("lora", {"r": 8, "alpha": 2}),
    },
}
COMPOSED = (UNION, FUSION, *PARTS)


def configuration(method: str, options: Mapping[str, Any]) -> Any:
    """AdapterHub's record of a method and its options.

    Raises:
        BenchError: an unknown option, or parts that cannot be combined.
    """
    import_library("adapters")
    from adapters import (
        ADAPTER_CONFIG_MAP,
        ADAPTERFUSION_CONFIG_MAP,
        DEFAULT_ADAPTERFUSION_CONFIG,
        MAMConfig,
        UniPELTConfig,
    )

    if method == UNION:
        return _union(options)
    if method in PARTS:
        check_options(method, options, PARTS[method])
        if not all(isinstance(table, Mapping) for table in options.values()):
            raise BenchError(f"the options of {method} are tables, one for each of its parts")
        parts = {
            name: configuration(kind, {**own, **options.get(name, {})})
            for name, (kind, own) in PARTS[method].items()
        }
        return (MAMConfig if method == "mam" else UniPELTConfig)(**parts)
    fusion = ADAPTERFUSION_CONFIG_MAP[DEFAULT_ADAPTERFUSION_CONFIG]
    defaults = fusion if method == FUSION else ADAPTER_CONFIG_MAP[method]
    check_options(method, options, (field.name for field in dataclasses.fields(defaults)))
    return defaults.replace(**options)


def _union(options: Mapping[str, Any]) -> Any:
    from adapters import ConfigUnion

    check_options(UNION, options, ("parts",))
    parts = options.get("parts", ())
    plain = [name for name in METHODS if name not in COMPOSED]
    tables = isinstance(parts, list | tuple) and all(isinstance(part, Mapping) for part in parts)
    if not tables or len(parts) < 2 or not all(part.get("method") in plain for part in parts):
        raise BenchError(
            "a union of adapters needs options.parts, two or more tables with a method",
            f"methods: {', '.join(plain)}",
        )
    try:
        return ConfigUnion(
            *(configuration(part["method"], part.get("options", {})) for part in parts)
        )
    except (TypeError, ValueError) as error:
        names = ", ".join(part["method"] for part in parts)
        raise BenchError(f"{names} cannot be combined: they change the same places") from error


def put_into(network: Any, adapter: Adapter, below: Sequence[Path]) -> Callable[[Path], None]:
    """Freeze a network and put what is trained into it.

    Args:
        below: folders of the adapters that it is stacked on, or that are fused.

    Returns:
        What writes the trained adapter, and those that it needs, to a folder.
    """
    import adapters

    settings = configuration(adapter.method, adapter.options)
    adapters.init(network)
    names = [f"below_{place}" for place in range(1, len(below) + 1)]
    for name, folder in zip(names, below, strict=True):
        load_adapterhub(network, folder, name)
    if adapter.method == FUSION:
        check_runs(network, Setup("Fuse", tuple(names)))
        fused = Setup("Fuse", tuple(names)).block()
        network.add_adapter_fusion(fused, settings)
        network.train_adapter_fusion(fused)
        return lambda folder: save_setup(network, folder, fused)
    network.add_adapter(NAME, config=settings)
    network.train_adapter(NAME)
    if adapter.init_scale is not None:
        _draw_bottlenecks(network, adapter.init_scale)
    if adapter.norms:
        for weight in norm_weights(network).values():
            weight.requires_grad_(True)
    if not names:
        return lambda folder: save_one(network, folder, NAME, norms=adapter.norms)
    stacked = Setup("Stack", (*names, NAME))
    check_runs(network, stacked)
    network.set_active_adapters(stacked.block())
    return lambda folder: save_setup(network, folder, stacked.block())


def _draw_bottlenecks(network: Any, scale: float) -> None:
    """Draw what is trained of bottlenecks: weights within two deviations, biases 0."""
    import torch

    for weight in network.parameters():
        if weight.requires_grad and weight.dim() > 1:
            torch.nn.init.trunc_normal_(weight, std=scale, a=-2 * scale, b=2 * scale)
        elif weight.requires_grad:
            torch.nn.init.zeros_(weight)


def save_one(network: Any, folder: Path, name: str, *, norms: bool = False) -> None:
    """An adapter in AdapterHub's layout, and beside it the LayerNorms that it was trained with."""
    safe = not _in_many_places(network, name)
    network.save_adapter(str(folder), name, with_head=False, use_safetensors=safe)
    _save_the_rest(network, folder, name)
    if norms:
        _save_tensors(norm_weights(network), folder / NORMS)


def save_setup(network: Any, folder: Path, setup: Any) -> None:
    """Composed adapters in AdapterHub's layout."""
    names = list(setup)
    safe = not any(_in_many_places(network, name) for name in names)
    network.save_adapter_setup(str(folder), setup, use_safetensors=safe)
    for name in names:
        _save_the_rest(network, folder / name, name)


def _in_many_places(network: Any, name: str) -> bool:
    """True where all layers hold the same tensors, which safetensors cannot store once."""
    pool = getattr(network, "prefix_tuning", None)
    return pool is not None and name in pool.prefix_tunings


def _save_the_rest(network: Any, folder: Path, name: str) -> None:
    """Save what AdapterHub 1.3 leaves out.

    Tensors of Compacter and VeRA that all layers share, and that DiReFT subtracts no projection.
    """
    if name in network.shared_parameters:
        _save_tensors(network.shared_parameters[name], folder / SHARED)
    units = reft_units(network, name)
    if units and not units[0].subtract_projection:
        told = {**read_object(folder / CONFIG), SUBTRACTS: False}
        write_json(folder / CONFIG, told)


def _save_tensors(tensors: Mapping[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    held = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(held, str(path))
