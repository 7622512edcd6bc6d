"""Gradient caching: a contrastive loss over a batch that does not fit (Gao et al., 2021).

arXiv 2101.06983. The batch is cut into sub-batches. First every sub-batch is encoded and only its
vectors are kept; then the loss over all vectors is differentiated with respect to them (that is
the cache); then each sub-batch is encoded again, with the same dropout, and the cached gradients
flow through it. Memory is that of one sub-batch and of all vectors; the time is one more forward
pass; the gradient is that of the whole batch.

In PyTorch this is a checkpoint around each sub-batch: autograd itself keeps the order, the state
of the random numbers and the scaling of the loss, so that it works inside any trainer.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Encode = Callable[..., tuple[Tensor, ...]]


def in_sub_batches(encode: Encode, batch: Sequence[Tensor], rows: int | None) -> tuple[Tensor, ...]:
    """The outputs of ``encode(*batch)``, ``rows`` rows at a time.

    Args:
        encode: gives for ``(n, ...)`` inputs a tuple of ``(n, ...)`` outputs, row by row.
        batch: inputs of equal length.
        rows: length of a sub-batch; None encodes all at once and keeps every activation.

    Returns:
        What ``encode`` returns, its sub-batches joined along the first axis.
    """
    if rows is None:
        return encode(*batch)
    parts = zip(*(tensor.split(rows) for tensor in batch), strict=True)
    outputs = [checkpoint(encode, *part, use_reentrant=False) for part in parts]
    return tuple(torch.cat(pieces) for pieces in zip(*outputs, strict=True))
