"""The head for masked language modelling: logits of the vocabulary from hidden states."""

from typing import Any

from torch import nn

# Attribute of the Hugging Face model that holds the head; what has no entry is not supported.
HEAD_OF = {"bert": "cls", "roberta": "lm_head", "xlm-roberta": "lm_head", "camembert": "lm_head"}


def head_of(model: Any) -> nn.Module:
    """Hidden states ``(..., width)`` to logits ``(..., vocabulary)``.

    Args:
        model: with a head, of a type in `HEAD_OF`.
    """
    head: nn.Module = getattr(model, HEAD_OF[model.config.model_type])
    return head
