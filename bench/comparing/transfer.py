"""Backward and forward transfer between the collections of a sequence of trainings.

Checkpoint i was trained on collection i, starting from checkpoint i - 1 and the first one from the
base. R[i, j] is the score of checkpoint i on collection j. As Lopez-Paz and Ranzato define it
(Gradient Episodic Memory, NeurIPS 2017), with T trainings:

* backward transfer: the mean over i < T of R[T, i] - R[i, i]; below 0 it is forgetting;
* forward transfer: the mean over i > 1 of R[i - 1, i] - R[base, i]; theirs compares with a random
  start, here it is with what the first training started from;
* average: the mean over i of R[T, i].

All are means of differences of the same queries, so intervals resample these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bench.comparing.compare import ComparedModel, ComparisonSettings, read_complete_matrix
from bench.comparing.statistics import (
    Difference,
    MeanScore,
    Resampling,
    ScoreMatrix,
    adjust_p_values,
    mean_with_interval,
    paired_difference,
)
from foundation.errors import BenchError
from foundation.records import Record


class Transfers(Record):
    """One kind of transfer, checkpoint after minus checkpoint before.

    Attributes:
        mean: over the collections, which is of no two checkpoints.
        rows: by collection, with p adjusted for their number.
    """

    mean: Difference
    rows: tuple[Difference, ...]

    @property
    def all_rows(self) -> tuple[Difference, ...]:
        """The collections, then the mean."""
        return (*self.rows, self.mean)


class TransferRow(Record):
    """A checkpoint: its level on each collection."""

    checkpoint: str
    levels: dict[str, MeanScore]


class Forgetting(Record, kw_only=True):
    """The matrix and what follows from it.

    Attributes:
        rows: in the order trained, the base first if there is one.
        base: its name; "" for none.
        trained: collection of each checkpoint, in their order.
        also: further collections.
        average: of the last checkpoint over ``trained``.
        backward: None with one training.
        forward: None with one training or without a base.
        kept: on further collections, last checkpoint minus the base; None without either.
    """

    measure: str
    rows: tuple[TransferRow, ...]
    base: str
    trained: tuple[str, ...]
    also: tuple[str, ...]
    queries: dict[str, int]
    average: MeanScore
    backward: Transfers | None
    forward: Transfers | None
    kept: Transfers | None
    resampling: Resampling


@dataclass(frozen=True)
class TrainingSequence:
    """Checkpoints in the order trained, and their collections.

    Attributes:
        trained: collection of each checkpoint.
        base: what the first training started from.
    """

    checkpoints: Sequence[ComparedModel]
    trained: Sequence[str]
    also: Sequence[str] = ()
    base: ComparedModel | None = None

    @property
    def models(self) -> list[ComparedModel]:
        """All models, the base first."""
        return [*([self.base] if self.base else []), *self.checkpoints]


def measure_forgetting(
    sequence: TrainingSequence, measure: str | None, resampling: Resampling
) -> Forgetting:
    """The matrix of checkpoints by collections, with transfer and its intervals.

    Args:
        measure: None for the main one, which all collections must share.

    Raises:
        BenchError: main measures differ; a result is missing, damaged, or under another protocol;
            or too few resamples.
    """
    resampling.check_enough(max(len(sequence.trained) - 1, len(sequence.also)))
    models, names = sequence.models, [*sequence.trained, *sequence.also]
    settings = ComparisonSettings(measure, resampling=resampling)
    matrices = {name: read_complete_matrix(name, models, settings) for name in names}
    measures = sorted({matrix.measure for matrix in matrices.values()})
    if len(measures) > 1:
        raise BenchError(
            f"the main measures of the collections differ: {', '.join(measures)}",
            "choose one with --measure",
        )
    order = [checkpoint.name for checkpoint in sequence.checkpoints]
    last = order[-1]
    base = sequence.base.name if sequence.base else ""
    trained = list(sequence.trained)
    own = dict(zip(trained, order, strict=True))
    backward = [(name, last, own[name]) for name in trained[:-1]]
    forward = [(name, earlier, base) for name, earlier in zip(trained[1:], order, strict=False)]
    return Forgetting(
        measure=measures[0],
        rows=tuple(_row(model.name, matrices) for model in models),
        base=base,
        trained=tuple(trained),
        also=tuple(sequence.also),
        queries={name: len(matrix.scores) for name, matrix in matrices.items()},
        average=mean_with_interval([matrices[name].minus(last) for name in trained]),
        backward=_transfers(backward, matrices),
        forward=_transfers(forward, matrices) if base else None,
        kept=_transfers([(name, last, base) for name in sequence.also], matrices) if base else None,
        resampling=resampling,
    )


def _row(name: str, matrices: Mapping[str, ScoreMatrix]) -> TransferRow:
    levels = {key: mean_with_interval([matrix.minus(name)]) for key, matrix in matrices.items()}
    return TransferRow(name, levels)


def _transfers(
    asked: Sequence[tuple[str, str, str]], matrices: Mapping[str, ScoreMatrix]
) -> Transfers | None:
    """Differences on collections, and their mean; None if there are none.

    Args:
        asked: collection, checkpoint after, checkpoint before.
    """
    if not asked:
        return None
    parts = {name: matrices[name].minus(after, before) for name, after, before in asked}
    rows = adjust_p_values({name: paired_difference([part]) for name, part in parts.items()})
    mean = paired_difference(list(parts.values()), [1 / len(parts)] * len(parts), "mean")
    return Transfers(msgspec.structs.replace(mean, a="", b=""), tuple(rows.values()))
