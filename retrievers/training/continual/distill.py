"""Distillation: continual pre-training that keeps the predictions of the previous model.

Li and Hoiem, "Learning without Forgetting", ECCV 2016, https://arxiv.org/abs/1606.09282. The model
before a domain is frozen and teaches on the texts of the new domain, so no text of an earlier
domain is read again. Let z' be the teacher's logits at a masked token, z the student's logits, and
V the vocabulary:

    L     = L_mlm + λ L_old
    L_old = − Σ_{i ∈ V} softmax(z' / T)_i log softmax(z / T)_i, mean over the masked tokens

This implementation subtracts the entropy of softmax(z' / T), which is the minimum of L_old. The
result is KL( softmax(z' / T) || softmax(z / T) ), which has the same gradient and is 0 if nothing
was forgotten.

The predictions at masked tokens are distilled. The paper preserves the outputs of the output layers
of earlier tasks. Here the only such layer is the head of masked language modelling, which was
trained at masked tokens only. Jin et al., "Lifelong Pretraining", NAACL 2022,
https://arxiv.org/abs/2110.08534, also distil these logits in continual pre-training. Preserving the
embedding at ``[CLS]``, which L_mlm does not train, would be a different method.

The paper records the teacher's outputs once. Here they are computed for each draw of masks, which
is equivalent because the teacher is fixed and runs without dropout. The paper first trains a new
output layer alone; this is not needed here. There is no teacher before the first domain, since the
start model of a sequence may have no head.

Defaults: λ = 1 and T = 2, as in the paper.
"""

from typing import Annotated, ClassVar

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from retrievers.training.continual.sequence import DomainStep, Method
from retrievers.training.objectives.masked_lm import MaskedLM, masked_cross_entropy
from retrievers.training.objectives.mlm import MLM
from retrievers.training.objectives.objective import Objective
from retrievers.training.pretrain.preset import Start
from retrievers.training.pretrain.start import open_start


class LearningWithoutForgetting(Method, kw_only=True):
    """Distillation from the model before each domain.

    Attributes:
        weight: λ.
        temperature: T.
    """

    adds_to_mlm: ClassVar[bool] = True

    weight: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 2.0

    def objective(self, step: DomainStep) -> Objective:
        """Return the preset's objective for the first ``step`` of a sequence, else `Distill`."""
        if not step.index:  # there is no teacher before the first domain
            return step.preset.objective
        return Distill(
            teacher=step.preset.start.model,
            mask=step.mlm.mask,
            weight=self.weight,
            temperature=self.temperature,
        )


class Distill(MLM, kw_only=True):
    """Settings of the distillation, in addition to the settings of `MLM`.

    Attributes:
        teacher: folder of the model before the domain, with its head.
        weight: λ.
        temperature: T.
    """

    teacher: str
    weight: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 2.0

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """Build the training module around ``encoder`` and load the teacher.

        Raises:
            BenchError: If the teacher cannot be loaded.
        """
        teacher = open_start(Start(model=self.teacher), seed=0)
        teacher.build_module(MLM(mask=self.mask), seed=0)
        return DistillTraining(encoder, teacher.encoder, self.weight, self.temperature)


class DistillTraining(nn.Module):
    """Encoder with its head, and a frozen teacher."""

    def __init__(
        self, encoder: MaskedLM, teacher: MaskedLM, weight: float, temperature: float
    ) -> None:
        """Attach a teacher to an encoder.

        Args:
            encoder: encoder to train.
            teacher: encoder to learn from; it is frozen.
            weight: λ.
            temperature: T.
        """
        super().__init__()
        self.encoder, self.weight, self.temperature = encoder, weight, temperature
        # In a tuple it is not a submodule, so it is neither trained nor saved.
        self.teacher = (teacher.eval().requires_grad_(False),)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """Return the masked language modelling loss and the weighted divergence from the teacher.

        Args:
            input_ids: int64 ``(texts, length)``.
            attention_mask: bool ``(texts, length)``, False at padding.
            labels: int64 ``(texts, length)``, -100 at tokens that are not masked.

        Returns:
            The losses by name, with their sum as ``loss``.
        """
        logits = self.encoder.predict(self.encoder(input_ids, attention_mask)[-1], labels)
        (teacher,) = self.teacher
        with torch.no_grad():
            teacher.to(input_ids.device)
            answers = teacher.predict(teacher(input_ids, attention_mask)[-1], labels)
        mlm = masked_cross_entropy(logits, labels)
        distillation = self.weight * kl_divergence(logits, answers, self.temperature)
        return {"loss": mlm + distillation, "mlm": mlm, "distillation": distillation}


def kl_divergence(logits: Tensor, answers: Tensor, temperature: float) -> Tensor:
    """Return the KL divergence of softened predictions from a teacher's, averaged over tokens.

    Args:
        logits: the student's logits, ``(tokens, vocabulary)``. The divergence of 0 tokens is 0.
        answers: the teacher's logits, ``(tokens, vocabulary)``.
        temperature: T.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    softened, target = (
        functional.log_softmax(each.to(wide) / temperature, dim=-1) for each in (logits, answers)
    )
    total = functional.kl_div(softened, target, reduction="sum", log_target=True)
    return total / max(len(logits), 1)
