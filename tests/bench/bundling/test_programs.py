"""Bundles of grids with a ``command``: code is copied, data found by hash, the rest named."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from bench.experiments.ablate import prepare_experiment
from bench.requests.outcomes import ExitCode
from bench.requests.training import AblateRequest
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import Bench
from tests.support.experiments import run_stages_in_this_process
from tests.support.trainable import write_trainable

GRID = """
name = "programs"
model = "start.toml"

[finetune]
command = ["{python}", "-m", "own.train", "conf/{{size}}.json", "{{start}}", "{{out}}"]
size = "small"
inputs = ["data/pairs.tsv"]
like = "start.toml"
on = ["./mine"]

[evaluate]
on = ["./mine"]

[[axes]]
field = "finetune.size"
values = ["large"]

[[axes]]
field = "finetune"
values = [{{ command = ["./train.sh", "{{start}}", "{{out}}"], like = "start.toml" }}]
labels = ["script"]
"""
TRAIN = """
import json, pathlib, shutil, sys
import elsewhere
from own.words import SCALE
from safetensors.numpy import load_file, save_file
path, start, out = sys.argv[1:]
assert pathlib.Path("data/pairs.tsv").read_text() == "a\\tb\\n"
shutil.copytree(start, out, dirs_exist_ok=True)
weights = load_file(f"{out}/model.safetensors")
name = next(name for name in weights if "word_embeddings" in name)
weights[name] = weights[name][::-1] * SCALE * json.load(open(path))["scale"]
save_file({key: value.copy() for key, value in weights.items()}, f"{out}/model.safetensors")
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A project with a grid whose programs are a module, a script, and what they read."""
    project, other = tmp_path / "project", tmp_path / "other"
    for folder in (project / "own", project / "conf", project / "data", other):
        folder.mkdir(parents=True)
    write_trainable(project / "mine")
    tiny.write_bert(project / "bert")
    tiny.write_card(project / "start.toml", checkpoint="bert", pooling="cls")
    (project / "own/train.py").write_text(TRAIN)
    (project / "own/words.py").write_text("SCALE = 2.0\n")
    (other / "elsewhere.py").write_text("")
    for size, scale in (("small", 1), ("large", -3)):
        (project / f"conf/{size}.json").write_text(json.dumps({"scale": scale}))
    (project / "data/pairs.tsv").write_text("a\tb\n")
    (project / "train.sh").write_text('#!/bin/sh\ncp -r "$1"/* "$2"\n')
    (project / "train.sh").chmod(0o755)
    (project / "grid.toml").write_text(GRID.format(python=sys.executable))
    monkeypatch.chdir(project)
    paths = (str(Path(sys.executable).parent), os.environ["PATH"])
    monkeypatch.setenv("PATH", os.pathsep.join(paths))
    monkeypatch.setenv("PYTHONPATH", str(other))
    monkeypatch.syspath_prepend(other)
    run_stages_in_this_process(monkeypatch)
    return Bench(tmp_path)


def ablate(bench, *words):
    return bench("ablate", "grid.toml", "--device", "cpu", "--cache-dir", "../cache", *words)


@pytest.mark.slow
def test_a_moved_grid_with_commands_is_repeated_with_the_same_table(bench, monkeypatch):
    assert (done := ablate(bench)).code == ExitCode.OK, done.stderr
    written = bench("bundle", "ablations", "--out", "../new/paper", "--cache-dir", "../cache")
    assert written.code == ExitCode.OK, written.stderr
    assert "Not repeated" not in written.stdout
    assert "with its libraries" in written.stdout
    new = bench.place / "new"
    program = new / "paper/code/program"
    copied = {p.relative_to(program).as_posix() for p in program.rglob("*") if p.is_file()}
    assert copied == {
        *("own/train.py", "own/words.py", "conf/small.json", "conf/large.json", "train.sh")
    }
    readme = (new / "paper/README.md").read_text()
    assert f"not in the bundle: {Path(sys.executable).name} with its libraries" in readme
    module = f"the module elsewhere ({bench.place}/other/elsewhere.py), which train.py imports"
    assert f"not in the bundle: {module}" in readme
    for name, place in (("mine", "mine"), ("bert", "bert"), ("data", "found")):
        shutil.move(name, new / place)
    monkeypatch.chdir(new)
    shutil.rmtree(bench.place / "project")
    places = ("--data-dir", ".", "--cache-dir", bench.place / "new-cache")
    lacking = bench("replay", "paper", "--dry-run", "--search", "bert", *places)
    assert lacking.code == ExitCode.MISSING
    assert "no folder of --search has the files of data: pairs.tsv" in lacking.stdout
    search = ("--search", "bert", "found")
    planned = bench("replay", "paper", "--dry-run", *search, *places)
    assert planned.code == ExitCode.OK, planned.stdout
    assert "with its libraries" in planned.stdout
    assert "the module elsewhere" in planned.stdout
    refused = bench("replay", "paper", *search, *places)
    assert refused.code == ExitCode.BAD_INPUT
    for shown in ("code/program/own/train.py", "-m own.train", "./train.sh"):
        assert shown in refused.stderr
    again = bench("replay", "paper", *search, "--trust-code", "--json", *places)
    assert again.code == ExitCode.OK, again.stdout + again.stderr
    ((command),) = json.loads(again.stdout)["commands"]
    assert [row["mean_a"] for row in command["rows"]] == [row["mean_b"] for row in command["rows"]]
    assert len(command["rows"]) == 3


def test_a_cell_is_trained_again_if_a_module_that_its_script_imports_changes(bench):
    def keys():
        request = AblateRequest("grid.toml", cache_dir="../cache", device="cpu")
        return [task.key for task in prepare_experiment(request)[0].tasks()]

    before = keys()
    Path("own/words.py").write_text("SCALE = 3.0\n")
    changed = [key not in before for key in keys()]
    assert changed == [True, True, True, True, False, False]  # the script imports nothing
