"""Dense layers of BERT and RoBERTa on the CPU through oneDNN, in float32, bfloat16 and int8.

PyTorch's linear layer copies the bias before each product, and GELU reads the result again.
oneDNN adds the bias and applies exact (erf) GELU while the product is in the cache, with weights
that are laid out once. Sums are float32 in a different order: unit vectors differ by about 1e-6.

In int8, weights have one scale for each output. Inputs of a layer have one scale and one zero,
calibrated on fixed texts: `probe_texts`. Before that, features are divided by factors that make
their ranges more alike, and weights are multiplied by them. Products are exact and summed in int32,
so a text's vector does not depend on the other texts of its batch. The exception are networks of
width 256 or less with AMX: oneDNN multiplies up to 8 tokens of them by a different kernel, whose
last bits differ. The result of GELU is rounded within the product. Layer norms are float32;
attention is bfloat16 if the processor has instructions for it.

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
from retrievers.encoders.packed import FusedLinear, PackedBatch, PackedEncoder, is_plain_bert
from retrievers.encoders.tokens import Tokens

OPERATORS = (
    *("mkldnn._linear_pointwise", "mkldnn._reorder_linear_weight"),
    *("onednn.qlinear_prepack", "onednn.qlinear_pointwise"),
)
MAX_INT8 = 127  # weights are symmetric: the minimum is -127
# Added to a float32 number, it rounds the number to an integer, which is then in the lowest byte:
# near this value, float32 has steps of 1.
ROUNDING_OFFSET = 1.5 * 2**23
# Exponent of an input's range in the factor of its feature. On abstracts of SciFact, all-MiniLM-L6
# has the same cosine to float32 from 0.6 to 0.8 (.9963 to .9967), and .9948 without factors.
RANGE_EXPONENT = 0.7
LEAST_RANGE = 0.01  # of the widest feature, since other texts may use what these leave idle
TINY = torch.finfo(torch.float32).tiny


def has_onednn() -> bool:
    """Return whether this processor and this build of PyTorch have oneDNN's `OPERATORS`.

    They belong to PyTorch's compiler and may disappear; networks then run without them.
    """
    return torch.backends.cpu.get_cpu_capability().startswith("AVX") and all(
        hasattr(getattr(torch.ops, library), operator)
        for library, operator in (name.split(".") for name in OPERATORS)
    )


def has_bfloat16() -> bool:
    """Return whether oneDNN multiplies in bfloat16 with this processor's own instructions."""
    return not emulates_bfloat16() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class OneDNNLinear(FusedLinear):
    """Linear layers as one product of oneDNN, in the dtype of their weights: see `FusedLinear`."""

    def __init__(self, layers: Sequence[nn.Linear], after: Any = None) -> None:
        fused = _is_gelu(after)
        super().__init__(layers, None if fused else after)
        self._fused = "gelu" if fused else "none"
        self._prepare()

    def _prepare(self) -> None:
        """Lay out the weights."""
        self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight)

    def forward(self, inputs: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map ``inputs`` as `FusedLinear` does."""
        multiply, weights = torch.ops.mkldnn._linear_pointwise, (self.weight, self.bias)
        if residual is not None:
            return cast(Tensor, multiply.binary(inputs, residual, *weights, "add"))
        output: Tensor = multiply(inputs, *weights, self._fused, [], "none")
        return output if self.after is None else cast(Tensor, self.after(output))


class Int8Linear(OneDNNLinear):
    """Linear layers as one int8 product of oneDNN: see `FusedLinear`.

    The first call calibrates the scale of the inputs.

    Attributes:
        dtype: dtype of the result; float32 if it has a residual.
        following: the layer that gets the result, which is rounded for it if the activation is
            GELU; otherwise None.
        is_smooth: whether input features get factors, which a layer before cannot apply.
        step, zero: scale of a step of the inputs, 0 before the first call, and the byte of 0.
    """

    def _prepare(self) -> None:
        """Set the state before calibration. The first call rounds the weights."""
        self.dtype, self.is_smooth = torch.float32, True
        self.following: Int8Linear | None = None
        self.step, self.zero = 0.0, 0

    def forward(self, inputs: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map ``inputs`` of shape ``(tokens, in)`` to ``(tokens, out)``.

        Args:
            inputs: floating-point numbers, or bytes from the layer before.
            residual: added to the result and overwritten, float32 ``(tokens, out)``.
        """
        if not self.step:
            self._calibrate(inputs)
        if inputs.dtype != torch.uint8:
            inputs = self._round(inputs)
        factors = (inputs, self.step, self.zero, self.weight, self._scales, self._zeros)
        multiply = torch.ops.onednn.qlinear_pointwise
        result: tuple[float, int, torch.dtype] = (1.0, 0, self.dtype)
        if residual is not None:
            others = (residual, self.bias, *result, 1.0, 0)
            return cast(Tensor, multiply.binary(*factors, *others, "sum", 1.0, "none", [], "none"))
        if self.following and self.following.step and self.after is None:
            result = (self.following.step, self.following.zero, torch.uint8)
        output: Tensor = multiply(*factors, self.bias, *result, self._fused, [], "none")
        return output if self.after is None else cast(Tensor, self.after(output))

    def _calibrate(self, tokens: Tensor) -> None:
        """Choose scales for inputs like ``tokens``, and round the weights."""
        low, high = tokens.amin(dim=0).clamp_max(0), tokens.amax(dim=0).clamp_min(0)
        factors = torch.ones_like(low)
        if self.is_smooth:
            ranges = torch.maximum(high, -low)
            ranges = ranges.clamp_min(max(float(ranges.max()) * LEAST_RANGE, TINY))
            weights = self.weight.abs().amax(dim=0).clamp_min(TINY)
            factors = ranges**RANGE_EXPONENT / weights ** (1 - RANGE_EXPONENT)
        least, most = float((low / factors).min()), float((high / factors).max())
        self.step = max((most - least) / 255, TINY)
        self.zero = round(-least / self.step)
        self._steps_per_unit = 1 / (factors * self.step)
        self._shift = torch.tensor(ROUNDING_OFFSET + self.zero)
        rounded, self._scales = quantize_rows(self.weight * factors)
        self.weight = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._zeros = torch.zeros(len(rounded), dtype=torch.int32)

    def _round(self, tokens: Tensor) -> Tensor:
        """Return ``tokens`` as unsigned bytes."""
        steps = torch.addcmul(self._shift, tokens.float(), self._steps_per_unit)
        steps.clamp_(ROUNDING_OFFSET, ROUNDING_OFFSET + 255)
        return steps.view(torch.int32).to(torch.uint8)


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
        if not (is_plain_bert(network) and network.device.type == "cpu" and has_onednn()):
            raise BenchError(
                "int8 runs plain BERT and RoBERTa on the CPU by oneDNN, not this "
                f"{type(network).__name__} on {network.device}",
                "Leave out --dtype int8.",
            )
        super().__init__(network, product=Int8Linear)
        layer: Any
        for layer in self._network.layers:
            if has_bfloat16():
                layer.query_key_value.dtype = torch.bfloat16
            layer.widen.following, layer.narrow.is_smooth = layer.narrow, False
        self(self.pack_batch(calibration))

    def __call__(self, batch: PackedBatch) -> Tensor:
        """Return the last hidden states of ``batch``, float32 ``(T, width)``."""
        with use_one_thread():  # the split of the work could change a last bit
            return super().__call__(batch)
