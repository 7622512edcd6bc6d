"""The outcome of a check as JUnit XML, for what collects the results of tests.

A test case for each collection, the mean and the outcome of each comparison;
its scores, or the sentence of the verdict, are its output, also where it passed.
Consumers count three kinds of trouble, and a decision has four: REGRESSION is a ``failure``, since
the checkpoint was tested and found worse; MISSING and DRIFT are an ``error``, since what was to be
tested was not there or was not what it claims to be; INCONCLUSIVE is ``skipped``, since nothing
was decided. The word is the ``type``, and begins the message for consumers that show no type. The
exit code of ``check`` is a property of the first suite, and decides whether a job fails.
"""

import re
from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

from bench.gate.records import Check, CheckRow, PairVerdict
from foundation.printable import printable
from reports.format import interval
from reports.gate.verdict_sentences import scores, verdict_sentence

KINDS = {
    "REGRESSION": "failure",
    "MISSING": "error",
    "DRIFT": "error",
    "INCONCLUSIVE": "skipped",
}
_COUNTS = {"failure": "failures", "error": "errors", "skipped": "skipped"}
_NOT_XML = re.compile("[\ufffe\uffff]")


def junit(check: Check) -> str:
    """The document."""
    top = ElementTree.Element("testsuites", name=f"check {_xml(check.candidate)}")
    for verdict in check.against:
        _against(top, check, verdict)
    for suite in top:
        for kind, attribute in _COUNTS.items():
            suite.set(attribute, str(len(suite.findall(f"testcase/{kind}"))))
        suite.set("tests", str(len(suite.findall("testcase"))))
    ElementTree.indent(top)
    declaration = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return declaration + ElementTree.tostring(top, encoding="unicode") + "\n"


def _against(top: ElementTree.Element, check: Check, verdict: PairVerdict) -> None:
    suite = ElementTree.SubElement(top, "testsuite", name=_xml(f"{verdict.role}: {verdict.name}"))
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("outcome", check.outcome), ("exit_code", str(check.exit_code))):
        ElementTree.SubElement(properties, "property", name=name, value=value)
    for name, row in zip(_names(verdict.all_rows), verdict.all_rows, strict=True):
        case = _case(suite, check.candidate, name)
        _note(case, *_of_row(row, verdict.outcome))
        _output(case, _scores(row))
    case = _case(suite, check.candidate, "outcome")
    _note(case, verdict.outcome, "; ".join(verdict.reasons))
    _output(case, verdict_sentence(check, verdict))


def _names(rows: Sequence[CheckRow]) -> list[str]:
    """Names of the rows: the collection, with the measure where it has several."""
    times = Counter(row.name for row in rows)
    return [row.name if times[row.name] == 1 else f"{row.name} {row.measure}" for row in rows]


def _of_row(row: CheckRow, outcome: str) -> tuple[str, str]:
    """Word and message of a collection."""
    if row.missing:
        return "MISSING", row.missing
    if row.failure:
        return outcome, row.failure
    if row.paired is not None and row.paired.changed and row.paired.few:
        return "INCONCLUSIVE", f"{row.paired.changed} queries changed"
    return "OK", ""


def _scores(row: CheckRow) -> str:
    """Scores of both, and the interval of their difference; "" where there are none."""
    if row.difference is None:
        return ""
    limits = interval(row.paired)
    told = f"; 95 % interval of the difference {limits}" if limits else ""
    return f"baseline → candidate: {scores(row)}{told}"


def _case(suite: ElementTree.Element, candidate: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=_xml(candidate), name=_xml(name))


def _note(case: ElementTree.Element, word: str, message: str) -> None:
    if word in KINDS:
        said = _xml(f"{word}: {message}")
        note = ElementTree.SubElement(case, KINDS[word], type=word, message=said)
        note.text = said


def _output(case: ElementTree.Element, text: str) -> None:
    if text:
        ElementTree.SubElement(case, "system-out").text = _xml(text)


def _xml(text: str) -> str:
    """Text that a terminal does not obey, without the two signs that no XML file may hold."""
    return _NOT_XML.sub("\ufffd", printable(text))
