"""SEED-Encoder: a weak autoregressive decoder must tell the text from its sentence embedding.

Lu et al., "Less is More: Pre-train a Strong Text Encoder for Dense Retrieval Using a Weak Decoder",
EMNLP 2021, https://arxiv.org/abs/2102.09206. The decoder is weak in depth and in what it may see:
to say token x_t it has the k tokens before it and h_0, the encoder's last hidden state at
``[CLS]``, so that what it lacks must be in h_0:

    L_dec = − 1/N Σ_t log P(x_t | x_{t−k} … x_{t−1}, h_0)      mean over the ordinary tokens
    L     = L_enc + L_dec                L_enc: masked language modelling, as in `mlm`

Each layer of the decoder attends to h_0 and to k places: that of x_{t−1}, from which x_t is said,
and those before it. With more than one layer a little of still earlier tokens comes through, as in
the authors' code. There h_0 has an attention of its own in each layer, unless that is switched off,
and the decoder has positions of its own and no more of the head than the word embeddings; here h_0
is among the keys of the one attention, and embeddings and head are the encoder's. The decoder is
dropped.

Defaults: 3 layers, k = 2 (the other checkpoint of the authors: 1 layer, k = 8), 15 % of the tokens
masked as in BERT (the authors' code does not say), both losses with equal weights.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import torch
from torch import Tensor, from_numpy, nn

from foundation.records import Record
from retrievers.training.objectives.example import Collator, Example
from retrievers.training.objectives.masked_lm import MaskedLM, TransformerLayer, summed
from retrievers.training.objectives.masking import (
    IGNORED,
    NOT_A_WORD,
    Vocabulary,
    generator,
    masked_batch,
    tokenize,
)
from retrievers.training.objectives.objective import Rate


class SEED(Record, kw_only=True, tag_field="name", tag="seed"):
    """Settings of SEED-Encoder.

    Attributes:
        decoder_layers: of the decoder.
        span: k, the places that a layer of the decoder attends to.
        mask: share of the tokens that the encoder does not see.
    """

    name: ClassVar[str] = "seed"
    decoder_layers: Annotated[int, msgspec.Meta(ge=1)] = 3
    span: Annotated[int, msgspec.Meta(ge=1)] = 2
    mask: Rate = 0.15

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """See `Objective`."""
        return SEEDTraining(encoder, self)

    def collator(self, tokenizer: Any, max_tokens: int) -> Collator:
        """See `Objective`; a masked text for the encoder, the text as it is for the decoder."""
        vocabulary = Vocabulary.of(tokenizer)

        def collate(examples: Sequence[Example]) -> dict[str, Tensor]:
            tokens = tokenize(tokenizer, [example["text"] for example in examples], max_tokens)
            batch = masked_batch(tokens, self.mask, vocabulary, generator(examples))
            ids, ordinary = from_numpy(tokens.ids), from_numpy(tokens.words != NOT_A_WORD)
            return batch | {
                "decoder_input_ids": ids[:, :-1],
                "decoder_labels": ids.masked_fill(~ordinary, IGNORED)[:, 1:],
            }

        return collate


class SEEDTraining(nn.Module):
    """The encoder and the weak decoder."""

    def __init__(self, encoder: MaskedLM, settings: SEED) -> None:
        super().__init__()
        self.encoder = encoder
        self.span = settings.span
        self.decoder = nn.ModuleList(
            TransformerLayer(encoder.config) for _ in range(settings.decoder_layers)
        )

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
            labels: int64 ``(texts, length)``, -100 but at the masked tokens.
            decoder_input_ids: int64 ``(texts, length - 1)``, nothing masked.
            decoder_labels: int64 ``(texts, length - 1)``, the token that follows; -100 where that
                is special or padding.
        """
        states = self.encoder(input_ids, attention_mask)[-1]
        stream = self.decode(states[:, :1], decoder_input_ids)
        return summed(
            encoder_mlm=self.encoder.loss(states, labels),
            decoder=self.encoder.loss(stream, decoder_labels),
        )

    def decode(self, cls: Tensor, input_ids: Tensor) -> Tensor:
        """States from which the next tokens are said, ``(texts, length - 1, width)``."""
        stream = self.encoder.embed(input_ids).to(cls.dtype)
        allowed = window(stream.shape[1], self.span, stream.device)
        for layer in self.decoder:
            context = torch.cat([cls, stream], dim=1)
            stream = layer(stream, context, allowed.expand(len(stream), -1, -1))
        return stream


def window(length: int, span: int, device: torch.device) -> Tensor:
    """Where each place may attend, bool ``(length, 1 + length)``.

    Column 0 is the sentence embedding, which all see; column 1 + j is place j, which the places
    from j to j + span - 1 see. Padding is on the right, where nothing before it looks.
    """
    places = torch.arange(length, device=device)
    behind = places[:, None] - places
    seen = (behind >= 0) & (behind < span)
    return torch.cat([torch.ones_like(seen[:, :1]), seen], dim=1)
