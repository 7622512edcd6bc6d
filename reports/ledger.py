"""The ledger of a search system as Markdown: both scores, each change, and what to mend."""

from collections.abc import Callable, Iterator

from bench.comparing.statistics import Difference
from bench.explain.ledger import Ledger, LedgerRow
from reports import format as fmt
from reports.table import Column, Table, bullets, escape


def ledger_text(ledger: Ledger) -> str:
    """Return a ledger as Markdown."""
    return "\n\n".join(_parts(ledger)) + "\n"


def _parts(ledger: Ledger) -> Iterator[str]:
    outcome = "DRIFT" if ledger.exit_code else "OK"
    yield f"## {outcome}: {escape(ledger.system)}"
    lines = zip(ledger.measures, ledger.exact, ledger.deployed, ledger.totals, strict=True)
    yield "\n".join(
        f"{measure} on {escape(ledger.collection)}: exact search {fmt.score(exact)}, "
        f"{escape(ledger.system)} {fmt.score(deployed)} ({_term(total)})."
        for measure, exact, deployed, total in lines
    )
    columns: list[Column[LedgerRow]] = [Column("change", lambda row: row.name)]
    for place, measure in enumerate(ledger.measures):
        columns.append(Column(measure, _value_of(place), fmt.signed))
        columns.append(Column("95 % interval", _interval_of(place), fmt.numeric))
    yield Table(ledger.rows, columns).markdown()
    if mend := [f"{escape(row.name)}: {escape(row.apply)}" for row in ledger.rows if row.is_told]:
        yield "To mend it:\n\n" + bullets(mend)
    if ledger.notes:
        yield "Seen besides:\n\n" + bullets(map(escape, ledger.notes))
    yield (
        f"The terms sum to the difference for each of {len(ledger.queries):,} queries. Each is the "
        "change from the row above, so it depends on their order."
    )
    lost = "A loss is certain" if ledger.exit_code else "Nothing is lost beyond noise"
    yield f"{lost}. Exit code {int(ledger.exit_code)}."


def _term(difference: Difference) -> str:
    limits = fmt.interval(difference)
    return fmt.signed(difference.difference) + (f", {limits}" if limits else "")


def _value_of(place: int) -> Callable[[LedgerRow], float]:
    return lambda row: row.terms[place].difference


def _interval_of(place: int) -> Callable[[LedgerRow], str]:
    return lambda row: fmt.interval(row.terms[place])
