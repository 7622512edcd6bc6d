"""PEFT's adapters in a network: trained, written, attached.

With prompt tuning and p-tuning on an encoder (Lester et al., EMNLP 2021,
https://arxiv.org/abs/2104.08691; Liu et al., 2021, https://arxiv.org/abs/2103.10385) the states are
those that PEFT computes: virtual tokens take the first positions of the network, and the text the
next ones. What is pooled are the states of the text alone, so that its first token is the first,
and no virtual token is in a mean. (AdapterHub's prefix tuning takes no positions.)
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foundation.errors import BenchError
from retrievers.adapters.hub import NAME, refuse_misfit
from retrievers.adapters.identify import CONFIG
from retrievers.adapters.settings import Adapter, check_options, import_library

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
    import_library("peft")
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    kind: Any = PEFT_TYPE_TO_CONFIG_MAPPING[method.upper()]
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


def attach(network: Any, folder: Path) -> Any:
    """Attach an adapter and activate it, in its own precision.

    Raises:
        BenchError: it does not fit, or asks for what an encoder has not.
    """
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
    refuse_misfit(folder, expected - set(weights), set(weights) - expected)
    attached.load_adapter(str(folder), NAME, is_trainable=False)
    if config.is_prompt_learning:
        put_before(network, attached)
    return attached


def put_before(network: Any, wrapped: Any) -> None:
    """Replace ``forward`` of a network by one that reads an adapter's virtual tokens first.

    Args:
        wrapped: the network in PEFT's model, which has the virtual tokens.
    """
    import torch

    forward = network.forward

    @functools.wraps(forward)
    def prompted(input_ids: Any, attention_mask: Any, **others: Any) -> Any:
        words = network.get_input_embeddings()(input_ids)
        prompt = wrapped.get_prompt(len(input_ids)).to(words.dtype)
        count, length = prompt.shape[:2]
        if (types := others.get("token_type_ids")) is not None:
            others["token_type_ids"] = torch.cat([types.new_zeros(count, length), types], 1)
        output = forward(
            inputs_embeds=torch.cat([prompt, words], 1),
            attention_mask=torch.cat([attention_mask.new_ones(count, length), attention_mask], 1),
            **others,
        )
        output.last_hidden_state = output.last_hidden_state[:, length:]
        if getattr(output, "pooler_output", None) is not None:  # of the first virtual token
            output.pooler_output = network.pooler(output.last_hidden_state)
        return output

    network.forward = prompted
