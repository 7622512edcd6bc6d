"""The outcome of a check where people read it: Markdown for pull requests, JUnit XML for CI."""

import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from tabulate import tabulate

from bench.decisions.check import Against, Check, Row
from bench.decisions.foresight import Foreseen
from bench.decisions.statistics import Paired

HEADERS = (
    "collection",
    "measure",
    "candidate",
    "difference",
    "95 % interval",
    "p",
    "p (Holm)",
    "win / tie / loss",
    "detectable",
    "",
)
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&!])")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def markdown(check: Check) -> str:
    """The outcome first, then a table for each comparison."""
    parts = [f"## {check.outcome}: {plain(check.candidate)}", _list(check.reasons)]
    for one in check.against:
        parts.append(f"### Against the {one.role}, {plain(one.name)}: {one.outcome}")
        parts.append(_table(HEADERS, [_cells(row) for row in _rows(one)]))
        if check.rule == "margin":
            parts.append(_ruled_out(one, check.margin))
    if check.warnings:
        parts.append(_list([f"warning: {text}" for text in check.warnings]))
    if check.foreseen:
        parts += ["Seen before encoding:", foreseen_table(check.foreseen)]
    parts.append(_terms(check))
    return "\n\n".join(parts) + "\n"


def foreseen_table(foreseen: Sequence[Foreseen]) -> str:
    """What a check could see, and where the guess comes from."""
    rows = [
        [
            plain(one.name),
            f"{one.queries:,}",
            "" if one.deviation is None else f"{one.deviation:.3f}",
            f"{one.detectable:.4f}",
            one.source,
        ]
        for one in foreseen
    ]
    return _table(("collection", "queries", "deviation", "detectable", "deviation from"), rows)


def junit(check: Check) -> str:
    """One test case for each collection, the mean and the outcome of each comparison."""
    top = ElementTree.Element("testsuites", name=f"check {_xml(check.candidate)}")
    for one in check.against:
        suite = ElementTree.SubElement(top, "testsuite", name=_xml(f"{one.role}: {one.name}"))
        for row in _rows(one):
            _case(suite, check.candidate, row)
        whole = _add(suite, check.candidate, "outcome")
        _result(whole, one.outcome, "; ".join(one.reasons))
        for kind in ("failure", "error", "skipped"):
            count = len(suite.findall(f"testcase/{kind}"))
            suite.set({"failure": "failures", "error": "errors"}.get(kind, kind), str(count))
        suite.set("tests", str(len(suite.findall("testcase"))))
    ElementTree.indent(top)
    declaration = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return declaration + ElementTree.tostring(top, encoding="unicode") + "\n"


def plain(text: str) -> str:
    """Text that Markdown and HTML show as it is, on one line."""
    one_line = " ".join(text.split())
    return _SPECIAL.sub(lambda found: f"&#{ord(found[1])};", one_line)


def _case(suite: ElementTree.Element, candidate: str, row: Row) -> None:
    case = _add(suite, candidate, row.name)
    if row.missing:
        _note(case, "error", row.missing)
    elif row.failure:
        _note(case, "failure", row.failure)
    elif row.paired is not None and row.paired.few:
        _note(case, "skipped", f"{row.paired.changed} queries changed")


def _result(case: ElementTree.Element, outcome: str, reasons: str) -> None:
    if outcome == "MISSING":
        _note(case, "error", reasons)
    elif outcome != "OK":
        _note(case, "failure", f"{outcome}: {reasons}")


def _add(suite: ElementTree.Element, candidate: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=_xml(candidate), name=_xml(name))


def _note(case: ElementTree.Element, kind: str, message: str) -> None:
    ElementTree.SubElement(case, kind, message=_xml(message))


def _xml(text: str) -> str:
    """Without the control characters that no XML file may hold."""
    return _NOT_XML.sub("�", text)


def _rows(one: Against) -> Iterator[Row]:
    yield from one.rows
    if one.mean is not None:
        yield one.mean


def _cells(row: Row) -> list[str]:
    found, remark = row.paired, row.missing or row.failure
    difference = None
    if row.candidate is not None and row.baseline is not None:
        difference = row.candidate - row.baseline
    return [
        plain(row.name),
        row.measure,
        "" if row.candidate is None else f"{row.candidate:.4f}",
        "" if difference is None else f"{difference:+.4f}",
        *(_tested(found, row.p_holm) if found else [""] * 5),
        plain(remark),
    ]


def _tested(found: Paired, p_holm: float | None) -> list[str]:
    limits = "" if found.low is None else f"{found.low:+.4f} to {found.high:+.4f}"
    return [
        limits + (" (few)" if found.few and limits else ""),
        f"{found.p:.4f}",
        "" if p_holm is None else f"{p_holm:.4f}",
        f"{found.wins:,} / {found.ties:,} / {found.losses:,}",
        "" if found.detectable is None else f"{found.detectable:.4f}",
    ]


def _ruled_out(one: Against, margin: float) -> str:
    if one.largest_loss is None:
        return "No loss of the mean is ruled out."
    return (
        f"Losses of the mean beyond {one.largest_loss:.4f} are ruled out at 95 % (bootstrap-t); "
        f"the margin is {margin:.4f}."
    )


def _terms(check: Check) -> str:
    if check.tolerance is not None:
        return f"Rule: the same scores as a known checkpoint's. Exit {check.exit_code}."
    rule = {
        "loss": "no significant loss on a collection (Holm) or of the mean",
        "margin": f"a loss of the mean beyond {check.margin:.4f} is ruled out",
    }[check.rule]
    return f"Rule: {rule}; no collection loses more than {check.floor:.4f}. Exit {check.exit_code}."


def _list(texts: Sequence[str]) -> str:
    return "\n".join(f"- {plain(text)}" for text in texts)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    table: str = tabulate(rows, headers, tablefmt="pipe", disable_numparse=True)
    return table
