"""PEFT's adapters in a network: created, saved, attached."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foundation.errors import BenchError
from retrievers.adapters.hub import ADAPTER_NAME, refuse_misfit
from retrievers.adapters.settings import AdapterSettings, check_options, import_library
from retrievers.models.read_adapter import CONFIG

# Fields of PEFT's records that are not settings of a method.
NOT_OPTIONS = {
    *("peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path"),
    *("revision", "inference_mode", "modules_to_save"),
}
# PEFT would load further models, which a file names; Poly reads the number of a task.
UNSUPPORTED = ("poly", "shadow", "xlora")
# Fields of a file that must be null.
REFUSED_FIELDS = {
    "megatron_config": "PEFT would import what megatron_core names; code that arrives is not run",
    "alora_invocation_tokens": "an encoder's texts have no invocation tokens; use a plain LoRA",
}


def list_methods() -> tuple[str, ...]:
    """Return the names of PEFT's methods, without prompt learning and those in `UNSUPPORTED`.

    Raises:
        BenchError: PEFT is not installed.
    """
    import_library("peft")
    from peft import PromptLearningConfig
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    known = PEFT_TYPE_TO_CONFIG_MAPPING.items()
    names = [
        str(kind.value).lower() for kind, of in known if not issubclass(of, PromptLearningConfig)
    ]
    return tuple(name for name in names if name not in UNSUPPORTED)


def make_configuration(method: str, options: Mapping[str, Any]) -> Any:
    """Return PEFT's record of ``method`` with ``options``.

    Raises:
        BenchError: an option is unknown, or PEFT rejects a value.
    """
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    kind: Any = PEFT_TYPE_TO_CONFIG_MAPPING[method.upper()]
    known = {field.name for field in dataclasses.fields(kind)} - NOT_OPTIONS
    check_options(method, options, known)
    try:
        return kind(**options)
    except (TypeError, ValueError) as error:
        raise BenchError(f"the adapter method {method}: {error}") from error


def insert_adapter(network: Any, adapter: AdapterSettings) -> Callable[[Path], None]:
    """Freeze ``network`` and insert the trainable ``adapter``.

    Returns:
        Function that writes the trained adapter to a folder.
    """
    from peft import PeftModel

    wrapped = PeftModel(network, make_configuration(adapter.method, adapter.options))

    def save(folder: Path) -> None:
        wrapped.save_pretrained(str(folder), safe_serialization=True)
        (folder / "README.md").unlink(missing_ok=True)  # a form that nobody filled in

    return save


def attach(network: Any, folder: Path) -> Any:
    """Attach the adapter in ``folder`` to ``network`` and activate it, in its own precision.

    Raises:
        BenchError: it does not fit, or needs something that an encoder lacks.
    """
    from peft import PeftConfig, PeftModel, get_peft_model_state_dict
    from peft.utils import load_peft_weights

    config = PeftConfig.from_pretrained(str(folder))
    if config.peft_type.value.lower() not in list_methods():
        raise BenchError(
            f"{folder}: PEFT's {config.peft_type.value} is not supported",
            "train another method, or prefix_tuning of AdapterHub",
        )
    for field, why in REFUSED_FIELDS.items():
        if getattr(config, field, None) is not None:
            raise BenchError(f"{folder / CONFIG} states {field}: {why}", f"set {field} to null")
    # The task decides which head PEFT looks for; an encoder has none.
    config.task_type = None
    config.inference_mode = True
    attached = PeftModel(network, config, adapter_name=ADAPTER_NAME)
    weights = load_peft_weights(str(folder), device="cpu")
    expected = set(get_peft_model_state_dict(attached, adapter_name=ADAPTER_NAME))
    refuse_misfit(folder, expected - set(weights), set(weights) - expected)
    attached.load_adapter(str(folder), ADAPTER_NAME, is_trainable=False)
    return attached
