"""The decision of a check as a paragraph, Markdown and JUnit XML.

A verdict is one plain paragraph before any table. It names candidate and baseline, the scores and
collections, the reason for an undecided outcome or the loss that is ruled out, and the queries that
lost most. Tests and p-values follow in the report.

In JUnit XML each collection, the mean, each slice and the outcome is a test case. Its scores, or
the paragraph of the verdict, are its output, even if it passed. Consumers count two kinds of
trouble, and a decision has four: REGRESSION and INCONCLUSIVE are a ``failure``, since a loss was
found or not ruled out; MISSING and DRIFT are an ``error``, since something was absent or not as
declared. None is ``skipped``, which consumers show as harmless, but a slice that is too small to
show a loss is. The outcome is the ``type``, and begins the message for consumers that show no type.
The exit code of ``check`` is a property of the suite, and decides whether a job fails.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from bench.gate.check_record import Check, CheckRow, LostQuery
from foundation.errors import format_count, format_names, make_printable
from reports import format as fmt
from reports.comparison import row_columns, settings_table
from reports.explain import answer_text
from reports.format import interval, score, signed
from reports.table import Column, Table, bullets, code, escape

LONGEST = 70  # characters of a query's text


def verdict_paragraph(check: Check) -> str:
    """Return the verdict of ``check`` as plain text on one line."""
    return " ".join(" ".join(f"{sentence}." for sentence in _sentences(check)).split())


def _sentences(check: Check) -> Iterator[str]:
    yield _lead_sentence(check) + _scores_clause(check)
    decided = [f"{row.on}, {score_change(row)}" for row in check.rows if row.failure]
    if decided and check.mean is not None:  # otherwise the scores so far are theirs
        yield f"It lost on {format_names(decided)}"
    if worst := [f"{_slice_name(r)}, {score_change(r)}" for r in check.slice_rows if r.failure]:
        yield f"By {check.by}, it lost on {format_names(worst)}"
    if missing := [f"{row.on}: {why}" for row in check.rows for why in row.missing]:
        yield f"Missing: {format_names(missing)}"
    if check.outcome in ("INCONCLUSIVE", "DRIFT") and not check.answer:
        yield f"Reason: {_reasons(check)}"
    if check.outcome == "OK" and check.margin is not None:
        yield from _promise(check)
    if check.outcome != "MISSING":
        yield from _worst_queries(check.worst)
    if check.renamed:
        yield check.renamed


def _reasons(check: Check) -> str:
    return "; ".join(map(str, check.reasons))


def _reason_list(check: Check) -> str:
    return bullets(escape(reason.what) for reason in check.reasons)


def _slice_name(row: CheckRow) -> str:
    return f"{row.value} ({row.on})"


def score_change(row: CheckRow) -> str:
    """Return measure, both scores and their difference in ``row``, or the reason for a gap."""
    if row.difference is None:
        return _reason_of(row)
    change = signed(row.difference)
    return f"{row.measure} {score(row.mean_b)} → {score(row.mean_a)} ({change})"


def _reason_of(row: CheckRow) -> str:
    return "; ".join(row.missing) or row.failure or row.unexamined


def _lead_sentence(check: Check) -> str:
    candidate, other = check.candidate, f"the {check.role}, {check.baseline}"
    scores = f"the {'vectors' if check.compares_vectors else 'scores'} of {other}"
    if check.compares_published:
        other = scores = "its published scores"
    if check.outcome == "MISSING":
        return f"{candidate} cannot be fully compared with {other}"
    if check.outcome == "REGRESSION":
        return f"{candidate} is worse than {other}"
    if check.outcome == "DRIFT":
        return f"{candidate} does not reproduce {scores}"
    if check.outcome == "INCONCLUSIVE":
        return f"There is not enough evidence to decide whether {candidate} is worse than {other}"
    if check.margin is not None:
        return f"{candidate} is at most {score(check.margin)} worse than {other}"
    if check.compares_vectors:
        return f"{candidate} reproduces {scores}"
    if not any(row.paired.changed if row.paired else row.difference for row in check.rows):
        return f"{candidate} has exactly {scores}"
    return f"{candidate} reproduces {scores} within the tolerance"


def _scores_clause(check: Check) -> str:
    """Return the scores, and the collections that they belong to."""
    if check.compares_vectors:
        agree = [f"{row.mean_a:.1%} of the vectors agree ({row.on})" for row in check.rows]
        return f": {' and '.join(agree)}"
    compared = [row for row in check.rows if not row.missing]
    if not compared:
        return ""
    queries = sum(row.paired.changed + row.paired.ties for row in compared if row.paired)
    size = f" ({format_count(queries, 'query', 'queries')})" if queries else ""
    if check.mean is not None:
        names = format_names([row.on for row in compared])
        return f": mean {score_change(check.mean)} over {names}{size}"
    each = format_names([f"{score_change(row)} on {row.on}" for row in compared])
    return f": {each}{size}"


def _promise(check: Check) -> Iterator[str]:
    """Yield the guarantee of a passed check, and the losses that it allows."""
    limit, in_mean = check.bound, " in the mean" if len(check.rows) > 1 else ""
    if limit is not None and limit < 0:
        yield f"A gain of at least {score(-limit)}{in_mean} is certain (95 % confidence)"
    elif limit is not None:
        yield f"A loss of more than {score(limit)}{in_mean} is ruled out (95 % confidence)"
    yield from (reason.what for reason in check.reasons if reason.loss is not None)
    if check.slice_rows:
        small = sum(bool(row.unexamined) for row in check.slice_rows)
        number = format_count(len(check.slice_rows) - small, "slice", "slices")
        rest = f"; {small:,} are too small to show a loss" if small else ""
        yield f"No regression is shown on {number} by {check.by}{rest}"


def _worst_queries(queries: Sequence[LostQuery]) -> Iterator[str]:
    several = len({query.collection for query in queries}) > 1
    changes = [
        f"{_quoted(query)}{f' of {query.collection}' if several else ''} "
        f"{query.baseline:.2f} → {query.candidate:.2f}"
        for query in queries
    ]
    if changes:
        subject = "The queries that lost most" if len(changes) > 1 else "The only query that lost"
        yield f"{subject}: {', '.join(changes)}"


def _quoted(query: LostQuery) -> str:
    text = fmt.short_text(query.text, LONGEST)
    return f"{query.query_id} “{text}”" if text else query.query_id


def markdown(check: Check) -> str:
    """Return ``check`` as Markdown: the verdict, a table, and how it was decided."""
    parts = [f"## {check.outcome}: {escape(check.candidate)}"]
    if check.compares_environments:
        return "\n\n".join([*parts, _reason_list(check), _score_table(check)]) + "\n"
    parts.append(escape(verdict_paragraph(check)))
    if check.answer:
        parts.append(answer_text(check.answer).rstrip())
    if check.explain:
        parts.append(f"To look for the cause, run {code(check.explain)}.")
    if check.warnings:
        parts.append(bullets(escape(f"warning: {text}") for text in check.warnings))
    if check.holes:
        parts.append("Unjudged documents, for the verdict of `compare`:")
        parts.append(bullets(map(escape, check.holes)))
    if check.left_out:
        parts.append(f"Left out by --on: {escape(format_names(check.left_out))}.")
    if check.slice_rows:
        parts += [f"### Slices by {escape(check.by)}", _slice_table(check)]
    heading = f"### Compared with the {check.role}, {escape(check.baseline)}"
    parts += [heading, _score_table(check)]
    if check.recipes:
        parts.append(settings_table(check.recipes, check.role, "candidate"))
    parts += ["### How it was decided", _rule_sentence(check), _reason_list(check)]
    if tested := [row for row in check.all_rows if row.paired]:
        parts += ["Tests of a loss:", _test_table(tested)]
    return "\n\n".join(parts) + "\n"


def _slice_table(check: Check) -> str:
    """Return the table of slices, and the reason for each that is too small."""
    scores = ("collection", "queries", "b", "a", "difference", "95 % interval", "p (maxT)")
    columns: list[Column[CheckRow]] = [
        Column(check.by, lambda row: row.value, fmt.short_text),
        *row_columns("candidate", "baseline", *scores),
        Column("shows a loss from", lambda row: row.shows_from, fmt.score),
        Column("verdict", lambda row: _verdict(check, row)),
    ]
    notes = [f"{_slice_name(row)}: {row.unexamined}" for row in check.slice_rows if row.unexamined]
    table = Table(check.slice_rows, columns).markdown()
    return "\n\n".join([table, *([bullets(map(escape, notes))] if notes else [])])


def _verdict(check: Check, row: CheckRow) -> str:
    """Return the outcome of a row on its own."""
    if row.missing:
        return "MISSING"
    return check.outcome if row.failure else NOT_EXAMINED if row.unexamined else "OK"


def _score_table(check: Check) -> str:
    """Return the scores of all rows and their differences."""
    names = ("there", "here") if check.compares_environments else ("candidate", "baseline")
    scores = ("measure", "b", "a", "difference", "95 % interval", "win / tie / loss")
    columns: list[Column[CheckRow]] = [
        Column("texts" if check.compares_environments else "collection", lambda row: row.on),
        *row_columns(*names, *scores),
        Column("reason", _reason_of, fmt.short_text),
    ]
    return Table(check.all_rows, columns).drop_empty().markdown()


def _test_table(rows: Sequence[CheckRow]) -> str:
    columns: list[Column[CheckRow]] = [
        *row_columns("candidate", "baseline", "collection", "p", "p (Holm)"),
        Column("largest loss not ruled out", lambda row: row.bound, fmt.score),
    ]
    return Table(rows, columns).markdown()


def _rule_sentence(check: Check) -> str:
    """Return the rule and its limits."""
    if check.margin is None or check.floor is None:
        return f"The candidate must reproduce its checkpoint. Exit code {check.exit_code}."
    slices = (
        f"So does a slice by {check.by} that lost significantly (maxT over all slices and "
        "collections) and more than the floor. "
        if check.by
        else ""
    )
    return (
        f"A candidate passes if a mean loss of more than {score(check.margin)} (the margin) is "
        "ruled out (95 %, one-sided, Gaffke's bound), and no collection lost significantly "
        f"(randomisation test, Holm) and more than {score(check.floor)} (the floor). It fails if a "
        "collection did, or if the mean lost significantly and the loss is not within the margin. "
        f"{slices}Exit code {check.exit_code}."
    )


NOT_EXAMINED = "not examined"  # of a slice
KINDS = {
    **{"REGRESSION": "failure", "INCONCLUSIVE": "failure", "MISSING": "error", "DRIFT": "error"},
    NOT_EXAMINED: "skipped",
}
_COUNTS = {"failure": "failures", "error": "errors", "skipped": "skipped"}
_NOT_XML = re.compile("[\ufffe\uffff]")


def junit(check: Check) -> str:
    """Return ``check`` as JUnit XML."""
    top = ElementTree.Element("testsuites", name=f"check {_xml(check.candidate)}")
    name = _xml(f"{check.role}: {check.baseline}")
    suite = ElementTree.SubElement(top, "testsuite", name=name)
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("outcome", check.outcome), ("exit_code", str(check.exit_code))):
        ElementTree.SubElement(properties, "property", name=name, value=value)
    times = Counter(row.on for row in check.all_rows)
    for row in (*check.all_rows, *check.slice_rows):
        name = row.on if times[row.on] == 1 else f"{row.on} {row.measure}"
        name = f"{row.on} {check.by}={row.value}" if row.value else name
        case = _add_case(suite, check.candidate, name, _verdict(check, row), _reason_of(row))
        if row.difference is not None:
            size = f"{format_count(row.queries, 'query', 'queries')}; " if row.queries else ""
            limits = interval(row.paired)
            limits = f"; 95 % interval of the difference {limits}" if limits else ""
            text = f"{size}baseline → candidate: {score_change(row)}{limits}"
            _add_text(case, "system-out", text)
    case = _add_case(suite, check.candidate, "outcome", check.outcome, _reasons(check))
    explain = f"\n{check.explain}" if check.explain else ""
    _add_text(case, "system-out", verdict_paragraph(check) + explain)
    if check.warnings:
        _add_text(case, "system-err", "\n".join(f"warning: {text}" for text in check.warnings))
    for kind, attribute in _COUNTS.items():
        suite.set(attribute, str(len(suite.findall(f"testcase/{kind}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))
    ElementTree.indent(top)
    declaration = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return declaration + ElementTree.tostring(top, encoding="unicode") + "\n"


def _add_case(
    suite: ElementTree.Element, candidate: str, name: str, outcome: str, message: str
) -> ElementTree.Element:
    case = ElementTree.SubElement(suite, "testcase", classname=_xml(candidate), name=_xml(name))
    if outcome in KINDS:
        text = f"{outcome}: {message}"
        _add_text(case, KINDS[outcome], text, type=outcome, message=_xml(text))
    return case


def _add_text(case: ElementTree.Element, tag: str, text: str, **attributes: str) -> None:
    ElementTree.SubElement(case, tag, attributes).text = _xml(text)


def _xml(text: str) -> str:
    """Return text without terminal control codes and without the characters that XML forbids."""
    return _NOT_XML.sub("\ufffd", make_printable(text))
