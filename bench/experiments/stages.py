"""Stages of a cell: their settings, the data that they read, and their work."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from bench.experiments.grid import Table
from foundation.records import Record


class Cost(Record):
    """Time, tokens and size of the work of a stage.

    Attributes:
        seconds: wall clock.
        tokens: that were read in training, or encoded; 0 where they were not counted.
        parameters: that were trained; for an evaluation, those of the encoder.
        of_parameters: that the trained network has in all; 0 where they were not counted.
        saved_bytes: of the weights that the training wrote; the same.
    """

    seconds: float
    tokens: int = 0
    parameters: int = 0
    of_parameters: int = 0
    saved_bytes: int = 0


class ExperimentStage(Protocol):
    """Pretrain, adapt, finetune or evaluate; picklable, because it works in a process apart."""

    def resolve_settings(self, table: Mapping[str, Any]) -> Table:
        """Complete settings, from what the file says or from complete ones.

        Raises:
            BenchError: an unknown field or value, or a collection
                or checkpoint that is not there.
        """
        ...

    def seeded(self, settings: Table, seed: int) -> Table:
        """Settings of one cell."""
        ...

    def reads(self, settings: Table) -> dict[str, str]:
        """Content hashes and rules of what it reads besides the model, by name."""
        ...

    def work(self, settings: Table, model: str, out: Path) -> Cost:
        """Do the work of the stage.

        Args:
            model: card or checkpoint of the stage before; "" where this is the first.
            out: folder of its own. What a killed attempt left there may be used. A training
                leaves its checkpoint in ``out / MODEL``, an evaluation its results in ``out``.
        """
        ...

    def rehearsal(self, settings: Table) -> Table | None:
        """Settings that take seconds and fail where these would; None for no rehearsal."""
        ...


MODEL = "model"  # folder of a finished checkpoint
