"""What commands about checkpoints open before any work: collections, and how to evaluate."""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench.cli.commands.common import open_evaluated
from bench.evaluate.memory import parse_size
from bench.evaluate.pipeline import Options
from bench.monitor.collections import Opened
from datasets_cfg.catalogue import expand
from foundation.errors import BenchError
from retrievers.index.faiss_index import IndexSpec


def open_collections(
    typed: Sequence[str], options: argparse.Namespace, cache_dir: Path
) -> dict[str, Opened]:
    """The collections of what was typed, suites as their members, by what was typed for each.

    Raises:
        BenchError: two folders have one name, by which results are known.
    """
    opened: dict[str, Opened] = {}
    for name in expand(typed, options.data_dir):
        collection = open_evaluated(name, options, cache_dir)
        own = collection.dataset.name
        if any(own == other.dataset.name for other in opened.values()):
            raise BenchError(f"two of the collections are called {own}", "rename a folder")
        opened[name] = collection
    return opened


def check_once(names: Sequence[str]) -> None:
    """Refuse a collection that is named twice.

    Raises:
        BenchError: one is.
    """
    for name, times in Counter(names).items():
        if times > 1:
            raise BenchError(f"the collection {name} is named {times} times", "name it once")


def pipeline_options(
    options: argparse.Namespace, measures: tuple[str, ...] | None, depth: int | None = None
) -> Options:
    """Exact search, as the command line says.

    Args:
        measures: beside the collection's main one; None for the collection's.
        depth: instead of the one typed.
    """
    return Options(
        index=IndexSpec.parse("flat"),
        depth=depth or options.depth,
        measures=measures,
        device=options.device,
        max_memory=None if options.max_memory is None else parse_size(options.max_memory),
    )
