"""Checkpoints of successive trainings by collections, and transfer, as Markdown or CSV."""

from collections.abc import Iterator

from bench.compare.statistics import Paired
from bench.compare.transfer import Forgetting, Transfers
from bench.monitor.quality_curve import Level
from reports.csv_table import csv_table
from reports.markdown import plain, table

FIELDS = ("kind", "collection", "after", "before", "measure", "value", "low", "high", "p", "p_holm")


def markdown(found: Forgetting) -> str:
    """The matrix, then a table of transfer, then what the words mean."""
    names = [*found.trained, *found.also]
    cells = [
        [row.checkpoint, *(_cell(found, row.checkpoint, name, row.levels[name]) for name in names)]
        for row in found.rows
    ]
    rows = [line for kind, one in _kinds(found) for line in _lines(kind, one)]
    headers = ["transfer", "collection", "after - before", "difference", "95 % interval"]
    parts = [
        f"## {found.measure} of successive trainings",
        table([found.measure, *names], cells, "lr"),
        f"average of the last on what was trained: {_level(found.average)}",
        *([table([*headers, "p", "p (Holm)", "win / tie / loss"], rows, "lllr")] if rows else []),
        "\n".join(f"- {line}" for line in _legend(found)),
    ]
    return "\n\n".join(parts) + "\n"


def comma_separated(found: Forgetting) -> str:
    """The matrix and transfer, a line each, nothing rounded."""
    return csv_table(FIELDS, _records(found))


def _records(found: Forgetting) -> Iterator[tuple[object, ...]]:
    for row in found.rows:
        for name, level in row.levels.items():
            values = (level.value, level.low, level.high, None, None)
            yield "score", name, row.checkpoint, "", found.measure, *values
    for kind, transfers in _kinds(found):
        for one in transfers.rows:
            names = (one.collection, one.after, one.before)
            yield kind, *names, found.measure, *_numbers(one.paired), one.p_holm
        yield kind, "mean", "", "", found.measure, *_numbers(transfers.mean), None


def _kinds(found: Forgetting) -> list[tuple[str, Transfers]]:
    """The kinds of transfer that there are, by name."""
    kinds = [("backward", found.backward), ("forward", found.forward), ("kept", found.kept)]
    return [(name, one) for name, one in kinds if one is not None]


def _numbers(found: Paired) -> tuple[float | None, ...]:
    return found.difference, found.low, found.high, found.p


def _cell(found: Forgetting, checkpoint: str, collection: str, level: Level) -> str:
    """Bold on the diagonal: what the checkpoint was just trained on."""
    order = [row.checkpoint for row in found.rows if row.checkpoint != found.base]
    own = dict(zip(order, found.trained, strict=True)).get(checkpoint)
    return f"**{_level(level)}**" if own == collection else _level(level)


def _level(level: Level) -> str:
    if level.low is None or level.high is None:
        return f"{level.value:.4f}"
    return f"{level.value:.4f} ({level.low:.4f} to {level.high:.4f})"


def _lines(kind: str, transfers: Transfers) -> Iterator[list[str]]:
    for one in transfers.rows:
        compared = f"{one.after} - {one.before}"
        yield [kind, one.collection, compared, *_cells(one.paired, f"{one.p_holm:.4f}")]
    yield [f"{kind}, mean", "", "", *_cells(transfers.mean, "")]


def _cells(found: Paired, p_holm: str) -> list[str]:
    interval = "" if found.low is None else f"{found.low:+.4f} to {found.high:+.4f}"
    return [
        f"{found.difference:+.4f}",
        interval + (" (few)" if found.few and interval else ""),
        f"{found.p:.4f}",
        p_holm,
        f"{found.wins:,} / {found.ties:,} / {found.losses:,}",
    ]


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
    count, seed = found.resampling.resamples, found.resampling.seed
    yield f"intervals: bootstrap over queries, {count:,} resamples, seed {seed}"
    yield "p: paired sign flips; Holm: over the collections of one kind of transfer"
    trained = "one training" if found.trainings == 1 else f"means of {found.trainings} trainings"
    yield f"{trained} of each: how much another seed would change is not in the intervals"
