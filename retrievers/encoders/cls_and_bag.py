"""Vectors of `[CLS]` beside a bag of words, as DupMAE's paper searches.

Xiao, Liu, Shao and Cao, ACL 2023, https://arxiv.org/abs/2305.02564, section 3.4. With h_0 the last
hidden state of ``[CLS]``, h_1 … h_N those of the other tokens, lm the head for masked language
modelling and I_d the places of the 384 largest numbers of a document's v:

    v      = max over j ≥ 1 of lm(h_j)                      one number for each of the vocabulary
    ⟨q, d⟩ = ⟨h_0^q, h_0^d⟩ + Σ_{i ∈ I_d} v_q[i] v_d[i]

It is one inner product: of a query's [h_0; v] with a document's, in which v is zero outside I_d. So
all that searches vectors searches these, at 125 kB a document in float32 for BERT's vocabulary. The
paper projects h_0 to 384 dimensions, by a matrix that no public checkpoint has; here h_0 is whole,
and the encoder with its head is all there is. Numbers that are almost equal at the border of I_d
may change places where the same text is encoded in another batch.
"""

from typing import Any

import torch
from torch import Tensor, nn

from foundation.errors import BenchError
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.language_head import HEAD_OF, head_of, load_masked_lm
from retrievers.models.loading import LOAD_ERRORS, not_loaded
from retrievers.models.recipe import Recipe

WORDS = 384  # whose numbers a document keeps


class ClsAndBag(nn.Module):
    """An encoder with its head, which gives [h_0; v] as the model's own pooled output.

    Args:
        model: ``BertForMaskedLM`` or another of `HEAD_OF`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @property
    def config(self) -> Any:
        """Configuration of the Hugging Face model."""
        return self.model.config

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Any:
        """Hidden states ``(n, tokens, width)``, and [h_0; v] as ``pooler_output``."""
        output = self.model.base_model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        )
        head = head_of(self.model)
        output.pooler_output = joint_vectors(output.last_hidden_state, attention_mask, head)
        return output


def load_cls_and_bag(checkpoint: Checkpoint, recipe: Recipe) -> ClsAndBag:
    """The encoder with its head, in evaluation mode, on the CPU.

    Raises:
        BenchError: the weights are damaged, some are missing, or the architecture is another one.
    """
    folder, kind = checkpoint.folder, checkpoint.config.get("model_type")
    if kind not in HEAD_OF:
        raise BenchError(
            f"{recipe.model} is pooled by 'cls+bow', and the head of a {kind} is not known here",
            f"use another pooling, or a model of one of these types: {', '.join(HEAD_OF)}",
        )
    try:
        model, missing = load_masked_lm(checkpoint, getattr(torch, recipe.dtype))
    except LOAD_ERRORS as error:
        raise not_loaded(f"the weights in {folder}", error) from error
    if missing:
        raise BenchError(
            f"{folder} lacks {len(missing)} weights of its model and its language-model head, "
            f"which pooling by 'cls+bow' reads: {', '.join(missing[:5])}",
            "use another pooling, or a checkpoint with its head, such as one of pretrain dupmae",
        )
    return ClsAndBag(model).eval()


def joint_vectors(states: Tensor, mask: Tensor, head: nn.Module) -> Tensor:
    """[h_0; v], float32 ``(n, width + words)``.

    Args:
        states: last hidden states ``(n, tokens, width)``.
        mask: bool or int64 ``(n, tokens)``, 0 at padding.
        head: hidden states to logits ``(n, tokens, words)``.
    """
    return torch.cat([states[:, 0].float(), bag_of_words(states, mask, head).float()], dim=1)


def bag_of_words(states: Tensor, mask: Tensor, head: nn.Module) -> Tensor:
    """v, ``(n, words)`` in the dtype of the states; see `joint_vectors`."""
    logits: Tensor = head(states[:, 1:])
    return logits.masked_fill(~mask[:, 1:, None].bool(), float("-inf")).amax(dim=1)


def keep_largest(vectors: Tensor, width: int) -> Tensor:
    """Vectors of documents: [h_0; v] with zeros in v for all but its `WORDS` largest numbers.

    Args:
        vectors: [h_0; v], ``(n, width + words)``.
        width: of h_0.
    """
    bag = vectors[:, width:]
    places = bag.topk(min(WORDS, bag.shape[1]), dim=1).indices
    kept = torch.zeros_like(bag).scatter(1, places, bag.gather(1, places))
    return torch.cat([vectors[:, :width], kept], dim=1)
