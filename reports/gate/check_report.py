"""The outcome of a check where people read it: Markdown for pull requests and step summaries."""

from collections.abc import Iterator, Sequence

from bench.gate.power import DetectableEffect
from bench.gate.records import Check, CheckRow
from reports import format as fmt
from reports.gate.verdict_sentences import verdict_sentences
from reports.markdown import bullets, plain
from reports.table import Column, Table


def markdown(check: Check) -> str:
    """The verdict as a sentence, a table for each comparison, then how it was decided."""
    parts = [f"## {check.outcome}: {plain(check.candidate)}"]
    parts += [plain(sentence) for sentence in verdict_sentences(check)]
    if check.warnings:
        parts.append(bullets(plain(f"warning: {text}") for text in check.warnings))
    if check.left_out:
        names = plain(", ".join(check.left_out))
        parts.append(f"Left out by --on, though there are results: {names}.")
    for verdict in check.against:
        heading = f"### Beside the {verdict.role}, {plain(verdict.name)}: {verdict.outcome}"
        parts += [heading, _scores(verdict.all_rows)]
    parts += ["### How it was decided", *_decided(check)]
    return "\n\n".join(parts) + "\n"


def _decided(check: Check) -> Iterator[str]:
    """The rule, what it came to, and the tests."""
    yield _rule(check)
    yield bullets(map(plain, check.reasons))
    for verdict in check.against:
        if any(row.paired for row in verdict.rows):
            yield f"Tests of the differences to the {verdict.role}, {plain(verdict.name)}:"
            yield _tests([row for row in verdict.all_rows if row.paired])
    if check.effects:
        yield "What the collections could show, as stated before encoding:"
        yield effects_table(check.effects)


def effects_table(effects: Sequence[DetectableEffect]) -> str:
    """Minimum detectable effects, and where their deviations come from."""
    columns: list[Column[DetectableEffect]] = [
        Column("collection", lambda effect: effect.name),
        Column("queries", lambda effect: effect.queries, fmt.count),
        Column("deviation", lambda effect: effect.deviation, fmt.fixed(3)),
        Column("detectable", lambda effect: effect.detectable, fmt.score),
        Column("deviation from", lambda effect: effect.source),
    ]
    return Table(effects, columns).markdown()


def _scores(rows: Sequence[CheckRow]) -> str:
    columns: list[Column[CheckRow]] = [
        Column("collection", lambda row: row.name),
        Column("measure", lambda row: row.measure),
        Column("baseline", lambda row: (row.baseline, row.baseline_in_domain), fmt.score_in_domain),
        Column(
            "candidate", lambda row: (row.candidate, row.candidate_in_domain), fmt.score_in_domain
        ),
        Column("difference", lambda row: row.difference, fmt.signed),
        Column("95 % interval", lambda row: row.paired, fmt.paired_interval),
        Column("win / tie / loss", lambda row: row.paired, fmt.win_tie_loss),
        Column("", lambda row: row.missing or row.failure),
    ]
    return Table(rows, columns).markdown()


def _tests(rows: Sequence[CheckRow]) -> str:
    columns: list[Column[CheckRow]] = [
        Column("collection", lambda row: row.name),
        Column("p (randomisation)", lambda row: row.paired and row.paired.p, fmt.p_value),
        Column("p (rare gains may be missing)", lambda row: row.p_skew, fmt.p_value),
        Column("p (Holm)", lambda row: row.p_holm, fmt.p_value),
        Column("detectable", lambda row: row.detectable, fmt.score),
    ]
    return Table(rows, columns).markdown()


def _rule(check: Check) -> str:
    """The rule as a rule, in words that are no finding."""
    if check.tolerance is not None:
        return f"Asked was for the scores of a known checkpoint. Exit code {check.exit_code}."
    rule = {
        "loss": "fails a candidate that lost significantly on a collection (p of Holm) or in the "
        "mean; the larger of two p counts, of which one allows for rare gains that these queries "
        "may miss",
        "margin": "passes a candidate only where a loss of the mean of more than "
        f"{fmt.score(check.margin)} is ruled out (one-sided, 95 %, bootstrap-t), and fails one "
        "whose mean lost significantly",
    }[check.rule]
    return (
        f"Rule “{check.rule}” {rule}. Either rule fails a candidate that lost more than "
        f"{fmt.score(check.floor)} on any collection. Exit code {check.exit_code}."
    )
