"""Stored results that were never measured: the same files, any scores."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.boards.leaderboard import build_leaderboard
from bench.boards.leaderboard_record import Leaderboard
from bench.boards.rows import find_distinct_results
from bench.evaluation.result_record import SCORES_FILE, Evaluation, Protocol, Result
from bench.requests.deciding import LeaderboardRequest
from bench.result_store.result import RESULT_FILE, load, save
from datasets_cfg.catalogue import dataset_names, metadata_for
from retrievers.models.card import Card, Recipe
from tests.support.results import CONDITIONS, PROTOCOL, RESULT

MEASURE = "nDCG@10"


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def make_protocol(collection: str, **changes: Any) -> Protocol:
    """As declared, where the collection is."""
    known = {}
    if collection in dataset_names():
        metadata = metadata_for(collection)
        names = ("version", "split", "title_track", "exclude_self", "depth")
        known = {name: getattr(metadata, name) for name in names}
    parts = ("corpus", "queries", "qrels")
    hashes = {f"{part}_sha256": digest(part, collection) for part in parts}
    fields = {"exclude_self": False, "depth": 1000, "official": True, **known, **hashes, **changes}
    return msgspec.structs.replace(PROTOCOL, collection=collection, **fields)


def recipe_of(model: str, **changes: Any) -> Recipe:
    fields = {
        "kind": "transformer",
        "dim": 384,
        "checkpoint": f"someone/{model}",
        "files": {"model.safetensors": digest("weights", model)},
        "pooling": "mean",
        "dtype": "float32",
        **changes,
    }
    return Recipe(model=model, **fields)


def result_of(model: str, collection: str, **changes: Any) -> Result:
    """A valid record; ``protocol``, ``recipe``, ``timings`` and ``conditions`` are changes too."""
    recipe = changes.pop("recipe", recipe_of(model))
    fields = {
        "main_measure": next(iter(changes.get("measures", [MEASURE]))),
        "judged_at_10": 0.25,
        "queries": 4,
        "documents": 100,
        "fingerprint": recipe.fingerprint if recipe else digest(model, collection),
        "protocol": make_protocol(collection),
        **changes,
        "conditions": msgspec.structs.replace(CONDITIONS, **changes.get("conditions", {})),
    }
    return msgspec.structs.replace(RESULT, model=model, recipe=recipe, **fields)


def store(
    out: Path,
    model: str,
    collection: str,
    scores: Sequence[float] | Mapping[str, Sequence[float]],
    ids: Sequence[str] | None = None,
    **changes: Any,
) -> Path:
    """Write a result with these values of queries, the main measure first; returns its folder."""
    values = scores if isinstance(scores, Mapping) else {MEASURE: scores}
    arrays = {name: np.asarray(some, dtype=np.float64) for name, some in values.items()}
    first = next(iter(arrays))
    result = result_of(
        model,
        collection,
        **{
            "main_measure": first,
            "measures": {name: float(some.mean()) for name, some in arrays.items()},
            "queries": len(arrays[first]),
            **changes,
        },
    )
    folder = out / digest(model, collection) / result.key
    folder.mkdir(parents=True)
    ids = ids or [f"q{number}" for number in range(result.queries)]
    pq.write_table(pa.table({"query_id": ids, **arrays}), folder / SCORES_FILE)
    sha256 = hashlib.sha256((folder / SCORES_FILE).read_bytes()).hexdigest()
    result = msgspec.structs.replace(result, per_query_sha256=sha256)
    (folder / RESULT_FILE).write_bytes(msgspec.json.encode(result))
    return folder


def board_of(place: Path, cards: Mapping[str, Card] | None = None, **fields: Any) -> Leaderboard:
    """The leaderboard of the results below a folder, by a request with these fields."""
    request = LeaderboardRequest(**{"resamples": 199, **fields})
    return build_leaderboard(find_distinct_results(place), dict(cards or {}), request)


def rehash_values(folder: Path) -> None:
    """Write the hash of the present table of scores into a stored record."""
    record = json.loads((folder / RESULT_FILE).read_bytes())
    values = (folder / SCORES_FILE).read_bytes()
    record["per_query_sha256"] = hashlib.sha256(values).hexdigest()
    (folder / RESULT_FILE).write_text(json.dumps(record))


def lower_scores(folder: Path, out: Path) -> None:
    """Store a result again with half of its scores and matching means and hashes."""
    known = load(folder)
    values = {name: column / 2 for name, column in known.scores.values.items()}
    scores = replace(known.scores, values=values)
    means = {name: scores.mean(name) for name in values}
    result = msgspec.structs.replace(known.record, measures=means)
    save(Evaluation(result, scores, known.run), out)
