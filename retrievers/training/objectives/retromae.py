"""RetroMAE, DupMAE and CoT-MAE: a text is reconstructed from a sentence embedding.

**RetroMAE.** Xiao et al., "RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked
Auto-Encoder", EMNLP 2022, https://arxiv.org/abs/2205.12035. Let h_0 be the encoder's last hidden
state at ``[CLS]`` for a text masked at 30 %, e the word embeddings and p the position embeddings:

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

**DupMAE (RetroMAE v2).** Xiao, Liu, Shao and Cao, "RetroMAE-2: Duplex Masked Auto-Encoder For
Pre-Training Retrieval-Oriented Language Models", ACL 2023, https://arxiv.org/abs/2305.02564 (first
version https://arxiv.org/abs/2211.08769). A bag-of-words loss is added to the losses of RetroMAE
with enhanced decoding. Let h_1 … h_N be the last hidden states after ``[CLS]``, lm the
language-model head, and Set(x) the distinct tokens among the N ordinary ones of the text:

    v     = max over j ≥ 1 of lm(h_j)                     one value for each token of the vocabulary
    L_bow = − 1/N Σ_{t ∈ Set(x)} log softmax(v)[t]        mean over texts
    L     = L_enc + L_dec + w L_bow                       w = 0.1

The decoder's queries H1 are h_0 at every position, passed through the encoder's embedding layer
with positions, token type, normalisation and dropout, as in the authors' code
(src/pretrain/modeling_duplex.py). From there are also: lm, which the paper draws as a linear
projection; the masked tokens among the h_j; the mean over N; and w. The paper's equations 6 to 9
exclude masked tokens, sum over Set(x), and have no weight. The result is a plain encoder with
``[CLS]`` vectors, as in the authors' fine-tuning code: row CLS:768 of the paper's Table 4, with
.394 MRR@10 on MS MARCO. The paper's own search uses both kinds of states and reaches .410.

**CoT-MAE.** Wu et al., "ConTextual Masked Auto-Encoder for Dense Passage Retrieval", AAAI 2023,
https://arxiv.org/abs/2208.07670. Two spans A and B are drawn from each document, and each is
reconstructed from the embedding of the other. This is RetroMAE's basic decoding with the texts of a
pair exchanged, at 45 % masked: H = [h_0^A, e_B̂1 + p_1, …, e_B̂N + p_N]. Following the authors' code
(https://github.com/caskcsg/ir, cotmae: modeling.py, data.py and make_cotmae_data.py), the decoder
has two new layers, not copies of the encoder's last ones. Each pair has one of three kinds of
context, drawn at random: ``nearby`` (B follows A), ``overlap`` (B begins in the second half of A)
and ``random`` (B is any later part that shares nothing with A, as in coCondenser).

In the authors' code a span consists of complete sentences up to the maximal length or, with a
probability of 15 %, up to a shorter length drawn at random. It is cut on both sides if it exceeds
that length, and documents with one span are skipped. Here the two spans of a pair have equally many
tokens and may be cut between any two. They are its halves if a document is short.

Defaults of CoT-MAE: AdamW, learning rate 1e-4 with linear warm-up (a tenth of the steps) and decay,
weight decay 0.01, 512 documents per step, spans of 128 tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from foundation.errors import BenchError
from retrievers.training.objectives.masked_lm import MaskedLM, TransformerLayer, put_cls, sum_losses
from retrievers.training.objectives.masking import (
    IGNORED,
    NOT_A_WORD,
    Context,
    TokenBatch,
    Vocabulary,
    context_mask,
    draw_spans,
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
        """Return the encoder's and the decoder's inputs, see `Objective.batch`."""
        batch = masked_lm_batch(tokens, self.encoder_mask, vocabulary, rng)
        tokens = self.decoder_tokens(tokens)
        if self.decoding == "basic":
            inputs, labels = mask_tokens(tokens, self.decoder_mask, vocabulary, rng)
            visible = tokens.real
        else:
            inputs, labels = tokens.ids, np.where(tokens.words == NOT_A_WORD, IGNORED, tokens.ids)
            visible = context_mask(tokens, self.decoder_mask, rng)
        decoder = {"decoder_input_ids": inputs, "decoder_labels": labels}
        return {**batch, **decoder, "decoder_context": visible}

    def decoder_tokens(self, tokens: TokenBatch) -> TokenBatch:
        """Return the texts that the decoder reconstructs, given the encoder's ``tokens``."""
        return tokens


class RetroMAETraining(nn.Module, ABC):
    """Encoder with a decoder, which subclasses add."""

    def __init__(self, encoder: MaskedLM, reads: DecoderReads = "cls") -> None:
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

        Ids and labels are int64 ``(texts, length)``, and labels -100 except at predicted tokens.
        ``decoder_context`` is True at tokens that the decoder sees: ``(texts, length, length)`` in
        enhanced decoding, see `context_mask`, and ``(texts, length)`` in basic decoding.
        """
        states = self.encoder(input_ids, attention_mask)[-1]
        stream = self.decode(self._read(states), decoder_input_ids, decoder_context)
        return sum_losses(
            encoder_mlm=self.encoder.loss(states, labels),
            decoder_mlm=self.encoder.loss(stream, decoder_labels),
            **self.further_losses(states, attention_mask, decoder_labels),
        )

    def _read(self, states: Tensor) -> Tensor:
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

        Position 0 of the encoder's last ``states`` is used.
        """

    def further_losses(self, states: Tensor, real: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Return losses in addition to encoder and decoder losses. RetroMAE has none."""
        return {}


class BasicDecoding(RetroMAETraining):
    """Encoder with a decoder that reads its own masked copy of the text."""

    def __init__(self, encoder: MaskedLM, layers: int, reads: DecoderReads = "cls") -> None:
        super().__init__(encoder, reads)
        self.decoder = nn.ModuleList(TransformerLayer(encoder.config) for _ in range(layers))

    def decode(self, states: Tensor, input_ids: Tensor, visible: Tensor) -> Tensor:
        """Return the decoder's states, see `RetroMAETraining.decode`."""
        stream = put_cls(states, self.encoder.embed(input_ids))
        for layer in self.decoder:
            stream = layer(stream, stream, visible)
        return stream


class EnhancedDecoding(RetroMAETraining):
    """Encoder with a decoder layer of two streams."""

    def __init__(self, encoder: MaskedLM, reads: DecoderReads = "cls") -> None:
        super().__init__(encoder, reads)
        self.decoder = TransformerLayer(encoder.config)

    def decode(self, states: Tensor, input_ids: Tensor, visible: Tensor) -> Tensor:
        """Return the decoder's states, see `RetroMAETraining.decode`."""
        context = put_cls(states, self.encoder.embed(input_ids))
        queries = self.queries(states[:, :1], states.shape[1])
        stream: Tensor = self.decoder(queries, context, visible)
        return stream

    def queries(self, cls: Tensor, length: int) -> Tensor:
        """Return H1 for texts of ``length`` tokens, ``(texts, length, width)``, from h_0."""
        return cls + self.encoder.positions(length)


class DupMAE(Settings, kw_only=True):
    """Settings of DupMAE, with RetroMAE's defaults.

    Attributes:
        encoder_mask: share of the tokens masked for the encoder, see `RetroMAE`.
        decoder_mask: share of the tokens masked for the decoder, see `RetroMAE` (enhanced
            decoding).
        bow_weight: w, with the default of the authors' code.
    """

    encoder_mask: Rate = 0.3
    decoder_mask: Rate = 0.5
    bow_weight: Annotated[float, msgspec.Meta(gt=0)] = 0.1

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """Build the training module around ``encoder``."""
        return DupMAETraining(encoder, self.bow_weight)

    def batch(self, tokens: TokenBatch, vocabulary: Vocabulary, rng: np.random.Generator) -> Batch:
        """Return RetroMAE's batch, see `Objective.batch`."""
        retromae = RetroMAE(encoder_mask=self.encoder_mask, decoder_mask=self.decoder_mask)
        return retromae.batch(tokens, vocabulary, rng)


class DupMAETraining(EnhancedDecoding):
    """Encoder with RetroMAE's decoder, whose saved weights fit, and a bag-of-words loss."""

    def __init__(self, encoder: MaskedLM, bow_weight: float) -> None:
        super().__init__(encoder)
        self.bow_weight = bow_weight

    def further_losses(self, states: Tensor, real: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Return w L_bow under the name ``bow``."""
        return {"bow": self.bow_weight * self.bag_loss(states, real, tokens)}

    def queries(self, cls: Tensor, length: int) -> Tensor:
        """Return H1 for texts of ``length`` tokens, see `EnhancedDecoding.queries`."""
        return self.encoder.embed_vectors(cls.expand(-1, length, -1))

    def bag_loss(self, states: Tensor, real: Tensor, tokens: Tensor) -> Tensor:
        """Return L_bow, a scalar. The arguments are those of `further_losses`."""
        logits = self.encoder.head(states[:, 1:])
        logits = logits.masked_fill(~real[:, 1:, None].bool(), float("-inf"))
        logs = functional.log_softmax(logits.amax(dim=1), dim=1)
        ordinary = tokens != IGNORED
        bag = torch.zeros_like(logs).scatter_reduce(
            1, tokens.where(ordinary, 0), ordinary.to(logs.dtype), "amax"
        )
        lengths = ordinary.sum(dim=1).clamp(min=1)
        return -((bag * logs).sum(dim=1) / lengths).mean()


class CoTMAE(RetroMAE, kw_only=True):
    """Settings of CoT-MAE: all settings of `RetroMAE` with this paper's defaults, and the contexts.

    Attributes:
        contexts: kinds of contexts, one of which is drawn for each document.
    """

    reads_documents: ClassVar[bool] = True
    decoding: Literal["enhanced", "basic"] = "basic"
    decoder_layers: Annotated[int, msgspec.Meta(ge=1, le=3)] = 2
    decoder_mask: Rate = 0.45
    contexts: Annotated[tuple[Context, ...], msgspec.Meta(min_length=1)] = get_args(Context)

    def read(
        self, texts: Sequence[str], tokenizer: Any, max_tokens: int, rng: np.random.Generator
    ) -> TokenBatch:
        """Draw two spans of each text, which become neighbouring rows, see `Objective.read`."""
        return draw_spans(tokenizer, texts, max_tokens, self.contexts, rng)

    def decoder_tokens(self, tokens: TokenBatch) -> TokenBatch:
        """Return ``tokens`` with the two spans of each document exchanged."""
        return tokens.take(np.arange(len(tokens.ids)) ^ 1)  # rows 1, 0, 3, 2, …
