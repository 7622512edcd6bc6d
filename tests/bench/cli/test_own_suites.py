"""A user's own suite: a TOML file has a mean wherever a shipped suite has one."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import bench as api
from bench.result_store.find import find_results
from bench.result_store.result import result_folder
from datasets_cfg.catalogue import collections_of
from tests.support.collections import QRELS, write_collection
from tests.support.leaderboards import MEASURE, store

MEMBERS = ("contracts", "manuals", "beir/cqadupstack")
WEIGHTS = (5, 2, 1)
FORUMS = 12


def suite_in(folder: Path, members=MEMBERS, weights=WEIGHTS) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "product.toml"
    path.write_text(f"members = {json.dumps(members)}\nweights = {list(weights)}\n")
    return path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Two collections, and a suite of them beside their folders."""
    folder = suite_in(tmp_path / "mine", MEMBERS[:2], WEIGHTS[:2]).parent
    write_collection(folder / "contracts")
    write_collection(folder / "manuals", qrels=dict(list(QRELS.items())[3:]))
    return folder / "product.toml"


def weighted(values: list[float]) -> float:
    return float(np.average(values, weights=WEIGHTS[: len(values)]))


def scores(results: Path, model: str, measure: str = MEASURE) -> list[float]:
    means = {
        stored.dataset: stored.record.measures[measure] for stored in find_results(results, model)
    }
    forums = [mean for name, mean in means.items() if name.startswith("beir/cqadupstack/")]
    assert len(forums) in (0, FORUMS)
    plain = [means[name] for name in MEMBERS[:2] if name in means]
    return plain + ([float(np.mean(forums))] if forums else [])


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, Path]:
    """Results of two models on all members, and the suite's file."""
    folder, rng = tmp_path / "results", np.random.default_rng(3)
    for model in ("a", "b"):
        for name in (*MEMBERS[:2], *collections_of("beir/cqadupstack")):
            written = store(tmp_path / "written", model, name, rng.random(30).tolist())
            shutil.copytree(written, result_folder(folder, name, model) / written.name)
    return folder, suite_in(tmp_path / "mine")


def test_run_shows_the_weighted_mean_of_the_members(bench, own):
    done = bench("run", own, "--model", "bm25", "--json")
    assert done.code == 0, done.stderr
    means = {mean["measure"]: mean for mean in json.loads(done.stdout)["means"]}
    expected = scores(bench.out, "bm25")
    assert expected[0] != expected[1]
    assert means[MEASURE]["value"] == pytest.approx(weighted(expected), abs=1e-12)
    assert (means[MEASURE]["suite"], means[MEASURE]["weighted"]) == (str(own), True)
    table = bench("run", own, "--model", "bm25").stdout
    assert "| product " in table
    assert str(own) not in table
    assert f"{MEASURE}, 2 sets, weighted" in table
    assert f"{weighted(expected):.4f}" in table


def test_an_unavailable_member_leaves_a_gap_and_no_mean(bench, own):
    (own.parent / "manuals" / "queries.jsonl").unlink()
    done = bench("run", own, "--model", "bm25", "--json")
    assert done.code == 4, done.stderr
    answer = json.loads(done.stdout)
    assert [gap["collection"] for gap in answer["gaps"]] == [str(own.parent / "manuals")]
    assert {(mean["value"], *mean["missing"]) for mean in answer["means"]} == {(None, "manuals")}


def test_a_member_whose_results_would_have_another_name_is_refused(bench, own):
    (own.parent / "manuals" / "dataset.toml").write_text('name = "handbooks"')
    done = bench("run", own, "--model", "bm25")
    assert done.code == 2
    assert "results on the member manuals would be called handbooks" in done.stderr
    assert 'Write name = "manuals" into' in done.stderr


def test_compare_shows_the_difference_of_the_weighted_means(bench, stored):
    results, suite = stored
    command = ("compare", "a", "b", "--on", suite, "--results", results)
    (comparison,) = json.loads(bench(*command, "--json").stdout)["comparisons"]
    (row,) = (row for row in comparison["suites"] if row["on"] == str(suite))
    means = [weighted(scores(results, model)) for model in ("a", "b")]
    assert [row["mean_a"], row["mean_b"]] == pytest.approx(means, abs=1e-12)
    assert row["paired"]["difference"] == pytest.approx(means[0] - means[1], abs=1e-12)
    assert "weighted mean of product, 3 sets" in bench(*command).stdout


def test_the_leaderboard_has_a_column_of_the_weighted_means(bench, stored):
    results, suite = stored
    command = ("leaderboard", "--suite", suite, "--results", results)
    board = json.loads(bench(*command, "--json").stdout)
    assert [column["name"] for column in board["suites"]] == [str(suite), "beir/cqadupstack"]
    found = {
        row["name"]: row["means"][str(suite)][MEASURE]["score"]["value"] for row in board["rows"]
    }
    assert found == {
        model: pytest.approx(weighted(scores(results, model)), abs=1e-12) for model in ("a", "b")
    }
    table = bench(*command).stdout
    assert f"{max(found.values()):.4f}"[1:] in table
    assert f"product {MEASURE}" in table
    assert str(suite) not in table
    frame = api.leaderboard(results, suite=str(suite), resamples=999)
    assert frame[f"product {MEASURE}"].to_dict() == found


def test_check_decides_on_the_weighted_mean(bench, own):
    assert bench("run", own, "--model", "bm25").code == 0
    done = bench(
        "check", "hashing", "--baseline", "bm25", "--on", own, "--results", bench.out, "--json"
    )
    answer = json.loads(done.stdout)
    old, new = (weighted(scores(bench.out, model)) for model in ("bm25", "hashing"))
    assert answer["mean"]["paired"]["difference"] == pytest.approx(new - old, abs=1e-12)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "members"),
        ("members = []", "no members"),
        ('members = ["a", "a"]', "a is listed twice"),
        ('members = ["other.toml"]', "other.toml is a suite file"),
        ('members = ["a", "b"]\nweights = [1]', "2 members, but the weights"),
        ('members = ["a", "b"]\nweights = [1, inf]', "2 members, but the weights"),
        ('members = ["a", "b"]\nweights = [1, nan]', "weights"),
        ('members = ["a", "b"]\nweights = [1, 0]', "weights"),
        ('members = ["a"]\nweigths = [1]', "Did you mean weights?"),
        ("members = [", "product.toml"),
    ],
)
def test_a_file_that_is_not_a_suite_gives_one_message(bench, tmp_path, content, message):
    path = tmp_path / "product.toml"
    path.write_text(content)
    done = bench("run", path, "--model", "bm25")
    assert done.code == 2
    assert message in done.stderr
    assert str(path) in done.stderr
