"""Checkpoints of successive trainings by collections, and transfer, as Markdown or CSV."""

from collections.abc import Iterator, Sequence
from typing import Any

from bench.comparing.statistics import Difference
from bench.comparing.transfer import Forgetting, TransferRow
from reports import format as fmt
from reports.markdown import bullets, plain
from reports.table import Bold, Column, Table, columns_of, table_of

OfKind = tuple[str, Difference]  # the kind, and the difference
FIELDS = ("kind", "collection", "after", "before", "measure", "value", "low", "high", "p", "p_holm")


def markdown(record: Forgetting, level: int = 2) -> str:
    """The matrix, then a table of transfer, then what the words mean.

    Args:
        level: of its heading.
    """
    parts = [
        f"{'#' * level} {record.measure} of successive trainings",
        _matrix(record),
        f"average of {_searched(record)}: {fmt.level(record.average)}",
        *([_transfers(transfers)] if (transfers := list(_kinds(record))) else []),
        bullets(_legend(record)),
    ]
    return "\n\n".join(parts) + "\n"


def _searched(record: Forgetting) -> str:
    """Checkpoints that the collections are searched with after all trainings."""
    return "each on its own collection" if record.separate else "the last on what was trained"


def _matrix(record: Forgetting) -> str:
    """Bold on the diagonal: what the checkpoint was just trained on."""
    order = [row.checkpoint for row in record.rows if row.checkpoint != record.base]
    trained = dict(zip(order, record.trained, strict=True))

    def cell(row: TransferRow, name: str) -> str:
        shown = fmt.level(row.levels[name])
        return Bold(shown) if trained.get(row.checkpoint) == name else shown

    columns: list[Column[TransferRow]] = [
        Column(record.measure, lambda row: row.checkpoint),
        *columns_of((*record.trained, *record.also), cell, fmt.written),
    ]
    return Table(record.rows, columns).markdown()


def _transfers(transfers: list[OfKind]) -> str:
    columns: list[Column[OfKind]] = [
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


def _checkpoints(row: OfKind) -> str:
    return f"{row[1].a} - {row[1].b}" if row[1].a else ""


def _kinds(record: Forgetting) -> Iterator[OfKind]:
    for kind in ("backward", "forward", "kept"):
        if transfers := getattr(record, kind):
            yield from ((kind, transfer) for transfer in transfers.all_rows)


def figures(record: Forgetting) -> Table[Sequence[Any]]:
    """The matrix and transfer, a row each."""
    rows: list[Sequence[Any]] = [
        ("score", name, row.checkpoint, "", record.measure, on.value, on.low, on.high, None, None)
        for row in record.rows
        for name, on in row.levels.items()
    ]
    for kind, transfer in _kinds(record):
        names = (kind, transfer.on, transfer.a, transfer.b, record.measure)
        test = (transfer.difference, transfer.low, transfer.high, transfer.p, transfer.p_adjusted)
        rows.append((*names, *test))
    return table_of(FIELDS, rows)


def _legend(record: Forgetting) -> Iterator[str]:
    if record.separate:
        yield (
            "each checkpoint was trained from the same start on its own collection, which it is "
            "kept for: nothing is forgotten"
        )
    else:
        yield (
            "backward transfer: last checkpoint minus the one just trained on the collection; "
            "below 0 is forgetting (Lopez-Paz and Ranzato, 2017)"
        )
    if record.base:
        yield (
            "forward transfer: the checkpoint before that of a collection, on this collection, "
            f"minus {plain(record.base)}"
        )
    else:
        yield "forward transfer needs what the first training started from"
    if record.kept:
        base = plain(record.base)
        yield f"kept: on collections that nothing was trained on, the last minus {base}"
    elif record.also:
        yield "what is kept on further collections needs what the first training started from"
    yield fmt.intervals_legend(record.resampling.resamples, record.resampling.seed)
    yield fmt.tests_legend("the collections of one kind of transfer")
    trained = "one training" if record.trainings == 1 else f"means of {record.trainings} trainings"
    yield f"{trained} of each: how much another seed would change is not in the intervals"
