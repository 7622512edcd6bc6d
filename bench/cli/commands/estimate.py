"""``estimate``: what a run will cost, before it starts."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace

from bench.cli.commands.common import load_model, workspace
from bench.cli.options.evaluate import EstimateOptions
from bench.cli.printing import print_json
from bench.evaluate.estimate import (
    Estimate,
    Limits,
    Speed,
    encoded_already,
    estimate_at_hand,
    estimate_from_counts,
    measure_speed,
)
from bench.evaluate.memory import default_budget, resident_bytes, show_size
from bench.exit_codes import ExitCode
from bench.workspace import LoadedModel, Workspace
from datasets_cfg.catalogue import dataset_names, facts_for
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from reports.evaluation import estimates_table
from retrievers.encoders.bm25 import index_bytes

PROBE_COLLECTION = "stdlib-code"  # embedded: texts to try an encoder on where nothing else is


def estimate(options: EstimateOptions) -> int:
    """One line for every model and collection, and their sum."""
    space = workspace(options.places, options.hardware)
    limits = Limits(options.protocol.depth, space.max_memory or default_budget())
    models = [load_model(space, name, options.use) for name in options.model]
    here = replace(space, offline=True)  # an estimate downloads no collection
    split = options.protocol.split
    datasets = {name: _at_hand(here, name, split) for name in space.expand(options.names)}
    rows = [row for model in models for row in _rows(model, datasets, here, limits, options)]
    if options.output.json:
        print_json(rows)
    elif rows:
        print(estimates_table(rows))
    return ExitCode.OK


def _at_hand(space: Workspace, name: str, split: str | None) -> Dataset | None:
    """The collection, if its files are on this machine."""
    try:
        return space.dataset(name, split)
    except BenchError:
        if name in dataset_names() and facts_for(name).counts.documents:
            return None
        raise


def _rows(
    model: LoadedModel,
    datasets: Mapping[str, Dataset | None],
    space: Workspace,
    limits: Limits,
    options: EstimateOptions,
) -> Iterator[Estimate]:
    encoder = model.encoder
    if encoder is None:
        _say_of_words(model, datasets)
        return
    if options.tokens_per_second:
        speed = Speed(options.tokens_per_second, resident_bytes())
    else:
        at_hand = (dataset for dataset in datasets.values() if dataset)
        sample = next(at_hand, None) or space.dataset(PROBE_COLLECTION)
        own = encoder.for_dataset(sample.name)
        speed = measure_speed(own, sample.corpus, options.probe_seconds)
    seen = set()
    for name, dataset in datasets.items():
        own = encoder.for_dataset(name)
        if dataset is None:
            facts = facts_for(name)
            corpus: tuple[str, ...] = (facts.folder or name, facts.layout, facts.title_track)
            row = estimate_from_counts(facts, own, speed, limits)
        else:
            corpus = (dataset.corpus.sha256,)
            row = estimate_at_hand(dataset, own, space.store, speed, limits)
        documents = own.recipe.side("document").fingerprint, corpus
        yield encoded_already(row) if documents in seen else row
        seen.add(documents)


def _say_of_words(model: LoadedModel, datasets: Mapping[str, Dataset | None]) -> None:
    """Say what BM25 takes, which is no matter of tokens and vectors."""
    for name, dataset in datasets.items():
        documents = len(dataset.corpus) if dataset else facts_for(name).counts.documents or 0
        print(
            f"note: {model.name} makes no vectors; its index of {name} takes about "
            f"{show_size(resident_bytes() + index_bytes(documents))} of memory",
            file=sys.stderr,
        )
