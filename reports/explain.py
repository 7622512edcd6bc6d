"""The answer of ``explain`` as Markdown, and the ledger of a search system."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from bench.comparing.statistics import Difference
from bench.explain.ledger import Ledger, LedgerRow
from bench.explain.setup import Answer, Explanation
from foundation.errors import format_count
from reports import format as fmt
from reports.comparison import paired_columns
from reports.table import Column, Table, bullets, code, escape


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
        value, limits = paired_columns(_term_of(place), "difference", "95 % interval")
        columns += [replace(value, header=measure), limits]
    yield Table(ledger.rows, columns).markdown()
    if fixes := [f"{escape(row.name)}: {escape(row.apply)}" for row in ledger.rows if row.is_told]:
        yield "To fix it:\n\n" + bullets(fixes)
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


def _term_of(place: int) -> Callable[[LedgerRow], Difference]:
    return lambda row: row.terms[place]


def answer_text(answer: Answer) -> str:
    """Return the answer of ``explain`` as Markdown: a verdict in words, then what fits."""
    return "\n\n".join(_answer_parts(answer)) + "\n"


def _answer_parts(answer: Answer) -> Iterator[str]:
    yield escape(_answer_verdict(answer))
    if answer.seen:
        settings = [f": {code(one.apply)}" if one.apply else "" for one in answer.seen]
        lines = [escape(one.name) + each for one, each in zip(answer.seen, settings, strict=True)]
        yield "Seen in the evidence itself:\n\n" + bullets(lines)
    if answer.explanations:
        yield _explanations_table(answer)
        yield from _remarks(answer.explanations)
    if answer.closest is not None:
        row = answer.closest
        yield f"Closest, but not enough: {escape(row.name)} ({row.share:.0%} agree)."
    if answer.singles:
        tried = format_count(answer.singles, "deviation", "deviations")
        pairs = f" and {format_count(answer.pairs, 'pair', 'pairs')}" if answer.pairs else ""
        texts = format_count(answer.encoded, "text", "texts")
        yield f"Tried {tried}{pairs}; {texts} encoded."


def _answer_verdict(answer: Answer) -> str:
    evidence, model = " and ".join(answer.evidence), answer.model
    if answer.verdict == "reproduced":
        within = f", within the precision of {answer.precision}" if answer.precision else ""
        what = f"Your configuration of {model} reproduces the {evidence}{within}"
        return f"{what}. No deviation is closer."
    if answer.verdict == "none":
        return (
            f"None of these deviations explains the {evidence}: with your configuration of {model} "
            f"{answer.share:.0%} agree. Other weights, other texts or a cause that is not in the "
            "table remain."
        )
    best = answer.explanations[0].name
    if answer.verdict == "possible":
        return (
            f"{best} agrees with the {evidence}, but {answer.chance:.1f} of the deviations would "
            "agree with unrelated scores as well. Give more scores, or per-query scores."
        )
    return f"Best explanation of the {evidence}: {best}."


def _explanations_table(answer: Answer) -> str:
    on_sample = " on a sample" if answer.sampled else ""
    columns: list[Column[Explanation]] = [
        Column("explanation", lambda row: row.name),
        Column("agrees", lambda row: f"{row.share:.0%}", fmt.numeric),
        Column("as exact as", lambda row: row.precision),
        Column(f"change of {answer.measure}{on_sample}", lambda row: row.cost, fmt.signed),
    ]
    return Table(answer.explanations, columns).drop_empty().markdown()


def _remarks(rows: Sequence[Explanation]) -> Iterator[str]:
    """Yield notes below the table: how to do the same, and what cannot be told apart."""
    lines = []
    for row in rows:
        name = escape(row.name)
        if row.apply:
            lines.append(f"{name}, to do the same: {' and '.join(map(code, row.apply))}")
        if row.equals:
            lines.append(f"{name} cannot be told from: {escape(', '.join(row.equals))}")
        if row.detail:
            lines.append(f"{name}: {escape(row.detail)}")
    if lines:
        yield bullets(lines)
