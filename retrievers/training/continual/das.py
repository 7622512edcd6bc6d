"""DAS: continual pre-training that spares the units which earlier knowledge depends on.

Ke et al., "Continual Pre-training of Language Models", ICLR 2023,
https://openreview.net/forum?id=m_GDIItaI3o. With I the accumulated importance of a unit and ∇ the
gradient of any weight of that unit:

    ∇' = (1 − I) ∇
    L = L_mlm − 1/n Σ_i log( exp(cos(a_i, p_i) / t)
                             / Σ_j [ exp(cos(a_i, p_j) / t) + exp(cos(a_i, k_j) / t) ] )

a and p are the mean states of the whole text under two draws of dropout (all knowledge), k those
with the units gated by I (earlier knowledge), so that what is learnt differs from what is known.
Embeddings, norms and the head are free.

A unit is an attention head, an intermediate neuron (after the activation) or an output neuron (of
the layer's last linear map, before the residual connection). A gate multiplies what a unit puts
out; at 1 it changes nothing. With g a virtual gate of 1 on a unit and L a loss that stands for the
knowledge, averaged over texts:

    I = | tanh( standardised_layer( ∂L/∂g ) ) |

* knowledge of a domain: L is the domain's own masked-language-model loss;
* general knowledge, whose texts are gone: L is the divergence KL(p || q) of two readings of the
  text with two draws of dropout, where p and q are the softmax of the last hidden states. A unit
  that the difference depends on is one that matters to how robust the encoder is.

What matters to several kinds of knowledge accumulates by the element-wise maximum.

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
* their means are over all 164 places, padding too. Here padding does not count;
* their softmax is over the places of a text (dimension 1 of states), padding among them. Here it is
  over the width, so that p and q are distributions of one token's state, and padding is left out;
* their second reading is that of a copy of the model, both in the mode in which they happen to be.
  Here dropout is on for general knowledge, since the two draws are what is compared, and off for a
  domain;
* their loss of a domain reads texts of which nothing is masked, and predicts tokens that it sees.
  Here it is that of masked language modelling, as in the paper;
* they read 10,000 texts. Here `measured` says how many, 256 by default: gradients are means, and
  10,000 take 40 times as long.

Defaults: t = 0.05; the paper trains RoBERTa-base on 640,000 texts of 164 tokens per domain, 248 in
a batch, at a learning rate of 1e-4.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from foundation.errors import BenchError
from retrievers.training.continual.sequence import Batch, DomainStep, Method, read_state
from retrievers.training.objectives.masked_lm import MaskedLM, cosine_contrastive_loss
from retrievers.training.objectives.masking import IGNORED
from retrievers.training.objectives.mlm import MLM, MLMTraining
from retrievers.training.objectives.objective import Objective
from retrievers.training.objectives.simcse import check_dropout
from retrievers.training.pretrain.preset import Pretraining

KINDS = ("heads", "intermediate", "output")  # of units
Units = dict[str, Tensor]  # a number for each unit, ``(layers, units)``, by kind
ROWS, COLUMNS = 0, 1  # of a weight: what a unit puts out, what a layer reads from it

Loss = Callable[[MaskedLM, Batch], Tensor]
Soften = Literal["gradient", "update"]


class SoftMasking(Method, kw_only=True):
    """Continual DAP-training with soft masks.

    Attributes:
        measured: texts of a domain that its importance is measured on; the authors read 10,000.
        soften: what 1 − I multiplies.
    """

    adds_to_mlm: ClassVar[bool] = True

    measured: Annotated[int, msgspec.Meta(ge=1)] = 256
    soften: Soften = "gradient"

    def check(self, preset: Pretraining) -> None:
        """See `Method`."""
        super().check(preset)
        if preset.gradient_checkpointing:
            raise BenchError(
                "das reads with gated units, and gradient checkpointing would read again without",
                "leave gradient_checkpointing out, and use a smaller batch and accumulate",
            )

    def objective(self, step: DomainStep) -> Objective:
        """See `Method`."""
        state = step.state(self, self.measured, lambda: self._measure(step))
        return DAS(state=state, mask=step.mlm.mask, soften=self.soften)

    def _measure(self, step: DomainStep) -> Units:
        """Return the importance to what is known in general, or to the domains so far, too."""
        encoder, tokenizer = step.open()
        batches = step.batches(tokenizer, self.measured, step.preset.batch_size)
        if not step.index:
            return general_importance(encoder.train(), batches)
        known = read_state(step.state_file(step.index - 1), fill_units(encoder, 0))
        new = domain_importance(encoder.eval(), batches)
        return {kind: torch.maximum(known[kind], new[kind]) for kind in KINDS}


def fill_units(encoder: MaskedLM, value: float) -> Units:
    """Return the same number for all units of an encoder, on its device and in its dtype."""
    config, like = encoder.config, next(encoder.parameters())
    sizes = (config.num_attention_heads, config.intermediate_size, config.hidden_size)
    shapes = [(config.num_hidden_layers, size) for size in sizes]
    return {
        kind: like.new_full(shape, value).detach()
        for kind, shape in zip(KINDS, shapes, strict=True)
    }


@contextmanager
def gate_units(encoder: MaskedLM, gates: Units) -> Iterator[None]:
    """Within it, the encoder's units are multiplied by gates, which get gradients."""
    handles = []
    for number, layer in enumerate(_layers(encoder)):
        heads, inner, output = (gates[kind][number] for kind in KINDS)
        heads = heads.repeat_interleave(head_width(encoder))
        handles += [
            layer.attention.output.dense.register_forward_pre_hook(_scale_input(heads)),
            layer.intermediate.register_forward_hook(_scale_output(inner)),
            layer.output.dense.register_forward_hook(_scale_output(output)),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def unit_weights(encoder: MaskedLM) -> Iterator[tuple[torch.nn.Parameter, str, int, int]]:
    """The weights that belong to units.

    A head has its rows of the query, key and value maps and their biases, and the columns of the
    map after it; neurons have their rows and biases.

    Yields:
        Parameter, kind as in `KINDS`, layer, and `ROWS` or `COLUMNS`: along which dimension of the
        parameter the units lie, each head as `head_width` places in a row.
    """
    for number, layer in enumerate(_layers(encoder)):
        attention = layer.attention.self
        for dense in (attention.query, attention.key, attention.value):
            yield dense.weight, "heads", number, ROWS
            yield dense.bias, "heads", number, ROWS
        yield layer.attention.output.dense.weight, "heads", number, COLUMNS
        for dense, kind in ((layer.intermediate.dense, KINDS[1]), (layer.output.dense, KINDS[2])):
            yield dense.weight, kind, number, ROWS
            yield dense.bias, kind, number, ROWS


def head_width(encoder: MaskedLM) -> int:
    """Width of one attention head."""
    return int(encoder.config.hidden_size // encoder.config.num_attention_heads)


def _layers(encoder: MaskedLM) -> list[Any]:
    return list(encoder.layers)


def _scale_input(gate: Tensor) -> Callable[[Any, tuple[Tensor]], tuple[Tensor]]:
    return lambda _, arguments: (arguments[0] * gate,)


def _scale_output(gate: Tensor) -> Callable[[Any, Any, Tensor], Tensor]:
    return lambda _, __, output: output * gate


def general_importance(encoder: MaskedLM, batches: Iterable[Batch]) -> Units:
    """Importance to general knowledge, between 0 and 1.

    Args:
        batches: as masked language modelling reads them, of any texts.

    Raises:
        BenchError: the encoder has no dropout.
    """
    check_dropout(encoder, "the importance of units to general knowledge")
    return normalise(gate_gradients(encoder, batches, kl_divergence))


def domain_importance(encoder: MaskedLM, batches: Iterable[Batch]) -> Units:
    """Importance to a domain, between 0 and 1.

    Args:
        batches: as masked language modelling reads them, of the domain's texts.
    """
    return normalise(gate_gradients(encoder, batches, masked_loss))


def gate_gradients(encoder: MaskedLM, batches: Iterable[Batch], loss: Loss) -> Units:
    """Gradient of a loss with respect to gates of 1, averaged over batches.

    The encoder is in the mode that it was given in, and keeps its weights and gradients.
    """
    total, count = fill_units(encoder, 0), 0
    for batch in batches:
        gates = {kind: gate.requires_grad_() for kind, gate in fill_units(encoder, 1).items()}
        with gate_units(encoder, gates):
            value = loss(encoder, batch)
        for kind, gradient in zip(
            KINDS, torch.autograd.grad(value, [*gates.values()]), strict=True
        ):
            total[kind] += gradient
        count += 1
    return {kind: gradients / max(count, 1) for kind, gradients in total.items()}


def normalise(gradients: Units) -> Units:
    """Standardised within each layer and kind, then tanh, then the absolute value.

    A layer whose units do not differ has importance 0 everywhere.
    """
    return {kind: _normalise(gradients[kind]) for kind in KINDS}


def masked_loss(encoder: MaskedLM, batch: Batch) -> Tensor:
    """The loss of masked language modelling."""
    loss: Tensor = MLMTraining(encoder)(**batch)["loss"]
    return loss


def kl_divergence(encoder: MaskedLM, batch: Batch) -> Tensor:
    """KL divergence between two readings, averaged over the tokens that are no padding."""
    mask = batch["attention_mask"]
    p, q = (
        functional.log_softmax(encoder(batch["input_ids"], mask)[-1][mask.bool()], dim=-1)
        for _ in range(2)
    )
    return functional.kl_div(q, p, reduction="batchmean", log_target=True)


def _normalise(kind: Tensor) -> Tensor:
    """Importance of units, ``(layers, units)``."""
    centred = kind - kind.mean(dim=1, keepdim=True)
    deviation = centred.square().sum(dim=1, keepdim=True) / max(kind.shape[1] - 1, 1)
    scaled = centred / deviation.sqrt()
    return torch.where(deviation > 0, scaled, torch.zeros_like(scaled)).tanh().abs()


class DAS(MLM, kw_only=True):
    """Settings of DAS, beside those of `MLM`.

    Attributes:
        state: file with the accumulated importance, see `KINDS`.
        temperature: t.
        soften: what 1 − I multiplies.
    """

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
        for kind, importance in read_state(settings.state, fill_units(encoder, 0)).items():
            self.register_buffer(kind, importance, persistent=False)
        self.free: list[tuple[nn.Parameter, Callable[[], Tensor]]] = []
        for parameter, kind, layer, side in unit_weights(encoder):
            self.free.append((parameter, self._free_share(parameter, kind, layer, side)))
        if settings.soften == "gradient":
            for parameter, free in self.free:
                parameter.register_hook(partial(_soften_gradient, free))  # type: ignore[no-untyped-call]
        self.soften, self.before = settings.soften, list[Tensor]()

    @property
    def importance(self) -> Units:
        """Accumulated before this training."""
        return {kind: getattr(self, kind) for kind in KINDS}

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """The loss over the masked tokens, and the contrast of what is known with what was."""
        mlm = self.encoder.loss(self.encoder(input_ids, attention_mask)[-1], labels)
        whole = torch.where(labels == IGNORED, input_ids, labels)
        first, second = self._means(whole.repeat(2, 1), attention_mask.repeat(2, 1)).chunk(2)
        with gate_units(self.encoder, self.importance):
            known = self._means(whole, attention_mask)
        contrast = cosine_contrastive_loss(first, torch.cat([second, known]), self.temperature)
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

    def _free_share(
        self, parameter: nn.Parameter, kind: str, layer: int, side: int
    ) -> Callable[[], Tensor]:
        """Function giving 1 − I in the shape of a parameter, on the device where I is by then."""
        width = head_width(self.encoder) if kind == "heads" else 1
        shape = [1] * parameter.dim()
        shape[side] = -1
        return lambda: (1 - getattr(self, kind)[layer]).repeat_interleave(width).view(shape)


def _soften_gradient(free: Callable[[], Tensor], gradient: Tensor) -> Tensor:
    return gradient * free()
