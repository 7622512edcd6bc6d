"""Results as other programs read them: mteb's files, and the ``model-index`` of a model card.

mteb 2 keeps a JSON file a task in a folder for each model and revision,
``ORGANISATION__MODEL/REVISION/SciFact.json``, with the model's name in ``model_meta.json``. A model
card of the Hugging Face Hub has scores in the YAML block on top of its README.md, which is written
with huggingface_hub's own records. Scores are written unrounded, from 0 to 1.

Each row of `TASKS` was read from the task's metadata in mteb 2.26: the name, the data set on the
Hub and its revision, which an mteb result states.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from bench.results.result import Evaluation, Result
from datasets_cfg.catalogue import dataset_names, facts_for

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

LANGUAGE = "eng-Latn"  # of every collection below, as mteb writes it
CQADUPSTACK = "beir/cqadupstack"
META_FILE = "model_meta.json"
MAIN_MEASURE = "nDCG@10"  # of mteb's retrieval tasks
NO_REVISION = "no_revision_available"  # mteb's word
SUBSET = "default"
TASK_TYPE, TASK_NAME = "information-retrieval", "Information Retrieval"


@dataclass(frozen=True)
class Task:
    """A retrieval task of mteb; ``dataset`` and ``revision`` are on the Hub."""

    name: str
    dataset: str
    revision: str


TASKS = {
    "beir/arguana": Task("ArguAna", "mteb/arguana", "c22ab2a51041ffd869aaddef7af8d8215647e41a"),
    "beir/climate-fever": Task(
        "ClimateFEVER", "mteb/climate-fever", "47f2ac6acb640fc46020b02a5b59fdda04d39380"
    ),
    f"{CQADUPSTACK}/android": Task(
        "CQADupstackAndroidRetrieval",
        "mteb/CQADupstackAndroidRetrieval",
        "9be4c0e46342e8e3aff577a89b9a1ec9bc6b4af3",
    ),
    "beir/dbpedia-entity": Task(
        "DBPedia", "mteb/dbpedia", "c0f706b76e590d620bd6618b3ca8efdd34e2d659"
    ),
    "beir/fever": Task("FEVER", "mteb/fever", "bea83ef9e8fb933d90a2f1d5515737465d613e12"),
    "beir/fiqa": Task("FiQA2018", "mteb/fiqa", "27a168819829fe9bcd655c2df245fb19452e8e06"),
    "beir/hotpotqa": Task("HotpotQA", "mteb/hotpotqa", "ab518f4d6fcca38d87c25209f94beba119d02014"),
    "beir/msmarco": Task("MSMARCO", "mteb/msmarco", "c5a29a104738b98a9e76336939199e264163d4a0"),
    "beir/nfcorpus": Task("NFCorpus", "mteb/nfcorpus", "ec0fa4fe99da2ff19ca1214b7966684033a58814"),
    "beir/nq": Task("NQ", "mteb/nq", "b774495ed302d8c44a3a7ea25c90dbce03968f31"),
    "beir/quora": Task("QuoraRetrieval", "mteb/quora", "e4e08e0b7dbe3c8700f0daef558ff32256715259"),
    "beir/scidocs": Task("SCIDOCS", "mteb/scidocs", "f8c2fcf00f625baaa80f62ec5bd9e1fff3b8ae88"),
    "beir/scifact": Task("SciFact", "mteb/scifact", "d56462d0e63a25450459c4f213e49ffdb866f7f9"),
    "beir/trec-covid": Task(
        "TRECCOVID", "mteb/trec-covid", "bb9466bac8153a0349341eb1b22e06409e78ef4e"
    ),
    "beir/webis-touche2020": Task(
        "Touche2020", "mteb/touche2020", "a34f9a33db75fa0cbb21bb5cfc3dae8dc8bec93f"
    ),
} | {
    f"{CQADUPSTACK}/{forum}": Task(
        f"CQADupstack{forum.title()}Retrieval", f"mteb/cqadupstack-{forum}", revision
    )
    for forum, revision in (
        ("english", "ad9991cb51e31e31e430383c75ffb2885547b5f0"),
        ("gaming", "4885aa143210c98657558c04aaf3dc47cfb54340"),
        ("gis", "5003b3064772da1887988e05400cf3806fe491f2"),
        ("mathematica", "90fceea13679c63fe563ded68f3b6f06e50061de"),
        ("physics", "79531abbd1fb92d06c6d6315a0cbbbf5bb247ea4"),
        ("programmers", "6184bc1440d2dbc7612be22b50686b8826d22b32"),
        ("stats", "65ac3a16b8e91f9cee4c9828cc7c335575432a2a"),
        ("tex", "46989137a86843e03a6195de44b09deda022eec7"),
        ("unix", "6c6430d3a6d36f8d2a829195bc5dc94d7e063e53"),
        ("webmasters", "160c094312a0e1facb97e55eeddb698c0abe3571"),
        ("wordpress", "4ffe81d471b1924886b33c7567bfb200e9eec5c4"),
    )
}

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
