"""``verify``: what is peculiar in the data of collections."""

from bench.cli.commands.common import workspace
from bench.cli.options.data import VerifyOptions
from bench.cli.printing import print_json
from bench.exit_codes import ExitCode
from datasets_cfg.verify import Finding
from datasets_cfg.verify import verify as verify_dataset
from reports.findings import findings


def verify(options: VerifyOptions) -> int:
    """``verify``: what is peculiar in the data. Errors give the exit code of bad input."""
    by_collection: dict[str, list[Finding]] = {}
    space = workspace(options.places)
    for name in space.expand(options.names):
        by_collection[name] = verify_dataset(space.dataset(name, options.split))
        if not options.output.json:
            print(findings(name, by_collection[name]), end="\n\n", flush=True)
    if options.output.json:
        print_json(by_collection)
    bad = any(
        finding.severity == "error" for findings in by_collection.values() for finding in findings
    )
    return ExitCode.BAD_INPUT if bad else ExitCode.OK
