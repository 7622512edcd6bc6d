"""``merge``: folders of results from several machines as one."""

import sys

import msgspec
from tqdm import tqdm

from bench.cli.options.decide import MergeOptions
from bench.cli.printing import print_json
from bench.exit_codes import ExitCode
from bench.results.find import find_results
from bench.results.interchange.claimed import find_claims
from bench.results.location import Place
from bench.results.merge import Conflict, Duplicate, conflicts, union, write
from foundation.errors import BenchError


class Merged(msgspec.Struct, frozen=True):
    """The outcome of a merge.

    Attributes:
        found: results in all the folders, without those that were in the new one.
        copied: of them, that the new folder did not have.
    """

    found: int
    copied: int
    claims: int
    conflicts: tuple[Conflict, ...]


def merge(options: MergeOptions) -> int:
    """``merge``: everything is read before anything is written."""
    sources = [_variants(place) for place in options.sources]
    stated = [find_claims(place) for place in options.sources]
    for place, *held in zip(options.sources, sources, stated, strict=True):
        if not any(held):
            raise BenchError(f"{place} holds no results", "name a folder that run wrote to")
    claims = [claim for of_source in stated for claim in of_source]
    there = _variants(options.out)
    merged = union(variant for variants in (there, *sources) for variant in variants)
    total = sum(len(variants) for variants in merged.values())
    with tqdm(desc="merge", total=total, unit=" results") as bar:
        copied = write(merged, there, claims, options.out, bar.update)
    count = sum(len(some) for some in sources)
    done = Merged(count, copied, len(claims), tuple(conflicts(merged)))
    _say(done, options.out)
    if options.output.json:
        print_json(done)
    return ExitCode.DRIFT if done.conflicts else ExitCode.OK


def _variants(place: Place) -> list[Duplicate]:
    with tqdm(find_results(place), desc=f"read {place}", unit=" results") as bar:
        return [Duplicate.of(record) for record in bar]


def _say(done: Merged, out: Place) -> None:
    print(
        f"{done.found:,} results and {done.claims:,} claims: {done.copied:,} results are new in "
        f"{out}, {len(done.conflicts):,} conflicts",
        file=sys.stderr,
    )
    for conflict in done.conflicts:
        print(
            f"conflict: {conflict.model} on {conflict.collection}, {conflict.key}", file=sys.stderr
        )
        for row, folder in enumerate(conflict.folders):
            means = [f"{name} {values[row]:.6f}" for name, values in conflict.measures.items()]
            said = ", ".join(means) or "the same means, other queries"
            print(f"  {folder}: {said}", file=sys.stderr)
