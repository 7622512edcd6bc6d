"""Weighted sums of weights: of adapters that are averaged, and of whole models."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from foundation.errors import BenchError


def weighted_sum(
    held: Sequence[Mapping[str, Tensor]], weights: Sequence[float]
) -> dict[str, Tensor]:
    """Weighted sum of each tensor, summed in float64; two names of one tensor stay so.

    Raises:
        BenchError: they hold other tensors, or of another shape.
    """
    shapes = [{name: tuple(value.shape) for name, value in file.items()} for file in held]
    for other in shapes[1:]:
        different = sorted(shapes[0].items() ^ other.items())
        if different:
            raise BenchError(
                f"these weights cannot be added: they differ in {different[0][0]}",
                "take models of one network, or adapters of one method and one size",
            )
    made: dict[tuple[int, torch.Size], Tensor] = {}
    total = {}
    for name, first in held[0].items():
        place = (first.data_ptr(), first.shape)
        if place not in made:
            pairs = zip(weights, held, strict=True)
            parts = [weight * tensors[name].double() for weight, tensors in pairs]
            made[place] = torch.stack(parts).sum(0).to(first.dtype)
        total[name] = made[place]
    return total
