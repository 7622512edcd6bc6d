"""The task of a fine-tuning, which all its parts share."""

from dataclasses import dataclass
from pathlib import Path

from retrievers.models.card import Card
from retrievers.models.model import Model
from retrievers.training.engine.context import TrainingContext
from retrievers.training.finetune.finetune_preset import Finetuning
from retrievers.training.finetune.negatives import Mine
from retrievers.training.finetune.training_data import TrainingSet


@dataclass(frozen=True, eq=False)
class FinetuneTask:
    """A fine-tuning.

    Attributes:
        model: where every round starts.
        card: of what comes out.
        mine: searches for negatives; None where there are in-batch negatives alone.
        context: of the whole training; each round has one of its own.
        training: identity of what is trained, see `RunFolder`.
    """

    preset: Finetuning
    model: Model
    examples: TrainingSet
    card: Card
    mine: Mine | None
    context: TrainingContext
    training: str

    @property
    def teacher_folder(self) -> Path:
        """Where the cross-encoder is kept that is trained as teacher."""
        return self.context.out / "teacher"
