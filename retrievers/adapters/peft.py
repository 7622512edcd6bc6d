"""PEFT's adapters in a network that is trained."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foundation.errors import BenchError
from retrievers.adapters.libraries import check_options, import_library
from retrievers.adapters.settings import Adapter
from retrievers.adapters.virtual_tokens import put_before

# Method in a preset: PEFT's name of its configuration.
METHODS = {
    "lora": "LoraConfig",
    "ia3": "IA3Config",
    "loha": "LoHaConfig",
    "lokr": "LoKrConfig",
    "oft": "OFTConfig",
    "hra": "HRAConfig",
    "vera": "VeraConfig",
    "fourierft": "FourierFTConfig",
    "ln_tuning": "LNTuningConfig",
    "prompt_tuning": "PromptTuningConfig",
    "p_tuning": "PromptEncoderConfig",
    "prefix_tuning": "PrefixTuningConfig",
}
# Fields of PEFT's records that are not settings of a method.
NOT_OPTIONS = {
    *("peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path"),
    *("revision", "inference_mode", "modules_to_save"),
    # Read from the network.
    *("token_dim", "num_transformer_submodules", "num_attention_heads", "num_layers"),
    # Of a tokenizer from a hub, which may bring code.
    *("tokenizer_name_or_path", "tokenizer_kwargs", "prompt_tuning_init_text"),
}
VIRTUAL = "virtual_tokens"  # in the network, so that they are trained and saved with it


def configuration(method: str, options: Mapping[str, Any]) -> Any:
    """PEFT's record of a method and its options.

    Raises:
        BenchError: an unknown option, or values that PEFT refuses.
    """
    kind = getattr(import_library("peft"), METHODS[method])
    known = {field.name for field in dataclasses.fields(kind)} - NOT_OPTIONS
    check_options(method, options, known)
    count = options.get("num_virtual_tokens")
    if "num_virtual_tokens" in known and not (isinstance(count, int) and count > 0):
        raise BenchError(
            f"the adapter method {method} needs to know how many virtual tokens it has",
            "options = { num_virtual_tokens = 20 }",
        )
    try:
        return kind(**options)
    except (TypeError, ValueError) as error:
        raise BenchError(f"the adapter method {method}: {error}") from error


def put_into(network: Any, adapter: Adapter) -> Callable[[Path], None]:
    """Freeze a network and put what is trained into it.

    Returns:
        What writes the trained adapter to a folder.
    """
    from peft import PeftModel

    wrapped = PeftModel(network, configuration(adapter.method, adapter.options))
    if wrapped.active_peft_config.is_prompt_learning:
        network.add_module(VIRTUAL, wrapped.prompt_encoder)
        put_before(network, wrapped)

    def save(folder: Path) -> None:
        wrapped.save_pretrained(str(folder), safe_serialization=True)
        (folder / "README.md").unlink(missing_ok=True)  # a form that nobody filled in

    return save
