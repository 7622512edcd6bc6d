"""Cards of fusions and rerankings, and their rankings."""

import json
from pathlib import Path

import transformers

from bench.evaluation.pipeline import evaluate
from bench.evaluation.retriever import EvaluationOptions
from bench.evaluation.runs import Run
from bench.runner.workspace import Workspace
from retrievers.models.settings import ModelSettings
from tests.support import tiny_checkpoints as tiny

TRUSTED = ModelSettings(trust_code=True)


def run_of(workspace: Workspace, model: str, folder: Path, depth: int = 30) -> Run:
    """The ranking of a model, whose code may run, on the collection in ``folder``."""
    options = EvaluationOptions(depth=depth, measures=(f"RR@{depth}",))
    loaded = workspace.load(model, TRUSTED)
    return evaluate(workspace.prepare(workspace.open(str(folder)), loaded, options)).run


def ranked(run: Run) -> dict[str, list[str]]:
    """Ids of documents by query."""
    return {query: ids for query, ids, _ in run.rankings()}


def write_rerank(folder: Path, reranker: str, name: str = "reranked", **fields: object) -> str:
    """A card that reranks, by default what BM25 finds."""
    stated = {"name": name, "title": "t", "kind": "rerank", "model": "bm25", "reranker": reranker}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**stated, **fields}.items()]
    (folder / f"{name}.toml").write_text("\n".join(lines), encoding="utf-8")
    return str(folder / f"{name}.toml")


def write_reranker(folder: Path, body: str) -> str:
    """A function that scores texts for a query, in a file."""
    (folder / "own.py").write_text(f"def score(query, texts):\n    {body}\n", encoding="utf-8")
    return "own.py:score"


def write_fusion(path: Path, fields: str) -> str:
    """A card that fuses, with these lines."""
    named = f'name = "{path.stem}"\ntitle = "t"\nkind = "fusion"\n'
    path.write_text(named + fields, encoding="utf-8")
    return str(path)


def write_cross_encoder(folder: Path, labels: int = 1, seed: int = 0) -> Path:
    """A cross-encoder with random weights."""
    config = tiny.bert_config(num_labels=labels)
    model = tiny.seeded(lambda: transformers.BertForSequenceClassification(config), seed)
    model.classifier.weight.data *= 3  # so that scores differ
    model.save_pretrained(str(folder))
    tiny.write_tokenizer(folder)
    return folder
