"""Export of stored results as files of mteb 2 and trec_eval.

mteb has one JSON file per task: ``ORGANISATION__MODEL/REVISION/SciFact.json``, with the model's
name in ``model_meta.json``. Scores are unrounded, from 0 to 1.
"""

import io
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from bench.evaluation.result_record import Evaluation, Result
from bench.evaluation.run_files import write_lines
from bench.requests.deciding import ExportRequest
from bench.result_store.find import choose_results, expand_collections, find_named
from bench.result_store.result import result_folder
from datasets_cfg.catalogue import facts_for
from foundation.errors import BenchError
from foundation.files import replace_file

LANGUAGE = "eng-Latn"  # the language of all collections below, as mteb writes it
META_FILE = "model_meta.json"
MAIN_MEASURE = "nDCG@10"  # as in mteb's retrieval tasks
NO_REVISION = "no_revision_available"  # mteb's word
SUBSET = "default"


class Task(msgspec.Struct, frozen=True, array_like=True):
    """A retrieval task of mteb, with the id of its dataset on the Hub and the revision."""

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


def export(request: ExportRequest) -> list[Path]:
    """Write results as files, without overwriting other content, and return the files.

    Raises:
        BenchError: wrong input, nothing to export, or a file exists with other content.
    """
    if request.name and len(request.names) > 1:
        raise BenchError(f"--as is for one model, not {len(request.names)}", "export one by one")
    chosen = {name: _choose_exportable(name, request) for name in request.names}
    written = []
    for typed, stored in chosen.items():
        name = request.name or next(iter(stored.values())).model
        result_folder(request.out, name, name)  # a name may lead out of the folder
        if request.form == "mteb":
            files = iter(mteb_files(name, stored).items())
        else:
            files = _run_files(name, stored)
        for path, content in tqdm(files, desc=typed, unit=" files"):
            written.append(_write_once(request.out / path, content))
    return written


def _choose_exportable(typed: str, request: ExportRequest) -> dict[str, Evaluation]:
    """Choose the results of one model that the format supports, by collection."""
    results = find_named(typed, *request.results)
    known = {each.dataset for each in results}
    wanted = expand_collections(request.on, known) if request.on else None
    stored = choose_results(typed, results, wanted)
    for name, record in list(stored.items()) if request.form == "mteb" else ():
        if why := export_obstacle(record.record):
            print(f"left out: {typed} on {name}: {why}", file=sys.stderr)
            del stored[name]
    if not stored:
        raise BenchError(
            f"{typed} has no result that can be exported as {request.form}",
            "choose other collections with --on",
        )
    return stored


def _run_files(name: str, stored: Mapping[str, Evaluation]) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each compressed TREC run file."""
    for collection, record in stored.items():
        content = io.BytesIO()
        write_lines(record.run, content, name, compress=True)
        yield f"{name}/{collection}.trec.gz", content.getvalue()


def _write_once(file: Path, content: bytes) -> Path:
    """Write a file, or raise if it exists with other content."""
    if not file.exists():
        with replace_file(file) as opened:
            opened.write(content)
    elif file.read_bytes() != content:
        raise BenchError(f"{file} exists already, with different content", "choose another --out")
    return file


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
    revisions = (recipe.revision for recipe in recipes if recipe and recipe.revision)
    revision = next(revisions, NO_REVISION)
    documents: dict[str, Any] = {META_FILE: {"name": name, "revision": revision}}
    for collection, record in stored.items():
        documents[f"{TASKS[collection].name}.json"] = task_document(record.record)
    folder = f"{name.replace('/', '__')}/{revision}"
    return {
        f"{folder}/{file}": msgspec.json.format(msgspec.json.encode(document), indent=2)
        for file, document in documents.items()
    }


def task_document(result: Result) -> dict[str, Any]:
    """Return the document of one task for ``result``, as mteb's ``TaskResult`` reads it."""
    task, spent = TASKS[result.protocol.collection], result.timings
    scores = {mteb_measure(ours): value for ours, value in result.measures.items()}
    scores.pop("", None)
    subset = {
        **scores,
        "main_score": result.measures[MAIN_MEASURE],
        "hf_subset": SUBSET,
        "languages": [LANGUAGE],
    }
    return {
        "dataset_revision": task.revision,
        "task_name": task.name,
        "mteb_version": None,  # it was not mteb that measured
        "scores": {result.protocol.split: [subset]},
        "evaluation_time": spent.encode_queries_s
        + spent.encode_documents_s
        + spent.search_s
        + spent.score_s,
        "kg_co2_emissions": None,
        "date": result.conditions.time,
    }


def mteb_measure(measure: str) -> str:
    """Return mteb's name of ``measure``, such as ``ndcg_at_10`` for ``nDCG@10``, or ""."""
    match = _WITH_CUTOFF.fullmatch(measure)
    return f"{_KINDS[match[1]]}_at_{match[2]}" if match and match[1] in _KINDS else ""
