"""CoT-MAE: a text is reconstructed from the sentence embedding of its neighbour.

Wu et al., "ConTextual Masked Auto-Encoder for Dense Passage Retrieval", AAAI 2023,
https://arxiv.org/abs/2208.07670. Two spans A and B are drawn from each document. Each is the
context of the other. Let h_0^A be the encoder's last hidden state at ``[CLS]`` for A masked at 30
%, and B̂ the decoder's own masked copy of B (45 % masked). The decoder's layers read

    H = [h_0^A, e_B̂1 + p_1, …, e_B̂N + p_N]

    L = L_enc + L_dec         L_enc: masked language modelling, as in `mlm`
                              L_dec: cross-entropy over the masked tokens of B̂

for the spans of a batch in both directions: the encoder also reads B, and A is reconstructed from
h_0^B. This is RetroMAE's basic decoding with the texts of a pair exchanged. Following the authors'
code (https://github.com/caskcsg/ir, cotmae: modeling.py, data.py and make_cotmae_data.py), the
decoder has two new layers, not copies of the encoder's last ones, and shares the encoder's
embeddings and head. Both losses have equal weights. Each pair has one of three kinds of context,
drawn at random:

- ``nearby``: B follows A;
- ``overlap``: B begins in the second half of A;
- ``random``: B is any later part of the document that shares nothing with A, as in coCondenser.

In the authors' code a span consists of complete sentences up to the maximal length or, with a
probability of 15 %, up to a shorter length drawn at random. It is cut on both sides if it exceeds
that length, and documents with one span are skipped. Here the two spans of a pair have equally many
tokens and may be cut between any two. They are its halves if a document is short.

Defaults: AdamW, learning rate 1e-4 with linear warm-up (a tenth of the steps) and decay, weight
decay 0.01, 512 documents per step, spans of 128 tokens.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec
import numpy as np

from retrievers.training.objectives.masking import Context, TokenBatch, draw_spans
from retrievers.training.objectives.objective import Rate
from retrievers.training.objectives.retromae import RetroMAE


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
        """Draw two spans of each text, which become neighbouring rows, see `Objective.read`.

        Args:
            texts: complete documents.
            tokenizer: fast Hugging Face tokenizer.
            max_tokens: longest span in tokens, including special tokens.
            rng: random generator.
        """
        return draw_spans(tokenizer, texts, max_tokens, self.contexts, rng)

    def decoder_tokens(self, tokens: TokenBatch) -> TokenBatch:
        """Return ``tokens`` with the two spans of each document exchanged."""
        return tokens.take(np.arange(len(tokens.ids)) ^ 1)  # rows 1, 0, 3, 2, …
