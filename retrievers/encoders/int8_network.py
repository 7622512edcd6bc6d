"""BERT and RoBERTa on the CPU with dense layers in int8, one text's vector free of the others.

Weights have one scale for each output, activations one for each token, found as it is computed:
``y = scale_token * scale_output * (q_x q_w) + bias`` with products summed in int32, which is
exact. A token's values are rounded by the largest of its own, so nothing that is beside it in a
batch can move them; texts are packed without padding, and attention, which is float32 as are
layer norms, sees one text at a time: a last bit that changes with the padding would be rounded to
another int8 now and then.

Processors without VNNI instructions multiply an unsigned by a signed byte and add two such products
in 16 bits, which saturate: with activations shifted to 1 to 255, weights of 8 bits reach
``2 * 255 * 127 = 64,770 > 32,767``, weights of 7 bits ``2 * 255 * 63 = 32,130``. The latter are
exact everywhere, and cost less accuracy than activations of 7 bits, whose sum would fit as well.

PyTorch's product of int8 matrices is oneDNN's where there is AVX-512 VNNI. On all other processors
it adds one product after the other, which is exact and takes 28 times as long as in float32 (Zen
3): there oneDNN is called by the operator of PyTorch's own compiler, with activations shifted.

Zafrir et al., "Q8BERT: Quantized 8Bit BERT", 2019; scales for each token as in Yao et al.,
"ZeroQuant", 2022.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from foundation.errors import BenchError
from foundation.machine import instructions
from retrievers.encoders.onednn import has_operators
from retrievers.encoders.workers import one_thread

FAMILIES = ("bert", "roberta", "xlm-roberta")
BITS = 8
OPERATORS = ("onednn.qlinear_prepack", "onednn.qlinear_pointwise")
SHIFT = 128  # from a signed byte to an unsigned one, where its first bit is turned over
TRIED_ROWS, TRIED_WIDTH = (1, 64), 256  # a product with a vector may have its own code


class Int8Linear(nn.Module):
    """Linear layers that read the same input, as one product in int8; for inference only.

    Args:
        layers: whose outputs are put side by side.
        weight_bits: of a rounded weight.
    """

    def __init__(self, *layers: Any, weight_bits: int = BITS) -> None:
        super().__init__()
        weight = torch.cat([layer.weight.detach() for layer in layers])
        rounded, scale = quantize_rows(weight, weight_bits)
        self._product = product_with(rounded)
        self._scale = scale.squeeze(1)
        self._bias = torch.cat([layer.bias.detach() for layer in layers])

    def forward(self, tokens: Tensor) -> Tensor:
        """Float32 ``(tokens, in)`` to float32 ``(tokens, out)``."""
        rounded, scale = quantize_rows(tokens)
        # One operation at a time: fused ones round differently at the end of an array.
        return self._product(rounded).mul_(self._scale).mul_(scale).add_(self._bias)


def product_with(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """The product of int8 rows ``(rows, in)`` with a weight, int8 ``(out, in)``.

    It is summed in int32 and is float32 ``(rows, out)``. Weights whose sums saturate are not seen
    here.
    """
    if "avx512_vnni" in instructions() or not has_operators(OPERATORS):
        transposed = weight.t()
        return lambda rows: torch._int_mm(rows, transposed).to(torch.float32)
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


def quantize_rows(rows: Tensor, bits: int = BITS) -> tuple[Tensor, Tensor]:
    """Rows as int8 with a scale each, float32 ``(rows, 1)``: ``row ~ scale * int8``."""
    # Both ends, and not the absolute values: these would be written first.
    largest = torch.maximum(rows.amax(dim=1, keepdim=True), -rows.amin(dim=1, keepdim=True))
    scale = largest.clamp_min(torch.finfo(torch.float32).tiny) / largest_of(bits)
    return (rows / scale).round_().to(torch.int8), scale


def largest_of(bits: int) -> int:
    """The largest number of so many bits; the smallest is its negative, as scales are symmetric."""
    return int(2 ** (bits - 1) - 1)


class _Int8Layer(nn.Module):
    """One transformer layer over packed tokens."""

    def __init__(self, layer: Any, weight_bits: int) -> None:
        super().__init__()
        own, output = layer.attention.self, layer.attention.output
        linear = partial(Int8Linear, weight_bits=weight_bits)
        self._heads = int(own.num_attention_heads)
        self._project = linear(own.query, own.key, own.value)
        self._attended, self._attention_norm = linear(output.dense), output.LayerNorm
        self._wide = linear(layer.intermediate.dense)
        self._activation = layer.intermediate.intermediate_act_fn
        self._narrow, self._norm = linear(layer.output.dense), layer.output.LayerNorm

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
        weight_bits: of weights: 8, or 7 where sums of 8 would saturate.

    Raises:
        BenchError: another family, dtype or kind of attention, or sums that saturate.
    """

    def __init__(self, network: Any, weight_bits: int = BITS) -> None:
        super().__init__()
        _check(network)
        _check_sums(weight_bits)
        self.config = network.config
        self._embeddings = network.embeddings
        self._layers = nn.ModuleList(
            _Int8Layer(layer, weight_bits) for layer in network.encoder.layer
        )

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
    kind = network.config.model_type
    if kind not in FAMILIES:
        raise BenchError(
            f"back end int8 runs {', '.join(FAMILIES)} and not {kind}", "use --backend torch"
        )
    positions = getattr(network.config, "position_embedding_type", "absolute")
    if positions != "absolute":
        raise BenchError(
            f"back end int8 does not compute {positions} positions", "use --backend torch"
        )
    if network.config.is_decoder:
        raise BenchError("back end int8 computes no causal attention", "use --backend torch")
    parameter = next(network.parameters())
    if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
        raise BenchError("back end int8 starts from float32 on the CPU", "use --device cpu")


def _check_sums(weight_bits: int) -> None:
    """Refuse weights whose largest products are not summed exactly here, found by trying."""
    for weight in (largest_of(weight_bits), -largest_of(weight_bits)):
        product = product_with(torch.full((TRIED_WIDTH, TRIED_WIDTH), weight, dtype=torch.int8))
        for rows in TRIED_ROWS:
            for activation in (largest_of(BITS), -largest_of(BITS)):
                left = torch.full((rows, TRIED_WIDTH), activation, dtype=torch.int8)
                if (product(left) != TRIED_WIDTH * activation * weight).any():
                    raise BenchError(
                        f"sums of int8 products with weights of {weight_bits} bits saturate on "
                        "this processor, which has no VNNI instructions, or may not use them",
                        "use --backend int7" if weight_bits > 7 else "use --backend torch",
                    )
