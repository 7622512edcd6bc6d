"""Length of a pre-training in steps, from its steps, its passes over the texts or its tokens."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from retrievers.training.engine.processes import world_size
from retrievers.training.objectives.objective import Collator
from retrievers.training.pretrain.preset import Pretraining
from retrievers.training.pretrain.stream import Stream

if TYPE_CHECKING:
    from torch import Tensor

COUNTED = 4_096  # texts, the first that are read, whose tokens stand for those of all


def steps_of(preset: Pretraining, texts: Sequence[str], collate: Collator) -> int:
    """Steps of a training on these texts.

    Tokens are counted on the first texts that training would read, as it would read them, so that
    an objective that reads two spans of a document takes fewer steps for as many tokens.
    """
    if preset.steps is not None:
        return preset.steps
    if preset.epochs is not None:
        return max(1, math.ceil(preset.epochs * len(texts) / texts_per_step(preset)))
    counted = min(COUNTED, len(texts))
    stream = Stream(texts, counted, preset.seed)
    tokens = 0
    for first in range(0, counted, preset.batch_size):
        places = range(first, min(first + preset.batch_size, counted))
        tokens += int(real_tokens(collate([stream[place] for place in places])))
    return max(1, round((preset.tokens or 0) * counted / tokens / texts_per_step(preset)))


def texts_per_step(preset: Pretraining) -> int:
    """Texts that all processes read together in a step."""
    return preset.batch_size * preset.accumulate * world_size()


def real_tokens(batch: Mapping[str, "Tensor"]) -> "Tensor":
    """Tokens of the texts in a batch that are no padding, by its masks; a scalar."""
    masks = [mask.sum() for name, mask in batch.items() if name.endswith("_mask")]
    return sum(masks[1:], start=masks[0])
