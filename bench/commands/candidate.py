"""The results of a candidate: found among the stored ones, or made."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.budget import parse_size
from bench.commands.common import Contender, is_official, open_named
from bench.decisions.stored import Stored, find_results
from bench.errors import BenchError
from bench.judging import protocol_of
from bench.pipeline import Evaluation, Options, check_memory, evaluate
from bench.results import save
from bench.store import VectorStore
from datasets_cfg.dataset import Dataset, count_mismatches
from datasets_cfg.errors import DatasetError
from retrievers.errors import RetrieverError
from retrievers.index import IndexSpec

EXPECTED_ERRORS = (BenchError, DatasetError, RetrieverError, OSError)
DIGITS = 8  # of a fingerprint in a name


@dataclass
class Found:
    """The candidate's results, and why others are missing."""

    stored: dict[str, Stored] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def own_name(contender: Contender, options: argparse.Namespace) -> str:
    """The name that the candidate's results have.

    Its own, unless another recipe or other weights have results of that name: then the fingerprint
    is part of it, so that the name of a baseline never stands for two models.
    """
    name, recipe = contender.model.card.name, contender.model.recipe
    others = [
        one
        for one in find_results(options.results, name)
        if one.result.fingerprint != recipe.for_dataset(one.collection).fingerprint
    ]
    return f"{name}-{recipe.fingerprint[:DIGITS]}" if others else name


def evaluate_all(
    contender: Contender,
    name: str,
    collections: Sequence[str],
    folders: Mapping[str, str],
    options: argparse.Namespace,
    cache_dir: Path,
) -> Found:
    """A collection that fails is missing; the others are still evaluated.

    Args:
        name: of the results, see `own_name`.
        folders: what was typed for collections of a user's own.
    """
    found = Found()
    store = VectorStore(cache_dir / "vectors")
    known = [
        one
        for alias in dict.fromkeys([name, contender.model.card.name])
        for one in find_results(options.results, alias)
    ]
    for one in collections:
        try:
            dataset = open_named(folders.get(one, one), options, cache_dir)
            found.stored[one] = _evaluated(dataset, contender.on(one), name, known, store, options)
        except EXPECTED_ERRORS as error:
            found.failed[one] = f"not evaluated: {error}"
            print(f"warning: {one}: {error}", file=sys.stderr)
    return found


def _evaluated(
    dataset: Dataset,
    contender: Contender,
    name: str,
    known: Sequence[Stored],
    store: VectorStore,
    options: argparse.Namespace,
) -> Stored:
    """The stored result of this evaluation; made where there is none."""
    official = is_official(dataset, count_mismatches(dataset), options.allow_mismatch)
    depth = options.depth or dataset.facts.depth
    protocol = protocol_of(dataset, depth, dataset.corpus.sha256, official)
    index = "flat" if contender.encoder else ""
    asked = (contender.model.recipe.fingerprint, protocol, index)
    for one in known:
        same = (one.result.fingerprint, one.result.protocol, one.result.index) == asked
        if same and (options.measure is None or options.measure in one.result.measures):
            print(f"{dataset.name}: stored in {one.folder}", file=sys.stderr)
            return one
    measures = None if options.measure is None else (options.measure,)
    done = evaluate_here(dataset, contender, store, options, options.depth, measures, official)
    result = msgspec.structs.replace(done.result, model=name)
    return Stored(save(result, done.scores, done.run, options.results), result)


def evaluate_here(
    dataset: Dataset,
    contender: Contender,
    store: VectorStore,
    options: argparse.Namespace,
    depth: int | None,
    measures: tuple[str, ...] | None,
    official: bool,
) -> Evaluation:
    """Evaluate by exact search, as the options of the command line say."""
    choices = Options(
        index=IndexSpec.parse("flat"),
        depth=depth,
        measures=measures,
        device=options.device,
        max_memory=None if options.max_memory is None else parse_size(options.max_memory),
    )
    if contender.encoder:
        check_memory(dataset, contender.encoder.dim, choices)
    return evaluate(dataset, contender.model, contender.encoder, store, choices, official)
