"""In-batch contrast of vectors across all processes, and gradient caching for large batches.

Scores are computed in float32 at least: bfloat16 would round large inner products by whole units.

Gradient caching: Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size under
Memory Limited Setup", 2021, https://arxiv.org/abs/2101.06983. The batch is cut into sub-batches.
Each is encoded and only its outputs are kept; the loss of all outputs is differentiated with
respect to them (the cache); then each sub-batch is encoded again, with the same dropout, and its
part of the cache flows back through it. Memory is that of one sub-batch, the price is a second
forward pass, and the gradient is that of the whole batch. Here autograd itself does this, by a
checkpoint around each sub-batch, which keeps the state of the random numbers. So it needs nothing
from the trainer, and scaled losses, gradient accumulation and several processes work as ever.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def contrast(anchors: Tensor, candidates: Tensor, temperature: float = 1.0) -> Tensor:
    """Cross-entropy of finding, for anchor i, candidate i among those of all processes.

        L = -1/n sum_i log( exp(<a_i, c_i> / t) / sum_j exp(<a_i, c_j> / t) )

    Args:
        anchors: ``(n, width)``.
        candidates: ``(n, width)``.
        temperature: t.
    """
    everyone, first = gathered(candidates)
    targets = first + torch.arange(len(anchors), device=anchors.device)
    return functional.cross_entropy(_scores(anchors, everyone) / temperature, targets)


def cosine_contrast(anchors: Tensor, candidates: Tensor, temperature: float) -> Tensor:
    """`contrast` of the cosines: the vectors are scaled to unit length first."""
    anchors, candidates = (
        functional.normalize(side.to(_exact(side)), dim=1) for side in (anchors, candidates)
    )
    return contrast(anchors, candidates, temperature)


def span_contrast(vectors: Tensor) -> Tensor:
    """Cross-entropy of finding, for each span, the other span of its document among all others.

        L = -1/2n sum_ij log( exp(<h_i1, h_i2>) / sum_{kl != ij} exp(<h_ij, h_kl>) )

    Args:
        vectors: ``(2n, width)``; rows 2i and 2i + 1 are the two spans of document i.
    """
    everyone, first = gathered(vectors)
    own = first + torch.arange(len(vectors), device=vectors.device)
    others = _scores(vectors, everyone).scatter(1, own[:, None], float("-inf"))
    return functional.cross_entropy(others, own ^ 1)


def gathered(vectors: Tensor) -> tuple[Tensor, int]:
    """Vectors of all processes ``(processes * n, width)``, and the row where one's own begin.

    Every process must have equally many. Gradients flow back to where a vector came from.
    """
    if not distributed.is_available() or not distributed.is_initialized():
        return vectors, 0
    everyone: Tensor = _Gather.apply(vectors)  # type: ignore[no-untyped-call]
    return everyone, distributed.get_rank() * len(vectors)


class _Gather(torch.autograd.Function):
    """Rows of all processes; backward, the sum of the gradients that all have for one's own."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        parts = [torch.empty_like(vectors) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, vectors.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        distributed.all_reduce(total)
        return total.chunk(distributed.get_world_size())[distributed.get_rank()]


def _scores(anchors: Tensor, candidates: Tensor) -> Tensor:
    with torch.autocast(anchors.device.type, enabled=False):
        return anchors.to(_exact(anchors)) @ candidates.to(_exact(candidates)).T


def _exact(vectors: Tensor) -> torch.dtype:
    return torch.promote_types(vectors.dtype, torch.float32)


def in_sub_batches(
    encode: Callable[..., tuple[Tensor, ...]], batch: tuple[Tensor, ...], size: int | None
) -> tuple[Tensor, ...]:
    """Outputs of ``encode(*batch)``, computed ``size`` rows at a time.

    Args:
        encode: gives ``(rows, ...)`` outputs, each row from the same row of its inputs alone.
        batch: inputs with equally many rows.
        size: rows of a sub-batch; None encodes all at once.
    """
    if size is None:
        return encode(*batch)
    parts = zip(*(torch.split(rows, size) for rows in batch), strict=True)
    outputs = [checkpoint(encode, *part, use_reentrant=False) for part in parts]
    return tuple(torch.cat(pieces) for pieces in zip(*outputs, strict=True))
