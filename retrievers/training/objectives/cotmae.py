"""CoT-MAE: a text is reconstructed from the sentence embedding of its neighbour.

Wu et al., "ConTextual Masked Auto-Encoder for Dense Passage Retrieval", AAAI 2023,
https://arxiv.org/abs/2208.07670. Two spans A and B are drawn from each document, each the context
of the other. With h_0^A the encoder's last hidden state at ``[CLS]``, read from A masked at 30 %,
and B̂ the decoder's own masked copy of B (45 % masked), the decoder's layers read

    H = [h_0^A, e_B̂1 + p_1, …, e_B̂N + p_N]

    L = L_enc + L_dec         L_enc: masked language modelling, as in `mlm`
                              L_dec: cross-entropy over the tokens that B̂ masks

over the spans of a batch, in both directions: B is read by the encoder too, and A told from h_0^B.
It is RetroMAE's basic decoding with the texts of a pair exchanged. From the authors' code
(https://github.com/caskcsg/ir, cotmae: modeling.py, data.py and make_cotmae_data.py): two layers in
the decoder, new ones and not the encoder's last; embeddings and head, which are the encoder's; both
losses with equal weights; and for each pair one of three kinds of context at random:

- ``nearby``: B is what follows A;
- ``overlap``: B begins in the second half of A;
- ``random``: any B of the document that shares nothing with A, as in coCondenser.

There spans are whole sentences up to the length or, with a probability of 15 %, up to a shorter one
drawn at random, are cut on both sides where they exceed it, and documents of one span are left out.
Here the spans of a pair have equally many tokens, cut between any two: halves of a short document.

Defaults: AdamW, learning rate 1e-4 with linear warm-up (a tenth of the steps) and decay, weight
decay 0.01, 512 documents in a step, spans of 128 tokens.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec
import numpy as np

from retrievers.training.objectives.masking import Context, TokenBatch, draw_spans
from retrievers.training.objectives.objective import Rate
from retrievers.training.objectives.retromae import RetroMAE


class CoTMAE(RetroMAE, kw_only=True):
    """Settings of CoT-MAE: those of `RetroMAE` with the defaults of this paper, and its contexts.

    Attributes:
        contexts: kinds of pairs; each document gets one of them at random.
    """

    reads_documents: ClassVar[bool] = True
    decoding: Literal["enhanced", "basic"] = "basic"
    decoder_layers: Annotated[int, msgspec.Meta(ge=1, le=3)] = 2
    decoder_mask: Rate = 0.45
    contexts: Annotated[tuple[Context, ...], msgspec.Meta(min_length=1)] = get_args(Context)

    def read(
        self, texts: Sequence[str], tokenizer: Any, max_tokens: int, rng: np.random.Generator
    ) -> TokenBatch:
        """See `Objective`; the spans of a document are neighbours in a batch."""
        return draw_spans(tokenizer, texts, max_tokens, self.contexts, rng)

    def decoder_tokens(self, tokens: TokenBatch) -> TokenBatch:
        """See `RetroMAE`; each span from the embedding of the other."""
        return tokens.take(np.arange(len(tokens.ids)) ^ 1)  # rows 1, 0, 3, 2, …
