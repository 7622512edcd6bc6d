"""The commands of a bundle, and what a replay repeated, as Markdown."""

from bench.bundling.manifest import BundleManifest
from bench.bundling.replay import ReplayReport
from reports.format import score, signed
from reports.table import bullets, code, escape, make_table


def bundle_text(manifest: BundleManifest, out: str) -> str:
    """Return the commands of a bundle in the folder ``out``, and what they do not repeat."""
    commands = bullets(code(each.typed) for each in manifest.commands)
    lacking = [escape(line) for each in manifest.commands for line in each.describe_not_copied()]
    parts = [escape(f"{out}:"), commands, bullets(lacking), *_unrepeated(manifest.unrepeated)]
    return "\n\n".join(filter(None, parts))


def replay_text(report: ReplayReport) -> str:
    """Return the state of each command, the scores, and what differs from the recording."""
    lines = []
    for each in report.commands:
        notes = f": {escape('; '.join(each.notes))}" if each.notes else ""
        lines.append(f"**{each.state}** {code(each.command)}{notes}")
    rows = [
        (row.on, row.measure, score(row.mean_b), score(row.mean_a), signed(row.difference))
        for each in report.commands
        for row in each.rows
        if row.difference is not None
    ]
    headers = ("result", "measure", "recorded", "replayed", "difference")
    parts = [bullets(lines)]
    parts += [make_table(headers, rows).markdown()] if rows else []
    if report.code:
        parts.append(f"Code, run with --trust-code: {escape('; '.join(report.code))}.")
    if report.libraries:
        parts.append(f"Other versions of libraries: {escape('; '.join(report.libraries))}.")
    return "\n\n".join([*parts, *_unrepeated(report.unrepeated)])


def _unrepeated(reasons: dict[str, str]) -> list[str]:
    lines = [f"{escape(place)}: {escape(reason)}" for place, reason in reasons.items()]
    return ["Not repeated:", bullets(lines)] if lines else []
