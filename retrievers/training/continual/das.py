"""DAS: continual pre-training with soft masks on units that earlier knowledge depends on.

Ke et al., "Continual Pre-training of Language Models", ICLR 2023,
https://openreview.net/forum?id=m_GDIItaI3o. Let I be the accumulated importance of a unit and ∇ the
gradient of any weight of that unit:

    ∇' = (1 − I) ∇
    L = L_mlm − 1/n Σ_i log( exp(cos(a_i, p_i) / t)
                             / Σ_j [ exp(cos(a_i, p_j) / t) + exp(cos(a_i, k_j) / t) ] )

a and p are the mean hidden states of the unmasked text under two dropout masks (full knowledge). k
are the mean states with the units gated by I (earlier knowledge). The contrast makes newly learnt
knowledge differ from earlier knowledge. Embeddings, norms and the head are trained without masks.

A unit is an attention head, an intermediate neuron (after the activation) or an output neuron (of
the layer's last linear map, before the residual connection). A gate multiplies the output of a
unit; a gate of 1 has no effect. Let g be a virtual gate of 1 on a unit and L a loss that stands for
the knowledge, averaged over texts:

    I = | tanh( standardised_layer( ∂L/∂g ) ) |

* Knowledge of a domain: L is the masked language modelling loss of the domain.
* General knowledge, whose texts are not available: L is the divergence KL(p || q) of two forward
  passes over the text with different dropout masks. p and q are the softmax of the last hidden
  states. A unit that changes the divergence matters for the robustness of the encoder.

The importance to several kinds of knowledge is combined by the element-wise maximum.

AdamW divides each gradient by a running mean of its own magnitude. A factor that is constant during
a training therefore has almost no effect, unless it is 0 or the gradients are small compared with
AdamW's epsilon. This is so in the paper, too.

The authors' code, https://github.com/UIC-Liu-Lab/ContinualLM, differs from the paper in some
points. This implementation follows the paper:

* Intermediate neurons are gated after the activation, which is their output, and not before it.
* The factors of heads are applied along the rows of the query, key and value weights, which belong
  to the heads, and not along the columns, which read from the previous layer. The bias of the
  linear map after the heads belongs to no head and is trained freely.
* The positive of a text is the second pass over it, and not a neighbouring row of the batch.
* Padding is excluded from means and from the divergence.
* The softmax is over the width, so that p and q are distributions of one token's state, and not
  over the positions of a text.
* Dropout is on for general knowledge, whose two masks are compared, and off for a domain. In the
  code both passes run in whatever mode the model is in.
* The loss on a domain is computed on masked texts. In the code the model predicts tokens that it
sees.
* Importance is measured on 256 texts (``measured``). The code reads 10,000, which takes 40 times as
  long. Gradients are means over texts.

Defaults: t = 0.05. The paper trains RoBERTa-base on 640,000 texts of 164 tokens per domain, with a
batch size of 248 and a learning rate of 1e-4.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from foundation.errors import BenchError
from retrievers.training.continual.sequence import Batch, DomainStep, Method, read_state
from retrievers.training.objectives.masked_lm import MaskedLM, cosine_contrast, sum_losses
from retrievers.training.objectives.masking import IGNORED
from retrievers.training.objectives.mlm import MLM, MLMTraining
from retrievers.training.objectives.objective import Objective
from retrievers.training.objectives.simcse import check_dropout
from retrievers.training.preset import Pretraining

KINDS = ("heads", "intermediate", "output")  # kinds of units
Units = dict[str, Tensor]  # one value per unit, ``(layers, units)``, by kind
ROWS, COLUMNS = 0, 1  # dimensions of a weight: outputs and inputs of a map

Loss = Callable[[MaskedLM, Batch], Tensor]


class SoftMasking(Method, kw_only=True, tag="das"):
    """Continual pre-training with soft masks on the gradients of important units.

    Attributes:
        measured: number of texts of a domain used to measure importance; the authors use 10,000.
    """

    adds_to_mlm: ClassVar[bool] = True

    measured: Annotated[int, msgspec.Meta(ge=1)] = 256

    def check(self, preset: Pretraining) -> None:
        """Raise if ``preset`` uses gradient checkpointing or an objective other than ``mlm``."""
        super().check(preset)
        if preset.gradient_checkpointing:
            raise BenchError(
                "das does not support gradient checkpointing, which would read without its gates",
                "Leave out gradient_checkpointing; use a smaller batch and more accumulate.",
            )

    def objective(self, step: DomainStep) -> Objective:
        """Measure the importance of units before ``step`` and return its settings."""
        state = step.state(self, self.measured, lambda: self._measure(step))
        return DAS(state=state, mask=step.mlm.mask)

    def _measure(self, step: DomainStep) -> Units:
        """Return the importance of units to general knowledge and to all domains so far."""
        encoder, tokenizer = step.open()
        batches = step.batches(tokenizer, self.measured, step.preset.batch_size)
        if not step.index:
            return general_importance(encoder.train(), batches)
        known = read_state(step.state_file(step.index - 1), fill_units(encoder, 0))
        new = domain_importance(encoder.eval(), batches)
        return {kind: torch.maximum(known[kind], new[kind]) for kind in KINDS}


def fill_units(encoder: MaskedLM, value: float) -> Units:
    """Return ``value`` for all units of ``encoder``, on its device and in its dtype."""
    config, like = encoder.config, next(encoder.parameters())
    sizes = (config.num_attention_heads, config.intermediate_size, config.hidden_size)
    return {
        kind: like.new_full((config.num_hidden_layers, size), value).detach()
        for kind, size in zip(KINDS, sizes, strict=True)
    }


@contextmanager
def gate_units(encoder: MaskedLM, gates: Units) -> Iterator[None]:
    """Multiply the outputs of the units of ``encoder`` by ``gates`` inside the context."""

    def scale_input(gate: Tensor, module: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (inputs[0] * gate,)

    def scale_output(gate: Tensor, module: Any, inputs: Any, output: Tensor) -> Tensor:
        return output * gate

    handles = []
    layer: Any
    for number, layer in enumerate(encoder.layers):
        heads, inner, output = (gates[kind][number] for kind in KINDS)
        heads = heads.repeat_interleave(head_width(encoder))
        before_output = partial(scale_input, heads)
        handles += [
            layer.attention.output.dense.register_forward_pre_hook(before_output),
            layer.intermediate.register_forward_hook(partial(scale_output, inner)),
            layer.output.dense.register_forward_hook(partial(scale_output, output)),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def unit_weights(encoder: MaskedLM) -> Iterator[tuple[torch.nn.Parameter, str, int, int]]:
    """Yield the weights of units: parameter, kind (see `KINDS`), layer, and dimension of the units.

    A head has its rows of the query, key and value maps and their biases, and the columns of the
    map after it. Neurons have their rows and biases.
    """
    layer: Any
    for number, layer in enumerate(encoder.layers):
        attention = layer.attention.self
        maps = [(dense, "heads") for dense in (attention.query, attention.key, attention.value)]
        maps += [(layer.intermediate.dense, "intermediate"), (layer.output.dense, "output")]
        for dense, kind in maps:
            yield dense.weight, kind, number, ROWS
            yield dense.bias, kind, number, ROWS
        yield layer.attention.output.dense.weight, "heads", number, COLUMNS


def head_width(encoder: MaskedLM) -> int:
    """Return the width of one attention head of ``encoder``."""
    return int(encoder.config.hidden_size // encoder.config.num_attention_heads)


def general_importance(encoder: MaskedLM, batches: Iterable[Batch]) -> Units:
    """Compute the importance of units to general knowledge, between 0 and 1.

    ``encoder`` is in training mode, and ``batches`` are masked batches of any texts.
    """
    check_dropout(encoder, "the importance of units to general knowledge")
    return normalise(gate_gradients(encoder, batches, kl_divergence))


def domain_importance(encoder: MaskedLM, batches: Iterable[Batch]) -> Units:
    """Compute the importance of units to a domain, between 0 and 1, in evaluation mode."""
    return normalise(gate_gradients(encoder, batches, masked_loss))


def gate_gradients(encoder: MaskedLM, batches: Iterable[Batch], loss: Loss) -> Units:
    """Compute the gradient of ``loss`` with respect to gates of 1, averaged over batches."""
    total, count = fill_units(encoder, 0), 0
    for batch in batches:
        gates = {kind: gate.requires_grad_() for kind, gate in fill_units(encoder, 1).items()}
        with gate_units(encoder, gates):
            value = loss(encoder, batch)
        gradients = torch.autograd.grad(value, [*gates.values()])
        for kind, gradient in zip(KINDS, gradients, strict=True):
            total[kind] += gradient
        count += 1
    return {kind: gradients / max(count, 1) for kind, gradients in total.items()}


def normalise(gradients: Units) -> Units:
    """Turn gradients of the gates into importance: standardise, take tanh and the absolute value.

    Standardisation is within each layer and kind of unit. Equal gradients give an importance of 0.
    """
    importance = {}
    for kind in KINDS:
        centred = gradients[kind] - gradients[kind].mean(dim=1, keepdim=True)
        freedom = max(centred.shape[1] - 1, 1)
        deviation = centred.square().sum(dim=1, keepdim=True) / freedom
        scaled = centred / deviation.sqrt()
        scaled = torch.where(deviation > 0, scaled, torch.zeros_like(scaled))
        importance[kind] = scaled.tanh().abs()
    return importance


def masked_loss(encoder: MaskedLM, batch: Batch) -> Tensor:
    """Return the masked language modelling loss of ``encoder`` on ``batch``."""
    loss: Tensor = MLMTraining(encoder)(**batch)["loss"]
    return loss


def kl_divergence(encoder: MaskedLM, batch: Batch) -> Tensor:
    """Return the KL divergence between two forward passes over ``batch``, averaged over tokens."""
    mask = batch["attention_mask"]
    p, q = (
        functional.log_softmax(encoder(batch["input_ids"], mask)[-1][mask.bool()], dim=-1)
        for _ in range(2)
    )
    return functional.kl_div(q, p, reduction="batchmean", log_target=True)


class DAS(MLM, kw_only=True):
    """Settings of DAS: the file ``state`` with the importance of units, and t."""

    state: str
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 0.05

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """Build the training module around ``encoder``."""
        return DASTraining(encoder, self)


class DASTraining(nn.Module):
    """Encoder with its head, whose important units learn more slowly."""

    def __init__(self, encoder: MaskedLM, settings: DAS) -> None:
        super().__init__()
        check_dropout(encoder, "DAS")
        self.encoder, self.temperature = encoder, settings.temperature
        for kind, importance in read_state(settings.state, fill_units(encoder, 0)).items():
            self.register_buffer(kind, importance, persistent=False)
        for parameter, kind, layer, side in unit_weights(encoder):
            soften = partial(self._soften_gradient, kind, layer, side)
            parameter.register_hook(soften)  # type: ignore[no-untyped-call]

    @property
    def importance(self) -> Units:
        """Importance accumulated before this training."""
        return {kind: getattr(self, kind) for kind in KINDS}

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """Return `MLMTraining`'s loss as ``mlm``, ``contrast``, and their sum as ``loss``."""
        mlm = self.encoder.loss(self.encoder(input_ids, attention_mask)[-1], labels)
        whole = torch.where(labels == IGNORED, input_ids, labels)
        first, second = self._means(whole.repeat(2, 1), attention_mask.repeat(2, 1)).chunk(2)
        with gate_units(self.encoder, self.importance):
            known = self._means(whole, attention_mask)
        contrast = cosine_contrast(first, torch.cat([second, known]), self.temperature)
        return sum_losses(mlm=mlm, contrast=contrast)

    def _means(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.encoder(input_ids, attention_mask)[-1]
        real = attention_mask[..., None].to(states.dtype)
        means: Tensor = (states * real).sum(1) / real.sum(1)
        return means

    def _soften_gradient(self, kind: str, layer: int, side: int, gradient: Tensor) -> Tensor:
        """Return (1 − I) ∇ for a parameter whose units lie along the dimension ``side``."""
        free = 1 - self.importance[kind][layer]
        if kind == "heads":
            free = free.repeat_interleave(head_width(self.encoder))
        shape = [1] * gradient.dim()
        shape[side] = -1
        return gradient * free.view(shape)
