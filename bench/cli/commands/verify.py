"""``verify``: what is peculiar in the data of collections."""

import argparse
from pathlib import Path

from bench.cli.commands.common import open_named, print_json
from bench.exit_codes import ExitCode
from datasets_cfg.catalogue import expand
from datasets_cfg.verify import Finding
from datasets_cfg.verify import verify as verify_dataset
from reports.tables import findings_table


def verify(options: argparse.Namespace, cache_dir: Path) -> int:
    """``verify``: what is peculiar in the data. Errors give the exit code of bad input."""
    found: dict[str, list[Finding]] = {}
    for name in expand(options.names, options.data_dir):
        found[name] = verify_dataset(open_named(name, options, cache_dir))
        if not options.json:
            print(findings_table(name, found[name]), end="\n\n", flush=True)
    if options.json:
        print_json(found)
    bad = any(finding.severity == "error" for findings in found.values() for finding in findings)
    return ExitCode.BAD_INPUT if bad else ExitCode.OK
