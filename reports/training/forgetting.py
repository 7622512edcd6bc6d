"""Checkpoints of successive trainings by collections, and transfer, as Markdown or CSV."""

from collections.abc import Iterator, Sequence
from typing import Any

from bench.compare.transfer import Forgetting, Row, Transfer
from reports import format as fmt
from reports.markdown import bullets, plain
from reports.table import Bold, Column, Table, columns_of, table_of

OfKind = tuple[str, Transfer]  # the kind, and the difference
FIELDS = ("kind", "collection", "after", "before", "measure", "value", "low", "high", "p", "p_holm")


def markdown(found: Forgetting) -> str:
    """The matrix, then a table of transfer, then what the words mean."""
    parts = [
        f"## {found.measure} of successive trainings",
        _matrix(found),
        f"average of the last on what was trained: {fmt.level(found.average)}",
        *([_transfers(transfers)] if (transfers := list(_kinds(found))) else []),
        bullets(_legend(found)),
    ]
    return "\n\n".join(parts) + "\n"


def _matrix(found: Forgetting) -> str:
    """Bold on the diagonal: what the checkpoint was just trained on."""
    order = [row.checkpoint for row in found.rows if row.checkpoint != found.base]
    trained = dict(zip(order, found.trained, strict=True))

    def cell(row: Row, name: str) -> str:
        shown = fmt.level(row.levels[name])
        return Bold(shown) if trained.get(row.checkpoint) == name else shown

    columns: list[Column[Row]] = [
        Column(found.measure, lambda row: row.checkpoint),
        *columns_of((*found.trained, *found.also), cell, fmt.written),
    ]
    return Table(found.rows, columns).markdown()


def _transfers(transfers: list[OfKind]) -> str:
    columns: list[Column[OfKind]] = [
        Column("transfer", lambda row: row[0] if row[1].after else f"{row[0]}, mean"),
        Column("collection", lambda row: row[1].collection if row[1].after else ""),
        Column("after - before", _checkpoints),
        Column("difference", lambda row: row[1].paired.difference, fmt.signed),
        Column("95 % interval", lambda row: row[1].paired, fmt.paired_interval),
        Column("p", lambda row: row[1].paired.p, fmt.p_value),
        Column("p (Holm)", lambda row: row[1].p_holm, fmt.p_value),
        Column("win / tie / loss", lambda row: row[1].paired, fmt.win_tie_loss),
    ]
    return Table(transfers, columns).markdown()


def _checkpoints(row: OfKind) -> str:
    return f"{row[1].after} - {row[1].before}" if row[1].after else ""


def _kinds(found: Forgetting) -> Iterator[OfKind]:
    for kind in ("backward", "forward", "kept"):
        if transfers := getattr(found, kind):
            yield from ((kind, transfer) for transfer in transfers.all_rows)


def figures(found: Forgetting) -> Table[Sequence[Any]]:
    """The matrix and transfer, a row each."""
    rows: list[Sequence[Any]] = [
        ("score", name, row.checkpoint, "", found.measure, on.value, on.low, on.high, None, None)
        for row in found.rows
        for name, on in row.levels.items()
    ]
    for kind, one in _kinds(found):
        names = (kind, one.collection, one.after, one.before, found.measure)
        pair = one.paired
        rows.append((*names, pair.difference, pair.low, pair.high, pair.p, one.p_holm))
    return table_of(FIELDS, rows)


def _legend(found: Forgetting) -> Iterator[str]:
    yield (
        "backward transfer: last checkpoint minus the one just trained on the collection; below 0 "
        "is forgetting (Lopez-Paz and Ranzato, 2017)"
    )
    if found.base:
        yield (
            "forward transfer: the checkpoint before its training on the collection, minus "
            f"{plain(found.base)}"
        )
    else:
        yield "forward transfer needs --base, what the first training started from"
    if found.kept:
        base = plain(found.base)
        yield f"kept: on collections that nothing was trained on, the last minus {base}"
    elif found.also:
        yield "what is kept on further collections needs --base"
    yield fmt.intervals_legend(found.resampling.resamples, found.resampling.seed)
    yield fmt.tests_legend("the collections of one kind of transfer")
    trained = "one training" if found.trainings == 1 else f"means of {found.trainings} trainings"
    yield f"{trained} of each: how much another seed would change is not in the intervals"
