"""Distillation: continual pre-training that keeps the answers of the model before the domain.

Li and Hoiem, "Learning without Forgetting", ECCV 2016, https://arxiv.org/abs/1606.09282. The model
that a domain's training starts from is kept, frozen, and teaches on the texts of that domain: no
text of an earlier one is read again. With z' the teacher's logits at a masked token, z those of the
model that learns, and V the vocabulary:

    L     = L_mlm + λ L_old
    L_old = − Σ_{i ∈ V} softmax(z' / T)_i log softmax(z / T)_i, mean over the masked tokens

Here the entropy of softmax(z' / T), the least value of L_old, is subtracted. What is left is
KL( softmax(z' / T) || softmax(z / T) ), of the same gradient, and 0 if nothing was forgotten.

Distilled are the predictions of masked tokens. The paper keeps what the output layers of earlier
tasks say, and here there is one such layer, the head of masked language modelling, which was
trained at masked tokens alone; Jin et al., "Lifelong Pretraining", NAACL 2022,
https://arxiv.org/abs/2110.08534, distil these logits in continual pre-training, too. To hold
the embedding at ``[CLS]``, which L_mlm does not train, would be another method.

The paper records the teacher's answers once; here they are computed for each draw of masks, which
is the same, as the teacher does not change. It has no dropout. The paper's warm-up trains a new
output layer alone, and there is none here. Before the first domain there is no teacher: the model
that a sequence starts from may have no head.

Defaults: λ = 1, T = 2, the paper's.
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
    """Distillation from the model before a domain.

    Attributes:
        weight: λ.
        temperature: T.
    """

    adds_to_mlm: ClassVar[bool] = True

    weight: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 2.0

    def objective(self, step: DomainStep) -> Objective:
        """See `Method`."""
        if not step.index:  # before the first domain there is nothing to hold
            return step.preset.objective
        return Distill(
            teacher=step.preset.start.model,
            mask=step.mlm.mask,
            weight=self.weight,
            temperature=self.temperature,
        )


class Distill(MLM, kw_only=True):
    """Settings of distillation from the model before a domain, beside those of `MLM`.

    Attributes:
        teacher: folder of that model, with its head.
        weight: λ.
        temperature: T.
    """

    teacher: str
    weight: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 2.0

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """See `Objective`.

        Raises:
            BenchError: the teacher cannot be loaded.
        """
        teacher = open_start(Start(model=self.teacher), seed=0)
        teacher.build_module(MLM(mask=self.mask), seed=0)
        return DistillTraining(encoder, teacher.encoder, self.weight, self.temperature)


class DistillTraining(nn.Module):
    """The encoder with its own head, and the teacher.

    Args:
        teacher: it is frozen.
    """

    def __init__(
        self, encoder: MaskedLM, teacher: MaskedLM, weight: float, temperature: float
    ) -> None:
        super().__init__()
        self.encoder, self.weight, self.temperature = encoder, weight, temperature
        # In a tuple it is no part of the module, which is trained and saved.
        self.teacher = (teacher.eval().requires_grad_(False),)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """The loss over the masked tokens, and λ times the divergence from the teacher."""
        logits = self.encoder.predict(self.encoder(input_ids, attention_mask)[-1], labels)
        (teacher,) = self.teacher
        with torch.no_grad():
            teacher.to(input_ids.device)
            answers = teacher.predict(teacher(input_ids, attention_mask)[-1], labels)
        mlm = masked_cross_entropy(logits, labels)
        distillation = self.weight * kl_divergence(logits, answers, self.temperature)
        return {"loss": mlm + distillation, "mlm": mlm, "distillation": distillation}


def kl_divergence(logits: Tensor, answers: Tensor, temperature: float) -> Tensor:
    """KL divergence of softened predictions from a teacher's, mean over tokens; 0 for none.

    Args:
        logits, answers: of the model and of its teacher, ``(tokens, vocabulary)``.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    softened, target = (
        functional.log_softmax(each.to(wide) / temperature, dim=-1) for each in (logits, answers)
    )
    total = functional.kl_div(softened, target, reduction="sum", log_target=True)
    return total / max(len(logits), 1)
