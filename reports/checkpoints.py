"""Checkpoints of trainings as Markdown: quality against steps, and forgetting in a sequence."""

from collections.abc import Iterator

from bench.comparing.pairs import Forgetting, TransferRow
from bench.comparing.statistics import Difference
from bench.monitor import Curve, CurvePoint, Selection
from foundation.errors import format_names
from reports import format as fmt
from reports.comparison import paired_columns
from reports.table import Column, Table, bullets, columns_for, escape

ON_TEST_DATA = (
    "the best checkpoint on these queries is partly the luckiest; select with --split dev, and "
    "report a different collection or split"
)


def curve_markdown(curve: Curve) -> str:
    """Return ``curve`` as Markdown: a row for each checkpoint, then the best one with caveats."""
    parts = [f"## {escape(curve.training)}: {curve.measure}", _curve_table(curve)]
    if curve.selection is not None:
        parts.append(bullets(_selection_notes(curve, curve.selection)))
    broken = [f"{name} could not be evaluated: {why}" for name, why in curve.broken.items()]
    if broken:
        parts.append(bullets(map(escape, broken)))
    return "\n\n".join([*parts, bullets(_curve_legend(curve))]) + "\n"


def _curve_table(curve: Curve) -> str:
    others = [name for name in curve.collections if name != curve.headline]
    columns: list[Column[CurvePoint]] = [
        Column("step", lambda point: point.step, "{:,}".format),
        Column("checkpoint", lambda point: point.checkpoint),
        Column(curve.headline, lambda point: point.levels[curve.headline], fmt.mean_score),
        *columns_for(others, lambda point, name: point.levels[name].value, fmt.score),
    ]
    if curve.selection:
        columns += _selection_columns(curve.selection)
    return Table(curve.points, columns).markdown()


def _selection_columns(chosen: Selection) -> list[Column[CurvePoint]]:
    """Return columns for the best checkpoint minus this one."""
    rivals = {rival.b: rival for rival in chosen.rivals}  # all but the best

    def rival(point: CurvePoint) -> Difference | None:
        return rivals.get(point.checkpoint)

    def verdict(point: CurvePoint) -> str:
        if (other := rival(point)) is None:
            return "best"
        return "worse" if other.significant else "not significant"

    return [
        Column("best - this", rival, _difference),
        Column("p (adjusted)", lambda at: (one := rival(at)) and one.p_adjusted, fmt.p_value),
        Column("", verdict),
    ]


def _difference(rival: Difference) -> str:
    limits = fmt.interval(rival)
    return fmt.signed(rival.difference) + (f" ({limits})" if limits else "")


def _selection_notes(curve: Curve, chosen: Selection) -> Iterator[str]:
    best = next(point for point in curve.points if point.checkpoint == chosen.best)
    where = "the mean" if curve.headline not in curve.collections else curve.headline
    yield f"best on {escape(where)}: {escape(best.checkpoint)}, step {best.step:,}"
    yield (
        f"its score is the highest of {chosen.candidates:,} on {chosen.queries:,} queries, "
        "and therefore too high: report the selected one on a different split or collection"
    )
    yield f"p is adjusted for all {chosen.pairs:,} pairs (Holm)"
    if chosen.indistinguishable:
        names = escape(format_names(chosen.indistinguishable))
        yield f"not significantly different from it: {names}"
    else:
        yield "it is significantly better than all others"
    if "test" in chosen.splits:
        yield f"**selected on test data**: {ON_TEST_DATA}"


def _curve_legend(curve: Curve) -> Iterator[str]:
    yield fmt.intervals_legend(curve.resampling.resamples, curve.resampling.seed)
    yield (
        "the interval of a difference is for that pair alone; p is adjusted for all pairs, but not "
        "for earlier looks at the curve"
    )


TransferLine = tuple[str, Difference]  # the kind, and the difference


def forgetting_markdown(record: Forgetting) -> str:
    """Return ``record`` as Markdown: the matrix, a table of transfer, and a legend."""
    transfers: list[TransferLine] = []
    for kind in ("gain", "backward", "forward"):
        if found := getattr(record, kind):
            transfers += [(kind, transfer) for transfer in found.all_rows]
    parts = [
        f"## {record.measure} of successive trainings",
        _matrix(record),
        f"average of the last checkpoint, trained collections: {fmt.mean_score(record.average)}",
        *([_transfers(transfers)] if transfers else []),
        bullets(_forgetting_legend(record)),
    ]
    return "\n\n".join(parts) + "\n"


def _matrix(record: Forgetting) -> str:
    """Return the scores of each checkpoint on each collection."""
    columns: list[Column[TransferRow]] = [
        Column(record.measure, lambda row: row.checkpoint),
        *columns_for(record.trained, lambda row, name: row.levels[name], fmt.mean_score),
    ]
    return Table(record.rows, columns).markdown()


def _transfers(transfers: list[TransferLine]) -> str:
    columns: list[Column[TransferLine]] = [
        Column("transfer", lambda row: row[0] if row[1].a else f"{row[0]}, mean"),
        Column("collection", lambda row: row[1].on if row[1].a else ""),
        Column("after - before", lambda row: f"{row[1].a} - {row[1].b}" if row[1].a else ""),
        *paired_columns(
            lambda row: row[1], "difference", "95 % interval", "p", "p (Holm)", "win / tie / loss"
        ),
    ]
    return Table(transfers, columns).markdown()


def _forgetting_legend(record: Forgetting) -> Iterator[str]:
    yield "gain: a checkpoint minus the one before, on the collection that it was trained on"
    yield (
        "backward transfer: last checkpoint minus the one just trained on the collection; "
        "below 0 is forgetting (Lopez-Paz and Ranzato, 2017)"
    )
    if record.base:
        yield (
            "forward transfer: the checkpoint before training on the collection, minus "
            f"{escape(record.base)}"
        )
    yield fmt.intervals_legend(record.resampling.resamples, record.resampling.seed)
    yield fmt.tests_legend("the collections of one kind of transfer")
    yield "one training of each: the intervals do not include the variation over seeds"
