"""Optimizer and its settings: the ``[optimizer]`` table that all presets have."""

from typing import Annotated, Literal

import msgspec

from foundation.records import Record

Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Above0 = Annotated[float, msgspec.Meta(gt=0)]
Precision = Literal["float32", "bfloat16"]


class Optimizer(Record, kw_only=True):
    """AdamW (Loshchilov and Hutter, 2019) and its schedule.

    Attributes:
        algorithm: ``adamw``; part of the identity of trainings that exist.
        lr: highest learning rate.
        warmup: share of the steps over which it rises from 0.
        schedule: how it falls to 0 afterwards; ``constant`` does not.
        max_grad_norm: gradients are scaled down to this norm.
    """

    algorithm: Literal["adamw"] = "adamw"
    lr: Above0 = 1e-4
    warmup: Share = 0.1
    weight_decay: Share = 0.01
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    max_grad_norm: Above0 = 1.0
