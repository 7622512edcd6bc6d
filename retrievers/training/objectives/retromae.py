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

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from foundation.records import Record
from retrievers.training.objectives.example import Collator, Example
from retrievers.training.objectives.masked_lm import MaskedLM, TransformerLayer
from retrievers.training.objectives.masking import (
    IGNORED,
    NOT_A_WORD,
    TokenBatch,
    Vocabulary,
    context_mask,
    generator,
    masked_copy,
    tokenize,
)
from retrievers.training.objectives.objective import Rate


class RetroMAE(Record, kw_only=True, tag_field="name", tag="retromae"):
    """Settings of RetroMAE; the defaults are the paper's.

    Attributes:
        decoding: ``enhanced`` exists for one layer only.
        encoder_mask: share of the tokens that the encoder does not see.
        decoder_mask: share of the tokens that the decoder does not see: one draw a text in basic
            decoding, one of up to 256 draws for each token in enhanced decoding.
        decoder_reads: ``zero`` puts a vector of zeros in the place of h_0, so that nothing goes
            through the sentence embedding: a control of what it causes, not the paper's.
    """

    name: ClassVar[str] = "retromae"
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
        blind = self.decoder_reads == "zero"
        if self.decoding == "enhanced":
            return EnhancedDecoding(encoder, blind)
        return BasicDecoding(encoder, self.decoder_layers, blind)

    def collator(self, tokenizer: Any, max_tokens: int) -> Collator:
        """See `Objective`."""
        vocabulary = Vocabulary.of(tokenizer)

        def collate(examples: Sequence[Example]) -> dict[str, Tensor]:
            rng = generator(examples)
            tokens = tokenize(tokenizer, [example["text"] for example in examples], max_tokens)
            inputs, labels = masked_copy(tokens, self.encoder_mask, vocabulary, rng)
            batch = {
                "input_ids": inputs,
                "attention_mask": torch.from_numpy(tokens.real),
                "labels": labels,
            }
            return batch | self._decoder_batch(tokens, vocabulary, rng)

        return collate

    def _decoder_batch(
        self, tokens: TokenBatch, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> dict[str, Tensor]:
        if self.decoding == "basic":
            inputs, labels = masked_copy(tokens, self.decoder_mask, vocabulary, rng)
            return {"decoder_input_ids": inputs, "decoder_labels": labels}
        labels = torch.from_numpy(np.where(tokens.words == NOT_A_WORD, IGNORED, tokens.ids))
        return {
            "decoder_input_ids": torch.from_numpy(tokens.ids),
            "decoder_labels": labels,
            "decoder_context": context_mask(tokens, self.decoder_mask, rng),
        }


class BasicDecoding(nn.Module):
    """The encoder with a decoder that reads its own masked copy; ``blind``: zeros for h_0."""

    def __init__(self, encoder: MaskedLM, layers: int, blind: bool = False) -> None:
        super().__init__()
        self.encoder, self.blind = encoder, blind
        self.decoder = nn.ModuleList(TransformerLayer(encoder.config) for _ in range(layers))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        decoder_input_ids: Tensor,
        decoder_labels: Tensor,
    ) -> dict[str, Tensor]:
        """Both losses and their sum.

        Args:
            input_ids: int64 ``(texts, length)``, as the encoder reads it.
            attention_mask: bool ``(texts, length)``, False at padding.
            labels: int64 ``(texts, length)``, -100 but at the encoder's masked tokens.
            decoder_input_ids: int64 ``(texts, length)``, as the decoder reads it.
            decoder_labels: int64 ``(texts, length)``, -100 but at the decoder's masked tokens.
        """
        states = self.encoder(input_ids, attention_mask)[-1]
        read = torch.zeros_like(states) if self.blind else states
        stream = after_cls(read, self.encoder.embed(decoder_input_ids))
        for layer in self.decoder:
            stream = layer(stream, stream, attention_mask)
        return summed(
            encoder_mlm=self.encoder.loss(states, labels),
            decoder_mlm=self.encoder.loss(stream, decoder_labels),
        )


class EnhancedDecoding(nn.Module):
    """The encoder with a decoder of two streams; ``blind``: zeros for h_0."""

    def __init__(self, encoder: MaskedLM, blind: bool = False) -> None:
        super().__init__()
        self.encoder, self.blind = encoder, blind
        self.decoder = TransformerLayer(encoder.config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        decoder_input_ids: Tensor,
        decoder_labels: Tensor,
        decoder_context: Tensor,
    ) -> dict[str, Tensor]:
        """Both losses and their sum.

        Args:
            input_ids: int64 ``(texts, length)``, as the encoder reads it.
            attention_mask: bool ``(texts, length)``, False at padding.
            labels: int64 ``(texts, length)``, -100 but at the encoder's masked tokens.
            decoder_input_ids: int64 ``(texts, length)``, nothing masked.
            decoder_labels: int64 ``(texts, length)``, -100 at special tokens and padding.
            decoder_context: bool ``(texts, length, length)``, see `context_mask`.
        """
        states = self.encoder(input_ids, attention_mask)[-1]
        read = torch.zeros_like(states) if self.blind else states
        stream = self.decode(read, decoder_input_ids, decoder_context)
        return summed(
            encoder_mlm=self.encoder.loss(states, labels),
            decoder_mlm=self.encoder.loss(stream, decoder_labels),
        )

    def decode(self, states: Tensor, input_ids: Tensor, context_mask: Tensor) -> Tensor:
        """States of the decoder, from the state at position 0; ``(texts, length, width)``."""
        context = after_cls(states, self.encoder.embed(input_ids))
        queries = self.queries(states[:, :1], states.shape[1])
        stream: Tensor = self.decoder(queries, context, context_mask)
        return stream

    def queries(self, cls: Tensor, length: int) -> Tensor:
        """H1 from h_0 ``(texts, 1, width)``: ``(texts, length, width)``."""
        return cls + self.encoder.positions(length)


def after_cls(states: Tensor, embedded: Tensor) -> Tensor:
    """The state at position 0, then the embeddings of the other positions."""
    return torch.cat([states[:, :1], embedded[:, 1:].to(states.dtype)], dim=1)


def summed(**losses: Tensor) -> dict[str, Tensor]:
    """The losses by name, and their sum as ``loss``."""
    return {"loss": torch.stack(list(losses.values())).sum(), **losses}
