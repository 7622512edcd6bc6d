"""PyTorch's variable-length attention with a kernel for the CPU, which it has not.

Everything above the kernel (arguments, checks, compilation) is PyTorch's own. Only CUDA has the
real one.
"""

from typing import Any

import torch
from torch import Tensor

from retrievers.encoders.packed import one_by_one

OPERATOR = "torch_attn::_varlen_attn"


def register() -> None:
    """Let the operator compute on the CPU, text after text; once in a process."""
    import torch.nn.attention.varlen

    if not torch._C._dispatch_has_kernel_for_dispatch_key(OPERATOR, "CPU"):
        torch.library.register_kernel(OPERATOR, "cpu", _attention)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, _: Any, longest: int, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.diff(ends)
    if ends[0] or ends[-1] != len(query) or not 1 <= int(lengths.max()) <= longest:
        raise ValueError(f"{ends} and {longest} do not describe {len(query)} tokens")
    found = one_by_one(query, key, value, ends, longest)
    return found, query.new_empty(0), query.new_empty(0)
