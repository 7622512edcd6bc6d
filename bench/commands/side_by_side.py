"""``check --speed``: the baseline opened as a model, and timed beside the candidate."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.commands.common import Contender, open_named
from bench.decisions.pace import Allowed, SpeedCheck, compare_speed
from bench.decisions.statistics import Resampling
from bench.decisions.stored import Stored
from bench.errors import BenchError
from datasets_cfg.dataset import Dataset
from retrievers.encoder import Encoder
from retrievers.errors import RetrieverError
from retrievers.model import Model, open_encoder, resolve_model
from retrievers.recipe import Recipe
from retrievers.st_folder import is_st_folder


def open_baseline(name: str, stored: Mapping[str, Stored], options: argparse.Namespace) -> Encoder:
    """The encoder behind stored results.

    Raises:
        BenchError: they are no model's, it cannot be run here, or it is another one by now.
    """
    if not stored:
        raise BenchError(f"--speed runs the baseline, and {name} is no model", "leave --speed out")
    collection, first = next(iter(stored.items()))
    recipe = first.result.recipe
    if recipe is None or recipe.kind == "bm25":
        what = "a run file" if recipe is None else "a model without vectors"
        raise BenchError(f"--speed times encoders, and {name} is {what}", "leave --speed out")
    model = _resolve(first.result.model, recipe, options)
    if model.recipe.for_dataset(collection).fingerprint != first.result.fingerprint:
        raise BenchError(
            f"{options.baseline_model or first.result.model} is not the model of the stored "
            f"results in {first.folder}: weights or recipe differ",
            "name the baseline's own checkpoint with --baseline-model, or leave --speed out",
        )
    return open_encoder(model, options.device)


def _resolve(name: str, recipe: Recipe, options: argparse.Namespace) -> Model:
    """With the settings of its results, which the candidate's need not be."""
    named = options.baseline_model
    plain = named and Path(named).is_dir() and not is_st_folder(Path(named))
    try:
        return resolve_model(
            named or name,
            like=options.like if plain else None,
            dtype=recipe.dtype,
            store_dtype=recipe.store_dtype,
            backend=recipe.backend,
            max_query_tokens=recipe.max_query_tokens,
            max_document_tokens=recipe.max_document_tokens,
            trust_code=options.trust_code,
        )
    except RetrieverError as error:
        raise BenchError(
            f"--speed runs the baseline, and {named or name} cannot be run here: {error}",
            "name its card or folder with --baseline-model, or leave --speed out",
        ) from error


def time_both(
    contender: Contender,
    baseline: Encoder,
    collection: str,
    options: argparse.Namespace,
    cache_dir: Path,
) -> SpeedCheck:
    """Candidate and baseline by turns, over texts of a collection."""
    candidate = contender.on(collection).encoder
    if candidate is None:
        raise BenchError(f"{contender.model.card.name} makes no vectors: there is nothing to time")
    dataset: Dataset = open_named(collection, options, cache_dir)
    allowed = Allowed(
        options.slower,
        options.speed_time,
        options.device,
        Resampling(options.resamples, options.seed),
    )
    print(f"speed: both models by turns, about {options.speed_time:.0f} s", file=sys.stderr)
    return compare_speed(candidate, baseline.for_dataset(collection), dataset, allowed)
