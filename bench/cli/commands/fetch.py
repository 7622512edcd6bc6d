"""``fetch``: download collections and models, and build the corpora."""

import argparse
from pathlib import Path

from bench.cli.commands.common import open_contender, open_named, print_rows
from bench.exit_codes import ExitCode
from datasets_cfg.catalogue import expand
from foundation.errors import BenchError


def fetch(options: argparse.Namespace, cache_dir: Path) -> int:
    """``fetch``: download collections and models, and build the corpora."""
    if not options.names and not options.model:
        raise BenchError(
            "nothing to fetch was named", "python -m bench fetch beir --model retromae"
        )
    rows = []
    for name in expand(options.names, options.data_dir):
        dataset = open_named(name, options, cache_dir)
        about = f"{len(dataset.corpus):,} documents, {len(dataset.queries):,} queries"
        rows.append({"name": name, "about": about})
    for name in options.model:
        model = open_contender(name, options).model
        where = str(model.document.root) if model.document else "needs no files"
        rows.append({"name": model.card.name, "about": where})
    print_rows(rows, options.json)
    return ExitCode.OK
