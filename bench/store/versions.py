"""Vectors of different library versions: which are equal, and when a model has drifted.

The same files can give other token ids, or other vectors, under another version of a library.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.store.planning import read_shards
from bench.store.shards import Shard, StoredVectors, find_rows
from foundation.arrays import BoolArray, Float32Array, Float64Array, Int64Array, UInt64Array
from foundation.errors import DriftError
from foundation.files import replace_file
from foundation.machine import library_version
from retrievers.encoders.preflight import BATCH_TOLERANCE
from retrievers.encoders.protocol import Encoder, PhaseTimer
from retrievers.encoders.tokens import probe_texts
from retrievers.models.recipe import Recipe, Role

TOKENIZING = ("transformers", "tokenizers")  # libraries that determine token ids
PROBE_STEP = 4  # every fourth of the fixed texts is encoded: a second on a CPU
SAMPLE = 4  # texts of a shard without a digest that are encoded again
FLOAT16_ROUNDING = 2e-3  # of stored vectors
INT8_TOLERANCE = 5e-2


def library_versions(names: tuple[str, ...] = ("torch", *TOKENIZING)) -> str:
    """Return the versions of those libraries among ``names`` that are installed."""
    found = {name: library_version(name) for name in names}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def adopt_shards(
    folder: Path,
    side: Recipe,
    tokens_sha256: str,
    missing: UInt64Array,
    encode: Callable[[Int64Array], Float32Array],
    refused: set[Shard],
) -> None:
    """Add a digest to the shards without one whose vectors agree with a sample encoded again.

    Args:
        folder: folder of one side of a recipe.
        side: that side.
        tokens_sha256: digest of the token ids of today.
        missing: keys of the texts without a vector of this digest, uint64 ``(n, 2)``.
        encode: encodes the texts at rows of ``missing``.
        refused: shards that disagreed before, to which new ones are added.
    """
    known = [pair for pair in read_shards(folder, "") if pair[0] not in refused]
    if not known:
        return
    stored = np.concatenate([keys for _, keys in known])
    rows = find_rows(stored, missing)
    ends = np.cumsum([0, *(shard.rows for shard, _ in known)])
    disagreeing = 0
    for number, (shard, _) in enumerate(known):
        own = rows[ends[number] : ends[number + 1]]
        places = np.flatnonzero(own >= 0)
        if not len(places):
            continue
        places = places[np.linspace(0, len(places) - 1, min(SAMPLE, len(places))).astype(int)]
        then = StoredVectors((shard,), places, side.dim).rows(np.arange(len(places)))
        if _agrees(side, then, encode(own[places])).all():
            manifest = msgspec.structs.replace(shard.manifest, tokens_sha256=tokens_sha256)
            with replace_file(shard.manifest_path) as file:
                file.write(msgspec.json.encode(manifest))
        else:
            refused.add(shard)
            disagreeing += shard.rows
    if disagreeing:
        print(
            f"{side.model}: {disagreeing:,} stored vectors are not those that {library_versions()} "
            "give: encoding their texts again",
            file=sys.stderr,
        )


def check_drift(
    encoder: Encoder,
    role: Role,
    remember: Callable[[Callable[[], dict[str, Any]]], dict[str, Any]],
) -> None:
    """Encode fixed texts and compare their vectors with those of the first use.

    Args:
        encoder: encoder whose weights are about to be used.
        role: how the texts are encoded.
        remember: returns the stored vectors, or stores those that its argument computes.

    Raises:
        DriftError: a vector differs by more than rounding.
    """
    texts = probe_texts()[::PROBE_STEP]
    timer: PhaseTimer = getattr(encoder, "timer", None) or PhaseTimer()
    before = timer.copy()
    if role == "query":
        now = encoder.encode_queries(texts)
    else:
        now = encoder.encode_documents([""] * len(texts), texts)
    spent = timer.since(before).counts
    timer.add({}, {name: -count for name, count in spent.items()})  # not texts of the collection
    here = library_versions()
    fact = remember(lambda: {"vectors": now.tolist(), "libraries": here})
    then = np.array(fact["vectors"], np.float32)
    distances = _distances(then, now)
    if not _agrees(encoder.recipe, then, now).all():
        worst, name = int(distances.argmax()), encoder.recipe.model
        raise DriftError(
            f"{name} changed: the vector of {texts[worst][:60]!r} as a {role} differs from the "
            f"stored one by {distances[worst]:.2g} of its length (rounding: below "
            f"{_tolerance(encoder.recipe):.0e}). Stored with {fact['libraries']}; now {here}",
            "Install the former versions; or remove the vectors: `python -m bench cache --prune "
            f"{name}`; or keep both: --cache-dir DIR.",
        )


def _tolerance(recipe: Recipe) -> float:
    """Return the relative distance that rounding explains."""
    tolerance = BATCH_TOLERANCE[recipe.dtype]
    if recipe.store_dtype == "float16":
        tolerance = max(tolerance, FLOAT16_ROUNDING)
    return max(tolerance, INT8_TOLERANCE) if recipe.precision == "int8" else tolerance


def _distances(then: Float32Array, now: Float32Array) -> Float64Array:
    """Return the relative distance of each pair of vectors, float64 ``(n,)``."""
    lengths = np.linalg.norm(then.astype(np.float64), axis=1)
    distances = np.linalg.norm(then.astype(np.float64) - now, axis=1)
    relative: Float64Array = distances / np.maximum(lengths, 1e-30)
    return relative


def _agrees(recipe: Recipe, then: Float32Array, now: Float32Array) -> BoolArray:
    return _distances(then, now) <= _tolerance(recipe)
