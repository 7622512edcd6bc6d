"""EWC: continual pre-training with a penalty on weights that earlier domains depend on.

Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 2017,
https://arxiv.org/abs/1612.00796. Let θ_t be the weights after domain t and F_t the diagonal of the
Fisher information at θ_t:

    L = L_mlm + λ/2 Σ_t Σ_i F_t,i (θ_i − θ_t,i)²

Up to a constant, the sum over domains is again a single term of this form, with F = Σ_t F_t and
centre θ̄ = Σ_t F_t θ_t / F. The stored state therefore does not grow with the sequence. F is the
empirical Fisher information: the mean over texts of the squared gradient of the masked language
modelling loss of one text.

Default: λ = 5000, which the code of Ke et al. (ICLR 2023) calls the best value between 500 and
50,000.
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

FISHER, CENTRE = "fisher:", "centre:"  # prefixes of parameter names


class ElasticWeightConsolidation(Method, kw_only=True):
    """Elastic weight consolidation.

    Attributes:
        measured: number of texts of a domain used to estimate its Fisher information.
        strength: λ.
    """

    adds_to_mlm: ClassVar[bool] = True

    measured: Annotated[int, msgspec.Meta(ge=1)] = 256
    strength: Annotated[float, msgspec.Meta(gt=0)] = 5_000.0

    def objective(self, step: DomainStep) -> Objective:
        """Return the preset's objective for the first ``step`` of a sequence, else `EWC`."""
        if not step.index:  # there is no penalty before the first domain
            return step.preset.objective
        state = step.state(self, self.measured, lambda: self._measure(step))
        return EWC(state=state, mask=step.mlm.mask, strength=self.strength)

    def _measure(self, step: DomainStep) -> dict[str, Tensor]:
        """Return the Fisher information of all earlier domains together."""
        encoder, tokenizer = step.open()
        # Without dropout, a text's gradient is deterministic.
        information = estimate_fisher(encoder.eval(), step.batches(tokenizer, self.measured, 1))
        earlier = step.state_file(step.index - 1)
        before = read_fisher(encoder, earlier) if step.index > 1 else None
        return accumulate_fisher(encoder, information, before)


class EWC(MLM, kw_only=True):
    """Settings of EWC, in addition to the settings of `MLM`.

    Attributes:
        state: file with the Fisher information and its centre, see `accumulate_fisher`.
        strength: λ.
    """

    state: str
    strength: Annotated[float, msgspec.Meta(gt=0)] = 5_000.0

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """Build the training module around ``encoder``.

        Raises:
            BenchError: If the state belongs to a different model.
        """
        return EWCTraining(encoder, read_fisher(encoder, self.state), self.strength)


class EWCTraining(nn.Module):
    """Encoder with its head, and the penalty on its weights."""

    def __init__(self, encoder: MaskedLM, fisher: Mapping[str, Tensor], strength: float) -> None:
        """Attach the penalty to an encoder.

        Args:
            encoder: encoder to train.
            fisher: Fisher information and centre of each parameter, see `accumulate_fisher`.
            strength: λ.
        """
        super().__init__()
        self.encoder, self.strength = encoder, strength
        for number, (name, parameter) in enumerate(encoder.named_parameters()):
            # Buffer names cannot contain dots. Buffers are constant, so they are not saved.
            for part, prefix in (("fisher", FISHER), ("centre", CENTRE)):
                value = fisher[prefix + name].to(parameter)
                self.register_buffer(f"{part}_{number}", value, persistent=False)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """Return the masked language modelling loss, the penalty, and their sum as ``loss``.

        Args:
            input_ids: int64 ``(texts, length)``.
            attention_mask: bool ``(texts, length)``, False at padding.
            labels: int64 ``(texts, length)``, -100 at tokens that are not masked.
        """
        mlm = self.encoder.loss(self.encoder(input_ids, attention_mask)[-1], labels)
        penalty = self.penalty()
        return {"loss": mlm + penalty, "mlm": mlm, "penalty": penalty}

    def penalty(self) -> Tensor:
        """Return λ/2 Σ F (θ − θ̄)² as a scalar."""
        parts = []
        for number, parameter in enumerate(self.encoder.parameters()):
            moved = parameter - getattr(self, f"centre_{number}")
            parts.append((getattr(self, f"fisher_{number}") * moved * moved).sum())
        return self.strength / 2 * torch.stack(parts).sum()


def estimate_fisher(encoder: MaskedLM, texts: Iterable[Batch]) -> dict[str, Tensor]:
    """Estimate the diagonal of the empirical Fisher information.

    Args:
        encoder: encoder, in evaluation mode for gradients without dropout.
        texts: batches of one text each, masked as in training.

    Returns:
        One tensor for each parameter of the encoder, by name and in its shape.
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
    """Return F and θ̄ after a domain, under `FISHER` and `CENTRE` followed by the parameter's name.

    If F is 0 at a weight, the centre is its current value.

    Args:
        encoder: encoder with the weights after the domain.
        information: F_t, by name of parameter.
        before: F and θ̄ after the previous domain. None after the first domain.
    """
    state: dict[str, Tensor] = {}
    for name, weight in encoder.named_parameters():
        total, centre = information[name], weight.detach().clone()
        if before is not None:
            earlier = before[FISHER + name]
            total = total + earlier
            share = torch.where(total > 0, earlier / total, torch.zeros_like(total))
            centre = centre + share * (before[CENTRE + name] - centre)
        state |= {FISHER + name: total, CENTRE + name: centre}
    return state


def read_fisher(encoder: MaskedLM, path: Path | str) -> dict[str, Tensor]:
    """Read the Fisher information and the centre of ``encoder`` from the state file ``path``."""
    named = dict(encoder.named_parameters())
    like = {part + name: weight for name, weight in named.items() for part in (FISHER, CENTRE)}
    return read_state(path, like)
