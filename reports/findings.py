"""Findings about collections, for a terminal."""

from collections.abc import Sequence
from textwrap import indent

from datasets_cfg.verify import Finding


def findings(name: str, of_collection: Sequence[Finding]) -> str:
    """Findings of the checks of one collection."""
    if not of_collection:
        return f"{name}: nothing peculiar"
    lines = "\n".join(finding_lines(finding) for finding in of_collection)
    return f"{name}:\n{indent(lines, '  ')}"


def finding_lines(finding: Finding, name: str = "") -> str:
    """One finding, with the collection's name where it does not stand above it."""
    examples = f" ({', '.join(finding.examples)})" if finding.examples else ""
    what = f"{name}: {finding.what}" if name else finding.what
    count = f": {finding.count:,}" if examples or finding.count > 1 else ""
    line = f"{finding.severity}: {what}{count}{examples}"
    return f"{line}\n  {finding.suggestion}" if finding.suggestion else line
