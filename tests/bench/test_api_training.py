"""`bench.pretrain`, `finetune` and `ablate`: what the commands do, from Python."""

import pytest

import bench
from bench.requests.outcomes import ExitCode
from foundation.errors import BenchError
from tests.support.collections import Bench
from tests.support.experiments import run_stages_in_this_process
from tests.support.trainable import write_training

GRID = """
name = "lengths"
model = "hashing"
evaluate = { on = ["./mine"] }
[[axes]]
field = "evaluate.max_document_tokens"
values = [5]
"""


@pytest.fixture
def places(tmp_path, monkeypatch):
    write_training(tmp_path)
    (tmp_path / "pairs.toml").write_text('title = "tiny"\nsteps = 9\nbatch_size = 3\n')
    (tmp_path / "grid.toml").write_text(GRID)
    monkeypatch.chdir(tmp_path)
    return {"cache_dir": "cache", "device": "cpu"}


def test_a_training_in_python_is_that_of_the_command_line(places, tmp_path):
    pytest.importorskip("sentence_transformers")
    seen = []
    started = bench.pretrain(
        "texts.toml", "./mine", "m/start", changes={"steps": 3}, progress=seen.append, **places
    )
    assert (started.steps, [each.done for each in seen]) == (3, [1, 2, 3])
    changes = {"steps": 2, "optimizer.lr": 0.01}
    tuned = bench.finetune(
        "pairs.toml", started.folder, ["./mine"], "m/a", changes=changes, **places
    )
    assert (tuned.steps, tuned.queries) == (2, 7)
    typed = ["--set", "optimizer.lr=0.01", "--steps", "2", "--device", "cpu"]
    typed += ["--on", "./mine", "--cache-dir", "cache"]
    command = Bench(tmp_path)
    done = command("finetune", "pairs.toml", "--model", "m/start", "--out", "m/b", *typed)
    assert done.code == ExitCode.OK, done.stderr
    weights = [(tmp_path / "m" / name / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]
    assert "nDCG@10" in bench.evaluate(tuned.folder, "./mine", cache_dir="cache").measures


def test_an_ablation_in_python_is_that_of_the_command_line(places, tmp_path, monkeypatch):
    run_stages_in_this_process(monkeypatch)
    report = bench.ablate("grid.toml", out="out", **places)
    assert [row.name for row in report.rows] == ["reference", "max_document_tokens=5"]
    assert report.gaps == 0
    written = (tmp_path / "out/lengths/report.md").read_text()
    typed = ("--device", "cpu", "--cache-dir", "cache", "--out", "out")
    assert Bench(tmp_path)("ablate", "grid.toml", *typed).stdout == written


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: bench.pretrain("texts.toml", "./mine", "m", steps=3),
            TypeError,
            "unexpected keyword argument 'steps'",
        ),
        (
            lambda: bench.finetune("pairs.tml", "start.toml", "./mine", "m"),
            BenchError,
            "'pairs.tml'",
        ),
        (lambda: bench.ablate("grid.toml", seed="x"), TypeError, "Did you mean seeds"),
        (
            lambda: bench.pretrain("texts.toml", "./mine", "m", changes={"optimiser.lr": 1}),
            BenchError,
            "unknown field 'optimiser'",
        ),
        (
            lambda: bench.finetune("pairs.toml", "start.toml", "./mine", "m", save_every=0.5),
            TypeError,
            "save_every must be int or None, not float",
        ),
        (lambda: bench.ablate("grid.toml", seeds=[1, 1]), BenchError, "the same seed twice"),
    ],
)
def test_wrong_input_gives_one_error(places, call, error, message):
    with pytest.raises(error, match=message):
        call()
