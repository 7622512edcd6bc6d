"""``cache``: what stored vectors take, how to get rid of them, and whether the cache is whole."""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench.cli.options.data import CacheOptions
from bench.cli.printing import print_json
from bench.exit_codes import ExitCode
from bench.store.usage import Damage, ModelUsage, damaged, remove, selected, usage
from bench.workspace import VECTORS, cache_folder
from datasets_cfg.corpus import CHECKSUMS_FILE, damage_of
from datasets_cfg.dataset import CORPORA
from reports.evaluation import cache_table
from reports.format import size


def cache(options: CacheOptions) -> int:
    """``cache``: a line a model. Damaged files give the exit code of bad input."""
    cache_dir = cache_folder(options.cache_dir)
    store = cache_dir / VECTORS
    pruned = _prune(store, options)
    corpora = _corpora(cache_dir / CORPORA) if options.verify else []
    unchecked = [folder for folder in corpora if not (folder / CHECKSUMS_FILE).is_file()]
    broken = list(damaged(store)) if options.verify else []
    broken += _damaged_corpora(folder for folder in corpora if folder not in unchecked)
    rows = usage(store)
    if options.output.json:
        print_json({"stored": rows, "damaged": broken, "pruned": pruned})
    else:
        print(cache_table(rows, time.time()) if rows else f"no vectors in {store}")
    if options.verify:
        _say_verified(broken, len(corpora) - len(unchecked), len(unchecked))
    return ExitCode.BAD_INPUT if broken else ExitCode.OK


def _prune(store: Path, options: CacheOptions) -> list[ModelUsage]:
    """Print what was removed, or would be."""
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
            print(f"warning: {what} is in use by another process, and is kept", file=sys.stderr)
            continue
        gone.append(row)
    return gone


def _corpora(folder: Path) -> list[Path]:
    """Folders of corpora; those that are being built have names that begin with a dot."""
    inside = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in inside if path.is_dir() and not path.name.startswith("."))


def _damaged_corpora(folders: Iterable[Path]) -> Iterator[Damage]:
    for folder in folders:
        if reason := damage_of(folder):
            yield Damage(str(folder), reason)


def _say_verified(broken: Sequence[Damage], checked: int, unchecked: int) -> None:
    for damage in broken:
        print(f"damaged: {damage.path}: {damage.reason}", file=sys.stderr)
    what = f"{len(broken)} damaged: made again when needed" if broken else "all whole"
    print(f"verified: {what} (vectors, and {checked} corpora)", file=sys.stderr)
    if unchecked:
        print(
            f"note: {unchecked} corpora have no checksums, as of an older version; they are built "
            "again when they are needed",
            file=sys.stderr,
        )
