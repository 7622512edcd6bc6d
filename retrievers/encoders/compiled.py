"""BERT and RoBERTa on CUDA in half precision: packed, compiled, with variable-length attention.

Needs torch 2.10 or later and compute capability 8.0 or later. From torch 2.13 on the kernel is told
not to split a text's keys, so that attention to a text does not depend on what is beside it;
earlier versions cannot be told. Matrix products still may depend on the batch, in the last bits of
the dtype. The kernel and the code compiled for CUDA have not been run on a GPU yet.
"""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from subprocess import CalledProcessError
from typing import Any, cast

import torch
from torch import Tensor, nn

from foundation.errors import BenchError, first_line
from retrievers.encoders.device import full_precision
from retrievers.encoders.packed import (
    Attention,
    PackedBatch,
    PackedNetwork,
    known,
    moved,
    pack,
    pool_packed,
)
from retrievers.encoders.tokens import Tokens
from retrievers.models.recipe import StoredPooling

KERNEL = "torch.nn.attention.varlen"
FIRST_CAPABILITY = (8, 0)
# Lengths of the texts that the network is compiled with. The number of tokens, of texts and the
# longest length differ, since the compiler takes equal sizes for one size.
EXAMPLE = (7, 11, 3)
LIMITS = ("recompile_limit", "accumulated_recompile_limit")
NETWORKS = 1 << 12  # times a network may be compiled in one process


def can_pack(network: nn.Module, dtype: torch.dtype, device: torch.device) -> bool:
    """True where ``CompiledNetwork`` computes what this network does, here and in this dtype."""
    return dtype in (torch.float16, torch.bfloat16) and would_pack(network, device)


def would_pack(network: nn.Module, device: torch.device) -> bool:
    """True where ``can_pack`` would hold, were the network in half precision."""
    if device.type != "cuda" or not known(network) or find_spec(KERNEL) is None:
        return False
    return torch.cuda.get_device_capability(device) >= FIRST_CAPABILITY


def variable_length_kernel() -> Attention:
    """Attention within each text by PyTorch's variable-length kernel; CUDA, half precision."""
    from torch.nn.attention.varlen import varlen_attn

    # 2.12 has the option, but not for the kernel that it comes with.
    whole: dict[str, Any] = {"num_splits": 1} if torch.__version__ >= "2.13" else {}

    def attention(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int) -> Tensor:
        attended = varlen_attn(query, key, value, ends, ends, longest, longest, **whole)
        return cast(Tensor, attended)

    return attention


def can_isolate() -> bool:
    """True where this version of PyTorch counts the recompilations of each network by itself."""
    return "isolate_recompiles" in inspect.signature(torch.compile).parameters


@contextmanager
def _reproducible() -> Iterator[None]:
    """Compile and compute so that another process gets the same bytes; many networks in one.

    Inductor chooses how to add up by trying what is fast, unless it may not; cuBLAS may add up in
    half precision, unless that is forbidden. Networks whose recompilations are counted together
    get a limit that many fit into, since one that is reached is an error here.
    """
    from torch._dynamo import config as dynamo_config  # slow to import
    from torch._inductor import config as inductor_config

    chosen = {"deterministic": True}
    if not hasattr(inductor_config, "deterministic"):  # before PyTorch 2.9
        chosen = {"triton.autotune_pointwise": False}
    limits = {} if can_isolate() else dict.fromkeys(LIMITS, NETWORKS)
    with ExitStack() as settings:
        settings.enter_context(inductor_config.patch(chosen))
        settings.enter_context(dynamo_config.patch(limits))
        settings.enter_context(full_precision())
        yield


class CompiledNetwork:
    """``PackedNetwork`` with the variable-length kernel, compiled once for batches of any size.

    Compiling happens here and takes from seconds to minutes; PyTorch keeps what it compiled on
    disk for the next process.

    Args:
        network: an encoder for which ``can_pack`` holds, on its device.

    Raises:
        BenchError: it cannot be compiled.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = PackedNetwork(network, variable_length_kernel()).eval()
        # Each network counts its own recompilations, so that many can be open in one process.
        alone: dict[str, Any] = {"isolate_recompiles": True} if can_isolate() else {}
        self._compiled = torch.compile(self._network, dynamic=True, fullgraph=True, **alone)
        self._device = next(network.parameters()).device
        self(self.pack(Tokens.of([[0] * length for length in EXAMPLE])))

    def pack(self, tokens: Tokens) -> PackedBatch:
        """A batch of texts on the network's device; see ``pack``."""
        positions = self._network.embeddings.position_embeddings.num_embeddings
        return moved(pack(tokens, self._network.padding_idx, positions), self._device)

    def __call__(self, batch: PackedBatch) -> Tensor:
        """Last hidden states ``(T, width)``."""
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        try:
            with torch.inference_mode(), _reproducible():
                return cast(Tensor, self._compiled(**vars(batch)))
        except (TorchDynamoException, FailOnRecompileLimitHit, CalledProcessError) as error:
            first = first_line(error)
            raise BenchError(
                f"torch.compile cannot compile this network for {self._device.type}: {first}",
                "install a C compiler and the Triton of this build of torch, or use "
                "--dtype float32, which is not compiled",
            ) from error

    def pooled(self, mode: StoredPooling, batch: PackedBatch) -> Tensor:
        """One float32 vector for each text, ``(n, width)``; see ``pool_packed``."""
        return pool_packed(mode, self(batch), batch.cu_seqlens, self._network.pooler)
