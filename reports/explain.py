"""The answer of ``explain``: a verdict in words, then a table of what fits."""

from collections.abc import Iterator

from bench.explain.setup import Answer, Explanation
from foundation.errors import format_count
from reports import format as fmt
from reports.table import Column, Table, bullets, code, escape


def answer_text(answer: Answer) -> str:
    """Return the answer as Markdown that reads well in a terminal.

    Args:
        answer: to print.
    """
    return "\n\n".join(_parts(answer)) + "\n"


def _parts(answer: Answer) -> Iterator[str]:
    yield escape(_verdict(answer))
    if answer.seen:
        lines = [f"{escape(one.name)}: {code(one.apply)}" for one in answer.seen]
        yield "The evidence itself shows differences:\n\n" + bullets(lines)
    if answer.explanations:
        yield _table(answer).markdown()
        yield from _remarks(answer.explanations)
    if answer.closest is not None:
        row = answer.closest
        yield f"Closest, but not enough: {escape(row.name)} ({row.share:.0%} agree)."
    if answer.singles:
        tried = f"{format_count(answer.singles, 'deviation', 'deviations')}"
        pairs = f" and {format_count(answer.pairs, 'pair', 'pairs')}" if answer.pairs else ""
        texts = format_count(answer.encoded, "text", "texts")
        yield f"Tried {tried}{pairs}; {texts} encoded."


def _verdict(answer: Answer) -> str:
    evidence, model = " and ".join(answer.evidence), answer.model
    if answer.verdict == "reproduced":
        within = f", within the precision of {answer.precision}" if answer.precision else ""
        return f"Your set-up of {model} reproduces the {evidence}{within}. No deviation is closer."
    if answer.verdict == "none":
        return (
            f"None of these deviations explains the {evidence}: with your set-up of {model} "
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


def _table(answer: Answer) -> Table[Explanation]:
    on_sample = " on a sample" if answer.sampled else ""
    columns: list[Column[Explanation]] = [
        Column("explanation", lambda row: row.name),
        Column("agrees", lambda row: f"{row.share:.0%}", fmt.numeric),
        Column("as exact as", lambda row: row.precision),
        Column(f"change of {answer.measure}{on_sample}", lambda row: row.cost, fmt.signed),
        Column("to do the same", lambda row: "; ".join(row.apply)),
    ]
    return Table(answer.explanations, columns).drop_empty()


def _remarks(rows: tuple[Explanation, ...]) -> Iterator[str]:
    lines = []
    for row in rows:
        if row.equals:
            lines.append(f"{row.name} cannot be told from: {', '.join(row.equals)}")
        if row.detail:
            lines.append(f"{row.name}: {row.detail}")
    if lines:
        yield bullets(map(escape, lines))
