"""EWC: continual pre-training that holds the weights which earlier domains depend on.

Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 2017,
https://arxiv.org/abs/1612.00796. With θ_t the weights after domain t and F_t the diagonal of the
Fisher information there:

    L = L_mlm + λ/2 Σ_t Σ_i F_t,i (θ_i − θ_t,i)²

The sum over domains is itself such a term, but for a constant: F = Σ_t F_t around
θ̄ = Σ_t F_t θ_t / F. So what is held does not grow with the sequence. F is the empirical one: the
mean over texts of the squared gradient of the masked-language-model loss of that text alone.

Default: λ = 5000, which the code of Ke et al. (ICLR 2023) calls the best of 500 to 50,000.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import torch
from torch import Tensor, nn

from retrievers.training.continual.sequence import Batch, DomainStep, Method, read_state
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.mlm import MLM, MLMTraining
from retrievers.training.objectives.objective import Objective

FISHER, CENTRE = "fisher:", "centre:"  # before the name of a parameter


class ElasticWeightConsolidation(Method, kw_only=True):
    """Elastic weight consolidation.

    Attributes:
        measured: texts of a domain that its Fisher information is measured on.
        strength: λ.
    """

    adds_to_mlm: ClassVar[bool] = True

    measured: Annotated[int, msgspec.Meta(ge=1)] = 256
    strength: Annotated[float, msgspec.Meta(gt=0)] = 5_000.0

    def objective(self, step: DomainStep) -> Objective:
        """See `Method`."""
        if not step.index:  # before the first domain there is nothing to hold
            return step.preset.objective
        state = step.state(self, self.measured, lambda: self._measure(step))
        return EWC(state=state, mask=step.mlm.mask, strength=self.strength)

    def _measure(self, step: DomainStep) -> dict[str, Tensor]:
        """Return the Fisher information of the domain before, added to that of earlier ones."""
        encoder, tokenizer = step.open()
        # Without dropout, so that the gradients of a text are its own.
        information = estimate_fisher(encoder.eval(), step.batches(tokenizer, self.measured, 1))
        earlier = step.state_file(step.index - 1)
        before = read_fisher(encoder, earlier) if step.index > 1 else None
        return accumulate_fisher(encoder, information, before)


class EWC(MLM, kw_only=True):
    """Settings of EWC, beside those of `MLM`.

    Attributes:
        state: file with what is held, see `accumulate_fisher`.
        strength: λ.
    """

    state: str
    strength: Annotated[float, msgspec.Meta(gt=0)] = 5_000.0

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """See `Objective`.

        Raises:
            BenchError: the state is of another model.
        """
        return EWCTraining(encoder, read_fisher(encoder, self.state), self.strength)


class EWCTraining(nn.Module):
    """The encoder with its own head, and what holds its weights."""

    def __init__(self, encoder: MaskedLM, held: Mapping[str, Tensor], strength: float) -> None:
        super().__init__()
        self.encoder, self.strength = encoder, strength
        for number, (name, parameter) in enumerate(encoder.named_parameters()):
            # Names of buffers have no dots. Not saved with the weights: they do not change.
            for part, prefix in (("fisher", FISHER), ("centre", CENTRE)):
                value = held[prefix + name].to(parameter)
                self.register_buffer(f"{part}_{number}", value, persistent=False)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """The loss over the masked tokens, and the penalty."""
        mlm = self.encoder.loss(self.encoder(input_ids, attention_mask)[-1], labels)
        penalty = self.penalty()
        return {"loss": mlm + penalty, "mlm": mlm, "penalty": penalty}

    def penalty(self) -> Tensor:
        """λ/2 Σ F (θ − θ̄)²."""
        parts = []
        for number, parameter in enumerate(self.encoder.parameters()):
            moved = parameter - getattr(self, f"centre_{number}")
            parts.append((getattr(self, f"fisher_{number}") * moved * moved).sum())
        return self.strength / 2 * torch.stack(parts).sum()


def estimate_fisher(encoder: MaskedLM, texts: Iterable[Batch]) -> dict[str, Tensor]:
    """Diagonal of the empirical Fisher information, by name of the encoder's parameters.

    Args:
        texts: batches of one text, as masked language modelling reads them.
    """
    named = dict(encoder.named_parameters())
    total, count = {name: torch.zeros_like(weight) for name, weight in named.items()}, 0
    for text in texts:
        loss = MLMTraining(encoder)(**text)["loss"]
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        for name, gradient in zip(named, gradients, strict=True):
            if gradient is not None:
                total[name] += gradient.square()
        count += 1
    return {name: value / max(count, 1) for name, value in total.items()}


def accumulate_fisher(
    encoder: MaskedLM, information: Mapping[str, Tensor], before: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    """F and θ̄ after a domain, by `FISHER` and `CENTRE` and the name of a parameter.

    Where nothing weighs, the centre is where the weights are.

    Args:
        information: F_t, around the weights as they are.
        before: what was held; None after the first domain.
    """
    held: dict[str, Tensor] = {}
    for name, weight in encoder.named_parameters():
        total, centre = information[name], weight.detach().clone()
        if before is not None:
            earlier = before[FISHER + name]
            total = total + earlier
            share = torch.where(total > 0, earlier / total, torch.zeros_like(total))
            centre = centre + share * (before[CENTRE + name] - centre)
        held |= {FISHER + name: total, CENTRE + name: centre}
    return held


def read_fisher(encoder: MaskedLM, path: Path | str) -> dict[str, Tensor]:
    """Return what a state file of this encoder holds."""
    named = dict(encoder.named_parameters())
    like = {part + name: weight for name, weight in named.items() for part in (FISHER, CENTRE)}
    return read_state(path, like)
