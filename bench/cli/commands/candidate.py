"""The results of a candidate: found among the stored ones, or made."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.cli.commands.common import Contender, open_evaluated
from bench.cli.commands.opening import pipeline_options
from bench.evaluate.measures import parse_measure
from bench.monitor.evaluating import renamed, stored_or_new
from bench.results.find import Stored, find_results
from bench.store import VectorStore
from foundation.failures import as_bad_input

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
    found, store = Found(), VectorStore(cache_dir / "vectors")
    measures = None if options.measure is None else (parse_measure(options.measure).name,)
    choices = pipeline_options(options, measures)
    known = [
        one
        for alias in dict.fromkeys([name, contender.model.card.name])
        for one in find_results(options.results, alias)
    ]
    for one in collections:
        try:
            collection = open_evaluated(folders.get(one, one), options, cache_dir)
            mine = contender.on(one)
            found.stored[one] = stored_or_new(
                collection,
                renamed(mine.model, name),
                mine.encoder,
                known,
                store,
                choices,
                options.results,
            )
        except Exception as error:
            problem = as_bad_input(error)
            if problem is None:
                raise
            found.failed[one] = f"not evaluated: {problem}"
            hint = f"\n  try: {problem.hint}" if problem.hint else ""
            print(f"warning: {one}: {problem}{hint}", file=sys.stderr)
    return found
