"""DupMAE (RetroMAE v2): RetroMAE, and the ordinary tokens must say which words the text has.

Xiao, Liu, Shao and Cao, "RetroMAE-2: Duplex Masked Auto-Encoder For Pre-Training
Retrieval-Oriented Language Models", ACL 2023, https://arxiv.org/abs/2305.02564 (first version
https://arxiv.org/abs/2211.08769). To the losses of RetroMAE with enhanced decoding it adds one of
the bag of words. With h_1 … h_N the last hidden states after ``[CLS]``, lm the head and Set(x) the
distinct tokens of the N ordinary ones of the text:

    v     = max over j ≥ 1 of lm(h_j)                     one number for each of the vocabulary
    L_bow = − 1/N Σ_{t ∈ Set(x)} log softmax(v)[t]        mean over texts
    L     = L_enc + L_dec + w L_bow

The queries H1 of the decoder are h_0 at every place through the encoder's embedding layer: with
positions, token type, normalisation and dropout, as in the authors' code
(https://github.com/staoxiao/RetroMAE, src/pretrain/modeling_duplex.py), where RetroMAE's are the
bare sum of h_0 and a position. From there, too: lm is the head for masked language modelling, which
the paper draws as a linear projection; masked tokens are among the h_j; the mean over N; and w. The
paper's equations 6 to 9 leave masked tokens out, sum over Set(x), and have no weight.

What remains is a plain encoder whose vectors are ``[CLS]``, as the authors' fine-tuning code
(src/bi_encoder) reads it: the row CLS:768 of the paper's Table 4, with .394 MRR@10 on MS MARCO. The
paper's own search is by both kinds of states, .410.

Defaults: w = 0.1, as in the authors' code, and those of RetroMAE.
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
        encoder_mask: see `RetroMAE`.
        decoder_mask: see `RetroMAE`, in enhanced decoding.
        bow_weight: w.
    """

    encoder_mask: Rate = 0.3
    decoder_mask: Rate = 0.5
    bow_weight: Annotated[float, msgspec.Meta(gt=0)] = 0.1

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """See `Objective`."""
        return DupMAETraining(encoder, self.bow_weight)

    def batch(self, tokens: TokenBatch, vocabulary: Vocabulary, rng: np.random.Generator) -> Batch:
        """See `Objective`; it is RetroMAE's."""
        retromae = RetroMAE(encoder_mask=self.encoder_mask, decoder_mask=self.decoder_mask)
        return retromae.batch(tokens, vocabulary, rng)


class DupMAETraining(EnhancedDecoding):
    """RetroMAE's decoder, whose saved weights fit; the bag of words needs none of its own."""

    def __init__(self, encoder: MaskedLM, bow_weight: float) -> None:
        super().__init__(encoder)
        self.bow_weight = bow_weight

    def further_losses(self, states: Tensor, real: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """``bow``, which is w L_bow."""
        return {"bow": self.bow_weight * self.bag_loss(states, real, tokens)}

    def queries(self, cls: Tensor, length: int) -> Tensor:
        """H1 from h_0 ``(texts, 1, width)``: ``(texts, length, width)``."""
        return self.encoder.embed_vectors(cls.expand(-1, length, -1))

    def bag_loss(self, states: Tensor, real: Tensor, tokens: Tensor) -> Tensor:
        """L_bow.

        Args:
            states: last hidden states ``(texts, length, width)``.
            real: bool ``(texts, length)``, False at padding.
            tokens: int64 ``(texts, length)``, the ordinary tokens as they are, -100 elsewhere.
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
