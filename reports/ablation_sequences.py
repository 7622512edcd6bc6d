"""What the rows of an experiment with continual pre-training gained and forgot, as Markdown."""

from collections.abc import Iterator, Mapping
from statistics import fmean
from urllib.parse import quote

from bench.experiments.report_record import Report, RowFound, RowOnCollection
from reports.forgetting_tables import markdown as matrix
from reports.markdown import plain, table

HEADERS = ("gained", "95 % interval", "p (Holm)", "verdict", "forgotten", "95 % interval",
           "p (Holm)", "verdict", "MLM loss")  # fmt: skip


def sequence_sections(report: Report, pictures: Mapping[str, str]) -> list[str]:
    """Parts of the report: a table of all rows, then the forgetting matrix of each.

    Args:
        pictures: file of the heat map by row, relative to the report.
    """
    rows = [row for row in report.rows if row.sequence]
    if not rows:
        return []
    parts = ["## What was gained and forgotten"]
    parts.append(table(["row", *HEADERS], [[row.name, *_cells(row)] for row in rows], "lr"))
    parts.append("\n".join(f"- {line}" for line in _legend(rows[0])))
    for row in rows:
        parts.append(f"# {plain(f'{row.name}: {row.change}' if row.change else row.name)}")
        if row.name in pictures:
            parts.append(f"![{plain(row.name)}]({quote(pictures[row.name])})")
        if row.sequence:
            parts.append(matrix(row.sequence.forgetting).rstrip("\n"))
    return parts


def _cells(row: RowFound) -> list[str]:
    sequence = row.sequence
    if sequence is None:
        return []
    forgotten = ["kept apart", "", "", ""]
    if sequence.forgotten:
        forgotten = _difference(sequence.forgotten)
    return [*_difference(sequence.gained), *forgotten, f"{fmean(sequence.losses.values()):.3f}"]


def _difference(on: RowOnCollection) -> list[str]:
    """A difference with its interval, p and verdict."""
    if on.recipes:
        difference, low, high = on.recipes.mean, on.recipes.low, on.recipes.high
    elif on.checkpoints:
        difference, low, high = on.checkpoints.difference, on.checkpoints.low, on.checkpoints.high
    else:
        return [""] * 4
    interval = "" if low is None or high is None else f"{low:+.4f} to {high:+.4f}"
    p = "" if on.p_holm is None else f"{on.p_holm:.4f}"
    return [f"{difference:+.4f}", interval, p, on.verdict]


def _legend(row: RowFound) -> Iterator[str]:
    start = plain(row.sequence.start) if row.sequence else ""
    yield f"gained: mean of the domains after the sequence minus that of {start}."
    yield (
        "forgotten: after the sequence minus just after the domain's own training, mean over all "
        "domains but the last; below 0 is forgetting (backward transfer)."
    )
    yield (
        "After the sequence a collection is searched with the last checkpoint, or with its own "
        "adapter where each domain has one: what is kept apart is not forgotten."
    )
    yield (
        "MLM loss: over the last tenth of each domain's steps, mean over the domains. A method "
        "that keeps what was known by learning little of what is new shows it here."
    )
    yield "p (Holm): corrected for all rows, for gained and forgotten each."
