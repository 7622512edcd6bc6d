"""Commands that work through a plan from a TOML file: how they were typed, and their report."""

import shlex
import sys
from pathlib import Path

import msgspec

from bench.cli.options.study import AblateOptions
from bench.cli.printing import print_json
from bench.compare.statistics import Resampling
from foundation.atomic import replacing


def typed(options: AblateOptions) -> str:
    """The command line that makes the same report again."""
    words = ["python", "-m", "bench", "ablate", options.file]
    if options.variant:
        words += ["--variant", options.variant]
    if options.seeds:
        words += ["--seeds", *map(str, options.seeds)]
    if options.allow_mismatch:
        words.append("--allow-mismatch")
    usual = Resampling()
    if options.resampling.resamples != usual.resamples:
        words += ["--resamples", str(options.resampling.resamples)]
    if options.resampling.seed != usual.seed:
        words += ["--seed", str(options.resampling.seed)]
    return shlex.join(words)


def report(folder: Path, record: msgspec.Struct, text: str, table: str, as_json: bool) -> None:
    """Keep a report as Markdown, CSV and JSON, each whole or not at all, and print it."""
    encoded = msgspec.json.format(msgspec.json.encode(record), indent=1)
    for name, content in (
        ("report.md", text.encode()),
        ("report.csv", table.encode()),
        ("report.json", encoded),
    ):
        with replacing(folder / name) as file:
            file.write(content)
    if as_json:
        print_json(record)
    else:
        print(text, end="")
    say(f"kept in {folder}")


def say(text: str) -> None:
    """To people, beside the output."""
    print(text, file=sys.stderr, flush=True)
