"""Dense layers of BERT and RoBERTa on the CPU through oneDNN: in float32, and in int8.

PyTorch's own linear layer copies the bias before each product, and GELU walks over the result
again. oneDNN adds the bias and applies the exact (erf) GELU while the product is in the cache, over
weights that are laid out once. Results are float32 sums in another order: unit vectors move by
about 1e-6. ``tests/benchmarks/encode_speed.py`` measures what it gives.

In int8, one text's vector is free of the others. Weights have one scale for each output,
activations one for each token, found as it is computed: ``y = scale_token * scale_output * (q_x
q_w) + bias`` with products summed in int32, which is exact. A token's values are rounded by the
largest of its own, so nothing that is beside it in a batch can move them; texts are packed without
padding, and attention, which is float32 as are layer norms, sees one text at a time: a last bit
that changes with the padding would be rounded to another int8 now and then.

Products are oneDNN's, called by the operator of PyTorch's own compiler with activations shifted to
unsigned bytes: with VNNI instructions they are summed without saturation. It is exact for every
shape and, measured, up to twice as fast as ``torch._int_mm``, which is wrong at an inner dimension
of 1.

Zafrir et al., "Q8BERT: Quantized 8Bit BERT", 2019; scales for each token as in Yao et al.,
"ZeroQuant", 2022.
"""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import GELUActivation

from foundation.errors import BenchError
from retrievers.encoders.device import one_thread

FAMILIES = ("bert", "roberta", "xlm-roberta")
OPERATORS = ("mkldnn._linear_pointwise", "mkldnn._reorder_linear_weight")
INT8_OPERATORS = ("onednn.qlinear_prepack", "onednn.qlinear_pointwise")
LARGEST = 127  # the smallest is its negative, as scales are symmetric
SHIFT = 128  # from a signed byte to an unsigned one, where its first bit is turned over


class OneDNNLinear(nn.Module):
    """A linear layer in float32, with GELU after it where asked; for inference only.

    Args:
        linear: whose weights are taken.
        gelu: apply ``gelu(x) = x Phi(x)`` to the result.
    """

    def __init__(self, linear: nn.Linear, gelu: bool = False) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self._bias = linear.bias
        self._after = "gelu" if gelu else "none"

    def forward(self, inputs: Tensor) -> Tensor:
        """``(..., in)`` to ``(..., out)``."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self._weight, self._bias, self._after, [], "none"
        )
        return output


def usable(network: Any) -> bool:
    """True where a network is of a family, dtype and device that this module is for."""
    parameter = next(network.parameters())
    return (
        network.config.model_type in FAMILIES
        and parameter.dtype == torch.float32
        and parameter.device.type == "cpu"
        and has_operators()
    )


def has_operators(names: Iterable[str] = OPERATORS) -> bool:
    """True where this processor and this build of PyTorch have these operators of oneDNN.

    They are those of PyTorch's own compiler and not promised to stay: without them a network is
    used as it is.
    """
    return torch.backends.cpu.get_cpu_capability().startswith("AVX") and all(
        hasattr(getattr(torch.ops, library), operator)
        for library, operator in (name.split(".") for name in names)
    )


def replace_linear(network: nn.Module) -> None:
    """Replace the linear layers of a network in place; their own weights are freed."""
    for module in network.modules():
        children = list(module.named_children())
        after = getattr(module, "intermediate_act_fn", None)
        gelu = isinstance(after, GELUActivation) and after.act is functional.gelu
        for name, child in children:
            if type(child) is nn.Linear:
                setattr(module, name, OneDNNLinear(child, gelu))
        if gelu:
            module.intermediate_act_fn = nn.Identity()


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
        "this build of PyTorch has no oneDNN, which int8 needs": not has_operators(INT8_OPERATORS),
    }
    for problem, found in problems.items():
        if found:
            raise BenchError(problem, "leave --dtype int8 out")
