"""``run`` shows a stored result only where everything that it depends on is the same and whole."""

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.evaluation.pipeline import program_digest
from bench.evaluation.result_record import RUN_FILE, SCORES_FILE, Evaluation
from bench.result_store import result as reuse
from bench.result_store.find import find_results
from bench.result_store.result import RESULT_FILE, load
from bench.runner.workspace import Workspace
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import write_collection
from tests.support.leaderboards import lower_scores
from tests.support.library_versions import pretend_version


@pytest.fixture
def folder(tmp_path):
    return write_collection(tmp_path / "tiny")


@pytest.fixture
def run(bench, folder):
    """Evaluate, and say whether it was computed: the alternative is that it was only shown."""

    def computed(*options: object, model: object = "hashing") -> bool:
        done = bench("run", folder, "--model", model, *options)
        assert done.code == 0, done.stderr
        shown, kept = "stored in" in done.stderr, "saved to" in done.stderr
        assert shown != kept, done.stderr
        return kept

    return computed


def test_a_second_run_shows_the_stored_result(bench, folder, run):
    assert run()
    record = (bench.results("tiny", "hashing") / RESULT_FILE).read_bytes()
    first = bench("run", folder, "--model", "hashing")
    assert not run()
    assert (bench.results("tiny", "hashing") / RESULT_FILE).read_bytes() == record
    again = bench("run", folder, "--model", "hashing", "--recompute")
    assert again.stdout == first.stdout
    assert "saved to" in again.stderr


def test_another_request_is_computed_not_reused(run):
    assert run()
    for options in (("--depth", 12, "--measure", "nDCG@3"), ("--index", "HNSW8")):
        assert run(*options)
        assert not run(*options)
    assert run("--measure", "R@3")
    assert run(model="bm25")
    assert not run("--index", "flat", model="bm25")


EDITS: dict[str, Callable[[str], str]] = {
    "qrels/test.tsv": lambda text: text + "q1\td9\t1\n",
    "queries.jsonl": lambda text: text.replace("wing", "tail", 1),
    "corpus.jsonl": lambda text: text.replace("lift", "drag", 1),
    "dataset.toml": lambda text: 'main_measure = "RR@10"\n',
}


def test_a_collection_that_changed_is_evaluated(run, folder):
    assert run()
    (folder / "dataset.toml").touch()
    for name, edit in EDITS.items():
        (folder / name).write_text(edit((folder / name).read_text()))
        assert run(), name
    assert not run()


def test_a_damaged_file_is_replaced_by_a_new_evaluation(bench, run):
    assert run()
    damages = [
        *((name, how) for name in (RESULT_FILE, SCORES_FILE, RUN_FILE) for how in ("cut", "gone")),
        *((name, "one bit") for name in (SCORES_FILE, RUN_FILE)),
    ]
    for name, how in damages:
        path = bench.results("tiny", "hashing") / name
        whole = path.read_bytes()
        if how == "gone":
            path.unlink()
        else:
            middle = len(whole) // 2
            flipped = bytes([whole[middle] ^ 1]) + whole[middle + 1 :] if how == "one bit" else b""
            path.write_bytes(whole[:middle] + flipped)
        assert run(), (name, how)
        assert load(path.parent).run
    assert not run()


CHANGES: list[Callable[[dict[str, Any]], object]] = [
    lambda record: record["conditions"].update(program="0" * 16),
    lambda record: record["conditions"].update(program=""),
    lambda record: record["conditions"]["libraries"].update(numpy="1.0"),
    lambda record: record["conditions"].update(machine="Plan9 mips"),
    lambda record: record["conditions"].update(device="cuda"),
    lambda record: record.update(in_domain=True),
    lambda record: record.update(fingerprint="0" * 64),
    lambda record: record["recipe"].update(dim=8),
    lambda record: record["protocol"].update(corpus_sha256="0" * 64),
    lambda record: record.update(index="HNSW32"),
    lambda record: record.update(main_measure="R@100"),
]


def test_a_result_with_any_other_input_is_not_reused(bench, run):
    assert run()
    path = bench.results("tiny", "hashing") / RESULT_FILE
    for number, change in enumerate(CHANGES):
        record = json.loads(path.read_bytes())
        change(record)
        path.write_text(json.dumps(record))
        assert run(), number
    assert not run()


def test_a_result_of_a_third_party_class_is_never_reused(bench, folder, run, tmp_path):
    """It may read files that no hash of the recipe is of."""
    assert run()
    workspace = Workspace(tmp_path / "cache")
    loaded = workspace.load("hashing")
    job = workspace.prepare(workspace.open(str(folder)), loaded)
    known = load(bench.results("tiny", "hashing"))
    result = known.record
    own = msgspec.structs.replace(result.recipe, encoder="theirs:Encoder")
    for recipe, shown in ((result.recipe, True), (own, False)):
        record = msgspec.structs.replace(result, recipe=recipe, fingerprint=recipe.fingerprint)
        stored = replace(known, record=record)
        job = replace(job, model=replace(loaded, model=replace(loaded.model, recipe=recipe)))
        assert (reuse.find_equivalent(job, [stored]) is not None) == shown


def test_results_that_contradict_each_other_are_not_shown(bench, run, tmp_path):
    """Two folders of one key."""
    assert run()
    folder = bench.results("tiny", "hashing")
    other = folder.with_name(f"{folder.name}-other")
    shutil.copytree(folder, other)
    assert not run()
    shutil.rmtree(other)
    lower_scores(folder, tmp_path / "lowered")
    shutil.copytree(tmp_path / "lowered" / "tiny" / "hashing" / folder.name, other)
    assert run()


def elsewhere(folder: Path, time: str) -> None:
    """The record as another machine and an earlier version would have written it."""
    record = json.loads((folder / RESULT_FILE).read_bytes())
    record["conditions"].update(time=time, machine="another", program="0" * 16, libraries={})
    (folder / RESULT_FILE).write_text(json.dumps(record))


@pytest.fixture
def for_a_decision(bench, folder, tmp_path):
    """Opens the collection, calls a function, then asks as `check` and `watch` do."""

    def ask(before=lambda: None) -> Evaluation:
        workspace = Workspace(tmp_path / "cache")
        opened, model = workspace.open(str(folder)), workspace.load("hashing")
        before()
        job = workspace.prepare(opened, model, known=find_results(bench.out))
        return reuse.reuse_or_evaluate(job, bench.out)

    return ask


def test_decisions_take_results_from_other_machines_and_the_newest_of_them(
    bench, folder, run, for_a_decision
):
    assert run()
    first = bench.results("tiny", "hashing")
    other = first.with_name(f"{first.name}-other")
    shutil.copytree(first, other)
    elsewhere(first, "2026-01-02T00:00:00+00:00")
    elsewhere(other, "2026-01-01T00:00:00+00:00")
    assert for_a_decision().folder == first
    elsewhere(other, "2026-01-03T00:00:00+00:00")
    assert for_a_decision().folder == other
    assert run()  # what is shown as if it were computed now is not from elsewhere


def test_decisions_take_no_result_of_another_evaluation(bench, run, for_a_decision):
    for asked in (("--depth", 12), ("--index", "Flat"), ("--set", "store_dtype=float16")):
        assert run(*asked, "--measure", "nDCG@3")
    before = set(bench.out.glob("tiny/*/*"))
    made = for_a_decision().folder
    assert made not in before
    assert for_a_decision().folder == made


def test_the_digest_of_the_program_is_of_all_sources_that_scores_come_from(tmp_path):
    package = tmp_path / "bench" / "evaluation" / "exact"
    package.mkdir(parents=True)
    digests = [program_digest.__wrapped__(tmp_path)]
    for text in ("a = 1\n", "a = 2\n"):
        (package / "rescoring.py").write_text(text)
        digests.append(program_digest.__wrapped__(tmp_path))
    (tmp_path / "bench" / "cli").mkdir()
    (tmp_path / "bench" / "cli" / "page.py").write_text("a = 1\n")
    assert program_digest.__wrapped__(tmp_path) == digests[-1]
    assert digests[0] == ""
    assert len(set(digests)) == 3


@pytest.fixture
def decide(bench, folder, tmp_path):
    """Ask for the scores of a transformer with a new cache, and say whether they were computed."""
    tiny.write_bert(tmp_path / "bert")
    card = tiny.write_card(tmp_path / "bert.toml", checkpoint="bert", pooling="mean")
    caches = itertools.count()

    def decided() -> bool:
        workspace = Workspace(tmp_path / f"cache {next(caches)}", device="cpu")
        opened, model = workspace.open(str(folder)), workspace.load(str(card))
        job = workspace.prepare(opened, model, known=find_results(bench.out))
        reuse.reuse_or_evaluate(job, bench.out)
        return job.stored is None

    return decided


def test_a_result_is_reused_by_versions_with_the_same_token_ids(decide, monkeypatch):
    assert decide()
    assert not decide()
    with monkeypatch.context() as patch:
        pretend_version(patch, "99")
        assert not decide()
        pretend_version(patch, "99", other_tokens=True)
        assert decide()
        assert not decide()
    assert not decide()  # the result of this version is still there
