"""``cache``: what stored vectors take, whether they are whole, and how to get rid of them."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.cli.commands.common import print_json
from bench.exit_codes import ExitCode
from bench.store.usage import Damage, Stored, damaged, remove, selected, usage
from reports.cache_table import cache_table
from reports.tables import size


def cache(options: argparse.Namespace, cache_dir: Path) -> int:
    """``cache``: a line a model. Damaged shards give the exit code of bad input."""
    store = cache_dir / "vectors"
    pruned = _prune(store, options)
    broken = list(damaged(store)) if options.verify else []
    rows = usage(store)
    if options.json:
        print_json({"stored": rows, "damaged": broken, "pruned": pruned})
    else:
        print(cache_table(rows, time.time()) if rows else f"no vectors in {store}")
    if options.verify:
        _say_verified(broken)
    return ExitCode.BAD_INPUT if broken else ExitCode.OK


def _prune(store: Path, options: argparse.Namespace) -> list[Stored]:
    """What was removed, or would be."""
    if not options.prune and options.older_than is None:
        return []
    gone = []
    for row in selected(usage(store), options.prune, options.older_than, time.time()):
        what = f"{row.model} ({row.fingerprint[:8]}, {size(row.bytes)})"
        if options.dry_run:
            print(f"would remove {what}", file=sys.stderr)
        elif remove(store, row):
            print(f"removed {what}", file=sys.stderr)
        else:
            print(f"warning: {what} is in use by another process, and stays", file=sys.stderr)
            continue
        gone.append(row)
    return gone


def _say_verified(broken: Sequence[Damage]) -> None:
    for damage in broken:
        print(f"damaged: {damage.path}: {damage.reason}", file=sys.stderr)
    what = f"{len(broken)} damaged: encoded again when needed" if broken else "all whole"
    print(f"verified: {what}", file=sys.stderr)
