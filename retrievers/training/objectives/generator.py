"""The generator of replaced-token detection: a masked language model that is used and not trained.

Clark et al., "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators", ICLR
2020, https://arxiv.org/abs/2003.10555.
"""

from typing import Any

import torch
from torch import Tensor

from foundation.errors import BenchError, first_line
from retrievers.models.language_head import load_masked_lm
from retrievers.models.loading import LOAD_ERRORS, load_tokenizer
from retrievers.training.engine.find_checkpoint import find_checkpoint


class Generator:
    """A masked language model that fills in what is masked.

    It is not a module, so that it is no part of what is trained and saved by a module that uses
    it: it is named by the settings and never changes.

    Args:
        model: such as ``DistilBertForMaskedLM``.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.requires_grad_(False)

    @torch.no_grad()
    def filled(
        self, shown: Tensor, attention_mask: Tensor, masked: Tensor, *, dropout: bool
    ) -> Tensor:
        """The texts with their likeliest tokens where they are masked.

        Args:
            shown: int64 ``(texts, length)``, what is masked replaced by the mask.
            attention_mask: bool ``(texts, length)``, False at padding.
            masked: bool ``(texts, length)``.
            dropout: whether the model's dropout is on.
        """
        model = self.model.to(shown.device).train(dropout)
        logits = model(input_ids=shown, attention_mask=attention_mask.long()).logits
        return torch.where(masked, logits.argmax(dim=-1), shown)


def load_generator(name: str) -> Generator:
    """The masked language model of a checkpoint, in float32, on the CPU.

    Args:
        name: card, folder or Hub id; a folder of this suite's own training may keep the head apart.

    Raises:
        BenchError: there is none, it is damaged, or it has no head.
    """
    checkpoint, _ = find_checkpoint(name)
    try:
        model, missing = load_masked_lm(checkpoint, torch.float32)
    except LOAD_ERRORS as error:
        raise BenchError(
            f"the generator {name} cannot be loaded: {first_line(error)}",
            "name a masked language model, such as distilbert/distilbert-base-uncased",
        ) from error
    if missing:
        raise BenchError(
            f"the generator {name} lacks {len(missing)} weights: {', '.join(missing[:3])}",
            "its tokens would be noise: train a head with the preset mlm, and name its folder",
        )
    return Generator(model)


def check_generator(name: str, tokenizer: Any, max_tokens: int) -> None:
    """Refuse a generator that would read texts otherwise than the encoder does.

    Raises:
        BenchError: its tokens have other ids, or it has too few positions.
    """
    checkpoint, _ = find_checkpoint(name)
    if load_tokenizer(checkpoint).get_vocab() != tokenizer.get_vocab():
        raise BenchError(
            f"the generator {name} has another vocabulary than the encoder",
            "name one with the same tokenizer, such as a smaller model of the same family",
        )
    limit = checkpoint.position_limit
    if limit is not None and max_tokens > limit:
        raise BenchError(
            f"max_tokens is {max_tokens}, and the generator {name} has positions for {limit}",
            f"use max_tokens = {limit}",
        )
