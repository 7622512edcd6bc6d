"""Dense layers of BERT and RoBERTa on the CPU through oneDNN.

PyTorch's own linear layer copies the bias before each product, and GELU walks over the result
again. oneDNN adds the bias and applies the exact (erf) GELU while the product is in the cache, over
weights that are laid out once. Results are float32 sums in another order: unit vectors move by
about 1e-6. ``tests/benchmarks/encode_speed.py`` measures what it gives.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import GELUActivation

FAMILIES = ("bert", "roberta", "xlm-roberta")
OPERATORS = ("mkldnn._linear_pointwise", "mkldnn._reorder_linear_weight")


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
