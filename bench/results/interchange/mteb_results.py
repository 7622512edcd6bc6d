"""Results as mteb 2 keeps them: a JSON file a task, in a folder for each model and revision.

``ORGANISATION__MODEL/REVISION/SciFact.json``, with the model's name in ``model_meta.json``. Our
scores are written unrounded; mteb rounds its own to five digits.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bench.results.interchange.claimed import Claimed
from bench.results.interchange.mteb_tasks import (
    LANGUAGE,
    TASKS,
    collection_of,
    our_measure,
    their_measure,
)
from bench.results.location import Place
from bench.results.result import Result, Stored
from datasets_cfg.catalogue import dataset_names, facts_for
from foundation.errors import BenchError
from foundation.records import read_json

META_FILE = "model_meta.json"
MAIN_MEASURE = "nDCG@10"  # of mteb's retrieval tasks
NO_REVISION = "no_revision_available"  # mteb's word
SUBSET = "default"


class TaskFile(msgspec.Struct):
    """The fields that are read of a task's file; mteb writes more."""

    task_name: str
    scores: dict[str, list[dict[str, Any]]]
    mteb_version: str | None = None


class MetaFile(msgspec.Struct):
    """The fields that are read of the file that describes a model."""

    name: Any = None


def why_not(result: Result) -> str:
    """Why a result cannot stand for mteb's task; "" where it can."""
    protocol = result.protocol
    if protocol.collection not in TASKS:
        return "mteb has no such task"
    if not protocol.official or protocol.split != facts_for(protocol.collection).split:
        return "it is not the published collection and split"
    if MAIN_MEASURE not in result.measures:
        return f"it has no {MAIN_MEASURE}, which is mteb's main score"
    return ""


def mteb_files(name: str, stored: Mapping[str, Stored]) -> dict[str, bytes]:
    """Contents of the files of one model, by their paths.

    Args:
        name: of the model, as the files are to say it.
        stored: by collection; all of them `why_not` lets pass.
    """
    recipes = (record.result.recipe for record in stored.values())
    revision = next(
        (recipe.revision for recipe in recipes if recipe and recipe.revision), NO_REVISION
    )
    folder = f"{name.replace('/', '__')}/{revision}"
    files = {
        f"{folder}/{TASKS[collection].name}.json": _json(task_document(record.result))
        for collection, record in stored.items()
    }
    return {f"{folder}/{META_FILE}": _json({"name": name, "revision": revision}), **files}


def task_document(result: Result) -> dict[str, Any]:
    """The document of one task, as mteb's ``TaskResult`` reads it."""
    task, spent = TASKS[result.protocol.collection], result.timings
    named = {their_measure(ours): value for ours, value in result.measures.items()}
    scores = {theirs: value for theirs, value in named.items() if theirs}
    return {
        "dataset_revision": task.revision,
        "task_name": task.name,
        "mteb_version": None,  # it was not mteb that measured
        "scores": {
            result.protocol.split: [
                {
                    **scores,
                    "main_score": result.measures[MAIN_MEASURE],
                    "hf_subset": SUBSET,
                    "languages": [LANGUAGE],
                }
            ]
        },
        "evaluation_time": spent.encode_queries_s
        + spent.encode_documents_s
        + spent.search_s
        + spent.score_s,
        "kg_co2_emissions": None,
        "date": result.conditions.time,
    }


def _json(document: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def read_task(path: Place) -> TaskFile:
    """The file of one task.

    Raises:
        BenchError: it cannot be read, or is not of mteb 1.11 or later.
    """
    hint = "name a file of a task as mteb 1.11 and later write it, or a folder of them"
    return read_json(path, TaskFile, hint)


def claims_of(path: Place, model: str, source: str) -> Iterator[Claimed | str]:
    """The scores that a task's file states, or the reason why they are left out.

    Args:
        model: "" for the name that lies beside the file.
        source: "" to say that it is an mteb result.
    """
    task = read_task(path)
    collection = collection_of(task.task_name)
    if not collection:
        yield f"{task.task_name} is no collection here"
        return
    split = facts_for(collection).split if collection in dataset_names() else "test"
    rows = task.scores.get(split, [])
    chosen = [row for row in rows if len(rows) == 1 or row.get("hf_subset") == SUBSET]
    measures = _measures(chosen[0]) if len(chosen) == 1 else {}
    if not measures:
        yield f"{task.task_name} has no score of split {split} that is known here"
        return
    version = f"mteb {task.mteb_version}" if task.mteb_version else "a file in mteb's format"
    name = model or _model_beside(path)
    try:
        yield Claimed(
            model=name, collection=collection, measures=measures, source=source or version
        )
    except ValueError as error:
        raise BenchError(f"{path}: {error}") from error


def _measures(row: Mapping[str, Any]) -> dict[str, float]:
    """Scores that have a canonical name; mteb writes more of them than anyone wants to read."""
    named = ((our_measure(name), value) for name, value in row.items())
    return {
        name: float(value)
        for name, value in named
        if name and isinstance(value, int | float) and not isinstance(value, bool)
    }


def _model_beside(path: Place) -> str:
    """The name in ``model_meta.json``, else that of the folder above the revision's."""
    meta = path.parent / META_FILE
    if meta.exists():
        name = read_json(meta, MetaFile, "name the model with --model").name
        if isinstance(name, str) and name:
            return name
    folder = path.parent.parent.name
    if "__" in folder:
        return folder.replace("__", "/")
    raise BenchError(f"nothing beside {path} says of which model it is", "name it with --model")
