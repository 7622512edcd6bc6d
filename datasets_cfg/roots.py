"""Folders of the user's in which collections are looked for."""

import os
from pathlib import Path

from foundation.errors import BenchError

ENVIRONMENT = "BENCH_DATA"


def roots(data_dir: Path | None) -> list[Path]:
    """Folders of the user's that hold collections: ``data_dir``, then the one of BENCH_DATA.

    Raises:
        BenchError: one of them is no folder.
    """
    named = {"--data-dir": data_dir, ENVIRONMENT: os.environ.get(ENVIRONMENT)}
    folders = []
    for source, value in named.items():
        if value:
            root = Path(value).expanduser()
            if not root.is_dir():
                raise BenchError(
                    f"{source} names {root}, which is no folder",
                    hint="name the folder that holds the collections, such as DIR in "
                    "DIR/beir/scifact/corpus.jsonl",
                )
            folders.append(root)
    return folders
