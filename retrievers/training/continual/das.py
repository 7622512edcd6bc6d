"""DAS: continual pre-training that spares the units which earlier knowledge depends on.

Ke et al., "Continual Pre-training of Language Models", ICLR 2023,
https://openreview.net/forum?id=m_GDIItaI3o. With I the accumulated importance of a unit (see
`importance`) and ∇ the gradient of any weight of that unit:

    ∇' = (1 − I) ∇
    L = L_mlm − 1/n Σ_i log( exp(cos(a_i, p_i) / t)
                             / Σ_j [ exp(cos(a_i, p_j) / t) + exp(cos(a_i, k_j) / t) ] )

a and p are the mean states of the whole text under two draws of dropout (all knowledge), k those
with the units gated by I (earlier knowledge), so that what is learnt differs from what is known.
Which weights are a unit's: see `units.unit_weights`. Embeddings, norms and the head are free.

AdamW divides each gradient by a running mean of its own size, so that a factor which does not
change within a training moves the weights as if it were not there, unless it is 0 or gradients are
small against its epsilon. ``soften = "update"`` therefore applies 1 − I to the step that the
optimizer takes; ``"gradient"`` is as published.

The authors' code, https://github.com/UIC-Liu-Lab/ContinualLM, does otherwise in places, and here
the paper is followed:

* the gate of an intermediate neuron is before the activation there. Here it is after it: a gate is
  on what a unit puts out, which is what the next layer reads;
* the factors of heads are laid along the last dimension of the query, key and value weights there,
  so that they soften the columns that read from the layer before. Here they are along the rows,
  which are the heads, and the bias of the map after them, which belongs to no head, is free;
* the two readings of a batch lie one after the other there and are paired as neighbours, so that
  the positive of a text is another text. Here it is the text's own other reading;
* their means are over all 164 places, padding too. Here padding does not count.

For what differs in the measurement of I see `importance`.

Defaults: t = 0.05; the paper trains RoBERTa-base on 640,000 texts of 164 tokens per domain, 248 in
a batch, at a learning rate of 1e-4.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, ClassVar, Literal

import msgspec
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from foundation.errors import BenchError
from retrievers.training.continual.units import KINDS, Units, gated, head_width, unit_weights
from retrievers.training.objectives.contrast import cosine_contrast
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.masking import IGNORED
from retrievers.training.objectives.mlm import MLM
from retrievers.training.objectives.simcse import check_dropout

Soften = Literal["gradient", "update"]


class DAS(MLM, kw_only=True, tag_field="name", tag="das"):
    """Settings of DAS, beside those of `MLM`.

    Attributes:
        state: file with the accumulated importance, see `units.KINDS`.
        temperature: t.
        soften: what 1 − I multiplies.
    """

    name: ClassVar[str] = "das"
    contrasts: ClassVar[bool] = True
    state: str
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 0.05
    soften: Soften = "gradient"

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """See `Objective`.

        Raises:
            BenchError: the encoder has no dropout, or the state is of another one.
        """
        return DASTraining(encoder, self)


class DASTraining(nn.Module):
    """The encoder with its own head, whose units are softened.

    Raises:
        BenchError: see `DAS.build_module`.
    """

    def __init__(self, encoder: MaskedLM, settings: DAS) -> None:
        super().__init__()
        check_dropout(encoder, "DAS")
        self.encoder = encoder
        self.temperature = settings.temperature
        for kind, importance in read_importance(encoder, settings.state).tensors().items():
            self.register_buffer(kind, importance, persistent=False)
        self.free: list[tuple[nn.Parameter, Callable[[], Tensor]]] = []
        for parameter, kind, layer, side in unit_weights(encoder):
            self.free.append((parameter, self._free(parameter, kind, layer, side)))
        if settings.soften == "gradient":
            for parameter, free in self.free:
                parameter.register_hook(partial(_softened, free))  # type: ignore[no-untyped-call]
        self.soften, self.before = settings.soften, list[Tensor]()

    @property
    def importance(self) -> Units:
        """Accumulated before this training."""
        return Units(*(getattr(self, kind) for kind in KINDS))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """The loss over the masked tokens, and the contrast of what is known with what was."""
        mlm = self.encoder.loss(self.encoder(input_ids, attention_mask)[-1], labels)
        whole = torch.where(labels == IGNORED, input_ids, labels)
        first, second = self._means(whole.repeat(2, 1), attention_mask.repeat(2, 1)).chunk(2)
        with gated(self.encoder, self.importance):
            known = self._means(whole, attention_mask)
        contrast = cosine_contrast(first, torch.cat([second, known]), self.temperature)
        return {"loss": mlm + contrast, "mlm": mlm, "contrast": contrast}

    def before_step(self) -> None:
        """Remember where the weights of units are."""
        if self.soften == "update":
            self.before = [parameter.detach().clone() for parameter, _ in self.free]

    def after_step(self) -> None:
        """Take back the part I of each step."""
        with torch.no_grad():
            for (parameter, free), before in zip(self.free, self.before, strict=False):
                parameter.copy_(torch.lerp(before, parameter, free().expand_as(parameter)))

    def _means(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Means of the last states of the tokens that are no padding, ``(texts, width)``."""
        states = self.encoder(input_ids, attention_mask)[-1]
        real = attention_mask[..., None].to(states.dtype)
        means: Tensor = (states * real).sum(1) / real.sum(1)
        return means

    def _free(
        self, parameter: nn.Parameter, kind: str, layer: int, side: int
    ) -> Callable[[], Tensor]:
        """Function giving 1 − I in the shape of a parameter, on the device where I is by then."""
        width = head_width(self.encoder) if kind == "heads" else 1
        shape = [1] * parameter.dim()
        shape[side] = -1
        return lambda: (1 - getattr(self, kind)[layer]).repeat_interleave(width).view(shape)


def _softened(free: Callable[[], Tensor], gradient: Tensor) -> Tensor:
    return gradient * free()


def read_importance(encoder: MaskedLM, path: str) -> Units:
    """Accumulated importance from a file.

    Raises:
        BenchError: it is that of an encoder with other units.
    """
    held, expected = load_file(path), Units.full(encoder, 0)
    for kind, units in expected.tensors().items():
        if kind not in held or held[kind].shape != units.shape:
            raise BenchError(
                f"{path} is not the importance of {kind} of this model",
                "remove the file, and it is measured again",
            )
    return expected.map(
        lambda like, importance: importance.to(like), Units(*(held[kind] for kind in KINDS))
    )
