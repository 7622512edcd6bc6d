"""Cells that another program trains: run, killed, resumed, failed, and refused."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.experiments.ablate import make_stages
from bench.experiments.command_stage import CommandStage, fill_placeholders
from bench.experiments.experiment import plan_experiment
from bench.experiments.grid import load_grid
from bench.requests.outcomes import ExitCode
from bench.runner.workspace import Workspace
from retrievers.models.card import load_card
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import Bench
from tests.support.experiments import run_stages_in_this_process
from tests.support.processes import wait_until
from tests.support.trainable import DOCUMENTS, TRAINING, write_trainable

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/how-to/trained-elsewhere.md"
COMMAND = """command = [
    "python", "train.py", "--start", "{start}", "--pairs", "pairs.tsv", "--steps", "2",
    "--lr", "{lr}", "--seed", "{seed}", "--output", "{out}",
]"""
GRID = f"""
name = "elsewhere"
model = "start.toml"
seeds = [0, 1]

[finetune]
{COMMAND}
lr = 0.1
like = "start.toml"
on = ["./mine"]

[evaluate]
on = ["./mine"]

[[axes]]
field = "finetune.lr"
values = [0.1, 1e-3]
"""
# Counts its calls, waits while there is a file `hold`, then copies the model that it starts from.
SCRIPT = """
import pathlib, shutil, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
assert not list(folder.iterdir()), "the folder is not empty"
with open("calls", "a") as calls:
    calls.write(sys.argv[sys.argv.index("--seed") + 1])
(folder / "partial.bin").write_text("half")
while pathlib.Path("hold").exists():
    time.sleep(0.05)
(folder / "partial.bin").unlink()
shutil.copytree(sys.argv[sys.argv.index("--start") + 1], folder, dirs_exist_ok=True)
"""
TRAINS = "open('calls', 'a').write('x'); import runpy; runpy.run_path('elsewhere.py')"


@pytest.fixture
def bench(tmp_path, monkeypatch):
    write_trainable(tmp_path / "mine")
    tiny.write_bert(tmp_path / "bert")
    tiny.write_card(tmp_path / "start.toml", checkpoint="bert", pooling="cls")
    texts = [text for _, text in DOCUMENTS.values()]
    lines = [f"{query}\t{text}\n" for query, text in zip(TRAINING.values(), texts, strict=True)]
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    (tmp_path / "train.py").write_text(SCRIPT)
    shutil.copy(ROOT / "examples/train_elsewhere.py", tmp_path / "elsewhere.py")
    (tmp_path / "grid.toml").write_text(GRID)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    run_stages_in_this_process(monkeypatch)
    return Bench(tmp_path)


TYPED = ("ablate", "grid.toml", "--device", "cpu", "--cache-dir", "cache")


def change(old, new):
    text = Path("grid.toml").read_text()
    assert old in text
    Path("grid.toml").write_text(text.replace(old, new))


def calls():
    return len(Path("calls").read_text())


@pytest.mark.slow
def test_a_command_trains_each_cell_once_from_the_start_with_its_settings_and_seed(bench):
    Path("train.py").write_text(TRAINS)
    done = bench(*TYPED, "--seeds", "3", "--json")
    assert done.code == ExitCode.OK, done.stderr
    report = json.loads(done.stdout)
    assert [row["name"] for row in report["rows"]] == ["reference", "lr=0.001"]
    assert report["rows"][1]["change"] == "finetune.lr: 0.1 -> 0.001"
    assert report["rows"][0]["cells"][0]["costs"]["finetune"]["seconds"] > 0
    folders = list(Path("ablations/finetune").glob("*/model"))
    weights = {(folder / "model.safetensors").read_bytes() for folder in folders}
    assert len(weights) == 2 == calls()
    assert all("step 2: loss" in (each.parent / "stdout.txt").read_text() for each in folders)
    card = load_card(folders[0] / "card.toml")
    assert (card.pooling, card.trained_on) == ("cls", ("mine",))
    assert "split train of mine: 0 queries with the text of a scored query" in report["leaks"][0]

    assert bench(*TYPED, "--seeds", "3").code == ExitCode.OK
    assert calls() == 2
    Path("pairs.tsv").write_text(Path("pairs.tsv").read_text().replace("river", "gamma"))
    assert "8 tasks left" in bench(*TYPED, "--dry-run").stdout  # other data, other cells


@pytest.mark.slow
def test_a_checkpoint_trained_elsewhere_is_a_row_next_to_one_of_ours(bench):
    pytest.importorskip("sentence_transformers")
    ours = 'title = "tiny"\nsteps = 2\nbatch_size = 3\n'
    Path("fine.toml").write_text(ours)
    table = COMMAND.replace("\n", "\n    ")
    Path("grid.toml").write_text(
        f"""
name = "both"
seeds = [0, 1]
[pretrain]
command = [
    "python", "train.py", "--start", "{{start}}", "--pairs", "pairs.tsv", "--steps", "1",
    "--lr", "0.1", "--seed", "{{seed}}", "--output", "{{out}}",
]
start = "start.toml"
like = "start.toml"
[finetune]
preset = "fine.toml"
on = ["./mine"]
[evaluate]
on = ["./mine"]
[[axes]]
name = "program"
field = "finetune"
labels = ["elsewhere"]
[[axes.values]]
{table}
lr = 0.01
like = "start.toml"
"""
    )
    done = bench(*TYPED)
    assert done.code == ExitCode.OK, done.stderr
    assert "finetune: reference -> elsewhere" in done.stdout
    assert "A command states no training queries" in done.stdout
    # one pre-training for both rows, and one fine-tuning
    assert Path("calls").read_text() == "0011"


@pytest.mark.slow
def test_a_command_dies_with_the_program_and_is_run_again_in_an_empty_folder(bench):
    Path("hold").touch()
    program = subprocess.Popen(
        [sys.executable, "-m", "bench", *TYPED, "--seeds", "0"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    try:
        (partial,) = wait_until(
            lambda: list(Path("ablations/finetune").glob("*/model/partial.bin"))
        )
        below = psutil.Process(program.pid).children(recursive=True)
        (child,) = [each for each in below if "train.py" in each.cmdline()]
    finally:
        program.kill()
        program.wait()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert partial.exists()
    Path("hold").unlink()
    done = bench(*TYPED, "--seeds", "0")
    assert done.code == ExitCode.OK, done.stderr
    assert calls() == 3  # the killed one again, and the other cell
    assert not partial.exists()


@pytest.mark.slow
def test_a_failed_command_is_a_gap_with_its_last_lines_and_is_tried_again(bench):
    script = Path("train.py").read_text()
    Path("train.py").write_text("print('begun', flush=True); raise ValueError('no such optimizer')")
    done = bench(*TYPED, "--seeds", "0")
    assert done.code == ExitCode.MISSING
    assert "FAILED at finetune: python ended with code 1: ValueError: no such opt" in done.stderr
    (failed, *_) = Path("ablations/finetune").glob("*/failed.txt")
    assert "Traceback" in (failed.parent / "stderr.txt").read_text()
    assert (failed.parent / "stdout.txt").read_text() == "begun\n"
    assert "command: python train.py --start" in failed.read_text()
    Path("train.py").write_text("import os; os.kill(os.getpid(), 9)")
    assert "python was killed by SIGKILL" in bench(*TYPED, "--seeds", "0").stderr
    Path("train.py").write_text(script)
    assert bench(*TYPED, "--seeds", "0").code == ExitCode.OK


@pytest.mark.parametrize(
    ("script", "old", "new", "words"),
    [
        ("pass", "lr = 0.1", "lr = 0.1", "left no checkpoint to use: .*config.json is missing"),
        (None, 'like = "start.toml"\n', "", "left no checkpoint to use: .* a plain checkpoint"),
    ],
)
def test_a_folder_without_a_usable_checkpoint_is_a_gap(bench, script, old, new, words):
    if script:
        Path("train.py").write_text(script)
    change(old, new)
    done = bench(*TYPED, "--seeds", "0")
    assert done.code == ExitCode.MISSING
    assert re.search(f"FAILED at finetune: the command {words}", done.stderr)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"{lr}"', '"{rl}"', "[finetune]: the command has {rl}, which is not a setting"),
        ('"{out}"', '"out"', "the command has no {out}"),
        ('"{seed}"', '"1"', "the command has no {seed}"),
        ("lr = 0.1\n", "lr = 0.1\nepochs = 3\n", "the command has no {epochs}"),
        ("lr = 0.1\n", 'lr = 0.1\nout = "x"\n', "out is not a setting of a command"),
        ("lr = 0.1\n", "lr = [0.1]\n", "lr is not a setting of a command"),
        ("lr = 0.1\n", 'lr = 0.1\ninputs = ["no.tsv"]\n', "there is no file or folder 'no.tsv'"),
        ("lr = 0.1\n", 'lr = 0.1\nstart = "bert"\n', "start is set, but this stage continues"),
        ('"python", "train.py"', '"pythn", "train.py"', "there is no program 'pythn'"),
        ('like = "start.toml"', 'like = "minlm"', "minlm"),
        (COMMAND, "command = []", "[finetune]: command is []"),
        ('like = "', 'split = "test"\nlike = "', "split test of mine has 2 queries of split test"),
        ("[finetune]", "[adapt]", "[adapt]: unknown field 'command'"),
    ],
)  # fmt: skip
def test_an_invalid_command_gives_one_error_before_anything_starts(bench, old, new, words):
    change(old, new)
    for more in ((), ("--dry-run",)):
        done = bench(*TYPED, *more)
        assert done.code == ExitCode.BAD_INPUT, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert not Path("ablations").exists()


def test_values_that_look_like_json_stay_strings():
    words = ["{a}-{b}", '{"lr": 1}', "{}", "{c}"]
    filled = fill_placeholders(words, {"a": 1e-5, "b": True, "c": "{a}"})
    assert filled == ["1e-05-true", '{"lr": 1}', "{}", "{a}"]


def test_the_grid_of_the_page_is_valid_and_its_command_is_that_of_the_example(bench, tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.S)
    for old, new in (
        ("stdlib-code/train", "./mine"),
        ("stdlib-code", "./mine"),
        ('"minilm"', '"start.toml"'),
        ('"retromae"', '"start.toml"'),
    ):
        example = example.replace(old, new)
    Path("page.toml").write_text(example)
    grid = load_grid("page.toml")
    stages = make_stages(grid, Workspace(tmp_path / "cache", device="cpu"))
    assert isinstance(stages["finetune command"], CommandStage)
    row = plan_experiment(grid, stages).rows[1]
    assert row.settings["finetune"]["command"][1] == "examples/train_elsewhere.py"
