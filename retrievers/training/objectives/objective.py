"""Pre-training objectives: their interface, and a table of them.

An objective is its settings: a strict, frozen record that is read from the ``[objective]`` table
of a preset and that makes the modules and the collator it needs. To add one, write its file and a
line in `OBJECTIVES`.
"""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

import msgspec

from foundation.errors import BenchError
from foundation.records import convert_table
from foundation.suggestions import did_you_mean
from retrievers.training.objectives.example import Collator

if TYPE_CHECKING:
    from torch import nn

    from retrievers.training.objectives.masked_lm import MaskedLM

Rate = Annotated[float, msgspec.Meta(gt=0, lt=1)]  # a share of the tokens


@runtime_checkable
class Objective(Protocol):
    """A frozen msgspec Struct with ``tag_field="name"`` and ``tag`` equal to ``name``.

    One whose loss pushes the texts of a batch apart has ``contrasts = True`` in its class.
    """

    @property
    def name(self) -> str:
        """Name in `OBJECTIVES`."""
        ...

    def build_module(self, encoder: "MaskedLM") -> "nn.Module":
        """A module that trains the encoder.

        It holds the encoder as its attribute ``encoder``; whatever else it holds is saved apart
        and dropped from the finished checkpoint. ``forward(**batch)`` returns a dictionary of
        scalars: ``loss``, which is minimised, and the losses that it is the sum of, by name.
        """
        ...

    def collator(self, tokenizer: Any, max_tokens: int) -> Collator:
        """Collator that turns texts into the batch that ``forward`` takes."""
        ...


# Name in a preset: the class. Imported when it is asked for: each imports torch.
OBJECTIVES = {
    "mlm": "retrievers.training.objectives.mlm:MLM",
    "retromae": "retrievers.training.objectives.retromae:RetroMAE",
    "dupmae": "retrievers.training.objectives.dupmae:DupMAE",
    "cotmae": "retrievers.training.objectives.cotmae:CoTMAE",
    "condenser": "retrievers.training.objectives.condenser:Condenser",
    "cocondenser": "retrievers.training.objectives.cocondenser:CoCondenser",
    "simcse": "retrievers.training.objectives.simcse:SimCSE",
}


def objective_type(name: str) -> type:
    """The class of an objective.

    Raises:
        BenchError: there is none of that name.
    """
    if name not in OBJECTIVES:
        hint = did_you_mean(name, OBJECTIVES, f"use one of {', '.join(OBJECTIVES)}")
        raise BenchError(f"no pre-training objective is called {name!r}", hint)
    module, _, kind = OBJECTIVES[name].partition(":")
    objective: type = getattr(importlib.import_module(module), kind)
    return objective


def read_objective(table: Any) -> Objective:
    """The objective of a preset's ``[objective]`` table, such as ``{"name": "mlm"}``.

    Raises:
        BenchError: no name, an unknown one, an unknown field, or a value of the wrong type.
    """
    name = table.get("name") if isinstance(table, Mapping) else None
    if not isinstance(name, str):
        raise BenchError("[objective] has no name", f"write name = one of {', '.join(OBJECTIVES)}")
    objective: Objective = convert_table(table, objective_type(name), f"objective {name}")
    return objective
