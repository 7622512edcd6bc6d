"""Trainings as Markdown: quality against steps, and forgetting in a sequence of trainings."""

from collections.abc import Iterator

from bench.comparing.statistics import Difference
from bench.comparing.transfer import Forgetting, TransferRow
from bench.monitor.curve import Curve, CurvePoint, Selection
from foundation.errors import format_names
from reports import format as fmt
from reports.table import Bold, Column, Table, bullets, columns_for, escape

ON_TEST_DATA = (
    "the best checkpoint on these queries is partly the luckiest; select with --split dev, and "
    "report a different collection or split"
)


def curve_markdown(curve: Curve) -> str:
    """Return ``curve`` as Markdown: a row for each checkpoint, then the best one with caveats."""
    parts = [f"## {escape(curve.training)}: {curve.measure}", _table(curve)]
    if curve.selection is not None:
        parts.append(bullets(_verdict(curve, curve.selection)))
    if curve.broken:
        broken = curve.broken.items()
        parts.append(
            bullets(escape(f"{name} could not be evaluated: {why}") for name, why in broken)
        )
    return "\n\n".join([*parts, bullets(_legend(curve))]) + "\n"


def _table(curve: Curve) -> str:
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
    rivals = {rival.b: rival for rival in chosen.rivals}

    def rival(point: CurvePoint) -> Difference | None:
        return None if point.checkpoint == chosen.best else rivals[point.checkpoint]

    def verdict(point: CurvePoint) -> str:
        return other.verdict_on_b if (other := rival(point)) else "best"

    return [
        Column("best - this", rival, _difference),
        Column(
            "p (adjusted)", lambda point: (other := rival(point)) and other.p_adjusted, fmt.p_value
        ),
        Column("", verdict),
    ]


def _difference(rival: Difference | None) -> str:
    if rival is None:
        return ""
    limits = fmt.interval(rival)
    return fmt.signed(rival.difference) + (f" ({limits})" if limits else "")


def _verdict(curve: Curve, chosen: Selection) -> Iterator[str]:
    best = next(point for point in curve.points if point.checkpoint == chosen.best)
    where = "the mean" if curve.headline not in curve.collections else curve.headline
    yield f"best on {escape(where)}: {escape(best.checkpoint)}, step {best.step:,}"
    yield (
        f"its score is the highest of {chosen.candidates:,} on {chosen.queries:,} queries, "
        "and therefore too high: report the selected one on a different split or collection"
    )
    flips = "all sign flips" if chosen.exact else "sign flips"
    yield f"p is adjusted for all {chosen.pairs:,} pairs (largest statistic over {flips})"
    if chosen.indistinguishable:
        names = escape(format_names(chosen.indistinguishable))
        yield f"not significantly different from it: {names}"
    else:
        yield "it is significantly better than all others"
    if chosen.on_test_data:
        yield f"**selected on test data**: {ON_TEST_DATA}"


def _legend(curve: Curve) -> Iterator[str]:
    yield fmt.intervals_legend(curve.resampling.resamples, curve.resampling.seed)
    yield (
        "intervals of two checkpoints may overlap although they differ significantly, because the "
        "test is paired by query"
    )
    yield (
        "the interval of a difference is for that pair alone; p is adjusted for all pairs, but not "
        "for earlier looks at the curve"
    )


TransferLine = tuple[str, Difference]  # the kind, and the difference


def forgetting_markdown(record: Forgetting) -> str:
    """Return ``record`` as Markdown: the matrix, a table of transfer, and a legend."""
    parts = [
        f"## {record.measure} of successive trainings",
        _matrix(record),
        f"average of the last checkpoint, trained collections: {fmt.mean_score(record.average)}",
        *([_transfers(transfers)] if (transfers := list(_transfer_lines(record))) else []),
        bullets(_forgetting_legend(record)),
    ]
    return "\n\n".join(parts) + "\n"


def _matrix(record: Forgetting) -> str:
    """Return the matrix, with bold scores on the collection just trained on."""
    order = [row.checkpoint for row in record.rows if row.checkpoint != record.base]
    trained = dict(zip(order, record.trained, strict=True))

    def cell(row: TransferRow, name: str) -> str:
        shown = fmt.mean_score(row.levels[name])
        return Bold(shown) if trained.get(row.checkpoint) == name else shown

    columns: list[Column[TransferRow]] = [
        Column(record.measure, lambda row: row.checkpoint),
        *columns_for((*record.trained, *record.also), cell, fmt.numeric),
    ]
    return Table(record.rows, columns).markdown()


def _transfers(transfers: list[TransferLine]) -> str:
    columns: list[Column[TransferLine]] = [
        Column("transfer", lambda row: row[0] if row[1].a else f"{row[0]}, mean"),
        Column("collection", lambda row: row[1].on if row[1].a else ""),
        Column("after - before", _checkpoints),
        Column("difference", lambda row: row[1].difference, fmt.signed),
        Column("95 % interval", lambda row: row[1], fmt.paired_interval),
        Column("p", lambda row: row[1].p, fmt.p_value),
        Column("p (Holm)", lambda row: row[1].p_adjusted, fmt.p_value),
        Column("win / tie / loss", lambda row: row[1], fmt.win_tie_loss),
    ]
    return Table(transfers, columns).markdown()


def _checkpoints(row: TransferLine) -> str:
    return f"{row[1].a} - {row[1].b}" if row[1].a else ""


def _transfer_lines(record: Forgetting) -> Iterator[TransferLine]:
    for kind in ("backward", "forward", "kept"):
        if transfers := getattr(record, kind):
            yield from ((kind, transfer) for transfer in transfers.all_rows)


def _forgetting_legend(record: Forgetting) -> Iterator[str]:
    yield (
        "backward transfer: last checkpoint minus the one just trained on the collection; "
        "below 0 is forgetting (Lopez-Paz and Ranzato, 2017)"
    )
    if record.base:
        yield (
            "forward transfer: the checkpoint before training on the collection, minus "
            f"{escape(record.base)}"
        )
    else:
        yield "forward transfer requires the model from which the first training started"
    if record.kept:
        base = escape(record.base)
        yield f"kept: on collections without training, the last checkpoint minus {base}"
    elif record.also:
        yield "kept requires the model from which the first training started"
    yield fmt.intervals_legend(record.resampling.resamples, record.resampling.seed)
    yield fmt.tests_legend("the collections of one kind of transfer")
    yield "one training of each: the intervals do not include the variation over seeds"
