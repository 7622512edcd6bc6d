"""Grids whose rows vary a fusion or a reranking: cards of the cells, and what is computed once."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from bench.evaluation.member_retriever import RANKINGS
from bench.experiments.evaluate_stage import RESULTS, EvaluateStage
from bench.experiments.experiment import plan_experiment
from bench.experiments.grid import FILES, make_rows
from bench.result_store.find import find_results
from bench.runner.workspace import Workspace
from foundation.errors import BenchError
from retrievers.models.card import load_card
from tests.support.collections import SIXTY, write_collection

CODE = """
def rerank(query, texts):
    with open("pairs.txt", "a") as file:
        file.writelines(f"{NAME} {query} {text}" + chr(10) for text in texts)
    return [SIGN * len(text) for text in texts]
"""
RERANKED = """
name = "reranked"
title = "t"
kind = "rerank"
model = "bm25"
reranker = "long.py:rerank"
"""


@pytest.fixture(name="folder")
def make_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_collection(tmp_path / "mine", *SIXTY)
    for name, sign in (("long", 1), ("short", -1)):
        code = f"NAME, SIGN = {name!r}, {sign}\n{CODE}"
        Path(f"{name}.py").write_text(code, encoding="utf-8")
    Path("reranked.toml").write_text(RERANKED, encoding="utf-8")
    return tmp_path


def plan(folder, text):
    """Return the tasks of a grid by row."""
    grid = FILES.parse(f"name = 'n'\n{text}".encode(), "grid.toml")
    stage = EvaluateStage(Workspace(folder / "cache", device="cpu", trust_code=True), grid.model)
    cells = plan_experiment(grid, {"evaluate": stage}).cells
    return {cell.row: cell.task for cell in cells}


def run(task, out):
    """Run a task; return its result, and the card that it wrote."""
    out.mkdir()
    task.kind.run(task.settings, task.model, out)
    (stored,) = find_results(out / RESULTS)
    return stored, load_card(next(out.glob("*.toml")))


TWELVE = """
model = "reranked.toml"
evaluate = { on = ["mine"], depth = 20, measures = ["R@20"] }
[factors]
evaluate.model.model = ["bm25", "hashing"]
reranker = ["long.py:rerank", "short.py:rerank"]
depth = [20, 10, 5]
"""


def test_twelve_cells_search_each_member_once_and_score_each_pair_once(folder):
    tasks = plan(folder, TWELVE)
    found = [run(task, folder / str(number)) for number, task in enumerate(tasks.values())]
    levels = itertools.product(["bm25", "hashing"], ["long.py", "short.py"], [20, 10, 5])
    assert [(card.model, Path(card.reranker).name, card.depth) for _, card in found] == [
        (model, f"{file}:rerank", depth) for model, file, depth in levels
    ]
    assert len({stored.record.fingerprint for stored, _ in found}) == 12
    assert len(list((folder / "cache" / RANKINGS).glob("*.arrow"))) == 2
    pairs = Counter(Path("pairs.txt").read_text("utf-8").splitlines())
    assert set(pairs.values()) == {1}
    assert len({pair.partition(" ")[0] for pair in pairs}) == 2


def test_the_card_that_a_cell_writes_gives_the_scores_of_the_cell(folder):
    *_, task = plan(folder, TWELVE).values()
    stored, _ = run(task, folder / "cell")
    (card,) = (folder / "cell").glob("*.toml")
    plain = EvaluateStage(Workspace(folder / "cache", device="cpu", trust_code=True))
    settings = plain.resolve_settings({"on": ["mine"], "depth": 20, "measures": ["R@20"]})
    plain.run(settings, str(card), folder / "again")
    (again,) = find_results(folder / "again" / RESULTS)
    assert again.record.measures == stored.record.measures
    assert again.record.fingerprint == stored.record.fingerprint


def test_the_model_is_a_factor_of_a_grid_without_one(folder):
    text = 'evaluate.on = ["mine"]\n[factors]\nmodel = ["bm25", "hashing", "bm25+hashing"]\n'
    tasks = plan(folder, text)
    names = [task.settings["model"]["name"] for task in tasks.values()]
    assert names == ["bm25", "hashing", "bm25+hashing"]
    assert len({task.key for task in tasks.values()}) == 3


def test_a_file_of_a_pipeline_that_changes_is_another_cell(folder):
    before = plan(folder, TWELVE)
    with Path("short.py").open("a", encoding="utf-8") as file:
        file.write("OTHER = 1\n")
    after = plan(folder, TWELVE)
    changed = [row for row, task in after.items() if task.key != before[row].key]
    assert changed == [row for row in after if "short.py" in row]


def test_the_key_of_a_cell_of_one_model_without_fields_is_what_it_was(folder):
    axis = '[[axes]]\nfield = "evaluate.index"\nvalues = ["IVF4,Flat"]\n'
    for task in plan(folder, f'model = "hashing"\nevaluate.on = ["mine"]\n{axis}').values():
        assert "model" not in task.settings
        assert [len(json.loads(each)) for each in task.inputs.values()] == [2]


AXIS = '[[axes]]\nfield = "{}"\nvalues = {}\n'


@pytest.mark.parametrize(
    ("model", "rows", "words"),
    [
        ("bm25+hashing", AXIS.format("evaluate.index", ["IVF4,Flat"]), "--index cannot be set for"),
        ("bm25+hashing", AXIS.format("evaluate.dtype", ["bfloat16"]), "--dtype cannot be set for"),
        ("bm25+hashing", AXIS.format("evaluate.model.kk", [1]), "Did you mean k?"),
        ("bm25+hashing", AXIS.format("evaluate.model.reranker", ["x"]), "no field 'reranker'"),
        ("bm25+hashing", AXIS.format("evaluate.model.depth", [0]), "expected a whole number >= 1"),
        ("bm25+hashing", AXIS.format("evaluate.model.k", [60]), "does not change reference"),
        ("bm25+hashing", '[factors]\nmethod = ["weighted", "rrf"]\nk = [60, 10]', "k belongs to"),
        ("bm25+hashing", '[factors]\nmodel = ["bm25", "hashing"]', "also set in [evaluate]"),
        ("hashing", AXIS.format("evaluate.model.pooling", ["mean"]), "no field 'pooling'"),
        ("hashing", "[factors]\ndepth = [10, 20]", "evaluate.depth is the same for all rows"),
        ("", AXIS.format("evaluate.model", ["bm25", "hashing"]), "[evaluate] has no model"),
        ("", '[factors]\nmodel = ["bm25", "nosuch"]', "no model card and no folder 'nosuch'"),
        ("", '[evaluate.model]\nname = "bm25"\nk = 3\n' + AXIS.format("x", [1]), "k cannot be set"),
    ],
)
def test_what_the_kind_of_the_model_does_not_honour_is_refused(folder, model, rows, words):
    stated = f'model = "{model}"\n' if model else ""
    with pytest.raises(BenchError) as caught:
        plan(folder, f'{stated}evaluate.on = ["mine"]\n{rows}')
    assert words in f"{caught.value} ({caught.value.hint})"


def test_a_method_of_a_fusion_is_a_row_with_the_settings_of_that_method(folder):
    grid = FILES.parse(
        b'name = "n"\nmodel = "bm25+hashing"\nevaluate.on = ["mine"]\n'
        b'[factors]\nmethod = ["rrf", "weighted"]\ndepth = [100, 10]\n',
        "grid.toml",
    )
    stage = EvaluateStage(Workspace(folder / "cache", device="cpu"), grid.model)
    rows, _ = make_rows(grid, lambda _, table: stage.resolve_settings(table))
    assert rows[-1].change == (
        "evaluate.model.method: rrf -> weighted; evaluate.model.depth: 100 -> 10"
    )
