"""Lists of pairs to judge as CSV, JSON lines and a page, and the scores after their import."""

from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from string import Template

import msgspec

from bench.comparing.judging_list import JudgeReport, PairToJudge
from foundation.files import replace_files
from reports.leaderboard import csp_source, read_asset, script_json
from reports.table import Column, Table, code, escape

CSV_FILE, LINES_FILE, PAGE_FILE = "pairs.csv", "pairs.jsonl", "pairs.html"


def write_list(report: JudgeReport, out: Path) -> None:
    """Write the three files of a list to the folder ``out``."""
    names = ("query_id", "doc_id", "grade", "judge", "query", "title", "text")
    columns: list[Column[PairToJudge]] = [Column(name, attrgetter(name)) for name in names]
    columns.append(Column("copies", lambda pair: " ".join(pair.copies)))
    lines = b"".join(msgspec.json.encode(pair) + b"\n" for pair in report.pairs)
    with replace_files([out / name for name in (CSV_FILE, LINES_FILE, PAGE_FILE)]) as opened:
        opened[0].write(Table(report.pairs, columns).csv().encode())
        opened[1].write(lines)
        opened[2].write(judging_page(report).encode())


def judging_page(report: JudgeReport) -> str:
    """Return a page to judge the pairs of ``report`` in a browser, which loads nothing else.

    Texts of the collection are not trusted: the script sets them only as text, and the content
    security policy forbids any other script.
    """
    script, style = read_asset("judge.js"), read_asset("judge.css")
    return Template((files("reports") / "site" / "judge.html").read_text("utf-8")).substitute(
        script=csp_source(script),
        styles=csp_source(style),
        style=style,
        code=script,
        data=script_json(report),
    )


def report_text(report: JudgeReport) -> str:
    """Return what was written, as Markdown."""
    if report.holes:
        number, name = len(report.pairs), escape(report.out)
        head = f"{number:,} pairs in {name}: {CSV_FILE}, {LINES_FILE} and {PAGE_FILE}."
        command = f"python -m bench judge import FILE --on {report.collection}"
        hint = f"Judge them in one of these, then run {code(command)}."
        return "\n\n".join([head, escape(str(report.holes)), hint])
    command = f"python -m bench compare MODEL OTHER --results {report.out} --holes"
    return (
        f"{report.judgements:,} judgements on {escape(report.collection)} (overlay "
        f"{report.overlay}) count in {report.rescored:,} results in {escape(report.out)}. Compare "
        f"them with {code(command)}."
    )
