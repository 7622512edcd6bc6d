"""BERT and RoBERTa on the CPU with dense layers in int8, one text's vector free of the others.

Weights have one scale for each output, activations one for each token, found as it is computed:
``y = scale_token * scale_output * (q_x q_w) + bias`` with products summed in int32, which is
exact. A token's values are rounded by the largest of its own, so nothing that is beside it in a
batch can move them; texts are packed without padding, and attention, which is float32 as are
layer norms, sees one text at a time: a last bit that changes with the padding would be rounded to
another int8 now and then.

Products are oneDNN's, called by the operator of PyTorch's own compiler with activations shifted to
unsigned bytes: with VNNI instructions they are summed without saturation. It is exact for every
shape and, measured, up to twice as fast as ``torch._int_mm``, which is wrong at an inner dimension
of 1.

Zafrir et al., "Q8BERT: Quantized 8Bit BERT", 2019; scales for each token as in Yao et al.,
"ZeroQuant", 2022.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from foundation.errors import BenchError
from retrievers.encoders.onednn import has_operators
from retrievers.encoders.workers import one_thread

FAMILIES = ("bert", "roberta", "xlm-roberta")
LARGEST = 127  # the smallest is its negative, as scales are symmetric
OPERATORS = ("onednn.qlinear_prepack", "onednn.qlinear_pointwise")
SHIFT = 128  # from a signed byte to an unsigned one, where its first bit is turned over


class Int8Linear(nn.Module):
    """Linear layers that read the same input, as one product in int8; for inference only.

    Args:
        layers: whose outputs are put side by side.
    """

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        weight = torch.cat([layer.weight.detach() for layer in layers])
        rounded, scale = quantize_rows(weight)
        self._product = product_with(rounded)
        self._scale = scale.squeeze(1)
        self._bias = torch.cat([layer.bias.detach() for layer in layers])

    def forward(self, tokens: Tensor) -> Tensor:
        """Float32 ``(tokens, in)`` to float32 ``(tokens, out)``."""
        rounded, scale = quantize_rows(tokens)
        # One operation at a time: fused ones round differently at the end of an array.
        return self._product(rounded).mul_(self._scale).mul_(scale).add_(self._bias)


def product_with(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the product of int8 rows ``(rows, in)`` with a weight, int8 ``(out, in)``.

    It is summed in int32 and is float32 ``(rows, out)``.
    """
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    scales = torch.ones(len(weight))
    zeros = torch.zeros(len(weight), dtype=torch.int32)

    def product(rows: Tensor) -> Tensor:
        shifted = rows.view(torch.uint8) ^ SHIFT
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            shifted, 1.0, SHIFT, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return result

    return product


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as int8 with a scale each, float32 ``(rows, 1)``: ``row ~ scale * int8``."""
    # Both ends, and not the absolute values: these would be written first.
    largest = torch.maximum(rows.amax(dim=1, keepdim=True), -rows.amin(dim=1, keepdim=True))
    scale = largest.clamp_min(torch.finfo(torch.float32).tiny) / LARGEST
    return (rows / scale).round_().to(torch.int8), scale


class _Int8Layer(nn.Module):
    """One transformer layer over packed tokens."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        own, output = layer.attention.self, layer.attention.output
        self._heads = int(own.num_attention_heads)
        self._project = Int8Linear(own.query, own.key, own.value)
        self._attended, self._attention_norm = Int8Linear(output.dense), output.LayerNorm
        self._wide = Int8Linear(layer.intermediate.dense)
        self._activation = layer.intermediate.intermediate_act_fn
        self._narrow, self._norm = Int8Linear(layer.output.dense), layer.output.LayerNorm

    def forward(self, tokens: Tensor, lengths: list[int]) -> Tensor:
        """``(tokens, width)`` of texts one after the other, each of so many tokens."""
        texts = self._project(tokens).split(lengths)
        attended = torch.cat([self._attend(text) for text in texts])
        tokens = self._attention_norm(self._attended(attended).add_(tokens))
        narrow = self._narrow(self._activation(self._wide(tokens)))
        output: Tensor = self._norm(narrow.add_(tokens))
        return output

    def _attend(self, projected: Tensor) -> Tensor:
        """Attention within one text, ``(n, 3 width)`` to ``(n, width)``."""
        split = projected.view(1, len(projected), 3, self._heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value)
        return attended.transpose(1, 2).reshape(len(projected), -1)


class Int8Network(nn.Module):
    """A Hugging Face BERT or RoBERTa encoder with its dense layers in int8.

    Args:
        network: float32, on the CPU; its embeddings and layer norms are shared.

    Raises:
        BenchError: another family, dtype or kind of attention, or a PyTorch without the product.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        _check(network)
        self.config = network.config
        self._embeddings = network.embeddings
        self._layers = nn.ModuleList(_Int8Layer(layer) for layer in network.encoder.layer)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> SimpleNamespace:
        """Token ids ``(n, tokens)``, padded on the right, to ``last_hidden_state``.

        It is float32 ``(n, tokens, width)``, with zeros where there is padding.
        """
        with one_thread():  # where the work is cut would decide the last bit of GELU
            embedded = self._embeddings(input_ids=input_ids, token_type_ids=token_type_ids)
            present = attention_mask.bool()
            tokens = embedded[present]
            lengths = attention_mask.sum(dim=1).tolist()
            for layer in self._layers:
                tokens = layer(tokens, lengths)
        hidden = torch.zeros_like(embedded)
        hidden[present] = tokens
        return SimpleNamespace(last_hidden_state=hidden)


def _check(network: Any) -> None:
    config, parameter = network.config, next(network.parameters())
    positions = getattr(config, "position_embedding_type", "absolute")
    problems = {
        f"int8 runs {', '.join(FAMILIES)} and not {config.model_type}": (
            config.model_type not in FAMILIES
        ),
        f"int8 does not compute {positions} positions": positions != "absolute",
        "int8 computes no causal attention": bool(config.is_decoder),
        "int8 starts from float32 on the CPU": (
            parameter.dtype != torch.float32 or parameter.device.type != "cpu"
        ),
        "this build of PyTorch has no oneDNN, which int8 needs": not has_operators(OPERATORS),
    }
    for problem, found in problems.items():
        if found:
            raise BenchError(problem, "leave --dtype int8 out")
