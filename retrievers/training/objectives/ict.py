"""Inverse cloze task: a sentence must find the passage that it was taken from.

Lee, Chang and Toutanova, "Latent Retrieval for Weakly Supervised Open Domain Question Answering",
ACL 2019, https://arxiv.org/abs/1906.00300. A sentence is drawn from each of n texts; with q_i its
vector and b_i that of the text without it or, in one text of ten, with it, so that words may be
matched too:

    L = − 1/n Σ_i log( exp⟨q_i, b_i⟩ / Σ_j exp⟨q_i, b_j⟩ )

The paper has two encoders, and projects their ``[CLS]`` vectors to 128 dimensions; the authors'
released code has one. Here one encoder reads both and nothing is projected, so that a plain
checkpoint remains. The title, which their code reads before the text, is not told from it here, and
sentences are cut where texts are, not after 64 tokens.

Defaults of the paper: the sentence is taken out of 9 texts of 10; batches of 4,096, which gradient
caching makes fit, texts of 288 tokens, learning rate 1e-4, 100,000 steps of which 10,000 warm up.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from torch import Tensor, from_numpy, nn

from foundation.records import Record
from retrievers.training.objectives.contrast import contrast
from retrievers.training.objectives.example import Collator, Example
from retrievers.training.objectives.gradient_cache import in_sub_batches
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.masking import generator, tokenize
from retrievers.training.objectives.simcse import freeze_head
from retrievers.training.objectives.spans import sentence_and_rest


class ICT(Record, kw_only=True, tag_field="name", tag="ict"):
    """Settings of the inverse cloze task.

    Attributes:
        kept: share of the texts that keep their sentence.
        sub_batch: texts that are encoded at a time, see `gradient_cache`; None encodes all at once.
    """

    name: ClassVar[str] = "ict"
    contrasts: ClassVar[bool] = True
    kept: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    sub_batch: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """See `Objective`."""
        return ICTTraining(encoder, self.sub_batch)

    def collator(self, tokenizer: Any, max_tokens: int) -> Collator:
        """See `Objective`; a sentence of each text, and the text without it."""

        def collate(examples: Sequence[Example]) -> dict[str, Tensor]:
            rng = generator(examples)
            pairs = [
                sentence_and_rest(example["text"], max_tokens, self.kept, rng)
                for example in examples
            ]
            sentences = tokenize(tokenizer, [sentence for sentence, _ in pairs], max_tokens)
            rests = tokenize(tokenizer, [rest for _, rest in pairs], max_tokens)
            return {
                "input_ids": from_numpy(rests.ids),
                "attention_mask": from_numpy(rests.real),
                "sentence_ids": from_numpy(sentences.ids),
                "sentence_mask": from_numpy(sentences.real),
            }

        return collate


class ICTTraining(nn.Module):
    """The encoder and nothing else."""

    def __init__(self, encoder: MaskedLM, sub_batch: int | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.sub_batch = sub_batch
        freeze_head(encoder)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        sentence_ids: Tensor,
        sentence_mask: Tensor,
    ) -> dict[str, Tensor]:
        """The contrast of sentences with texts.

        Args:
            input_ids: int64 ``(texts, length)``, the text without its sentence.
            attention_mask: bool ``(texts, length)``, False at padding.
            sentence_ids: int64 ``(texts, length of sentences)``.
            sentence_mask: bool ``(texts, length of sentences)``, False at padding.
        """
        sentences = (sentence_ids, sentence_mask)
        (anchors,) = in_sub_batches(self.vectors, sentences, self.sub_batch)
        (passages,) = in_sub_batches(self.vectors, (input_ids, attention_mask), self.sub_batch)
        return {"loss": contrast(anchors, passages)}

    def vectors(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor]:
        """``[CLS]`` vectors, ``(texts, width)``."""
        return (self.encoder(input_ids, attention_mask)[-1][:, 0],)
