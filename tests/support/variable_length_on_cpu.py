"""PyTorch's variable-length attention with a kernel for the CPU, which it has not.

Everything above the kernel (arguments, checks, compilation) is PyTorch's own. Only CUDA has the
real one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from retrievers.encoders import tower
from retrievers.encoders.packed import is_plain_bert

OPERATOR = "torch_attn::_varlen_attn"


def one_by_one(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int) -> Tensor:
    """Attention within each text, text after text; any device and dtype."""
    attended = []
    for start, end in pairwise(ends.tolist()):
        q, k, v = (x[start:end].transpose(0, 1)[None] for x in (query, key, value))
        attended.append(functional.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1))
    return torch.cat(attended)


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


@contextmanager
def packing(device: str = "cpu") -> Iterator[None]:
    """On the CPU, encode BERT and RoBERTa without padding, not compiled. On CUDA do nothing.

    Two things stand in for CUDA: the condition that it is there, and the kernel. What is above
    them is what runs on CUDA, except that the network is not compiled.
    """
    if device != "cpu":
        yield
        return
    register()
    with (
        patch.object(tower, "can_compile", lambda network, *place: is_plain_bert(network)),
        patch.object(tower.Tower, "is_asynchronous", True),
        torch.compiler.set_stance("force_eager"),
    ):
        yield
