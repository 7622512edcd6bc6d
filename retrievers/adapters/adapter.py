"""An adapter of a base, by AdapterHub or PEFT: trained, saved with a card, and attached.

Methods and options have the names of the libraries (Poth et al., Adapters, EMNLP 2023 demos). The
folder of a training has a card and ``adapter/`` in the layout of the library, with the hash of the
base's weights in ``base.json``. The base is not copied.
"""

import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from foundation.errors import (
    BenchError,
    did_you_mean,
    format_names,
    import_package,
    wrap_errors,
)
from foundation.files import replace_entries
from foundation.records import Record, write_json
from retrievers.models.adapter_files import (
    ADAPTER_FOLDER,
    BASE,
    NORMS,
    ROUTING,
    SHARED,
    adapter_folder,
    identify_adapter,
)
from retrievers.models.card import (
    CARD_FILE,
    AdapterIdentity,
    AdapterKind,
    Card,
    CardAdapter,
    load_card,
    replace_fields,
    write_card,
)
from retrievers.models.checkpoint import ADAPTER_CONFIG
from retrievers.models.resolve import Model

Library = Literal["adapterhub", "peft"]
Write = Callable[[Path], None]  # writes a trained adapter to a folder
ADAPTER_NAME = "bench"
BOTTLENECKS = ("seq_bn", "double_seq_bn", "par_bn", "seq_bn_inv", "double_seq_bn_inv")
UNSUPPORTED = {
    # AdapterHub 1.3 does not save or load these whole, or computes them in float32 alone. UniPELT
    # has gates, by which a vector depends on the other texts of its batch.
    "adapterhub": (
        *("loreft", "noreft", "direft", "vera", "dvora"),
        *("mtl_lora", "prompt_tuning", "unipelt"),
    ),
    # PEFT would load further models, which a file names; Poly reads the number of a task.
    "peft": ("poly", "shadow", "xlora"),
}
# Fields of PEFT's files that must be null.
REFUSED_FIELDS = {
    "megatron_config": "PEFT would import what megatron_core names; code that arrives is not run",
    "alora_invocation_tokens": "an encoder's texts have no invocation tokens; use a plain LoRA",
}


class AdapterSettings(Record, kw_only=True):
    """Settings of an adapter to train, from the ``[adapter]`` table of a fine-tuning preset.

    Attributes:
        library: library of the method.
        method: name of the method in that library.
        options: options of the method, by the library's names; others have its defaults.
        lr: learning rate instead of the optimizer's, since adapters need a higher one than
            encoders.
        init_scale: standard deviation of a bottleneck's initial weights, drawn from a normal
            distribution cut at two deviations, as in Houlsby et al.; None for the library's
            default.
        norms: train the encoder's LayerNorms too (Houlsby et al., ICML 2019), and save them with
            the adapter. For AdapterHub.
    """

    library: Library = "adapterhub"
    method: str
    options: dict[str, Any] = {}
    lr: Annotated[float, msgspec.Meta(gt=0)] | None = None
    init_scale: Annotated[float, msgspec.Meta(gt=0)] | None = None
    norms: bool = False

    def __post_init__(self) -> None:
        if self.norms and self.library == "peft":
            raise ValueError("norms needs library = adapterhub")
        if self.init_scale is not None and self.method not in BOTTLENECKS:
            raise ValueError(f"init_scale needs a bottleneck method: {', '.join(BOTTLENECKS)}")


@dataclass(frozen=True, eq=False)
class AdaptedNetwork:
    """A network with a trainable adapter, and the function that writes the adapter to a folder."""

    base: Model
    kind: AdapterKind
    write: Write

    def save(self, out: Path, card: Card) -> None:
        """Write the adapter with its base's hash and, last, ``card`` to ``out``."""
        with replace_entries(out) as unfinished:
            folder = unfinished / ADAPTER_FOLDER
            folder.mkdir()
            self.write(folder)
            hashed = self.base.checkpoint.weights_sha256
            stated = {"model": self.base.card.name, "weights_sha256": hashed}
            write_json(folder / BASE, stated)
        base, of_base = self.base, self.base.card
        where: dict[str, Any] = {"checkpoint": os.path.relpath(base.checkpoint.root, out.resolve())}
        if of_base.package or base.recipe.revision:
            fields = ("checkpoint", "package", "weights_sha256")
            where = {name: getattr(of_base, name) for name in fields}
            where["revision"] = base.recipe.revision or of_base.revision
        adapter = CardAdapter(path=ADAPTER_FOLDER, kind=self.kind)
        write_card(replace_fields(card, {"adapter": adapter, **where}), out, where["checkpoint"])


def add_adapter(network: Any, settings: AdapterSettings, base: Model, seed: int) -> AdaptedNetwork:
    """Freeze a Hugging Face encoder of ``base``, in place, and add a new adapter."""
    import torch

    configuration = make_configuration(settings)
    torch.manual_seed(seed)
    # Libraries write this path into the adapter's configuration.
    network.config._name_or_path = base.card.name
    problem = f"the adapter {settings.method} cannot be put into {base.card.name}"
    with wrap_errors(problem, "Check adapter.options of the preset."):
        write = _insert_adapter(network, settings, configuration)
        if settings.library == "peft":
            _try_training_step(network)
    return AdaptedNetwork(base, settings.library, write)


def _try_training_step(network: Any) -> None:
    """Run a network forward and backward, without effects: some methods of PEFT fail only there."""
    import torch

    was_training, device = network.training, next(network.parameters()).device
    ids = torch.zeros((1, 2), dtype=torch.long, device=device)
    network.eval()
    with torch.random.fork_rng(devices=[]):
        states = network(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        states.sum().backward()
    network.zero_grad(set_to_none=True)
    network.train(was_training)


def find_adapter(folder: Path, base: Model) -> tuple[Path, AdapterIdentity]:
    """Find an adapter of ``base`` in ``folder``, or in the folder that its card names."""
    where = folder.expanduser().resolve()
    has_card = (where / CARD_FILE).is_file()
    stated = load_card(where / CARD_FILE).adapter if has_card else CardAdapter(path=".")
    if stated is None:
        raise BenchError(f"{folder} is a complete model, not an adapter")
    inner = adapter_folder(stated, where)
    if not any((inner / name).is_file() for name in (ADAPTER_CONFIG, ROUTING)):
        raise BenchError(f"{folder} has no adapter", "Give the folder of a trained adapter.")
    return inner, identify_adapter(inner, base.checkpoint)


def list_methods(library: Library) -> tuple[str, ...]:
    """Return the names of a library's methods, without PEFT's prompt learning and `UNSUPPORTED`."""
    if library == "adapterhub":
        known = tuple(_import_library("adapters").ADAPTER_CONFIG_MAP)
    else:
        learning = _import_library("peft").PromptLearningConfig
        kinds = _peft_configurations().items()
        known = (*(str(kind.value).lower() for kind, of in kinds if not issubclass(of, learning)),)
    return tuple(name for name in known if name not in UNSUPPORTED[library])


def make_configuration(adapter: AdapterSettings) -> Any:
    """Return the library's record of an adapter's method and options, or raise."""
    method, options, names = adapter.method, adapter.options, list_methods(adapter.library)
    if method not in names:
        problem = f"{adapter.library} has no adapter method {method!r}"
        raise BenchError(problem, did_you_mean(method, names, f"Use one of {', '.join(names)}."))
    with wrap_errors(f"the options of the adapter method {method}", "Check adapter.options."):
        if adapter.library == "peft":
            return _peft_configurations()[method.upper()](**options)
        return _import_library("adapters").ADAPTER_CONFIG_MAP[method].replace(**options)


def _import_library(name: Literal["adapters", "peft"]) -> Any:
    problem = f"this adapter needs the library {name!r}, which cannot be imported"
    # AdapterHub warns that a new adapter is not active yet.
    logging.getLogger("adapters.model_mixin").setLevel(logging.ERROR)
    return import_package(name, problem, f"Run `pip install 'retrieval-bench[{name}]'`.")


def _peft_configurations() -> Any:
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    return PEFT_TYPE_TO_CONFIG_MAPPING


def _insert_adapter(network: Any, adapter: AdapterSettings, configuration: Any) -> Write:
    """Insert a trainable adapter, and return what writes it to a folder."""
    if adapter.library == "peft":
        return _insert_peft(network, configuration)
    import adapters

    adapters.init(network)
    network.add_adapter(ADAPTER_NAME, config=configuration)
    _check_supported(network, f"the adapter method {adapter.method}")
    network.train_adapter(ADAPTER_NAME)
    if adapter.init_scale is not None:
        _initialise_bottlenecks(network, adapter.init_scale)
    if adapter.norms:
        for weight in _norm_weights(network).values():
            weight.requires_grad_(True)
    return lambda folder: _save_adapter(network, folder, adapter.norms)


def _insert_peft(network: Any, configuration: Any) -> Write:
    from peft import PeftModel

    wrapped = PeftModel(network, configuration)

    def save(folder: Path) -> None:
        wrapped.save_pretrained(str(folder), safe_serialization=True)
        (folder / "README.md").unlink(missing_ok=True)  # an empty template

    return save


def _initialise_bottlenecks(network: Any, scale: float) -> None:
    """Draw trainable weights of bottlenecks within two standard deviations; set biases to 0."""
    import torch

    for weight in network.parameters():
        if weight.requires_grad and weight.dim() > 1:
            torch.nn.init.trunc_normal_(weight, std=scale, a=-2 * scale, b=2 * scale)
        elif weight.requires_grad:
            torch.nn.init.zeros_(weight)


def _save_adapter(network: Any, folder: Path, norms: bool) -> None:
    """Save the trained adapter in AdapterHub's layout, and what AdapterHub 1.3 omits."""
    # All layers hold the tensors of a prefix, which safetensors cannot store once.
    pool = getattr(network, "prefix_tuning", None)
    safe = pool is None or ADAPTER_NAME not in pool.prefix_tunings
    network.save_adapter(str(folder), ADAPTER_NAME, with_head=False, use_safetensors=safe)
    if ADAPTER_NAME in network.shared_parameters:  # of Compacter
        _save_tensors(network.shared_parameters[ADAPTER_NAME], folder / SHARED)
    if norms:
        _save_tensors(_norm_weights(network), folder / NORMS)


def _save_tensors(tensors: Mapping[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    state = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(state, str(path))


def attach(network: Any, folder: Path, kind: AdapterKind) -> Any:
    """Attach an adapter to a network and activate it, without unpickling code.

    AdapterHub computes its adapters in the network's precision, PEFT in the adapter's own.
    """
    _import_library("peft" if kind == "peft" else "adapters")
    hint = "Check that it belongs to this base model and version of its library."
    with wrap_errors(f"the adapter {folder} cannot be attached", hint):
        return (_attach_peft if kind == "peft" else _attach_hub)(network, folder).eval()


def _attach_hub(network: Any, folder: Path) -> Any:
    import adapters

    of_base = {id(tensor) for tensor in (*network.parameters(), *network.buffers())}
    adapters.init(network)
    _load_adapter(network, folder)
    network.set_active_adapters(ADAPTER_NAME)
    for tensor in (*network.parameters(), *network.buffers()):
        if id(tensor) not in of_base and tensor.is_floating_point():
            tensor.data = tensor.data.to(network.dtype)
    return network


def _attach_peft(network: Any, folder: Path) -> Any:
    from peft import PeftConfig, PeftModel, get_peft_model_state_dict
    from peft.utils import load_peft_weights

    config = PeftConfig.from_pretrained(str(folder))
    if config.peft_type.value.lower() not in list_methods("peft"):
        problem = f"{folder}: PEFT's {config.peft_type.value} is not supported"
        raise BenchError(problem, "Train another method, or prefix_tuning of AdapterHub.")
    for field, why in REFUSED_FIELDS.items():
        if getattr(config, field, None) is not None:
            problem = f"{folder / ADAPTER_CONFIG} states {field}: {why}"
            raise BenchError(problem, f"Set {field} to null.")
    # The task decides which head PEFT looks for; an encoder has none.
    config.task_type = None
    config.inference_mode = True
    attached = PeftModel(network, config, adapter_name=ADAPTER_NAME)
    weights = load_peft_weights(str(folder), device="cpu")
    expected = set(get_peft_model_state_dict(attached, adapter_name=ADAPTER_NAME))
    _refuse_misfit(folder, expected - set(weights), set(weights) - expected)
    attached.load_adapter(str(folder), ADAPTER_NAME, is_trainable=False)
    return attached


def _load_adapter(network: Any, folder: Path) -> None:
    """Load the adapter in ``folder`` into a network that AdapterHub has prepared."""
    report: dict[str, list[str]] = {}
    fixed = {"load_as": ADAPTER_NAME, "use_safetensors": True, "with_head": False}
    network.load_adapter(str(folder), **fixed, loading_info=report)
    missing, extra = (set(report.get(f"{kind}_keys", [])) for kind in ("missing", "unexpected"))
    _check_supported(network, f"the adapter {folder}")
    _refuse_misfit(folder, missing, extra)
    if os.path.lexists(folder / SHARED):
        shared = network.shared_parameters
        parameters = dict(shared[ADAPTER_NAME].items()) if ADAPTER_NAME in shared else {}
        for key, value in _read_tensors(folder / SHARED, parameters).items():
            parameters[key].data.copy_(value)
    if os.path.lexists(folder / NORMS):
        _replace_norms(network, folder / NORMS)


def _check_supported(network: Any, what: str) -> None:
    """Raise if AdapterHub cannot load the adapter whole, or vectors depend on the batch."""
    configuration = network.adapters_config.get(ADAPTER_NAME)
    for part in getattr(configuration, "configs", [configuration]):  # several of a union
        whole = part.get("architecture") not in ("reft", "prompt_tuning")
        if not whole or part.get("vera_d") is not None or part.get("use_gating"):
            problem = f"{what} is not supported: it is ReFT, VeRA or prompt tuning, or has gates"
            raise BenchError(problem, "Train with another method, such as mam, or vera of PEFT.")


def _norm_weights(network: Any) -> dict[str, Any]:
    """Return the LayerNorm weights of ``network`` itself, not of its adapters, by name."""
    from torch.nn import LayerNorm

    norms = {name: part for name, part in network.named_modules() if isinstance(part, LayerNorm)}
    return {
        f"{name}.{kind}": weight
        for name, part in norms.items()
        if "adapters" not in name.split(".")
        for kind, weight in part.named_parameters()
    }


def _replace_norms(network: Any, path: Path) -> None:
    """Give a network LayerNorms of its own: those of the base may be shared with other adapters."""
    from torch.nn import Parameter

    before = _norm_weights(network)
    for name, value in _read_tensors(path, before).items():
        part, _, kind = name.rpartition(".")
        weight = Parameter(value.to(before[name]), requires_grad=False)
        setattr(network.get_submodule(part), kind, weight)


def _read_tensors(path: Path, expected: Collection[str]) -> dict[str, Any]:
    """Read the tensors in a file, which must have the ``expected`` names."""
    from safetensors.torch import load_file

    tensors = load_file(str(path))
    _refuse_misfit(path.parent, set(expected) - set(tensors), set(tensors) - set(expected))
    return tensors


def _refuse_misfit(folder: Path, missing: Collection[str], extra: Collection[str]) -> None:
    if missing or extra:
        lacking, unused = (format_names(sorted(names), 3) or "none" for names in (missing, extra))
        raise BenchError(
            f"the adapter {folder} does not fit this base model: missing {lacking}; "
            f"not used {unused}",
            "Attach it to the model that it was trained on.",
        )
