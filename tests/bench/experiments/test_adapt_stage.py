"""Continual pre-training as a stage of experiments: from a grid to gain and forgetting."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bench.experiments.ablate import prepare_experiment
from bench.experiments.grid import load_grid
from bench.experiments.training_stages import (
    SEQUENCE_FILE,
    CheckpointSequence,
    last_checkpoint,
    mean_last_loss,
)
from bench.requests.outcomes import ExitCode
from bench.requests.training import AblateRequest
from bench.result_store.find import find_results
from foundation.records import write_json
from retrievers.training.continual.sequence import METHODS, read_method
from retrievers.training.engine.context import LossPoint
from tests.support.collections import Bench, write_words
from tests.support.experiments import run_stages_in_this_process
from tests.support.tiny_checkpoints import write_bert, write_card

GRID = """
name = "tiny"
model = "./start"
seeds = [0]

[adapt]
preset = "mlm-small"
on = ["./one", "./two"]
batch_size = 2
max_tokens = 12
steps = 2

[evaluate]
on = ["./one", "./two", "./three"]
max_query_tokens = 12
max_document_tokens = 12

[[axes]]
field = "adapt.method"
values = ["plain", "adapter"]

[[axes]]
name = "order"
field = "adapt.on"
labels = ["one first", "two first"]
values = [["./one", "./two"], ["./two", "./one"]]
"""
APART = ("method=adapter",)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three collections, a start with a card, and the grid."""
    folder = tmp_path_factory.mktemp("continual")
    write_bert(folder / "start", hidden_dropout_prob=0.1)
    write_card(folder / "start" / "card.toml", checkpoint=".", pooling="mean")
    for name in ("one", "two", "three"):
        write_words(folder / name, 12)
    (folder / "tiny.toml").write_text(GRID)
    return folder


@pytest.fixture(scope="module")
def here(place):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        run_stages_in_this_process(patch)
        yield Bench(place)


def run(bench, *options, file="tiny.toml"):
    fixed = ("--cache-dir", bench.cache, "--device", "cpu")
    return bench("ablate", file, *fixed, *options)


@pytest.fixture(scope="module")
def report(here, place):
    """The report of the whole grid."""
    pytest.importorskip("adapters", exc_type=ImportError)
    done = run(here)
    assert done.code == ExitCode.OK, done.stderr
    assert (place / "ablations/tiny/report.md").read_text() == done.stdout
    return json.loads((place / "ablations/tiny/report.json").read_text())


def rows(report):
    return {row["name"]: row for row in report["rows"]}


def learnt(row):
    """Domains in the order of a row."""
    return ["two", "one"] if row == "order=two first" else ["one", "two"]


def checkpoints(row):
    """The checkpoint of each domain, just after its training."""
    return {name: f"model-{place}-{name}" for place, name in enumerate(learnt(row), 1)}


def after(row):
    """The checkpoint that each domain is searched with in the end."""
    own = checkpoints(row)
    return own if row in APART else dict.fromkeys(own, own[learnt(row)[-1]])


@pytest.fixture(scope="module")
def stored(here, report):
    """Mean score of each model on each collection, from the stored results of each cell."""
    request = AblateRequest("tiny.toml", cache_dir=here.cache, device="cpu", offline=True)
    plan, _ = prepare_experiment(request)
    return {
        (cell.row, cell.seed): {
            (result.record.model, result.dataset): result.scores.values["nDCG@10"].mean()
            for result in find_results(cell.task.folder(Path("ablations")) / "results")
        }
        for cell in plan.cells
    }


@pytest.mark.slow
def test_after_the_sequence_the_last_checkpoint_or_the_domains_own_is_searched_with(report, stored):
    for name, row in rows(report).items():
        last = checkpoints(name)[learnt(name)[-1]]
        for cell in row["cells"]:
            means = stored[name, cell["seed"]]
            for collection in ("one", "two", "three"):
                model = after(name).get(collection, last)
                assert cell["scores"][collection] == pytest.approx(means[model, collection])


@pytest.mark.slow
def test_gained_is_against_the_start_and_forgotten_against_just_after_the_domain(report, stored):
    for name, row in rows(report).items():
        cells = [stored[name, cell["seed"]] for cell in row["cells"]]
        gained = [
            each[model, domain] - each["start", domain]
            for each in cells
            for domain, model in after(name).items()
        ]
        first, own = learnt(name)[0], checkpoints(name)
        forgotten = [each[after(name)[first], first] - each[own[first], first] for each in cells]
        sequence = row["sequence"]
        assert sequence["gained"]["difference"]["mean"] == pytest.approx(np.mean(gained))
        if name in APART:
            assert sequence["forgotten"] is None
        else:
            assert sequence["forgotten"]["difference"]["mean"] == pytest.approx(np.mean(forgotten))


@pytest.mark.slow
def test_checkpoints_are_used_like_the_start_model(place, report):
    """The start's card pools by the mean; a checkpoint that was pre-trained alone by [CLS]."""
    for path in (place / "ablations" / "evaluate").glob("*/results"):
        assert {stored.record.recipe.pooling for stored in find_results(path)} == {"mean"}


@pytest.mark.slow
def test_a_repeated_command_trains_nothing_and_an_interrupted_one_continues(here, place, report):
    done = sorted((place / "ablations").rglob("done.json"))
    times = {path: path.stat().st_mtime_ns for path in done}
    again = run(here, "--json")
    assert again.code == ExitCode.OK, again.stderr
    assert {path: path.stat().st_mtime_ns for path in done} == times

    whole = "model/model-1-one/model.safetensors"  # an adapter has no file of this name
    adapted = next(path for path in done if (path.parent / whole).exists())
    adapted.unlink()
    shutil.rmtree(adapted.parent / "model" / "model-2-two")
    first = (adapted.parent / whole).stat().st_mtime_ns
    resumed = run(here, "--json")
    assert resumed.code == ExitCode.OK, resumed.stderr
    assert (adapted.parent / whole).stat().st_mtime_ns == first
    for now, before in zip(json.loads(resumed.stdout)["rows"], report["rows"], strict=True):
        assert now["on"] == before["on"]


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ('preset = "mlm-small"', 'preset = "mlm-smal"', "mlm-smal", "mlm-small"),
        ('preset = "mlm-small"', 'preset = "retromae-small"', "not retromae", "mlm"),
        ('"adapter"]', '{ name = "ewc", measured = 0 }]', "expected a whole number >= 1", ""),
        ("batch_size = 2", "metod = 'ewc'", "unknown field 'metod'", ""),
        ("batch_size = 2", "start = { model = 'minilm' }", "start is set", "model ="),
        (
            '[evaluate]\non = ["./one", ',
            "[evaluate]\non = [",
            "one is trained on, and not evaluated",
            "[evaluate]",
        ),
    ],
)
def test_bad_input_gives_one_message_before_any_work(
    here, place, tmp_path, old, new, message, hint
):
    assert old in GRID
    wrong = place / "wrong.toml"
    wrong.write_text(GRID.replace(old, new))
    done = run(here, "--out", tmp_path / "out", file="wrong.toml")
    assert done.code == ExitCode.BAD_INPUT, done.stderr
    assert message in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["three-domains", "three-domains-two-cores"])
def test_the_shipped_grid_learns_what_it_evaluates_by_every_method_in_a_latin_square(name):
    grid = load_grid(name)
    assert grid.adapt["on"] == grid.evaluate["on"]
    axes = {axis.title: axis for axis in grid.axes}
    methods = [read_method(value).name for value in axes["method"].values]
    assert {*methods} == {*METHODS}
    orders = axes["order"].values
    assert orders[0] == grid.adapt["on"]
    for domains in (*orders, *zip(*orders, strict=True)):
        assert sorted(domains) == sorted(grid.adapt["on"])


def test_a_training_after_a_sequence_starts_from_its_last_checkpoint(tmp_path):
    sequence = CheckpointSequence(
        start="minilm",
        domains=("a", "b"),
        checkpoints=("1-a", "2-b"),
        losses=(2.0, 1.0),
        separate=False,
    )
    write_json(tmp_path / SEQUENCE_FILE, sequence)
    assert last_checkpoint(str(tmp_path)) == str(tmp_path / "2-b")
    assert last_checkpoint("minilm") == "minilm"


def test_the_loss_is_of_words_alone_over_the_last_tenth_of_the_steps():
    losses = [{"loss": 9.0}] * 18 + [{"loss": 3.0, "mlm": 2.0, "penalty": 1.0}, {"loss": 1.0}]
    curve = [LossPoint(step, one, 0.1, 1.0, 8) for step, one in enumerate(losses, start=1)]
    assert mean_last_loss(curve) == 1.5
    assert mean_last_loss(curve[:3]) == 9.0


GOES_ON = """
name = "goes-on"
base = { preset = "fresh.toml", on = ["./one", "./two", "./three"] }
pretrain = { preset = "fresh.toml", on = ["./three"], tokens = 100 }
adapt = { preset = "fresh.toml", on = ["./one", "./two"], tokens = 40 }
evaluate = { on = ["./one", "./two"], view = { pooling = "mean", normalize = true } }

[[axes]]
field = "adapt.method"
values = ["plain", "adapter"]
"""
FRESH = """
title = "fresh"
batch_size = 4
max_tokens = 16
steps = 3
objective = { name = "mlm" }
start = { scratch = { vocabulary = 120, layers = 1, width = 16, heads = 2, intermediate = 32 } }
"""


@pytest.mark.slow
def test_a_sequence_goes_on_from_a_base_and_its_pre_training(here, place):
    pytest.importorskip("adapters", exc_type=ImportError)
    for name, text in (("goes-on", GOES_ON), ("fresh", FRESH)):
        (place / f"{name}.toml").write_text(text)
    done = run(here, "--out", "shared", "--json", file="goes-on.toml")
    assert done.code == ExitCode.OK, done.stderr
    for name, row in rows(json.loads(done.stdout)).items():
        assert row["sequence"]["start"] == "model"
        assert (row["sequence"]["forgotten"] is None) == (name in APART)
    for path in (place / "shared" / "evaluate").glob("*/results"):
        assert [each.record.recipe.pooling for each in find_results(path)] == ["mean"] * 6
