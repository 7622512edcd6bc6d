"""SimCSE: a text encoded twice with different dropout masks is its own positive.

Gao, Yao and Chen, "SimCSE: Simple Contrastive Learning of Sentence Embeddings", EMNLP 2021,
https://arxiv.org/abs/2104.08821 (the unsupervised variant). Let z_i and z_i' be the ``[CLS]``
vectors of text i under two dropout masks, after a dense layer and tanh:

    L = − 1/n Σ_i log( exp(cos(z_i, z_i') / t) / Σ_j exp(cos(z_i, z_j') / t) )

The dense layer is dropped after training: vectors are the ``[CLS]`` states before it, which the
paper found better.

Defaults: t = 0.05, and the dropout of the checkpoint (0.1). For BERT-base, 64 texts per batch,
learning rate 3e-5, one epoch over a million sentences of Wikipedia, 32 tokens.
"""

from typing import Annotated, ClassVar

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from foundation.errors import BenchError
from retrievers.training.objectives.masked_lm import (
    MaskedLM,
    cosine_contrast,
    encode_in_parts,
    initialise,
)
from retrievers.training.objectives.masking import TokenBatch, Vocabulary
from retrievers.training.objectives.objective import Batch, Settings


class SimCSE(Settings, kw_only=True):
    """Settings of SimCSE.

    Attributes:
        temperature: t.
        sub_batch: texts that are encoded at a time. None encodes all at once.
    """

    similarity: ClassVar[str] = "cos"
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 0.05
    sub_batch: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """Build the training module around ``encoder``."""
        return SimCSETraining(encoder, self)

    def batch(self, tokens: TokenBatch, vocabulary: Vocabulary, rng: np.random.Generator) -> Batch:
        """Return the texts without masks, see `Objective.batch`."""
        return {"input_ids": tokens.ids, "attention_mask": tokens.real}


class SimCSETraining(nn.Module):
    """Encoder with a dense layer on ``[CLS]``."""

    def __init__(self, encoder: MaskedLM, settings: SimCSE) -> None:
        super().__init__()
        check_dropout(encoder, "SimCSE")
        width = encoder.config.hidden_size
        self.encoder = encoder
        self.dense = nn.Linear(width, width)
        self.temperature = settings.temperature
        self.sub_batch = settings.sub_batch
        initialise(self.dense, encoder.config.initializer_range)
        # The language-model head has no gradient, which several processes would wait for.
        inside = {id(parameter) for parameter in encoder.encoder.parameters()}
        for parameter in encoder.head.parameters():
            parameter.requires_grad_(id(parameter) in inside)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """Return the contrastive loss of two forward passes as ``loss``."""
        twice = (input_ids.repeat(2, 1), attention_mask.repeat(2, 1))
        (vectors,) = encode_in_parts(self.vectors, twice, self.sub_batch)
        first, second = vectors.chunk(2)
        return {"loss": cosine_contrast(first, second, self.temperature)}

    def vectors(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor]:
        """Return the ``[CLS]`` vectors after the dense layer, ``(texts, width)``."""
        states = self.encoder(input_ids, attention_mask)
        return (torch.tanh(self.dense(states[-1][:, 0])),)


def check_dropout(encoder: MaskedLM, objective: str) -> None:
    """Raise if two forward passes of ``encoder`` would be equal because it has no dropout."""
    config = encoder.config
    if not config.hidden_dropout_prob and not config.attention_probs_dropout_prob:
        raise BenchError(
            f"{objective} needs dropout, but the checkpoint's config.json has none",
            "Set hidden_dropout_prob and attention_probs_dropout_prob in it to 0.1.",
        )
