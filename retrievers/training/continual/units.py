"""Units of a transformer, and gates on them.

A unit is an attention head, an intermediate neuron (after the activation) or an output neuron (of
the layer's last linear map, before the residual connection). A gate multiplies what a unit puts
out; at 1 it changes nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from retrievers.training.objectives.masked_lm import MaskedLM

KINDS = ("heads", "intermediate", "output")
ROWS, COLUMNS = 0, 1  # of a weight: what a unit puts out, what a layer reads from it


@dataclass(frozen=True, eq=False)
class Units:
    """A number for each unit.

    Attributes:
        heads: ``(layers, heads)``.
        intermediate: ``(layers, intermediate size)``.
        output: ``(layers, width)``.
    """

    heads: Tensor
    intermediate: Tensor
    output: Tensor

    @classmethod
    def full(cls, encoder: MaskedLM, value: float) -> "Units":
        """The same number for all units of an encoder, on its device and in its dtype."""
        config, like = encoder.config, next(encoder.parameters())
        sizes = (config.num_attention_heads, config.intermediate_size, config.hidden_size)
        layers = config.num_hidden_layers
        return cls(*(like.new_full((layers, size), value).detach() for size in sizes))

    def tensors(self) -> dict[str, Tensor]:
        """By kind, as in `KINDS`."""
        return {kind: getattr(self, kind) for kind in KINDS}

    def map(self, change: Callable[..., Tensor], *others: "Units") -> "Units":
        """Another number for each unit, from those of this and others, kind by kind."""
        every = (self, *others)
        return Units(*(change(*(getattr(units, kind) for units in every)) for kind in KINDS))


@contextmanager
def gated(encoder: MaskedLM, gates: Units) -> Iterator[None]:
    """Within it, the encoder's units are multiplied by gates, which get gradients."""
    handles = []
    for number, layer in enumerate(_layers(encoder)):
        heads = gates.heads[number].repeat_interleave(head_width(encoder))
        inner, output = gates.intermediate[number], gates.output[number]
        handles += [
            layer.attention.output.dense.register_forward_pre_hook(_times_input(heads)),
            layer.intermediate.register_forward_hook(_times_output(inner)),
            layer.output.dense.register_forward_hook(_times_output(output)),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def unit_weights(encoder: MaskedLM) -> Iterator[tuple[torch.nn.Parameter, str, int, int]]:
    """The weights that belong to units.

    A head has its rows of the query, key and value maps and their biases, and the columns of the
    map after it; neurons have their rows and biases.

    Yields:
        Parameter, kind as in `KINDS`, layer, and `ROWS` or `COLUMNS`: along which dimension of the
        parameter the units lie, each head as `head_width` places in a row.
    """
    for number, layer in enumerate(_layers(encoder)):
        attention = layer.attention.self
        for dense in (attention.query, attention.key, attention.value):
            yield dense.weight, "heads", number, ROWS
            yield dense.bias, "heads", number, ROWS
        yield layer.attention.output.dense.weight, "heads", number, COLUMNS
        for dense, kind in ((layer.intermediate.dense, KINDS[1]), (layer.output.dense, KINDS[2])):
            yield dense.weight, kind, number, ROWS
            yield dense.bias, kind, number, ROWS


def head_width(encoder: MaskedLM) -> int:
    """Width of one attention head."""
    return int(encoder.config.hidden_size // encoder.config.num_attention_heads)


def _layers(encoder: MaskedLM) -> list[Any]:
    return list(encoder.layers)


def _times_input(gate: Tensor) -> Callable[[Any, tuple[Tensor]], tuple[Tensor]]:
    return lambda _, arguments: (arguments[0] * gate,)


def _times_output(gate: Tensor) -> Callable[[Any, Any, Tensor], Tensor]:
    return lambda _, __, output: output * gate
