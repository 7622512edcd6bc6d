"""Token vectors to one vector: pooling, then the layers that follow it.

Everything here computes in float32, whatever the dtype of the transformer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from foundation.errors import BenchError
from retrievers.models.recipe import EVERY, StoredPooling

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": functional.relu,
    "gelu": functional.gelu,
}


@dataclass(frozen=True)
class LoadedStage:
    """A dense or layer-norm stage with its weights, float32.

    ``weight`` is ``(out, in)`` for a dense stage and ``(width,)`` for a layer norm.
    """

    kind: str
    weight: Tensor
    bias: Tensor | None
    activation: str
    eps: float

    def __call__(self, vectors: Tensor) -> Tensor:
        """Apply to ``(n, in)``, giving ``(n, out)``."""
        if self.kind == "layer-norm":
            return functional.layer_norm(
                vectors, self.weight.shape, self.weight, self.bias, self.eps
            )
        return ACTIVATIONS[self.activation](functional.linear(vectors, self.weight, self.bias))


def pool(mode: StoredPooling, hidden: Tensor | None, mask: Tensor, pooled: Tensor | None) -> Tensor:
    """One float32 vector for each text, ``(n, width)``.

    Args:
        mode: ``cls`` first token, ``mean`` mean of the tokens that are not padding, ``last``
            last token that is not padding, ``pooler`` the model's own pooled output,
            ``every`` the first three beside each other.
        hidden: last hidden states ``(n, tokens, width)``; None for models that return none.
        mask: 1 for tokens, 0 for padding on the right, ``(n, tokens)``.
        pooled: the model's pooled output ``(n, width)``, or None.

    Raises:
        BenchError: the model does not give what the mode needs.
    """
    if mode == "pooler" and pooled is not None:
        return pooled.float()
    if hidden is None or mode in ("pooler", "none"):
        raise BenchError(f"this model's output cannot be pooled by {mode!r}")
    if mode == "every":
        return torch.cat([pool(kind, hidden, mask, pooled) for kind in EVERY], dim=1)
    if mode == "cls":
        return hidden[:, 0].float()
    if mode == "last":
        rows = torch.arange(len(hidden), device=hidden.device)
        return hidden[rows, mask.sum(dim=1) - 1].float()
    weights = mask.unsqueeze(-1).float()
    return (hidden.float() * weights).sum(dim=1) / weights.sum(dim=1)


def finish(vectors: Tensor, stages: Sequence[LoadedStage], normalize: bool) -> Tensor:
    """Apply the stages in order, then scale to unit length where asked."""
    for stage in stages:
        vectors = stage(vectors)
    return functional.normalize(vectors, dim=1) if normalize else vectors
