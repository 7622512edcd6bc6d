"""LAMB: AdamW whose step is as long as the weights it changes."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer as TorchOptimizer

LONGEST = 10.0  # norm of a tensor that still counts


class Lamb(TorchOptimizer):
    """You et al., "Large Batch Optimization for Deep Learning", ICLR 2020, for each tensor w.

        m = 0.9 m + 0.1 g        v = 0.999 v + 0.001 g²        (not corrected for their start at 0)
        u = m / (√v + ε) + decay · w
        w = w − lr · min(‖w‖, 10) / ‖u‖ · u                    (a ratio of 1 where a norm is 0)

    https://arxiv.org/abs/1904.00962, version 3, as in utils/lamb.py of
    https://github.com/microsoft/ANCE, whose bound of the norm and missing correction these are.

    Args:
        params: tensors, or groups of them with settings of their own.
        lr: learning rate.
        betas: of the two running means.
        eps: ε.
        weight_decay: decay.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; with a closure, its loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._change(weight, group)
        return loss

    def _change(self, weight: torch.Tensor, group: dict[str, Any]) -> None:
        gradient, state = weight.grad, self.state[weight]
        if gradient is None:
            return
        if not state:
            state["mean"], state["square"] = torch.zeros_like(weight), torch.zeros_like(weight)
        first, second = group["betas"]
        state["mean"].lerp_(gradient, 1 - first)
        state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        update = state["mean"] / state["square"].sqrt().add_(group["eps"])
        update.add_(weight, alpha=group["weight_decay"])
        length, step = weight.norm().clamp(max=LONGEST), update.norm()
        ratio = torch.where((length > 0) & (step > 0), length / step, torch.ones_like(step))
        weight.sub_(update * (group["lr"] * ratio))
