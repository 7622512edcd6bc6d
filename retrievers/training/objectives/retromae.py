"""RetroMAE: a text is reconstructed from its sentence embedding and little else.

Xiao et al., "RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder",
EMNLP 2022, https://arxiv.org/abs/2205.12035. Let h_0 be the encoder's last hidden state at
``[CLS]`` for a text masked at 30 %, e the word embeddings and p the position embeddings:

    L = L_enc + L_dec                      L_enc: masked language modelling, as in `mlm`

Basic decoding: one to three layers read the decoder's own masked copy x̂ of the text (50 % masked):

    H = [h_0, e_x̂1 + p_1, …, e_x̂N + p_N]
    L_dec: cross-entropy over the masked tokens of x̂

Enhanced decoding: one layer of two streams reads the unmasked text x:

    H1 = [h_0 + p_0, …, h_0 + p_N]         H2 = [h_0, e_x1 + p_1, …, e_xN + p_N]
    A = softmax(H1 W_Q (H2 W_K)ᵀ / √d + M) H2 W_V        residual: H1
    M_ij = 0 if j = 0, or if j ≠ i and j is in the context drawn for i; else −∞
    L_dec: cross-entropy over all tokens except special ones

The context of each token is one of up to 256 draws for its text. Each draw hides half of the tokens
as whole words, as in the authors' code (https://github.com/staoxiao/RetroMAE). e + p is the
encoder's embedding layer, including its normalisation; p_0 … p_N are added to h_0 without it. The
decoder shares embeddings and head with the encoder and is dropped after training.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from foundation.errors import BenchError
from retrievers.training.objectives.masked_lm import MaskedLM, TransformerLayer, put_cls, sum_losses
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

DecoderReads = Literal["cls", "zero", "other"]


class RetroMAE(Settings, kw_only=True):
    """Settings of RetroMAE, with the paper's defaults.

    Attributes:
        decoding: ``basic`` or ``enhanced``, which has one layer only.
        decoder_layers: number of layers in the decoder.
        encoder_mask: share of tokens hidden from the encoder.
        decoder_mask: share of tokens hidden from the decoder: one draw per text in basic decoding,
            one of up to 256 draws for each token in enhanced decoding.
        decoder_reads: sentence embedding that the decoder reads: ``cls`` is h_0. Two control
            experiments are not in the paper: ``zero`` replaces h_0 by zeros, so that nothing passes
            through it. ``other`` replaces it by h_0 of the previous text of the batch, so that the
            encoder's position 0 gets a gradient but no information about the decoder's text.
    """

    decoding: Literal["enhanced", "basic"] = "enhanced"
    decoder_layers: Annotated[int, msgspec.Meta(ge=1, le=3)] = 1
    encoder_mask: Rate = 0.3
    decoder_mask: Rate = 0.5
    decoder_reads: DecoderReads = "cls"

    def __post_init__(self) -> None:
        if self.decoding == "enhanced" and self.decoder_layers != 1:
            raise ValueError("enhanced decoding has one layer: use basic decoding for more")

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """Build the training module around ``encoder``."""
        if self.decoding == "enhanced":
            return EnhancedDecoding(encoder, self.decoder_reads)
        return BasicDecoding(encoder, self.decoder_layers, self.decoder_reads)

    def batch(self, tokens: TokenBatch, vocabulary: Vocabulary, rng: np.random.Generator) -> Batch:
        """Return the encoder's and the decoder's inputs, see `Objective.batch`.

        Args:
            tokens: tokens of the texts.
            vocabulary: size and mask token of the vocabulary.
            rng: random generator.
        """
        batch = masked_lm_batch(tokens, self.encoder_mask, vocabulary, rng)
        return batch | self._decoder_batch(self.decoder_tokens(tokens), vocabulary, rng)

    def decoder_tokens(self, tokens: TokenBatch) -> TokenBatch:
        """Return the texts that the decoder reconstructs, given the encoder's ``tokens``."""
        return tokens

    def _decoder_batch(
        self, tokens: TokenBatch, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> Batch:
        if self.decoding == "basic":
            inputs, labels = mask_tokens(tokens, self.decoder_mask, vocabulary, rng)
            visible = tokens.real
        else:
            inputs, labels = tokens.ids, np.where(tokens.words == NOT_A_WORD, IGNORED, tokens.ids)
            visible = context_mask(tokens, self.decoder_mask, rng)
        return {"decoder_input_ids": inputs, "decoder_labels": labels, "decoder_context": visible}


class RetroMAETraining(nn.Module, ABC):
    """Encoder with a decoder, which subclasses add."""

    def __init__(self, encoder: MaskedLM, reads: DecoderReads = "cls") -> None:
        """Train ``encoder``. For ``reads`` see `RetroMAE.decoder_reads`."""
        super().__init__()
        self.encoder, self.reads = encoder, reads

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        decoder_input_ids: Tensor,
        decoder_labels: Tensor,
        decoder_context: Tensor,
    ) -> dict[str, Tensor]:
        """Return all losses by name, with their sum as ``loss``.

        Args:
            input_ids: the encoder's inputs, int64 ``(texts, length)``.
            attention_mask: bool ``(texts, length)``, False at padding.
            labels: int64 ``(texts, length)``, -100 except at the encoder's masked tokens.
            decoder_input_ids: the decoder's inputs, int64 ``(texts, length)``, which are not masked
                in enhanced decoding.
            decoder_labels: int64 ``(texts, length)``, -100 except at tokens that the decoder
                predicts.
            decoder_context: tokens that the decoder sees: bool ``(texts, length, length)`` in
                enhanced decoding, see `context_mask`, and ``(texts, length)`` in basic decoding,
                False at padding.

        Raises:
            BenchError: If the decoder reads another text's embedding in a batch of one text.
        """
        states = self.encoder(input_ids, attention_mask)[-1]
        stream = self.decode(self._read(states), decoder_input_ids, decoder_context)
        return sum_losses(
            encoder_mlm=self.encoder.loss(states, labels),
            decoder_mlm=self.encoder.loss(stream, decoder_labels),
            **self.further_losses(states, attention_mask, decoder_labels),
        )

    def _read(self, states: Tensor) -> Tensor:
        """Return the states whose position 0 the decoder reads."""
        if self.reads == "zero":
            return torch.zeros_like(states)
        if self.reads == "other":
            if len(states) < 2:
                raise BenchError(
                    "decoder_reads = other needs two texts or more in a batch, and there is one",
                    "Raise batch_size.",
                )
            return states.roll(1, dims=0)
        return states

    @abstractmethod
    def decode(self, states: Tensor, input_ids: Tensor, visible: Tensor) -> Tensor:
        """Return the decoder's states, ``(texts, length, width)``.

        Args:
            states: encoder's last states, ``(texts, length, width)``, of which position 0 is used.
            input_ids: decoder's inputs, int64 ``(texts, length)``.
            visible: tokens that the decoder sees, as ``decoder_context`` of `forward`.
        """

    def further_losses(self, states: Tensor, real: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Return losses in addition to encoder and decoder losses. RetroMAE has none.

        Args:
            states: last hidden states, ``(texts, length, width)``.
            real: bool ``(texts, length)``, False at padding.
            tokens: int64 ``(texts, length)``, the decoder's labels.
        """
        return {}


class BasicDecoding(RetroMAETraining):
    """Encoder with a decoder that reads its own masked copy of the text."""

    def __init__(self, encoder: MaskedLM, layers: int, reads: DecoderReads = "cls") -> None:
        """Build the decoder around an encoder.

        Args:
            encoder: encoder to train.
            layers: number of layers in the decoder.
            reads: see `RetroMAE.decoder_reads`.
        """
        super().__init__(encoder, reads)
        self.decoder = nn.ModuleList(TransformerLayer(encoder.config) for _ in range(layers))

    def decode(self, states: Tensor, input_ids: Tensor, visible: Tensor) -> Tensor:
        """Return the decoder's states, ``(texts, length, width)``.

        Args:
            states: encoder's last states, ``(texts, length, width)``, of which position 0 is used.
            input_ids: decoder's masked inputs, int64 ``(texts, length)``.
            visible: bool ``(texts, length)``, False at padding.
        """
        stream = put_cls(states, self.encoder.embed(input_ids))
        for layer in self.decoder:
            stream = layer(stream, stream, visible)
        return stream


class EnhancedDecoding(RetroMAETraining):
    """Encoder with a decoder layer of two streams."""

    def __init__(self, encoder: MaskedLM, reads: DecoderReads = "cls") -> None:
        """Build the decoder around ``encoder``. For ``reads`` see `RetroMAE.decoder_reads`."""
        super().__init__(encoder, reads)
        self.decoder = TransformerLayer(encoder.config)

    def decode(self, states: Tensor, input_ids: Tensor, visible: Tensor) -> Tensor:
        """Return the decoder's states, ``(texts, length, width)``.

        Args:
            states: encoder's last states, ``(texts, length, width)``, of which position 0 is used.
            input_ids: tokens of the texts, int64 ``(texts, length)``.
            visible: context of each token, bool ``(texts, length, length)``.
        """
        context = put_cls(states, self.encoder.embed(input_ids))
        queries = self.queries(states[:, :1], states.shape[1])
        stream: Tensor = self.decoder(queries, context, visible)
        return stream

    def queries(self, cls: Tensor, length: int) -> Tensor:
        """Return H1 for texts of ``length`` tokens, ``(texts, length, width)``.

        Args:
            cls: h_0, ``(texts, 1, width)``.
            length: number of positions.
        """
        return cls + self.encoder.positions(length)
