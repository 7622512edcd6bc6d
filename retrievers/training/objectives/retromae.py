"""RetroMAE: a text is reconstructed from its sentence embedding and little else.

Xiao et al., "RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder",
EMNLP 2022, https://arxiv.org/abs/2205.12035. With h_0 the encoder's last hidden state at
``[CLS]``, read from a text masked at 30 %, e the embeddings of words and p those of positions:

    L = L_enc + L_dec                      L_enc: masked language modelling, as in `mlm`

Basic decoding, one to three layers over the decoder's own masked copy x̂ of the text (50 % masked):

    H = [h_0, e_x̂1 + p_1, …, e_x̂N + p_N]
    L_dec: cross-entropy over the tokens that x̂ masks

Enhanced decoding, one layer of two streams over the text x as it is:

    H1 = [h_0 + p_0, …, h_0 + p_N]         H2 = [h_0, e_x1 + p_1, …, e_xN + p_N]
    A = softmax(H1 W_Q (H2 W_K)ᵀ / √d + M) H2 W_V        residual: H1
    M_ij = 0 if j = 0, or if j ≠ i and j is in the context drawn for i; else −∞
    L_dec: cross-entropy over all tokens but the special ones

The context of each token is one of up to 256 draws of its text, each of which hides half of the
tokens as whole words, as in the authors' code (https://github.com/staoxiao/RetroMAE). e + p is the
encoder's embedding layer, with its normalisation; p_0 … p_N are added to h_0 as they are. The
decoder shares embeddings and head with the encoder, and is dropped.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from retrievers.training.objectives.masked_lm import (
    MaskedLM,
    TransformerLayer,
    replace_after_cls,
    sum_losses,
)
from retrievers.training.objectives.masking import (
    IGNORED,
    NOT_A_WORD,
    TokenBatch,
    Vocabulary,
    context_mask,
    mask_tokens,
    masked_lm_batch,
)
from retrievers.training.objectives.objective import Batch, Rate, Settings


class RetroMAE(Settings, kw_only=True):
    """Settings of RetroMAE; the defaults are the paper's.

    Attributes:
        decoding: ``enhanced`` exists for one layer only.
        encoder_mask: share of the tokens that the encoder does not see.
        decoder_mask: share of the tokens that the decoder does not see: one draw a text in basic
            decoding, one of up to 256 draws for each token in enhanced decoding.
        decoder_reads: ``zero`` puts a vector of zeros in the place of h_0, so that nothing goes
            through the sentence embedding: a control of what it causes, not the paper's.
    """

    decoding: Literal["enhanced", "basic"] = "enhanced"
    decoder_layers: Annotated[int, msgspec.Meta(ge=1, le=3)] = 1
    encoder_mask: Rate = 0.3
    decoder_mask: Rate = 0.5
    decoder_reads: Literal["cls", "zero"] = "cls"

    def __post_init__(self) -> None:
        if self.decoding == "enhanced" and self.decoder_layers != 1:
            raise ValueError("enhanced decoding has one layer: use basic decoding for more")

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """See `Objective`."""
        zero_cls = self.decoder_reads == "zero"
        if self.decoding == "enhanced":
            return EnhancedDecoding(encoder, zero_cls)
        return BasicDecoding(encoder, self.decoder_layers, zero_cls)

    def batch(self, tokens: TokenBatch, vocabulary: Vocabulary, rng: np.random.Generator) -> Batch:
        """See `Objective`."""
        batch = masked_lm_batch(tokens, self.encoder_mask, vocabulary, rng)
        return batch | self._decoder_batch(self.decoder_tokens(tokens), vocabulary, rng)

    def decoder_tokens(self, tokens: TokenBatch) -> TokenBatch:
        """Texts that the decoder tells from the embeddings of those that the encoder reads."""
        return tokens

    def _decoder_batch(
        self, tokens: TokenBatch, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> Batch:
        if self.decoding == "basic":
            inputs, labels = mask_tokens(tokens, self.decoder_mask, vocabulary, rng)
            seen = tokens.real
        else:
            inputs, labels = tokens.ids, np.where(tokens.words == NOT_A_WORD, IGNORED, tokens.ids)
            seen = context_mask(tokens, self.decoder_mask, rng)
        return {"decoder_input_ids": inputs, "decoder_labels": labels, "decoder_context": seen}


class RetroMAETraining(nn.Module, ABC):
    """The encoder with a decoder, which kinds of decoding add; ``zero_cls``: zeros for h_0."""

    def __init__(self, encoder: MaskedLM, zero_cls: bool = False) -> None:
        super().__init__()
        self.encoder, self.zero_cls = encoder, zero_cls

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        decoder_input_ids: Tensor,
        decoder_labels: Tensor,
        decoder_context: Tensor,
    ) -> dict[str, Tensor]:
        """All losses and their sum.

        Args:
            input_ids: int64 ``(texts, length)``, as the encoder reads it.
            attention_mask: bool ``(texts, length)``, False at padding.
            labels: int64 ``(texts, length)``, -100 but at the encoder's masked tokens.
            decoder_input_ids: int64 ``(texts, length)``, as the decoder reads it; nothing is masked
                in enhanced decoding.
            decoder_labels: int64 ``(texts, length)``, -100 but at the tokens that the decoder says.
            decoder_context: what the decoder sees: bool ``(texts, length, length)``, see
                `context_mask`, or, in basic decoding, ``(texts, length)``, all but padding.
        """
        states = self.encoder(input_ids, attention_mask)[-1]
        read = torch.zeros_like(states) if self.zero_cls else states
        stream = self.decode(read, decoder_input_ids, decoder_context)
        return sum_losses(
            encoder_mlm=self.encoder.loss(states, labels),
            decoder_mlm=self.encoder.loss(stream, decoder_labels),
            **self.further_losses(states, attention_mask, decoder_labels),
        )

    @abstractmethod
    def decode(self, states: Tensor, input_ids: Tensor, seen: Tensor) -> Tensor:
        """States of the decoder, from the state at position 0; ``(texts, length, width)``."""

    def further_losses(self, states: Tensor, real: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Losses besides those of encoder and decoder; RetroMAE has none."""
        return {}


class BasicDecoding(RetroMAETraining):
    """The encoder with a decoder that reads its own masked copy."""

    def __init__(self, encoder: MaskedLM, layers: int, zero_cls: bool = False) -> None:
        super().__init__(encoder, zero_cls)
        self.decoder = nn.ModuleList(TransformerLayer(encoder.config) for _ in range(layers))

    def decode(self, states: Tensor, input_ids: Tensor, seen: Tensor) -> Tensor:
        """See `RetroMAETraining`."""
        stream = replace_after_cls(states, self.encoder.embed(input_ids))
        for layer in self.decoder:
            stream = layer(stream, stream, seen)
        return stream


class EnhancedDecoding(RetroMAETraining):
    """The encoder with a decoder of two streams."""

    def __init__(self, encoder: MaskedLM, zero_cls: bool = False) -> None:
        super().__init__(encoder, zero_cls)
        self.decoder = TransformerLayer(encoder.config)

    def decode(self, states: Tensor, input_ids: Tensor, seen: Tensor) -> Tensor:
        """See `RetroMAETraining`."""
        context = replace_after_cls(states, self.encoder.embed(input_ids))
        queries = self.queries(states[:, :1], states.shape[1])
        stream: Tensor = self.decoder(queries, context, seen)
        return stream

    def queries(self, cls: Tensor, length: int) -> Tensor:
        """H1 from h_0 ``(texts, 1, width)``: ``(texts, length, width)``."""
        return cls + self.encoder.positions(length)
