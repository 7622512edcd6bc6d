"""A first try of a collection (--limit), and another prompt for queries."""

import json
from dataclasses import replace

import msgspec
import pytest

from bench.cli.main import run_command
from datasets_cfg.dataset import Dataset, all_assumptions, take_first_queries
from retrievers.models.card import Prompts, load_card
from retrievers.models.resolve import resolve_model, with_query_prompt

CORPUS = {f"d{n}": {"title": f"t{n}", "text": f"the text of document {n}"} for n in range(60)}
QUERIES = {f"q{n}": f"which text has document {n}" for n in range(4)}
QRELS = {"q0": {"d50": 2}, "q1": {"d3": 1, "d51": 0}, "q2": {"d52": 1, "gone": 1}, "q3": {"d7": 1}}


@pytest.fixture
def whole(tmp_path) -> Dataset:
    metadata = {"main_measure": "RR@10", "measures": ["R@20"], "depth": 20}
    return Dataset.from_dicts(CORPUS, QUERIES, QRELS, name="own", cache_dir=tmp_path, **metadata)


def run(capsys, tmp_path, dataset: Dataset, *words: str) -> dict:
    folders = ["--cache-dir", str(tmp_path), "--results", str(tmp_path / "out"), "--json"]
    command = ["run", str(dataset.reader.folder), "--model", "hashing", *folders, *words]
    assert run_command(command) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    return result


def test_a_limited_run_has_the_first_queries_their_judged_documents_and_the_first_others(whole):
    small = take_first_queries(replace(whole, assumptions={"grades are text": 3}), 2)
    assert all_assumptions(small) == {"grades are text": 3}
    assert small.name == "own/first2"
    assert small.queries.ids == ("q0", "q1")
    assert set(small.qrels) == {("q0", "d50", 2), ("q1", "d3", 1), ("q1", "d51", 0)}
    others = [f"d{n}" for n in range(21) if n != 3]
    assert set(small.corpus.ids.to_pylist()) == {"d50", "d3", "d51", *others}
    assert (small.metadata.main_measure, small.metadata.depth) == ("RR@10", 20)


def test_a_limited_run_is_marked_and_its_results_belong_to_another_collection(
    capsys, tmp_path, whole
):
    first, all_of_it = (run(capsys, tmp_path, whole, "--limit", "2"), run(capsys, tmp_path, whole))
    assert (first["protocol"]["collection"], first["protocol"]["official"]) == ("own/first2", None)
    assert all_of_it["protocol"]["collection"] == "own"
    assert (first["queries"], all_of_it["queries"]) == (2, 4)


def test_a_limited_run_has_the_prompts_and_the_training_data_of_its_collection():
    name = "beir/quora/first5"
    recipe = resolve_model("hashing").recipe
    by_collection = {"beir/quora": Prompts(query="of quora: ")}
    recipe = msgspec.structs.replace(recipe, dataset_prompts=by_collection)
    assert recipe.for_dataset(name).prompts.query == "of quora: "
    assert load_card("bge-base").is_in_domain(name)


def test_a_query_prompt_takes_the_place_of_those_by_collection_and_leaves_documents():
    card = with_query_prompt(load_card("bge-base"), "find: ")
    assert card.prompts.query == "find: "
    assert {prompts.query for prompts in card.prompts.datasets.values()} == {"find: "}
    assert not card.expected
