"""``estimate``: what a run will cost, before it starts."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.cli.commands.common import Contender, open_contender, open_named, print_json
from bench.evaluate.estimate import (
    Estimate,
    Limits,
    estimate_at_hand,
    estimate_from_counts,
    measure_speed,
)
from bench.evaluate.memory import default_budget, parse_size
from bench.exit_codes import ExitCode
from bench.store import VectorStore
from datasets_cfg.catalogue import dataset_names, expand, facts_for
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from reports.tables import estimates_table

PROBE_COLLECTION = "stdlib-code"  # embedded: texts to try an encoder on where nothing else is


def estimate(options: argparse.Namespace, cache_dir: Path) -> int:
    """One line for every model and collection, and their sum."""
    memory = default_budget() if options.max_memory is None else parse_size(options.max_memory)
    limits = Limits(options.depth, memory)
    names = expand(options.names, options.data_dir)
    contenders = [open_contender(name, options) for name in options.model]
    options.offline = True  # an estimate downloads no collection
    datasets = {name: _at_hand(name, options, cache_dir) for name in names}
    store = VectorStore(cache_dir / "vectors")
    rows = [
        row for one in contenders for row in _rows(one, datasets, store, limits, options, cache_dir)
    ]
    if options.json:
        print_json(rows)
    elif rows:
        print(estimates_table(rows))
    return ExitCode.OK


def _at_hand(name: str, options: argparse.Namespace, cache_dir: Path) -> Dataset | None:
    """The collection, if its files are on this machine."""
    try:
        return open_named(name, options, cache_dir)
    except BenchError:
        if name in dataset_names() and facts_for(name).counts.documents:
            return None
        raise


def _rows(
    contender: Contender,
    datasets: Mapping[str, Dataset | None],
    store: VectorStore,
    limits: Limits,
    options: argparse.Namespace,
    cache_dir: Path,
) -> Iterator[Estimate]:
    encoder = contender.encoder
    if encoder is None:
        name = contender.model.card.name
        print(f"note: {name} makes no vectors; nothing to estimate", file=sys.stderr)
        return
    sample = next((one for one in datasets.values() if one), None) or open_named(
        PROBE_COLLECTION, argparse.Namespace(**{**vars(options), "split": None}), cache_dir
    )
    speed = measure_speed(encoder.for_dataset(sample.name), sample.corpus, options.probe_seconds)
    for name, dataset in datasets.items():
        one = encoder.for_dataset(name)
        if dataset is None:
            yield estimate_from_counts(facts_for(name), one, speed, limits)
        else:
            yield estimate_at_hand(dataset, one, store, speed, limits)
