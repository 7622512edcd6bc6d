"""Importance of each unit of an encoder, to what it knows in general or to one domain.

Ke et al., "Continual Pre-training of Language Models", ICLR 2023,
https://openreview.net/forum?id=m_GDIItaI3o. With g a virtual gate of 1 on a unit and L a loss that
stands for the knowledge, averaged over texts:

    I = | tanh( standardised_layer( ∂L/∂g ) ) |

* knowledge of a domain: L is the domain's own masked-language-model loss;
* general knowledge, whose texts are gone: L is the divergence KL(p || q) of two readings of the
  text with two draws of dropout, where p and q are the softmax of the last hidden states. A unit
  that the difference depends on is one that matters to how robust the encoder is.

What matters to several kinds of knowledge accumulates by the element-wise maximum.

The authors' code, https://github.com/UIC-Liu-Lab/ContinualLM, does otherwise in places:

* its softmax is over the places of a text (dimension 1 of states), padding among them. Here it is
  over the width, so that p and q are distributions of one token's state, and padding is left out;
* its second reading is that of a copy of the model, both in the mode in which they happen to be.
  Here dropout is on for general knowledge, since the two draws are what is compared, and off for a
  domain;
* its loss of a domain reads texts of which nothing is masked, and predicts tokens that it sees.
  Here it is that of masked language modelling, as in the paper;
* it reads 10,000 texts. Here `continual.Adaptation.measured` says how many, 256 by default: its
  gradients are means, and 10,000 take 40 times as long.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional

from retrievers.training.continual.units import Units, gated
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.simcse import check_dropout

Batch = dict[str, Tensor]
Loss = Callable[[MaskedLM, Batch], Tensor]


def general_importance(encoder: MaskedLM, batches: Iterable[Batch]) -> Units:
    """Importance to general knowledge, between 0 and 1.

    Args:
        batches: as masked language modelling reads them, of any texts.

    Raises:
        BenchError: the encoder has no dropout.
    """
    check_dropout(encoder, "the importance of units to general knowledge")
    return normalised(gate_gradients(encoder, batches, divergence))


def domain_importance(encoder: MaskedLM, batches: Iterable[Batch]) -> Units:
    """Importance to a domain, between 0 and 1.

    Args:
        batches: as masked language modelling reads them, of the domain's texts.
    """
    return normalised(gate_gradients(encoder, batches, masked_loss))


def gate_gradients(encoder: MaskedLM, batches: Iterable[Batch], loss: Loss) -> Units:
    """Gradient of a loss with respect to gates of 1, averaged over batches.

    The encoder is in the mode that it was given in, and keeps its weights and gradients.
    """
    total, count = Units.full(encoder, 0), 0
    for batch in batches:
        gates = Units.full(encoder, 1).map(lambda kind: kind.requires_grad_())
        with gated(encoder, gates):
            value = loss(encoder, batch)
        gradients = torch.autograd.grad(value, list(gates.tensors().values()))
        total, count = total.map(torch.add, Units(*gradients)), count + 1
    return total.map(lambda kind: kind / max(count, 1))


def normalised(gradients: Units) -> Units:
    """Standardised within each layer and kind, then tanh, then the absolute value.

    A layer whose units do not differ has importance 0 everywhere.
    """
    return gradients.map(_normalised)


def accumulated(held: Units, new: Units) -> Units:
    """Importance to either: of each unit the larger."""
    return held.map(torch.maximum, new)


def masked_loss(encoder: MaskedLM, batch: Batch) -> Tensor:
    """The loss of masked language modelling."""
    states = encoder(batch["input_ids"], batch["attention_mask"])
    return encoder.loss(states[-1], batch["labels"])


def divergence(encoder: MaskedLM, batch: Batch) -> Tensor:
    """KL divergence between two readings, averaged over the tokens that are no padding."""
    mask = batch["attention_mask"]
    p, q = (
        functional.log_softmax(encoder(batch["input_ids"], mask)[-1][mask.bool()], dim=-1)
        for _ in range(2)
    )
    return functional.kl_div(q, p, reduction="batchmean", log_target=True)


def _normalised(kind: Tensor) -> Tensor:
    """Importance of units, ``(layers, units)``."""
    centred = kind - kind.mean(dim=1, keepdim=True)
    deviation = centred.square().sum(dim=1, keepdim=True) / max(kind.shape[1] - 1, 1)
    scaled = centred / deviation.sqrt()
    return torch.where(deviation > 0, scaled, torch.zeros_like(scaled)).tanh().abs()
