"""``export``: mteb and trec_eval read what is written, and scores come back unrounded."""

import json
from pathlib import Path

import pytest

from bench.evaluation.result_record import Evaluation
from bench.requests.outcomes import ExitCode
from bench.result_store.export import (
    TASKS,
    export_obstacle,
    mteb_files,
    mteb_measure,
    task_document,
)
from bench.result_store.result import load
from datasets_cfg.catalogue import dataset_names, expand_names
from tests.support.collections import DOCUMENTS, QRELS, QUERIES, write_collection
from tests.support.leaderboards import make_protocol, recipe_of, result_of, store

NAME = "someone/words"


@pytest.fixture
def results(tmp_path):
    """Stored results that were never measured."""
    place = tmp_path / "stored"
    laid(place, "beir/scifact", {"nDCG@10": [0.1, 0.7, 1 / 3], "R@100": [1.0, 0.0, 1.0]})
    laid(place, "mine", {"nDCG@10": [0.5, 0.25]})
    return place


def laid(place: Path, collection: str, scores: dict[str, list[float]]) -> None:
    """A result of the model ``words``, where a command would have put it."""
    made = store(place / "made", "words", collection, scores)
    folder = place / collection / "words"
    folder.mkdir(parents=True)
    made.rename(folder / made.name)
    made.parent.rmdir()


def stored(collection: str, **changes) -> dict[str, Evaluation]:
    return {collection: Evaluation(result_of("words", collection, **changes))}


@pytest.mark.parametrize("exclude_self", [False, True])
def test_an_exported_run_scores_as_the_result_it_is_of(bench, tmp_path, exclude_self):
    facts = f"exclude_self = {str(exclude_self).lower()}\n"
    folder = write_collection(tmp_path / "tiny", facts=facts)
    assert bench("run", folder, "--model", "hashing").code == 0
    exported = bench(
        "export", "trec", "hashing", "--results", bench.out, "--out", tmp_path / "runs"
    )
    run = tmp_path / "runs" / "hashing" / "tiny.trec.gz"
    assert exported.stdout.strip() == str(run)
    assert bench("score", run, "--dataset", folder, "--name", "back").code == 0
    measured, back = (load(bench.results("tiny", name)).record for name in ("hashing", "back"))
    assert back.measures == measured.measures


def test_ids_with_spaces_are_evaluated_and_not_exported(bench, tmp_path):
    queries = {f"{id_} 1": text for id_, text in QUERIES.items()}
    qrels = {(f"{query} 1", document): grade for (query, document), grade in QRELS.items()}
    folder = write_collection(tmp_path / "tiny", DOCUMENTS, queries, qrels)
    assert bench("run", folder, "--model", "bm25").code == 0
    exported = bench("export", "trec", "bm25", "--results", bench.out, "--out", tmp_path / "runs")
    assert exported.code == ExitCode.BAD_INPUT
    assert "cannot be written to a TREC run file" in exported.stderr
    assert not list((tmp_path / "runs").rglob("*.gz"))


def test_a_file_of_mteb_has_what_mteb_asks_for_unrounded():
    measures = {"nDCG@10": 1 / 3, "RR@10": 0.25, "AP(rel=2)": 0.125}
    document = task_document(result_of("words", "beir/msmarco", measures=measures))
    assert document["task_name"] == "MSMARCO"
    assert len(document["dataset_revision"]) == 40
    assert document["scores"] == {
        "dev": [
            {
                "ndcg_at_10": 1 / 3,
                "mrr_at_10": 0.25,
                "main_score": 1 / 3,
                "hf_subset": "default",
                "languages": ["eng-Latn"],
            }
        ]
    }


def test_files_of_mteb_lie_below_the_models_name_and_revision():
    files = mteb_files(NAME, stored("beir/scifact", recipe=recipe_of("words", revision="abc")))
    assert list(files) == ["someone__words/abc/model_meta.json", "someone__words/abc/SciFact.json"]
    assert json.loads(files["someone__words/abc/model_meta.json"]) == {
        "name": NAME,
        "revision": "abc",
    }


@pytest.mark.parametrize(
    ("collection", "changes", "why"),
    [
        ("beir/scifact", {}, ""),
        ("stdlib-code", {}, "mteb has no such task"),
        ("beir/scifact", {"measures": {"R@100": 0.5}}, "it has no nDCG@10"),
        ("beir/scifact", {"protocol": {"official": False}}, "it is not the published"),
        ("beir/scifact", {"protocol": {"split": "train"}}, "it is not the published"),
    ],
)
def test_a_result_that_differs_from_the_mteb_task_states_why(collection, changes, why):
    if protocol := changes.get("protocol"):
        changes = {"protocol": make_protocol(collection, **protocol)}
    said = export_obstacle(result_of("words", collection, **changes))
    assert said.startswith(why)
    assert bool(said) == bool(why)


def test_measures_of_other_programs_are_mapped_only_with_equal_parameters():
    ours = ("nDCG@10", "R@100", "AP@100", "P@5", "RR@10", "Success@5", "AP", "AP(rel=2)@100")
    theirs = ("ndcg_at_10", "recall_at_100", "map_at_100", "precision_at_5", "mrr_at_10")
    assert [mteb_measure(name) for name in ours] == [*theirs, "hit_rate_at_5", "", ""]


def test_every_public_collection_has_one_task():
    assert set(expand_names(["beir"])) <= set(TASKS) <= set(dataset_names())
    for field in ("name", "dataset", "revision"):
        assert len({getattr(task, field) for task in TASKS.values()}) == len(TASKS)


def test_a_mixture_of_recipes_is_not_exported(bench, tmp_path):
    tiny, other = write_collection(tmp_path / "tiny"), write_collection(tmp_path / "other")
    assert bench("run", tiny, "--model", "hashing").code == 0
    short = ("--model", "hashing", "--set", "max_document_tokens=3")
    assert bench("run", other, *short).code == 0
    export = ("export", "trec", "--results", bench.out, "--out", tmp_path / "runs")
    refused = bench(*export, "hashing")
    assert refused.code == ExitCode.BAD_INPUT
    assert not (tmp_path / "runs").exists()
    name = "hashing@max_document_tokens=3"
    assert f"'{name}'" in refused.stderr
    assert bench(*export, name).code == 0
    assert [path.name for path in (tmp_path / "runs").rglob("*.gz")] == ["other.trec.gz"]


def test_an_exported_file_is_not_written_over(bench, results, tmp_path):
    options = ("export", "mteb", "words", "--results", results, "--out", tmp_path / "mteb")
    assert bench(*options).code == 0
    assert bench(*options).code == 0
    (file,) = (tmp_path / "mteb").rglob("SciFact.json")
    file.write_text("mine")
    done = bench(*options)
    assert done.code == ExitCode.BAD_INPUT
    assert "exists already, with different content" in done.stderr
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mteb", "wrods"), "Did you mean words"),
        (("mteb", "words", "--on", "mine"), "no result that can be exported as mteb"),
        (("mteb", "words", "--on", "beir/scifcat"), "Did you mean beir/scifact"),
        (("trec", "words", "mine", "--as", "x"), "--as is for one model, not 2"),
        (("trec", "words", "--as", "../x"), "cannot name a folder"),
        (("trec", "words"), "cannot read run"),
    ],
)
def test_bad_input_of_export_gives_one_clear_error(arguments, message, bench, results, tmp_path):
    done = bench("export", *arguments, "--results", results, "--out", tmp_path / "out")
    assert done.code == ExitCode.BAD_INPUT
    assert message in done.stderr
    assert [path for path in tmp_path.glob("out/**/*") if path.is_file()] == []


def test_results_of_several_folders_are_read_together_and_disagreement_is_reported(
    bench, results, tmp_path, caplog
):
    other = tmp_path / "other"
    laid(other, "beir/scifact", {"nDCG@10": [0.5, 0.0]})
    laid(other, "beir/nfcorpus", {"nDCG@10": [0.5]})
    done = bench(
        *("export", "mteb", "words", "--results", results, other),
        *("--out", tmp_path / "mteb"),
    )
    assert done.code == ExitCode.OK, done.stderr
    written = {path.name for path in (tmp_path / "mteb").rglob("*.json")}
    assert written == {"SciFact.json", "NFCorpus.json", "model_meta.json"}
    assert "words on beir/scifact was evaluated 2 times with different scores" in caplog.text
