"""Gain and forgetting of the rows of an experiment with continual pre-training, as Markdown."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from urllib.parse import quote

from bench.experiments.report_record import Report, RowFound, RowOnCollection, SequenceFound
from reports import format as fmt
from reports.markdown import bullets, plain
from reports.table import Column, Row, Table
from reports.training.forgetting import markdown as matrix

Learnt = tuple[RowFound, SequenceFound]


def difference_columns(
    of: Callable[[Row], RowOnCollection | None], header: str = "difference", gap: str = ""
) -> list[Column[Row]]:
    """A difference with its interval and p.

    Args:
        of: the figures of a row; None for a gap.
        gap: instead of the difference.
    """
    return [
        Column(header, of, lambda on: fmt.signed(on.difference) if on else gap),
        Column("95 % interval", lambda row: (on := of(row)) and on.compared, fmt.interval),
        Column("p (Holm)", lambda row: (on := of(row)) and on.p_holm, fmt.p_value),
    ]


def sequence_sections(report: Report, pictures: Mapping[str, str]) -> list[str]:
    """Parts of the report: a table of all rows, then the forgetting matrix of each.

    Args:
        pictures: file of the heat map by row, relative to the report.
    """
    learnt = [(row, row.sequence) for row in report.rows if row.sequence]
    if not learnt:
        return []
    columns: list[Column[Learnt]] = [
        Column("row", lambda row: row[0].name),
        *difference_columns(lambda row: row[1].gained, "gained"),
        Column("verdict", lambda row: row[1].gained.verdict),
        *difference_columns(lambda row: row[1].forgotten, "forgotten", "kept apart"),
        Column("verdict", lambda row: (on := row[1].forgotten) and on.verdict),
        Column("MLM loss", lambda row: fmean(row[1].losses.values()), fmt.fixed(3)),
    ]
    parts = ["## What was gained and forgotten", Table(learnt, columns).markdown()]
    parts.append(bullets([*_legend(learnt[0][1].start), *_over_orders(report, learnt)]))
    for row, sequence in learnt:
        parts.append(f"### {plain(f'{row.name}: {row.change}' if row.change else row.name)}")
        if row.name in pictures:
            parts.append(f"![{plain(row.name)}]({quote(pictures[row.name])})")
        parts.append(matrix(sequence.forgetting, level=4).rstrip("\n"))
    return parts


def _legend(start: str) -> Iterator[str]:
    yield f"gained: mean of the domains after the sequence minus that of {plain(start)}."
    yield (
        "forgotten: after the sequence minus just after the domain's own training, mean over all "
        "domains but the last; below 0 is forgetting (backward transfer)."
    )
    yield (
        "After the sequence a collection is searched with the last checkpoint, or with its own "
        "model or adapter where each domain has one: what is kept apart is not forgotten."
    )
    yield (
        "MLM loss: over the last tenth of each domain's steps, mean over the domains. A method "
        "that keeps what was known by learning little of what is new shows it here."
    )
    yield "p (Holm): corrected for all rows, for gained and forgotten each."


def _over_orders(report: Report, learnt: Sequence[Learnt]) -> Iterator[str]:
    """Gain and forgetting over the orders of each axis that orders the same domains."""
    by_name = {row.name: sequence for row, sequence in learnt}
    for axis in (axis for axis in report.axes if axis.field == "adapt.on"):
        orders = [by_name[point.row] for point in axis.points if point.row in by_name]
        if len(orders) < 2 or len({frozenset(each.losses) for each in orders}) > 1:
            continue
        spread = [
            f"{kind} {fmt.signed(fmean(values))} on average "
            f"({fmt.signed(min(values))} to {fmt.signed(max(values))})"
            for kind, compared in (
                ("gained", [each.gained for each in orders]),
                ("forgotten", [each.forgotten for each in orders]),
            )
            if (values := [on.difference for on in compared if on and on.difference is not None])
        ]
        yield (
            f"{plain(axis.title)}: over {len(orders)} orders of the same domains, "
            f"{'; '.join(spread)}. Forgotten leaves out the domain that came last."
        )
