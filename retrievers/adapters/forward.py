"""Make networks with some of AdapterHub's adapters give what pooling expects, whatever the batch.

A prompt lengthens the output. And where a prompt or a gate is computed, AdapterHub 1.3 lets padding
in: it masks the prompt, or averages a gate over the padding, so that a text's vector depends on the
other texts of its batch. Those networks are run on texts of one length at a time.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

Forward = Callable[..., Any]


def correct_forward(network: Any) -> None:
    """Replace ``forward`` where one of the network's adapters needs it.

    A hook would not do: sentence-transformers calls ``forward`` itself.
    """
    prompts = [
        config
        for config in _configurations(network)
        if config.get("architecture") == "prompt_tuning"
    ]
    gated = any(config.get("use_gating") for config in _configurations(network))
    if prompts:
        network.forward = without_prompt(network, prompts[0])
    if prompts or gated:
        network.forward = without_padding(network.forward)


def _configurations(network: Any) -> Iterator[Any]:
    """Configurations of every adapter in a network; of unions, those of their parts."""
    for name in network.adapters_config.adapters:
        config = network.adapters_config.get(name)
        yield from getattr(config, "configs", [config])


def without_prompt(network: Any, prompt: Any) -> Forward:
    """``forward`` whose states are those of the text alone.

    AdapterHub puts the prompt before the text, or between its first token and the rest.
    """
    import torch

    first = 1 if prompt["combine"] == "prefix_after_bos" else 0
    length, forward = prompt["prompt_length"], network.forward

    @functools.wraps(forward)
    def cut(*inputs: Any, **named: Any) -> Any:
        output = forward(*inputs, **named)
        states = output.last_hidden_state
        parts = [states[:, :first], states[:, first + length :]]
        output.last_hidden_state = torch.cat(parts, dim=1)
        return pooled_again(network, output)

    return cut


def pooled_again(network: Any, output: Any) -> Any:
    """Output whose states were cut: the pooler had read the first of all states, of a prompt."""
    if getattr(output, "pooler_output", None) is not None:
        output.pooler_output = network.pooler(output.last_hidden_state)
    return output


def without_padding(forward: Forward) -> Forward:
    """``forward`` that runs rows of one length together; states of padding are 0."""
    import torch
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    @functools.wraps(forward)
    def grouped(**inputs: Any) -> Any:
        mask = inputs["attention_mask"]
        lengths = mask.sum(dim=1)
        states, pooled = None, None
        for length in lengths.unique().tolist():
            rows = (lengths == length).nonzero().squeeze(1)
            part = forward(**{name: _cut(value, rows, length) for name, value in inputs.items()})
            hidden = part.last_hidden_state
            if states is None:
                states = hidden.new_zeros((*mask.shape, hidden.shape[-1]))
                pooled = (
                    None
                    if part.pooler_output is None
                    else hidden.new_zeros(len(mask), part.pooler_output.shape[-1])
                )
            padded = torch.nn.functional.pad(hidden, (0, 0, 0, mask.shape[1] - length))
            states = states.index_copy(0, rows, padded)
            if pooled is not None:
                pooled = pooled.index_copy(0, rows, part.pooler_output)
        return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=pooled)

    return grouped


def _cut(value: Any, rows: Any, length: int) -> Any:
    """Token ids, types or mask of some rows; what else ``forward`` takes stays."""
    return value[rows, :length] if hasattr(value, "shape") else value
