"""Masked language modelling with whole-word masks.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
NAACL 2019, https://arxiv.org/abs/1810.04805. Let m be the masked tokens, x̃ the text with 80 % of
them replaced by the mask token, 10 % by a random token and 10 % unchanged, and h the last hidden
states:

    L = − 1/|m| Σ_{i ∈ m} log softmax(head(h_i))[x_i]

Whole words are masked, 15 % of the tokens. The head's decoder is the table of word embeddings. A
checkpoint without a head gets a new one with that decoder.
"""

import numpy as np
from torch import Tensor, nn

from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.masking import TokenBatch, Vocabulary, masked_lm_batch
from retrievers.training.objectives.objective import Batch, Rate, Settings


class MLM(Settings, kw_only=True):
    """Settings of masked language modelling.

    Attributes:
        mask: share of tokens that are masked.
    """

    mask: Rate = 0.15

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """Build the training module around ``encoder``."""
        return MLMTraining(encoder)

    def batch(self, tokens: TokenBatch, vocabulary: Vocabulary, rng: np.random.Generator) -> Batch:
        """Mask tokens, see `Objective.batch`."""
        return masked_lm_batch(tokens, self.mask, vocabulary, rng)


class MLMTraining(nn.Module):
    """Encoder with its language-model head."""

    def __init__(self, encoder: MaskedLM) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """Return the mean cross-entropy of the masked tokens as ``loss``.

        Ids and labels are int64 ``(texts, length)``, -100 at tokens that are not masked. The mask
        is bool, False at padding.
        """
        states = self.encoder(input_ids, attention_mask)
        return {"loss": self.encoder.loss(states[-1], labels)}
