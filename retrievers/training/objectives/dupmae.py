"""DupMAE (RetroMAE v2): RetroMAE, and the ordinary tokens predict the text's bag of words.

Xiao, Liu, Shao and Cao, "RetroMAE-2: Duplex Masked Auto-Encoder For Pre-Training Retrieval-Oriented
Language Models", ACL 2023, https://arxiv.org/abs/2305.02564 (first version
https://arxiv.org/abs/2211.08769). A bag-of-words loss is added to the losses of RetroMAE with
enhanced decoding. Let h_1 … h_N be the last hidden states after ``[CLS]``, lm the language-model
head, and Set(x) the distinct tokens among the N ordinary ones of the text:

    v     = max over j ≥ 1 of lm(h_j)                     one value for each token of the vocabulary
    L_bow = − 1/N Σ_{t ∈ Set(x)} log softmax(v)[t]        mean over texts
    L     = L_enc + L_dec + w L_bow

The decoder's queries H1 are h_0 at every position, passed through the encoder's embedding layer
with positions, token type, normalisation and dropout, as in the authors' code
(https://github.com/staoxiao/RetroMAE, src/pretrain/modeling_duplex.py). RetroMAE's queries are the
sum of h_0 and a position. The following also comes from that code: lm is the head of masked
language modelling, which the paper draws as a linear projection; masked tokens are among the h_j;
the mean over N; and w. The paper's equations 6 to 9 exclude masked tokens, sum over Set(x), and
have no weight.

The result is a plain encoder with ``[CLS]`` vectors, as in the authors' fine-tuning code
(src/bi_encoder): row CLS:768 of the paper's Table 4, with .394 MRR@10 on MS MARCO. The paper's own
search uses both kinds of states and reaches .410.

Defaults: w = 0.1, as in the authors' code, and otherwise as RetroMAE.
"""

from typing import Annotated

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.masking import IGNORED, TokenBatch, Vocabulary
from retrievers.training.objectives.objective import Batch, Rate, Settings
from retrievers.training.objectives.retromae import EnhancedDecoding, RetroMAE


class DupMAE(Settings, kw_only=True):
    """Settings of DupMAE.

    Attributes:
        encoder_mask: share of the tokens masked for the encoder, see `RetroMAE`.
        decoder_mask: share of the tokens masked for the decoder, see `RetroMAE` (enhanced
            decoding).
        bow_weight: w.
    """

    encoder_mask: Rate = 0.3
    decoder_mask: Rate = 0.5
    bow_weight: Annotated[float, msgspec.Meta(gt=0)] = 0.1

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """Build the training module around ``encoder``."""
        return DupMAETraining(encoder, self.bow_weight)

    def batch(self, tokens: TokenBatch, vocabulary: Vocabulary, rng: np.random.Generator) -> Batch:
        """Return RetroMAE's batch, see `Objective.batch`.

        Args:
            tokens: tokens of the texts.
            vocabulary: size and mask token of the vocabulary.
            rng: random generator.
        """
        retromae = RetroMAE(encoder_mask=self.encoder_mask, decoder_mask=self.decoder_mask)
        return retromae.batch(tokens, vocabulary, rng)


class DupMAETraining(EnhancedDecoding):
    """Encoder with RetroMAE's decoder, whose saved weights fit, and a bag-of-words loss."""

    def __init__(self, encoder: MaskedLM, bow_weight: float) -> None:
        """Build the decoder around ``encoder``. ``bow_weight`` weights the bag-of-words loss."""
        super().__init__(encoder)
        self.bow_weight = bow_weight

    def further_losses(self, states: Tensor, real: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Return w L_bow under the name ``bow``.

        Args:
            states: last hidden states, ``(texts, length, width)``.
            real: bool ``(texts, length)``, False at padding.
            tokens: int64 ``(texts, length)``, the ordinary tokens, -100 elsewhere.
        """
        return {"bow": self.bow_weight * self.bag_loss(states, real, tokens)}

    def queries(self, cls: Tensor, length: int) -> Tensor:
        """Return H1 for texts of ``length`` tokens, ``(texts, length, width)``.

        Args:
            cls: h_0, ``(texts, 1, width)``.
            length: number of positions.
        """
        return self.encoder.embed_vectors(cls.expand(-1, length, -1))

    def bag_loss(self, states: Tensor, real: Tensor, tokens: Tensor) -> Tensor:
        """Return L_bow, a scalar.

        Args:
            states: last hidden states, ``(texts, length, width)``.
            real: bool ``(texts, length)``, False at padding.
            tokens: int64 ``(texts, length)``, the ordinary tokens, -100 elsewhere.
        """
        logits = self.encoder.head(states[:, 1:])
        logits = logits.masked_fill(~real[:, 1:, None].bool(), float("-inf"))
        logs = functional.log_softmax(logits.amax(dim=1), dim=1)
        ordinary = tokens != IGNORED
        bag = torch.zeros_like(logs).scatter_reduce(
            1, tokens.where(ordinary, 0), ordinary.to(logs.dtype), "amax"
        )
        lengths = ordinary.sum(dim=1).clamp(min=1)
        return -((bag * logs).sum(dim=1) / lengths).mean()
