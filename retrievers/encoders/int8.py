"""Dense layers of BERT and RoBERTa on the CPU through oneDNN, in float32, bfloat16 and int8.

PyTorch's linear layer copies the bias before each product, and GELU reads the result again.
oneDNN adds the bias and applies exact (erf) GELU while the product is in the cache, with weights
that are laid out once. Sums are float32 in a different order: unit vectors differ by about 1e-6.

In int8, weights have one scale for each output. Inputs of a layer have one scale and one zero,
calibrated on fixed texts: `probe_texts`. Before that, features are divided by factors that make
their ranges more alike, and weights are multiplied by them. Products are exact and summed in int32,
so a text's vector does not depend on the other texts of its batch. The result of GELU is rounded
within the product. Layer norms are float32; attention is bfloat16 if the processor multiplies it.

Products use the operators of PyTorch's own compiler, with unsigned inputs, which VNNI instructions
sum without saturation.

Zafrir et al., "Q8BERT: Quantized 8Bit BERT", 2019; factors as in Xiao et al., "SmoothQuant", 2023.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import GELUActivation

from foundation.errors import BenchError
from foundation.machine import emulates_bfloat16
from retrievers.encoders.device import use_one_thread
from retrievers.encoders.packed import PackedBatch, PackedEncoder, fuse_layers, is_plain_bert
from retrievers.encoders.tokens import Tokens

OPERATORS = ("mkldnn._linear_pointwise", "mkldnn._reorder_linear_weight")
INT8_OPERATORS = ("onednn.qlinear_prepack", "onednn.qlinear_pointwise")
MAX_INT8 = 127  # weights are symmetric: the minimum is -127
SHIFT = 128  # turns a signed byte into an unsigned one
# Exponent of an input's range in the factor of its feature. On abstracts of SciFact, all-MiniLM-L6
# has the same cosine to float32 from 0.6 to 0.8 (.9963 to .9967), and .9948 without factors.
RANGE_EXPONENT = 0.7
LEAST_RANGE = 0.01  # of the widest feature, since other texts may use what these leave idle
TINY = torch.finfo(torch.float32).tiny


def has_onednn(names: Sequence[str] = OPERATORS) -> bool:
    """Return whether this processor and this build of PyTorch have the oneDNN operators ``names``.

    They belong to PyTorch's compiler and may disappear; networks then run without them.
    """
    return torch.backends.cpu.get_cpu_capability().startswith("AVX") and all(
        hasattr(getattr(torch.ops, library), operator)
        for library, operator in (name.split(".") for name in names)
    )


def has_bfloat16() -> bool:
    """Return whether oneDNN multiplies in bfloat16 with this processor's own instructions."""
    return not emulates_bfloat16() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class OneDNNLinear(nn.Module):
    """Linear layers with the same input as one product, for inference on the CPU.

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


class RangeRecorder(nn.Module):
    """Linear layers with the same input in float32, which record the range of each feature.

    Args:
        layers: layers whose outputs are concatenated.
        after: activation of the result, if any.

    Attributes:
        low, high: extremes of the inputs so far, 0 among them; float32 ``(in,)``.
    """

    def __init__(self, layers: Sequence[nn.Linear], after: Any = None) -> None:
        super().__init__()
        self.linear, self.after = cast(nn.Linear, fuse_layers(layers)), after
        self.low = self.high = torch.zeros(self.linear.in_features)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map float32 ``tokens`` of shape ``(tokens, in)`` to float32 ``(tokens, out)``."""
        self.low = torch.minimum(self.low, tokens.amin(dim=0))
        self.high = torch.maximum(self.high, tokens.amax(dim=0))
        output: Tensor = self.linear(tokens)
        return output if self.after is None else self.after(output)


class Int8Linear(nn.Module):
    """Linear layers with the same input as one int8 product, for inference.

    Args:
        recorded: the layers, with the ranges of their inputs.
        dtype: dtype of the result.
        following: the layer that gets the result, which is rounded for it if the activation is
            GELU.
        smooth: whether features get factors; not for the inputs of a ``following`` layer.
    """

    def __init__(
        self,
        recorded: RangeRecorder,
        dtype: torch.dtype = torch.float32,
        following: "Int8Linear | None" = None,
        smooth: bool = True,
    ) -> None:
        super().__init__()
        weight = recorded.linear.weight
        factors = _smoothing_factors(recorded) if smooth else torch.ones(weight.shape[1])
        low, high = (recorded.low / factors).min(), (recorded.high / factors).max()
        self.step = max(float(high - low) / 255, TINY)
        self.zero = round(-float(low) / self.step)
        self._steps_per_unit = 1 / (factors * self.step)
        self._shift = torch.tensor(float(self.zero - SHIFT))
        rounded, self._scales = quantize_rows(weight * factors)
        self._weight = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._zeros = torch.zeros(len(rounded), dtype=torch.int32)
        self._bias = recorded.linear.bias
        fuses = _is_gelu(recorded.after)
        self._fused, self._after = ("gelu", None) if fuses else ("none", recorded.after)
        self._output: tuple[float, int, torch.dtype] = (1.0, 0, dtype)
        if following is not None and fuses:
            self._output = (following.step, following.zero, torch.uint8)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map ``tokens`` of shape ``(tokens, in)`` to ``(tokens, out)``.

        Tokens are floating-point numbers, or bytes from the layer before.
        """
        if tokens.dtype != torch.uint8:
            tokens = self._round(tokens)
        inputs = (tokens, self.step, self.zero)
        weights = (self._weight, self._scales, self._zeros, self._bias)
        output: Tensor = torch.ops.onednn.qlinear_pointwise(
            *inputs, *weights, *self._output, self._fused, [], "none"
        )
        return output if self._after is None else self._after(output)

    def _round(self, tokens: Tensor) -> Tensor:
        """Return ``tokens`` as unsigned bytes."""
        steps = torch.addcmul(self._shift, tokens.float(), self._steps_per_unit)
        # PyTorch converts to signed bytes several times as fast as to unsigned ones.
        signed = steps.round_().clamp_(-SHIFT, MAX_INT8).to(torch.int8)
        return signed.view(torch.uint8) ^ SHIFT


def _smoothing_factors(recorded: RangeRecorder) -> Tensor:
    """Return the factor of each input feature, float32 ``(in,)``."""
    ranges = torch.maximum(recorded.high, -recorded.low)
    ranges = ranges.clamp_min(max(float(ranges.max()) * LEAST_RANGE, TINY))
    weights = recorded.linear.weight.abs().amax(dim=0).clamp_min(TINY)
    return ranges**RANGE_EXPONENT / weights ** (1 - RANGE_EXPONENT)


def _is_gelu(activation: Any) -> bool:
    """Return whether an activation is GELU by erf, which oneDNN has."""
    return isinstance(activation, GELUActivation) and activation.act is functional.gelu


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Round ``rows`` to int8 with one scale each: ``row ~ scale * int8``.

    Args:
        rows: float32 ``(rows, in)``.

    Returns:
        int8 ``(rows, in)`` and float32 scales ``(rows,)``.
    """
    scales = rows.abs().amax(dim=1).clamp_min(TINY) / MAX_INT8
    return (rows / scales.unsqueeze(1)).round_().to(torch.int8), scales


class Int8Encoder(PackedEncoder):
    """A Hugging Face BERT or RoBERTa encoder with its dense layers in int8.

    Args:
        network: float32 network on the CPU; its embeddings and layer norms are shared.
        calibration: texts whose activations determine the scales.

    Raises:
        BenchError: the network or device is unsupported, or PyTorch lacks the product.
    """

    def __init__(self, network: Any, calibration: Tokens) -> None:
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
        super().__init__(network, product=RangeRecorder)
        self(self.pack_batch(calibration))
        dtype = torch.bfloat16 if has_bfloat16() else torch.float32
        layer: Any
        for layer in self._network.layers:
            layer.query_key_value = Int8Linear(layer.query_key_value, dtype)
            layer.mix = Int8Linear(layer.mix)
            layer.narrow = Int8Linear(layer.narrow, smooth=False)
            layer.widen = Int8Linear(layer.widen, following=layer.narrow)

    def __call__(self, batch: PackedBatch) -> Tensor:
        """Return the last hidden states of ``batch``, float32 ``(T, width)``."""
        with use_one_thread():  # the split of the work could change a last bit
            return super().__call__(batch)
