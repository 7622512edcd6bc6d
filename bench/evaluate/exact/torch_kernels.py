"""Steps of exact search on a device, each a function of tensors: products, keys, merging."""

import numpy as np
import torch

from bench.evaluate.exact.bounds import Arithmetic
from foundation.arrays import Int64Array, UInt64Array
from retrievers.encoders.device import full_precision

UNFILLED = -(2**63)  # the key of a place without a document
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def products(
    queries: torch.Tensor, documents: torch.Tensor, arithmetic: Arithmetic
) -> torch.Tensor:
    """Inner products, float32 ``(q, m)``, with this arithmetic whatever else is switched on."""
    dtype = DTYPES.get(arithmetic.name, torch.float32)
    with full_precision(tf32=arithmetic.name == "tf32"):
        return torch.matmul(queries.to(dtype), documents.to(dtype).T).float()


def order_keys(scores: torch.Tensor, tie_rank: torch.Tensor) -> torch.Tensor:
    """`bench.evaluate.search.order_keys` with the highest bit flipped, int64 ``(n,)``.

    So they compare as signed integers. Every place is filled.
    """
    bits = (scores + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0
    monotone = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (monotone.long() << 32) | tie_rank


def unsigned(keys: torch.Tensor) -> UInt64Array:
    """The keys as `bench.evaluate.search` has them, on the processor."""
    return keys.cpu().numpy().view(np.uint64) ^ np.uint64(1 << 63)


def merge(
    best: tuple[torch.Tensor, torch.Tensor],
    queries: torch.Tensor,
    candidates: tuple[torch.Tensor, torch.Tensor],
    count: Int64Array,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best k of these and of candidates, unsorted.

    Args:
        best: keys and rows so far, int64 ``(q, k)``.
        queries: query of each candidate, int64 ``(n,)``, rising.
        candidates: their keys and rows, int64 ``(n,)``.
        count: candidates of each query, int64 ``(q,)``.
    """
    k, width = best[0].shape[1], int(count.max())
    first = torch.from_numpy(np.cumsum(count) - count).to(queries.device)
    column = k + torch.arange(len(queries), device=queries.device) - first[queries]
    padded = []
    for places, more, unfilled in zip(best, candidates, (UNFILLED, -1), strict=True):
        all_places = places.new_full((len(places), k + width), unfilled)
        all_places[:, :k] = places
        all_places[queries, column] = more
        padded.append(all_places)
    top = torch.topk(padded[0], k, dim=1, sorted=False)
    return top.values, padded[1].gather(1, top.indices)
