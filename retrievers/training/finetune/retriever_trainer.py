"""The trainers of sentence-transformers, told to keep the order of places.

Imports sentence-transformers, so it is imported when training starts.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.sentence_transformer import (
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from torch import nn
from torch.utils.data import BatchSampler, SequentialSampler

from retrievers.training.engine.arguments import FitSettings, world_size
from retrievers.training.engine.trainer import FiniteLossMixin, PlacedArguments


class RetrieverArguments(PlacedArguments, SentenceTransformerTrainingArguments):  # type: ignore[misc]
    """Arguments of the trainer of a SentenceTransformer."""


class RerankerArguments(PlacedArguments, CrossEncoderTrainingArguments):  # type: ignore[misc]
    """Arguments of the trainer of a CrossEncoder."""


class PlacesTrainer(FiniteLossMixin):
    """A trainer of sentence-transformers that reads place after place.

    Attributes:
        kind: of its arguments.
        may_have_unused: whether the model may have parameters that no loss depends on.
    """

    kind: ClassVar[type[PlacedArguments]]
    may_have_unused: ClassVar[bool]

    @classmethod
    def build(
        cls,
        model: Any,
        loss: nn.Module,
        collate: Callable[[Any], dict[str, Any]],
        settings: FitSettings,
    ) -> Self:
        """A trainer whose collator gets the places of each batch, in order."""
        step = settings.batch_size * settings.accumulate * world_size()
        places = np.arange(settings.steps * step)
        return cls(
            model=model,  # type: ignore[call-arg]
            args=settings.arguments(
                cls.kind,
                batch_sampler=_in_order,
                ddp_find_unused_parameters=cls.may_have_unused,
            ),
            train_dataset=Dataset.from_dict({"place": places}),
            loss=loss,
            data_collator=collate,
        )

    def add_model_card_callback(self, default_args_dict: Any) -> None:
        """No model card in prose: `card.toml` says what there is to say."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **others: Any
    ) -> Any:
        """The loss, which goes to the loss curve too."""
        masks = [value for name, value in inputs.items() if name.endswith("attention_mask")]
        result = super().compute_loss(model, inputs, return_outputs, **others)  # type: ignore[misc]
        loss = result[0] if return_outputs else result
        real = torch.stack([mask.sum() for mask in masks]) if masks else torch.zeros(1).long()
        self.meter.add({"loss": loss}, real)
        return result


class RetrieverTrainer(PlacesTrainer, SentenceTransformerTrainer):  # type: ignore[misc]
    """Trains a SentenceTransformer, whose pooler may be unused."""

    kind = RetrieverArguments
    may_have_unused = True


class RerankerTrainer(PlacesTrainer, CrossEncoderTrainer):  # type: ignore[misc]
    """Trains a CrossEncoder."""

    kind = RerankerArguments
    may_have_unused = False


def _in_order(dataset: Dataset, *, batch_size: int, **others: Any) -> BatchSampler:
    """The places as they are: their order is the order of training."""
    return BatchSampler(SequentialSampler(dataset), batch_size, drop_last=False)
