"""Hypotheses that were fixed before an experiment and what came of them, as Markdown."""

from bench.experiments.report_record import HypothesisTested, Report, RowOnCollection
from reports import format as fmt
from reports.experiments.sequence_sections import difference_columns
from reports.table import Column, Table

Tested = tuple[HypothesisTested, RowOnCollection]


def hypotheses_section(report: Report) -> list[str]:
    """A heading, a table of each hypothesis on each collection, and how to read it; or nothing."""
    tested = [(each, on) for each in report.hypotheses for on in each.on]
    if not report.hypotheses:
        return []
    columns: list[Column[Tested]] = [
        Column("hypothesis", lambda pair: _sentence(pair[0])),
        Column("collection", lambda pair: pair[1].collection),
        *difference_columns(lambda pair: pair[1]),
        Column("detectable", lambda pair: (on := pair[1].compared) and on.detectable, fmt.score),
        Column("answer", lambda pair: pair[0].answer(pair[1].collection)),
    ]
    return [
        "## Hypotheses that were fixed beforehand",
        Table(tested, columns).markdown(),
        "p (Holm): corrected for all hypotheses on a collection. What is not separated is not "
        "thereby equal: a true difference as large as `detectable` would have been found 80 times "
        "in 100.",
    ]


def _sentence(hypothesis: HypothesisTested) -> str:
    relation = "is better than" if hypothesis.expected == "better" else "is equal to"
    return f"{hypothesis.row} {relation} {hypothesis.against}"
