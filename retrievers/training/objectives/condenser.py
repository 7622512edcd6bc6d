"""Condenser and coCondenser: masked tokens are predicted from early states and the late ``[CLS]``.

**Condenser.** Gao and Callan, "Condenser: a Pre-training Architecture for Dense Retrieval", EMNLP
2021, https://arxiv.org/abs/2104.08253. The encoder of L layers is split after layer S. A short head
reads

    [ h_cls^L ; h_1^S … h_N^S ]

so that information about the text from the layers after S reaches the head only through ``[CLS]``.
Let m be the masked tokens, x the original text and x̃ the masked text:

    L_mlm   = − 1/|m| Σ_{i ∈ m} log softmax(lm(h_i^head))[x_i]
    L_mlm^c = − 1/|m| Σ_{i ∈ m} log softmax(lm(h_i^L))[x_i]          ("late MLM")
    L       = L_mlm + L_mlm^c

lm is a single language-model head for both, tied to the word embeddings. The layers of Condenser's
head are dropped after training.

Defaults: S = L / 2 (6 of 12), 2 layers in the head, late MLM, 15 % of the tokens masked as whole
words. AdamW, learning rate 1e-4 with linear warm-up (a tenth of the steps) and decay, weight decay
0.01, 1,024 texts of 128 tokens per step, 8 epochs.

**coCondenser.** Gao and Callan, "Unsupervised Corpus Aware Language Model Pre-training for Dense
Passage Retrieval", ACL 2022, https://arxiv.org/abs/2108.05540. Two spans are drawn from each of n
documents. Let h_ij be the late ``[CLS]`` of span j of document i:

    L_ij^co = − log( exp⟨h_i1, h_i2⟩ / Σ_{kl ≠ ij} exp⟨h_ij, h_kl⟩ )
    L       = L_mlm + L_mlm^c + 1/2n Σ_i Σ_j L_ij^co

The first two losses are over the masked tokens of all spans. The contrastive loss covers about
2,048 documents at once by gradient caching, including the spans of all processes.

The authors' code reads documents that were cut into spans beforehand, draws two spans of each, and
skips documents with one span. Here two parts with equally many tokens are drawn from the complete
document. They are its halves if it is short. They may begin and end inside a word, as in the
authors' code when a span exceeds the length.

Defaults: as Condenser, whose checkpoint and head it starts from, with about 2,048 documents per
step and spans of 128 tokens.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from foundation.errors import BenchError
from retrievers.training.objectives.masked_lm import (
    MaskedLM,
    TransformerLayer,
    encode_in_parts,
    put_cls,
    span_contrast,
    sum_losses,
)
from retrievers.training.objectives.masking import IGNORED, TokenBatch, draw_spans
from retrievers.training.objectives.mlm import MLM


class Condenser(MLM, kw_only=True):
    """Settings of Condenser, in addition to the settings of `MLM`.

    Attributes:
        head_layers: number of layers in the head.
        skip_from: layer whose token states the head reads. 0 is the embedding layer, None the
            middle layer.
        late_mlm: whether the last layer also predicts masked tokens.
    """

    head_layers: Annotated[int, msgspec.Meta(ge=1)] = 2
    skip_from: Annotated[int, msgspec.Meta(ge=0)] | None = None
    late_mlm: bool = True

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """Build the training module around ``encoder``."""
        return CondenserTraining(encoder, self)


class CondenserTraining(nn.Module):
    """Encoder with Condenser's head."""

    def __init__(self, encoder: MaskedLM, settings: Condenser) -> None:
        super().__init__()
        depth, skip_from = len(encoder.layers), settings.skip_from
        self.skip_from = depth // 2 if skip_from is None else skip_from
        if self.skip_from >= depth:
            raise BenchError(
                f"skip_from is {self.skip_from}, but the encoder has {depth} layers",
                f"Use skip_from = {depth - 1} or less: later layers collect the text in [CLS].",
            )
        self.encoder, self.late_mlm = encoder, settings.late_mlm
        layers = (TransformerLayer(encoder.config) for _ in range(settings.head_layers))
        self.layers = nn.ModuleList(layers)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """Return ``loss``, ``head_mlm`` and ``late_mlm``, see `MLMTraining.forward`."""
        _, head, late = self.outputs(input_ids, attention_mask, labels)
        return self.total(head, late, labels)

    def outputs(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the late ``[CLS]`` vectors ``(texts, width)``, and two losses of each text.

        These are the sums of the cross-entropies of masked tokens at the head and at the last
        layer, each ``(texts,)``. They do not depend on other texts of the batch.
        """
        states = self.encoder(input_ids, attention_mask)
        late, early = states[-1], states[self.skip_from]
        hidden = put_cls(late, early)
        for layer in self.layers:
            hidden = layer(hidden, hidden, attention_mask)
        at_head = self._cross_entropies(hidden, labels)
        at_last = self._cross_entropies(late, labels) if self.late_mlm else at_head.new_zeros(())
        return late[:, 0], at_head, at_last.expand_as(at_head)

    def total(self, head: Tensor, late: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Turn sums over texts, ``(texts,)``, into means over all masked tokens of the batch."""
        masked = (labels != IGNORED).sum().clamp(min=1)
        losses = {"head_mlm": head.sum() / masked}
        if self.late_mlm:
            losses["late_mlm"] = late.sum() / masked
        return sum_losses(**losses)

    def _cross_entropies(self, states: Tensor, labels: Tensor) -> Tensor:
        texts, _ = places = (labels != IGNORED).nonzero(as_tuple=True)
        losses = functional.cross_entropy(
            self.encoder.head(states[places]), labels[places], reduction="none"
        )
        return losses.new_zeros(len(labels)).index_add(0, texts, losses)


class CoCondenser(Condenser, kw_only=True):
    """Settings of coCondenser: all settings of `Condenser`, and gradient caching.

    Attributes:
        sub_batch: spans that are encoded at a time. None encodes all at once. A batch has two spans
            for each of its documents.
    """

    reads_documents: ClassVar[bool] = True
    sub_batch: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """Build the training module around ``encoder``."""
        return CoCondenserTraining(encoder, self)

    def read(
        self, texts: Sequence[str], tokenizer: Any, max_tokens: int, rng: np.random.Generator
    ) -> TokenBatch:
        """Draw two spans of each text, which become neighbouring rows, see `Objective.read`."""
        return draw_spans(tokenizer, texts, max_tokens, ["random"], rng)


class CoCondenserTraining(CondenserTraining):
    """Condenser's encoder and head, whose saved weights fit, with a contrastive loss."""

    def __init__(self, encoder: MaskedLM, settings: CoCondenser) -> None:
        super().__init__(encoder, settings)
        self.sub_batch = settings.sub_batch

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """Return ``loss`` and its components ``head_mlm``, ``late_mlm`` and ``contrast``.

        Rows 2i and 2i + 1 are spans of document i.
        """
        batch = (input_ids, attention_mask, labels)
        vectors, head, late = encode_in_parts(self.outputs, batch, self.sub_batch)
        losses = self.total(head, late, labels)
        contrast = span_contrast(vectors)
        return {**losses, "loss": losses["loss"] + contrast, "contrast": contrast}
