"""PEFT's virtual tokens before a text: prompt tuning, p-tuning and prefix tuning on an encoder.

Lester et al., EMNLP 2021, https://arxiv.org/abs/2104.08691; Liu et al., 2021,
https://arxiv.org/abs/2103.10385; Li and Liang, ACL 2021, https://arxiv.org/abs/2101.00190. The
states are those that PEFT computes: virtual tokens take the first positions of the network, and the
text the next ones. What is pooled are the states of the text alone, so that its first token is the
first, and no virtual token is in a mean. (AdapterHub's prompt and prefix tuning take no positions.)
"""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from foundation.errors import BenchError
from retrievers.adapters.forward import Forward, pooled_again

PROMPT_TYPES = ("PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING")


def put_before(network: Any, wrapped: Any) -> None:
    """Replace ``forward`` of a network by one that reads an adapter's virtual tokens first.

    Args:
        wrapped: the network in PEFT's model, which has the virtual tokens.

    Raises:
        BenchError: the network takes none.
    """
    config = wrapped.active_peft_config
    prefix = str(config.peft_type.value) == "PREFIX_TUNING"
    needed = "past_key_values" if prefix else "inputs_embeds"
    if needed not in inspect.signature(network.forward).parameters:
        raise BenchError(
            f"{type(network).__name__} takes no {needed}, which PEFT's virtual tokens go into",
            'use prefix_tuning or prompt_tuning of library = "adapterhub"',
        )
    network.forward = (_with_prefix if prefix else _with_prompt)(network, wrapped)


def _with_prompt(network: Any, wrapped: Any) -> Forward:
    """``forward`` with vectors of virtual tokens before those of the words."""
    import torch

    forward = network.forward

    @functools.wraps(forward)
    def prompted(input_ids: Any, attention_mask: Any, **others: Any) -> Any:
        words = network.get_input_embeddings()(input_ids)
        prompt = wrapped.get_prompt(len(input_ids)).to(words.dtype)
        length = prompt.shape[1]
        if (types := others.get("token_type_ids")) is not None:
            others["token_type_ids"] = torch.cat([types.new_zeros(len(types), length), types], 1)
        output = forward(
            inputs_embeds=torch.cat([prompt, words], 1),
            attention_mask=_longer(attention_mask, length),
            **others,
        )
        output.last_hidden_state = output.last_hidden_state[:, length:]
        return pooled_again(network, output)

    return prompted


def _with_prefix(network: Any, wrapped: Any) -> Forward:
    """``forward`` with keys and values of virtual tokens in each layer."""
    forward, length = network.forward, wrapped.active_peft_config.num_virtual_tokens

    @functools.wraps(forward)
    def prefixed(input_ids: Any, attention_mask: Any, **others: Any) -> Any:
        return forward(
            input_ids=input_ids,
            attention_mask=_longer(attention_mask, length),
            past_key_values=wrapped.get_prompt(len(input_ids)),
            **others,
        )

    return prefixed


def _longer(mask: Any, length: int) -> Any:
    """A mask ``(n, tokens)`` with virtual tokens, all of which are read."""
    import torch

    return torch.cat([mask.new_ones(len(mask), length), mask], 1)


def virtual_tokens(config: Mapping[str, Any]) -> int:
    """Number of positions that an adapter takes, by PEFT's configuration."""
    count = config.get("num_virtual_tokens")
    return count if config.get("peft_type") in PROMPT_TYPES and isinstance(count, int) else 0


def check_positions(virtual: int, tokens: int, limit: int | None) -> None:
    """Refuse more tokens than there are positions; a limit of None is none.

    Raises:
        BenchError: see above.
    """
    if virtual and limit is not None and virtual + tokens > limit:
        raise BenchError(
            f"{virtual} virtual tokens and texts of {tokens} do not fit {limit} positions",
            f"set max_query_tokens and max_document_tokens to at most {limit - virtual}",
        )
