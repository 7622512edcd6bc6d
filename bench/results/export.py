"""Results as other programs read them: mteb's files, and the ``model-index`` of a model card.

mteb 2 keeps a JSON file a task in a folder for each model and revision,
``ORGANISATION__MODEL/REVISION/SciFact.json``, with the model's name in ``model_meta.json``. A model
card of the Hugging Face Hub has scores in the YAML block on top of its README.md, which is written
with huggingface_hub's own records. Scores are written unrounded, from 0 to 1.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench.results.result import Evaluation, Result
from datasets_cfg.catalogue import dataset_names, facts_for

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

LANGUAGE = "eng-Latn"  # of every collection below, as mteb writes it
META_FILE = "model_meta.json"
MAIN_MEASURE = "nDCG@10"  # of mteb's retrieval tasks
NO_REVISION = "no_revision_available"  # mteb's word
SUBSET = "default"
TASK_TYPE, TASK_NAME = "information-retrieval", "Information Retrieval"


class Task(msgspec.Struct, frozen=True, array_like=True):
    """A retrieval task of mteb; ``dataset`` and ``revision`` are on the Hub."""

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


def their_measure(measure: str) -> str:
    """``ndcg_at_10`` for ``nDCG@10``; "" for a measure that MTEB does not have."""
    match = _WITH_CUTOFF.fullmatch(measure)
    return f"{_KINDS[match[1]]}_at_{match[2]}" if match and match[1] in _KINDS else ""


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


def mteb_files(name: str, stored: Mapping[str, Evaluation]) -> dict[str, bytes]:
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


def card_file(name: str, stored: Mapping[str, Evaluation]) -> bytes:
    """A model card that holds nothing but the scores, by collection."""
    from huggingface_hub import ModelCardData

    entries = [entry for record in stored.values() for entry in entries_of(record.result)]
    return f"---\n{ModelCardData(model_name=name, eval_results=entries).to_yaml()}\n---\n".encode()


def entries_of(result: Result) -> "list[EvalResult]":
    """One entry a measure; the protocol is kept with the data set."""
    from huggingface_hub import EvalResult

    protocol = result.protocol
    task = TASKS.get(protocol.collection) if protocol.official else None
    title = facts_for(protocol.collection).title if protocol.collection in dataset_names() else ""
    arguments = {
        "collection": protocol.collection,
        "version": protocol.version,
        "depth": protocol.depth,
        "exclude_self": protocol.exclude_self,
        "official": protocol.official,
    }
    return [
        EvalResult(
            task_type=TASK_TYPE,
            task_name=TASK_NAME,
            dataset_type=task.dataset if task else protocol.collection,
            dataset_name=title or protocol.collection,
            dataset_split=protocol.split,
            dataset_args=arguments,
            metric_type=their_measure(measure) or measure,
            metric_name=measure,
            metric_value=value,
        )
        for measure, value in result.measures.items()
    ]
