"""``check --speed``: the baseline opened as a model, and timed beside the candidate."""

import sys
from pathlib import Path

import msgspec

from bench.cli.commands.common import resampling_of
from bench.cli.options.decide import CheckOptions
from bench.gate.check import StoredModel
from bench.gate.speed_check import SpeedCheck, SpeedTolerance, compare_speed
from bench.workspace import LoadedModel, Workspace
from foundation.errors import BenchError
from retrievers.encoders.opening import open_encoder
from retrievers.encoders.protocol import Encoder
from retrievers.models.model import Model, resolve_model
from retrievers.models.recipe import Recipe
from retrievers.models.st_folder import is_st_folder


def open_baseline(candidate: LoadedModel, other: StoredModel, options: CheckOptions) -> Encoder:
    """The encoder behind the baseline's stored results, its weights loaded.

    Raises:
        BenchError: one of the two has no encoder, or the baseline cannot be run here, or is
            another model by now.
        BenchError: its weights cannot be loaded.
    """
    name, stored = other.name, other.results
    if candidate.encoder is None:
        raise _nothing_to_time(candidate.name, "a model without vectors")
    if not stored:
        raise _nothing_to_time(name, "no model")
    collection, first = next(iter(stored.items()))
    recipe = first.result.recipe
    if recipe is None or recipe.kind == "bm25":
        raise _nothing_to_time(name, "a model without vectors" if recipe else "a run file")
    model = _resolve(first.result.model, recipe, options)
    if model.recipe.for_dataset(collection).fingerprint != first.result.fingerprint:
        raise BenchError(
            f"{options.timing.baseline_model or first.result.model} is not the model of the stored "
            f"results in {first.folder}: weights or recipe differ",
            "name the baseline's own checkpoint with --baseline-model, or leave --speed out",
        )
    encoder = open_encoder(model, options.hardware.device)
    encoder.encode_queries(["loads the weights"])
    return encoder


def _nothing_to_time(name: str, what: str) -> BenchError:
    return BenchError(f"--speed times encoders, and {name} is {what}", "leave --speed out")


def _resolve(name: str, recipe: Recipe, options: CheckOptions) -> Model:
    """The model with the settings of its results, which the candidate's need not be."""
    named = options.timing.baseline_model
    plain = named and Path(named).is_dir() and not is_st_folder(Path(named))
    try:
        return resolve_model(
            named or name,
            like=options.use.like if plain else None,
            dtype=recipe.dtype,
            store_dtype=recipe.store_dtype,
            backend=recipe.backend,
            max_query_tokens=recipe.max_query_tokens,
            max_document_tokens=recipe.max_document_tokens,
            trust_code=options.use.trust_code,
        )
    except BenchError as error:
        raise BenchError(
            f"--speed runs the baseline, and {named or name} cannot be run here: {error}",
            "name its card or folder with --baseline-model, or leave --speed out",
        ) from error


def time_both(
    candidate: LoadedModel,
    baseline: Encoder,
    collection: str,
    space: Workspace,
    options: CheckOptions,
) -> SpeedCheck:
    """Candidate and baseline by turns, over texts of a collection."""
    dataset = space.dataset(collection, options.protocol.split)
    encoder = candidate.on(dataset.name).encoder
    if encoder is None:
        raise _nothing_to_time(candidate.name, "a model without vectors")
    tolerance = SpeedTolerance(
        options.timing.slower,
        options.timing.speed_time,
        options.hardware.device,
        resampling_of(options.resampling),
    )
    print(f"speed: both models by turns, about {options.timing.speed_time:.0f} s", file=sys.stderr)
    check = compare_speed(encoder, baseline.for_dataset(dataset.name), dataset, tolerance)
    return msgspec.structs.replace(check, baseline=options.baseline)
