"""coCondenser: Condenser on pairs of spans, with a contrastive loss between their vectors.

Gao and Callan, "Unsupervised Corpus Aware Language Model Pre-training for Dense Passage Retrieval",
ACL 2022, https://arxiv.org/abs/2108.05540. Two spans are drawn from each of n documents. Let h_ij
be the late ``[CLS]`` of span j of document i:

    L_ij^co = − log( exp⟨h_i1, h_i2⟩ / Σ_{kl ≠ ij} exp⟨h_ij, h_kl⟩ )
    L       = L_mlm + L_mlm^c + 1/2n Σ_i Σ_j L_ij^co

The first two losses are Condenser's, over the masked tokens of all spans. The contrastive loss
covers about 2,048 documents at once by gradient caching, including the spans of all processes.

The authors' code reads documents that were cut into spans beforehand, draws two spans of each, and
skips documents with one span. Here two parts with equally many tokens are drawn from the complete
document. They are its halves if it is short. They may begin and end inside a word, as in the
authors' code when a span exceeds the length.

Defaults: as Condenser, whose checkpoint and head it starts from. AdamW, learning rate 1e-4 with
linear warm-up (a tenth of the steps) and decay, weight decay 0.01, about 2,048 documents per step,
8 epochs, spans of 128 tokens.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from torch import Tensor, nn

from retrievers.training.objectives.condenser import Condenser, CondenserTraining
from retrievers.training.objectives.masked_lm import MaskedLM, encode_in_parts, span_contrast
from retrievers.training.objectives.masking import TokenBatch, draw_spans


class CoCondenser(Condenser, kw_only=True):
    """Settings of coCondenser: all settings of `Condenser`, and gradient caching.

    Attributes:
        sub_batch: spans that are encoded at a time. None encodes all at once. A batch has two spans
            for each of its documents.
    """

    reads_documents: ClassVar[bool] = True
    sub_batch: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """Build the training module around ``encoder``.

        Raises:
            BenchError: If the encoder has no layer after ``skip_from``.
        """
        return CoCondenserTraining(encoder, self)

    def read(
        self, texts: Sequence[str], tokenizer: Any, max_tokens: int, rng: np.random.Generator
    ) -> TokenBatch:
        """Draw two spans of each text, which become neighbouring rows, see `Objective.read`.

        Args:
            texts: complete documents.
            tokenizer: fast Hugging Face tokenizer.
            max_tokens: longest span in tokens, including special tokens.
            rng: random generator.
        """
        return draw_spans(tokenizer, texts, max_tokens, ["random"], rng)


class CoCondenserTraining(CondenserTraining):
    """Condenser's encoder and head, whose saved weights fit, with a contrastive loss."""

    def __init__(self, encoder: MaskedLM, settings: CoCondenser) -> None:
        """Build the head that ``settings`` describe around ``encoder``."""
        super().__init__(encoder, settings)
        self.sub_batch = settings.sub_batch

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """Return ``loss`` and its components ``head_mlm``, ``late_mlm`` and ``contrast``.

        Args:
            input_ids: int64 ``(2n, length)``. Rows 2i and 2i + 1 are spans of document i.
            attention_mask: bool ``(2n, length)``, False at padding.
            labels: int64 ``(2n, length)``, -100 at tokens that are not masked.
        """
        batch = (input_ids, attention_mask, labels)
        vectors, head, late = encode_in_parts(self.outputs, batch, self.sub_batch)
        losses = self.total(head, late, labels)
        contrast = span_contrast(vectors)
        return {**losses, "loss": losses["loss"] + contrast, "contrast": contrast}
