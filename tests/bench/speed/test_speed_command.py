"""``speed`` as a user meets it: what it prints, what it refuses, its exit code."""

import importlib.util
import json
import subprocess
import sys
from typing import get_args

import msgspec
import pytest
from cyclopts import CycloptsError

from bench.cli.commands import speed as command
from bench.cli.commands.speed import read_report, speed
from bench.cli.options.evaluate import SpeedOptions, Tool
from bench.exit_codes import ExitCode
from bench.speed.records import SpeedReport
from bench.speed.tools import MODULES
from foundation.errors import BenchError
from tests.support.collections import ROOT, write_collection
from tests.support.commands import typed

SMALL = ("--repeats", 2, "--seconds", 0.01, "--rows", 300, "--device", "cpu")


@pytest.fixture
def options(cache):
    """What the command line gives, small enough for a test."""

    def of(*words: object, model="hashing", parts=()) -> SpeedOptions:
        places = ("--cache-dir", cache)
        return typed("speed", *words, *SMALL, *places, "--parts", *parts, "--model", model)

    return of


@pytest.fixture(scope="module")
def cache(tmp_path_factory, embedded):
    folder = tmp_path_factory.mktemp("cache")
    (folder / "stdlib-code").symlink_to(embedded / "stdlib-code")
    return folder


@pytest.fixture(autouse=True)
def short_probe(monkeypatch):
    monkeypatch.setattr("bench.speed.measurement.PROBE_S", 0.05)


def printed(capsys) -> SpeedReport:
    last = capsys.readouterr().out.splitlines()[-1]
    return msgspec.json.decode(last, type=SpeedReport)


def test_the_last_line_is_the_report_and_tables_stand_before_it(options, cache, capsys):
    assert speed(options(parts=["encode", "latency", "indexes"])) == ExitCode.OK
    *tables, last = capsys.readouterr().out.splitlines()
    report = msgspec.json.decode(last, type=SpeedReport)
    assert [row.lengths.name for row in report.throughput] == [
        "32 tokens",
        "128 tokens",
        "256 tokens",
        "as in stdlib-code",
    ]
    assert {len(row.seconds.samples) for row in report.throughput} == {2}
    assert report.latency[0].rows == report.indexes[0].rows == 300
    assert report.conditions.python
    assert report.processor
    assert report.peak_bytes > 50_000_000
    assert (report.phases, report.growth, report.races) == (None, (), ())
    assert sum(line.startswith("|-") for line in tables) == 3


def test_json_is_all_that_is_printed_when_asked_for(options, cache, capsys):
    assert speed(options("--json")) == ExitCode.OK
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["model"] == "hashing"


def test_phases_add_up_over_whole_evaluations(options, cache, capsys):
    speed(options(parts=["phases"]))
    phases = printed(capsys).phases
    assert phases.collection == "stdlib-code"
    assert len(phases.wall_s.samples) == 2
    assert {"search", "score"} <= set(phases.busy_s)
    assert all(spent.median <= phases.wall_s.median for spent in phases.busy_s.values())


def test_growth_is_fitted_over_sizes_lengths_depths_and_whole_runs(options, cache, capsys):
    speed(options("--repeats", 1, parts=["growth"]))
    found = printed(capsys).growth
    assert [(one.y, one.x) for one in found] == [
        ("encode, s", "documents"),
        ("encode, s", "tokens of a document"),
        ("search, s", "documents"),
        ("search, s", "k"),
        ("whole run, s", "documents"),
        ("peak memory, MB", "documents"),
    ]
    memory = found[-1]
    assert all(20 < cost.median < 2000 for cost in memory.costs)
    assert memory.exponent < 0.5


def test_our_own_race_runs_without_other_tools(options, cache, tmp_path, capsys):
    folder = write_collection(tmp_path / "tiny")
    assert speed(options(folder, "--rounds", 2)) == ExitCode.OK
    (race,) = printed(capsys).races
    assert race.collection == "tiny"
    assert len(race.runs[0].wall_s.samples) == len(race.runs[0].scores) == 2
    assert race.ratio is None


def test_where_scores_differ_the_exit_code_is_not_zero(
    options, cache, tmp_path, capsys, monkeypatch
):
    true_race = command.measure

    def differing(*arguments):
        report = true_race(*arguments)
        races = [msgspec.structs.replace(race, agree=False) for race in report.races]
        return msgspec.structs.replace(report, races=tuple(races))

    monkeypatch.setattr(command, "measure", differing)
    folder = write_collection(tmp_path / "tiny")
    assert speed(options(folder)) == ExitCode.BAD_INPUT
    assert "Scores differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "model", "said"),
    [
        ((), "bm25", "bm25 makes no vectors"),
        (
            ("--against", "mteb", "beir"),
            "hashing",
            "no collection was named for mteb and beir to evaluate",
        ),
        (("--history", "absent.json"), "hashing", "cannot read absent.json"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(
    options, cache, words, model, said, monkeypatch
):
    monkeypatch.setattr(command, "measure", None)
    with pytest.raises(BenchError, match=said):
        speed(options(*words, model=model))


@pytest.mark.parametrize(
    "words",
    [("--against", "ranx"), ("--parts", "all"), ("--seconds", "0"), ("--seconds", "nan")],
)
def test_options_that_mean_nothing_are_refused(words):
    with pytest.raises(CycloptsError, match=words[1]):
        typed("speed", "--model", "hashing", *words)


def test_the_command_line_names_the_tools_that_there_are():
    assert set(get_args(Tool)) == set(MODULES)


def test_a_saved_output_is_read_again(options, cache, tmp_path, capsys):
    speed(options())
    path = tmp_path / "saved.txt"
    path.write_text(capsys.readouterr().out)
    assert read_report(path).model == "hashing"


def test_without_matplotlib_plots_are_refused_before_anything_is_measured(
    options, cache, tmp_path, monkeypatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(command, "measure", None)
    with pytest.raises(BenchError, match="needs matplotlib") as caught:
        speed(options("--plots", tmp_path))
    assert "pip install 'retrieval-bench[plots]'" in caught.value.hint


@pytest.mark.parametrize("content", ["", "{}", "no JSON"])
def test_what_is_no_report_is_refused(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(BenchError, match="is not a report of speed"):
        read_report(path)


def test_plots_lie_where_they_were_asked_for(options, cache, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    speed(options("--plots", tmp_path / "plots", parts=["encode"]))
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        "throughput.png",
        "throughput.svg",
    }


def test_nothing_of_the_peers_is_imported_here():
    code = (
        "import sys, bench.cli.commands.speed\n"
        "print({'beir', 'mteb', 'sentence_transformers', 'matplotlib', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
