"""Gradient caching: a loss over a batch whose activations would not fit.

Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size under Memory Limited
Setup", 2021, https://arxiv.org/abs/2101.06983. The batch is cut into sub-batches. Each is encoded
and only its outputs are kept; the loss of all outputs is differentiated with respect to them (the
cache); then each sub-batch is encoded again, with the same dropout, and its part of the cache
flows back through it. Memory is that of one sub-batch, the price is a second forward pass, and
the gradient is that of the whole batch.

Here autograd itself does this, by a checkpoint around each sub-batch, which keeps the state of the
random numbers. So it needs nothing from the trainer, and scaled losses, gradient accumulation and
several processes work as ever.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


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
