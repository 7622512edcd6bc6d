"""The head for masked language modelling: logits of the vocabulary from hidden states.

It lies in a checkpoint's weights, as Hugging Face writes them, or apart in ``heads/``, where this
suite's pre-training puts what an encoder goes without.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from retrievers.models.checkpoint import HEADS, HEADS_FILE, Checkpoint
from retrievers.models.loading import read_weights

# Attribute of the Hugging Face model that holds the head; what has no entry is not supported.
HEAD_OF = {"bert": "cls", "roberta": "lm_head", "xlm-roberta": "lm_head", "camembert": "lm_head"}
OF_THE_MODEL = "encoder.model."  # what begins the names of a head that lies apart


def head_of(model: Any) -> nn.Module:
    """Hidden states ``(..., width)`` to logits ``(..., vocabulary)``.

    Args:
        model: with a head, of a type in `HEAD_OF`.
    """
    head: nn.Module = getattr(model, HEAD_OF[model.config.model_type])
    return head


def load_masked_lm(checkpoint: Checkpoint, dtype: torch.dtype) -> tuple[Any, list[str]]:
    """A masked language model, and its weights that the checkpoint has neither here nor there.

    Raises:
        One of `LOAD_ERRORS`: the weights cannot be read.
    """
    from transformers import AutoModelForMaskedLM

    model, report = read_weights(AutoModelForMaskedLM, checkpoint, dtype)
    return model, _without_head(model, checkpoint, report["missing_keys"])


def _without_head(model: Any, checkpoint: Checkpoint, missing: Iterable[str]) -> list[str]:
    """Missing weights that are not in the folder of heads either; those that are, are taken."""
    from safetensors.torch import load_file

    path = checkpoint.root / HEADS / HEADS_FILE
    held = load_file(str(path)) if path.is_file() else {}
    own = dict(model.named_parameters(remove_duplicate=False))  # tied ones under each name
    taken = set()
    for name in missing:
        value = held.get(OF_THE_MODEL + name)
        if name in own and value is not None and value.shape == own[name].shape:
            own[name].data.copy_(value)
            taken.add(id(own[name]))
    return sorted(name for name in missing if name not in own or id(own[name]) not in taken)
