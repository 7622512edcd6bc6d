"""The commands of a bundle, and what a replay repeated, as Markdown."""

import shlex

from bench.bundling.bundle import BundleManifest
from bench.bundling.replay import ReplayReport
from foundation.errors import format_count
from reports.format import score, signed
from reports.table import bullets, code, escape, make_table


def bundle_text(manifest: BundleManifest, out: str) -> str:
    """Return the commands of a bundle in the folder ``out``, and what they do not repeat."""
    commands = [shlex.join(["python", "-m", "bench", *each.words]) for each in manifest.commands]
    made = sum(len(each.makes) for each in manifest.commands)
    counts = (
        format_count(len(commands), "command", "commands"),
        format_count(made, "record", "records"),
    )
    parts = [f"{escape(out)}: {' for '.join(counts)}"]
    return "\n\n".join([*parts, bullets(map(code, commands)), *_unrepeated(manifest.unrepeated)])


def replay_text(report: ReplayReport) -> str:
    """Return the state of each command, the scores, and what differs from the recording."""
    lines = []
    for each in report.commands:
        notes = f": {escape('; '.join(each.notes))}" if each.notes else ""
        lines.append(f"**{each.state}** {code(each.command)}{notes}")
    rows = [
        (row.name, row.measure, score(row.baseline), score(row.candidate), signed(row.difference))
        for each in report.commands
        for row in each.rows
        if row.difference is not None
    ]
    headers = ("result", "measure", "recorded", "replayed", "difference")
    parts = [bullets(lines)]
    parts += [make_table(headers, rows).markdown()] if rows else []
    if report.libraries:
        parts.append(f"Other versions of libraries: {escape('; '.join(report.libraries))}.")
    return "\n\n".join([*parts, *_unrepeated(report.unrepeated)])


def _unrepeated(reasons: dict[str, str]) -> list[str]:
    lines = [f"{escape(place)}: {escape(reason)}" for place, reason in reasons.items()]
    return ["Not repeated:", bullets(lines)] if lines else []
