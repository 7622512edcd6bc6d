"""One model on one collection: its stored result, or a new one."""

import hashlib
import sys
from collections.abc import Sequence

import msgspec

from bench.evaluate.judging import protocol_of
from bench.evaluate.pipeline import Evaluation, Options, check_memory, evaluate
from bench.monitor.collections import Opened
from bench.results.location import Place
from bench.results.record import Protocol, Stored, save
from bench.store import VectorStore
from retrievers.encoders.protocol import Encoder
from retrievers.models.lookup import replace_fields
from retrievers.models.model import Model
from retrievers.models.recipe import Recipe


def renamed(model: Model, name: str) -> Model:
    """The same model under another name in results: checkpoints of all trainings look alike."""
    recipe = msgspec.structs.replace(model.recipe, model=name)
    card = replace_fields(model.card, {"name": name})
    return Model(card, recipe, model.document, model.query, model.adapter)


def settings_of(recipe: Recipe) -> str:
    """Hash of how a checkpoint is used, whatever its weights are."""
    named = msgspec.structs.replace(recipe, files={}, query_files={}, checkpoint="", revision="")
    return named.fingerprint


def files_sha256(recipe: Recipe) -> str:
    """One hash of all files that decide a model's vectors."""
    content = msgspec.json.encode((recipe.files, recipe.query_files), order="deterministic")
    return hashlib.sha256(content).hexdigest()


def protocol_here(one: Opened, options: Options) -> Protocol:
    """The protocol of an evaluation with these options."""
    depth = options.depth or one.dataset.facts.depth
    return protocol_of(one.dataset, depth, one.dataset.corpus.sha256, one.official)


def stored_or_new(
    one: Opened,
    model: Model,
    encoder: Encoder | None,
    known: Sequence[Stored],
    store: VectorStore,
    options: Options,
    out: Place,
) -> Stored:
    """The stored result of this evaluation; made where there is none.

    Args:
        model, encoder: resolved for this collection.
        known: results to look in.
        out: where a new result goes.

    Raises:
        BenchError: as `evaluate`.
    """
    index = str(options.index) if encoder else ""
    asked = (model.recipe.fingerprint, protocol_here(one, options), index)
    for found in known:
        same = (found.result.fingerprint, found.result.protocol, found.result.index) == asked
        if same and set(options.measures or ()) <= set(found.result.measures):
            print(f"{one.dataset.name}: stored in {found.folder}", file=sys.stderr)
            return found
    done = evaluated(one, model, encoder, store, options)
    return save(done.result, done.scores, done.run, out)


def evaluated(
    one: Opened, model: Model, encoder: Encoder | None, store: VectorStore, options: Options
) -> Evaluation:
    """A new evaluation, if it fits into memory; arguments and errors as of `stored_or_new`."""
    if encoder:
        check_memory(one.dataset, encoder.dim, options)
    return evaluate(one.dataset, model, encoder, store, options, one.official)
