"""Scores of a ranking that another program made."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from bench.evaluation.pipeline import evaluate_run
from bench.evaluation.result_record import Evaluation
from bench.evaluation.runs import Run, read_run_file
from bench.requests.evaluating import ScoreRequest
from bench.result_store.result import save
from bench.runner.workspace import open_workspace
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError


def score(request: ScoreRequest) -> Evaluation:
    """Score a ranking by the collection's own protocol, and save the result if a folder is given.

    Raises:
        BenchError: wrong input.
    """
    ranking, sha256, name = _read_run(request.run, request.dataset)
    workspace = open_workspace(request)
    if isinstance(request.dataset, Dataset):
        opened = workspace.open(request.dataset)
    else:
        opened = workspace.open_judgements(str(request.dataset), request.split)
    evaluation = evaluate_run(
        *(ranking, request.name or name, sha256, opened.dataset),
        *(request.measure or None, request.depth, opened.official),
    )
    return evaluation if request.results is None else save(evaluation, request.results)


def run_file_name(path: Path) -> str:
    """Return the name in results of the ranking in a file."""
    return "_".join(path.name.split(".trec")[0].split())


def _read_run(run: Any, dataset: Any) -> tuple[Run, str, str]:
    """Return a ranking, a hash of it, and its default name."""
    if isinstance(run, str | Path):
        path = Path(run)
        if path.is_dir():
            raise BenchError(
                f"{path} is a folder, not a run file",
                f"python -m bench score RUN_FILE --dataset {path}",
            )
        file = read_run_file(path)
        return file.run, file.sha256, run_file_name(path)
    if not isinstance(run, Run):
        rows = [(q, d, float(s)) for q, documents in run.items() for d, s in documents.items()]
        queries, documents, scores = zip(*rows, strict=True) if rows else ((), (), ())
        run = Run.from_rows(queries, documents, scores)
    content = hashlib.sha256()
    for column in (run.query_ids, run.offsets.tolist(), run.doc_ids.to_pylist()):
        content.update(msgspec.json.encode(column))
    content.update(run.scores.tobytes())
    return run, content.hexdigest(), "run"
