"""Adapters: small sets of weights attached to a base model, from AdapterHub or PEFT."""

import logging
import pickle
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from os.path import lexists
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from foundation.errors import BenchError, first_line
from foundation.records import read_object
from retrievers.adapters.composition import SETUP, Setup, check_runs, read_setup
from retrievers.adapters.forward import correct_forward
from retrievers.adapters.identify import CONFIG, NORMS, SHARED, SUBTRACTS, adapter_weights
from retrievers.adapters.libraries import import_library
from retrievers.adapters.virtual_tokens import put_before
from retrievers.models.checkpoint import inside
from retrievers.models.recipe import AdapterKind

if TYPE_CHECKING:
    from torch.nn import Module

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


def attach(network: "Module", folder: Path, kind: AdapterKind, dropped: int = 0) -> "Module":
    """Attach an adapter and activate it; weights are read without unpickling code.

    An adapter of AdapterHub is computed in the network's precision, one of PEFT in its own.

    Args:
        kind: of a library; routed adapters are attached one by one, each to a network of its own.
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

        weights = adapter_weights(folder, "adapterhub")[0].name
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


def _shown(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:3]) or "none"
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
