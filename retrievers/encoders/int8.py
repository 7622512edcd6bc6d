"""Dense layers of BERT and RoBERTa on the CPU through oneDNN, in float32 and in int8.

PyTorch's linear layer copies the bias before each product, and GELU reads the result again.
oneDNN adds the bias and applies exact (erf) GELU while the product is in the cache, with weights
that are laid out once. Sums are float32 in a different order: unit vectors differ by about 1e-6.

In int8, a text's vector does not depend on the other texts of its batch. Weights have one scale
for each output and activations one for each token, computed on the fly: ``y = scale_token *
scale_output * (q_x q_w) + bias``, with exact products summed in int32. Attention and layer norms
are float32 and without padding, which could change a last bit and with it a rounded value.

Products use the operator of PyTorch's own compiler with activations shifted to unsigned bytes,
which VNNI instructions sum without saturation. It is exact for every shape and up to twice as
fast as ``torch._int_mm``, which is wrong at an inner dimension of 1.

Zafrir et al., "Q8BERT: Quantized 8Bit BERT", 2019; scales for each token as in Yao et al.,
"ZeroQuant", 2022.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import GELUActivation

from foundation.errors import BenchError
from retrievers.encoders.device import use_one_thread
from retrievers.encoders.packed import PackedBatch, PackedEncoder, is_plain_bert

OPERATORS = ("mkldnn._linear_pointwise", "mkldnn._reorder_linear_weight")
INT8_OPERATORS = ("onednn.qlinear_prepack", "onednn.qlinear_pointwise")
MAX_INT8 = 127  # scales are symmetric: the minimum is -127
SHIFT = 128  # turns a signed byte into an unsigned one


def has_onednn(names: Sequence[str] = OPERATORS) -> bool:
    """Return whether this processor and this build of PyTorch have the oneDNN operators ``names``.

    They belong to PyTorch's compiler and may disappear; networks then run without them.
    """
    return torch.backends.cpu.get_cpu_capability().startswith("AVX") and all(
        hasattr(getattr(torch.ops, library), operator)
        for library, operator in (name.split(".") for name in names)
    )


class OneDNNLinear(nn.Module):
    """Linear layers with the same input as one float32 product, for inference on the CPU.

    Args:
        layers: layers whose outputs are concatenated.
        after: activation of the result, if any.
    """

    def __init__(self, layers: Sequence[nn.Linear], after: Any = None) -> None:
        super().__init__()
        weight = torch.cat([layer.weight.detach() for layer in layers])
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias = torch.cat([layer.bias.detach() for layer in layers])
        self._fused = "gelu" if _is_gelu(after) else "none"
        self._after = None if _is_gelu(after) else after

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``inputs`` of shape ``(..., in)`` to ``(..., out)``."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self._weight, self._bias, self._fused, [], "none"
        )
        return output if self._after is None else self._after(output)


class Int8Linear(nn.Module):
    """Linear layers with the same input as one int8 product, for inference.

    Args:
        layers: layers whose outputs are concatenated.
        after: activation of the result, if any.
    """

    def __init__(self, layers: Sequence[nn.Linear], after: Any = None) -> None:
        super().__init__()
        weight = torch.cat([layer.weight.detach() for layer in layers])
        rounded, scale = quantize_rows(weight)
        self._product = make_int8_product(rounded, scale.squeeze(1))
        self._bias = torch.cat([layer.bias.detach() for layer in layers])
        # In place: a new array costs more than GELU.
        self._after = torch.ops.aten.gelu_ if _is_gelu(after) else after

    def forward(self, tokens: Tensor) -> Tensor:
        """Map float32 ``tokens`` of shape ``(tokens, in)`` to float32 ``(tokens, out)``."""
        rounded, scale = quantize_rows(tokens)
        output = self._product(rounded)
        torch.addcmul(self._bias, output, scale, out=output)
        return output if self._after is None else self._after(output)


def _is_gelu(activation: Any) -> bool:
    """Return whether an activation is GELU by erf, which oneDNN has."""
    return isinstance(activation, GELUActivation) and activation.act is functional.gelu


def make_int8_product(weight: Tensor, scales: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that multiplies int8 rows ``(rows, in)`` by ``weight`` and ``scales``.

    Args:
        weight: int8 ``(out, in)``. Products are summed in int32; the result is float32
            ``(rows, out)``.
        scales: float32 ``(out,)``, a factor for each output.
    """
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    zeros = torch.zeros(len(weight), dtype=torch.int32)

    def product(rows: Tensor) -> Tensor:
        shifted = rows.view(torch.uint8) ^ SHIFT
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            shifted, 1.0, SHIFT, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return result

    return product


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Round ``rows`` to int8 with one scale each: ``row ~ scale * int8``.

    Args:
        rows: float32 ``(rows, in)``.

    Returns:
        int8 ``(rows, in)`` and float32 scales ``(rows, 1)``.
    """
    # Absolute values would need another copy.
    largest = torch.maximum(rows.amax(dim=1, keepdim=True), -rows.amin(dim=1, keepdim=True))
    scale = largest.clamp_min(torch.finfo(torch.float32).tiny) / MAX_INT8
    return (rows / scale).round_().to(torch.int8), scale


class Int8Encoder(PackedEncoder):
    """A Hugging Face BERT or RoBERTa encoder with its dense layers in int8.

    Args:
        network: float32 network on the CPU; its embeddings and layer norms are shared.

    Raises:
        BenchError: the network or device is unsupported, or PyTorch lacks the product.
    """

    def __init__(self, network: Any) -> None:
        problems = {
            f"int8 runs plain BERT and RoBERTa, not this {type(network).__name__}": (
                not is_plain_bert(network)
            ),
            f"int8 runs on the CPU, not on {network.device}": network.device.type != "cpu",
            "int8 needs oneDNN, which this build of PyTorch lacks": (
                not has_onednn(INT8_OPERATORS)
            ),
        }
        for problem, found in problems.items():
            if found:
                raise BenchError(problem, "Leave out --dtype int8.")
        super().__init__(network, product=Int8Linear)

    def __call__(self, batch: PackedBatch) -> Tensor:
        """Return the last hidden states of ``batch``, float32 ``(T, width)``."""
        with use_one_thread():  # the split of the work would change the last bit of GELU
            return super().__call__(batch)
