"""``import``: scores that others stated, as claims beside results."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.cli.options.decide import ImportOptions
from bench.cli.printing import columns, print_json
from bench.exit_codes import ExitCode
from bench.results.interchange import model_index, mteb_results
from bench.results.interchange.claimed import Claimed, keep
from foundation.errors import BenchError
from foundation.printable import first_names

CARDS = (".md", ".yaml", ".yml")
RUNS = (".trec", ".gz", ".run", ".txt")


def import_(options: ImportOptions) -> int:
    """``import``: everything is read before anything is written."""
    outcomes = [outcome for path in _files(options.files) for outcome in _read(path, options)]
    claims = [outcome for outcome in outcomes if isinstance(outcome, Claimed)]
    left_out = [outcome for outcome in outcomes if isinstance(outcome, str)]
    for why in left_out:
        print(f"left out: {why}", file=sys.stderr)
    if not claims:
        raise BenchError("no score in these files is of a collection that is known here")
    keep(claims, options.out)
    print(f"claims kept beside {options.out}: {len(claims)}", file=sys.stderr)
    if options.output.json:
        print_json({"claims": claims, "left_out": left_out})
    else:
        print(columns([(f"{claim.model} on {claim.collection}", _said(claim)) for claim in claims]))
    return ExitCode.OK


def _files(named: Sequence[Path]) -> Iterator[Path]:
    for path in named:
        if not path.is_dir():
            yield path
            continue
        inside = [file for file in path.rglob("*.json") if file.name != mteb_results.META_FILE]
        if not inside:
            raise BenchError(f"{path} holds no results of mteb", "name a file, such as README.md")
        yield from sorted(inside)


def _read(path: Path, options: ImportOptions) -> Iterator[Claimed | str]:
    if path.suffix in CARDS:
        return model_index.claims_of(path, options.model or "", options.source)
    if path.suffix in RUNS:
        raise BenchError(
            f"{path} looks like a run file, which holds rankings and no scores",
            f"python -m bench score {path} --dataset NAME",
        )
    return mteb_results.claims_of(path, options.model or "", options.source)


def _said(claim: Claimed) -> str:
    shown = first_names([f"{name} {value:.4f}" for name, value in claim.measures.items()])
    return f"{shown} ({claim.source})"
