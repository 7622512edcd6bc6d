"""Backward and forward transfer between the collections of successive trainings.

Checkpoint i was trained on collection i, starting from checkpoint i - 1, and the first one from the
base. R[i, j] is the score of checkpoint i on collection j. As defined by Lopez-Paz and Ranzato
(Gradient Episodic Memory, NeurIPS 2017), with T trainings:

* backward transfer: the mean over i < T of R[T, i] - R[i, i]; below 0 it is forgetting;
* forward transfer: the mean over i > 1 of R[i - 1, i] - R[base, i]; they compare with a random
  start, this module compares with the checkpoint from which the first training started;
* average: the mean over i of R[T, i].

All are means of differences on the same queries, so intervals resample the queries.
"""

from collections.abc import Mapping, Sequence

import msgspec

from bench.comparing.pairs import ComparedModel, ComparisonSettings, read_all_scores
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
    """One kind of transfer: the checkpoint after minus the checkpoint before.

    Attributes:
        mean: mean over the collections; its names are empty, as it compares no two checkpoints.
        rows: difference on each collection, with p adjusted for their number.
    """

    mean: Difference
    rows: tuple[Difference, ...]

    @property
    def all_rows(self) -> tuple[Difference, ...]:
        """Rows of the collections, then of the mean."""
        return (*self.rows, self.mean)


class TransferRow(Record):
    """Mean scores of one checkpoint by collection."""

    checkpoint: str
    levels: dict[str, MeanScore]


class Forgetting(Record, kw_only=True):
    """Matrix of checkpoints by collections, with the transfer computed from it.

    Attributes:
        rows: checkpoints in training order, the base first if there is one.
        base: name of the base; "" for none.
        trained: collection that each checkpoint was trained on, in order.
        also: further collections.
        queries: number of queries by collection.
        average: mean score of the last checkpoint over ``trained``.
        backward: None with one training.
        forward: None with one training or without a base.
        kept: last checkpoint minus the base on further collections; None without either.
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


def measure_forgetting(
    models: Sequence[ComparedModel],
    trained: Sequence[str],
    also: Sequence[str],
    measure: str | None,
    resampling: Resampling,
) -> Forgetting:
    """Compute the matrix of checkpoints by collections, with transfer and its intervals.

    Args:
        models: checkpoints in training order; before them the base, if there is one.
        trained: collection that each checkpoint was trained on.
        also: further collections.
        measure: measure to use; None for the main one, which all collections must share.
        resampling: number of resamples, and seed.

    Raises:
        BenchError: there are too many or too few models, or too few resamples; the main measures
            differ; a result is missing, damaged, or under a different protocol.
    """
    extra = len(models) - len(trained)
    if extra not in (0, 1):
        raise BenchError(
            f"{len(models)} models do not match {len(trained)} collections of --sequence",
            "name one collection per model, in training order; the start of the training may come "
            "first, and other collections go after --on",
        )
    resampling.check_enough(max(len(trained) - 1, len(also)))
    settings = ComparisonSettings(measure, resampling=resampling)
    matrices = {name: read_all_scores(name, models, settings) for name in [*trained, *also]}
    measures = sorted({matrix.measure for matrix in matrices.values()})
    if len(measures) > 1:
        raise BenchError(
            f"the main measures of the collections differ: {', '.join(measures)}",
            "Choose one with --measure.",
        )
    order = [checkpoint.name for checkpoint in models[extra:]]
    last, base = order[-1], models[0].name if extra else ""
    checkpoint_of = dict(zip(trained, order, strict=True))
    backward = [(name, last, checkpoint_of[name]) for name in trained[:-1]]
    forward = [(name, earlier, base) for name, earlier in zip(trained[1:], order, strict=False)]
    return Forgetting(
        measure=measures[0],
        rows=tuple(
            TransferRow(
                model.name,
                {key: mean_with_interval([one.minus(model.name)]) for key, one in matrices.items()},
            )
            for model in models
        ),
        base=base,
        trained=tuple(trained),
        also=tuple(also),
        queries={name: len(matrix.scores) for name, matrix in matrices.items()},
        average=mean_with_interval([matrices[name].minus(last) for name in trained]),
        backward=_transfers(backward, matrices),
        forward=_transfers(forward, matrices) if base else None,
        kept=_transfers([(name, last, base) for name in also], matrices) if base else None,
        resampling=resampling,
    )


def _transfers(
    steps: Sequence[tuple[str, str, str]], matrices: Mapping[str, ScoreMatrix]
) -> Transfers | None:
    """Return differences on collections and their mean, or None without any.

    A step is a collection, the checkpoint after and the checkpoint before.
    """
    if not steps:
        return None
    parts = {name: matrices[name].minus(after, before) for name, after, before in steps}
    rows = adjust_p_values({name: paired_difference([part]) for name, part in parts.items()})
    mean = paired_difference(list(parts.values()), [1 / len(parts)] * len(parts), "mean")
    return Transfers(msgspec.structs.replace(mean, a="", b=""), tuple(rows.values()))
