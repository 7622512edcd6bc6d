"""Results in the format of mteb 2: one JSON file per task, in a folder per model and revision.

The files are ``ORGANISATION__MODEL/REVISION/SciFact.json``, with the model's name in
``model_meta.json``. Scores are unrounded, from 0 to 1.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bench.evaluation.result_record import Evaluation, Result
from datasets_cfg.catalogue import facts_for

LANGUAGE = "eng-Latn"  # the language of all collections below, as mteb writes it
META_FILE = "model_meta.json"
MAIN_MEASURE = "nDCG@10"  # as in mteb's retrieval tasks
NO_REVISION = "no_revision_available"  # mteb's word
SUBSET = "default"


class Task(msgspec.Struct, frozen=True, array_like=True):
    """A retrieval task of mteb.

    Attributes:
        name: name of the task.
        dataset: id of the dataset on the Hub.
        revision: revision of the dataset.
    """

    name: str
    dataset: str
    revision: str


TASKS = msgspec.toml.decode(
    Path(__file__).with_name("mteb.toml").read_bytes(), type=dict[str, Task]
)

_KINDS = {
    "nDCG": "ndcg",
    "R": "recall",
    "AP": "map",
    "P": "precision",
    "RR": "mrr",
    "Success": "hit_rate",
}
_WITH_CUTOFF = re.compile(r"(\w+)@(\d+)")


def mteb_measure(measure: str) -> str:
    """Return mteb's name of ``measure``, such as ``ndcg_at_10`` for ``nDCG@10``, or ""."""
    match = _WITH_CUTOFF.fullmatch(measure)
    return f"{_KINDS[match[1]]}_at_{match[2]}" if match and match[1] in _KINDS else ""


def export_obstacle(result: Result) -> str:
    """Explain why mteb's format cannot express ``result``, or return ""."""
    protocol = result.protocol
    if protocol.collection not in TASKS:
        return "mteb has no such task"
    if not protocol.official or protocol.split != facts_for(protocol.collection).split:
        return "it is not the published collection and split"
    if MAIN_MEASURE not in result.measures:
        return f"it has no {MAIN_MEASURE}, which is mteb's main score"
    return ""


def mteb_files(name: str, stored: Mapping[str, Evaluation]) -> dict[str, bytes]:
    """Return the contents of the files of one model, by path.

    Args:
        name: name of the model in the files.
        stored: results by collection, all without an `export_obstacle`.
    """
    recipes = (record.record.recipe for record in stored.values())
    revision = next(
        (recipe.revision for recipe in recipes if recipe and recipe.revision), NO_REVISION
    )
    folder = f"{name.replace('/', '__')}/{revision}"
    files = {
        f"{folder}/{TASKS[collection].name}.json": _json(task_document(record.record))
        for collection, record in stored.items()
    }
    return {f"{folder}/{META_FILE}": _json({"name": name, "revision": revision}), **files}


def task_document(result: Result) -> dict[str, Any]:
    """Return the document of one task for ``result``, as mteb's ``TaskResult`` reads it."""
    task, spent = TASKS[result.protocol.collection], result.timings
    named = {mteb_measure(ours): value for ours, value in result.measures.items()}
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
