"""``speed`` as a user meets it: what it prints, what it refuses, its exit code."""

import random
from typing import Any, get_args

import msgspec
import pytest

from bench.cli.commands.evaluating import speed
from bench.requests.evaluating import Part, SpeedRequest, Tool
from bench.requests.outcomes import ExitCode
from bench.speed import speed as command
from bench.speed.race import DEFAULT_BATCH
from bench.speed.speed import PARTS
from bench.speed.speed_report import SpeedReport
from foundation.errors import BenchError
from tests.support.collections import options as request_of
from tests.support.collections import write_collection
from tests.support.tiny_checkpoints import write_bert, write_card

SMALL = ("--repeats", 2, "--device", "cpu")


@pytest.fixture
def options(cache):
    """What the command line gives, small enough for a test."""

    def of(*words: object, model="hashing", parts=("latency",)) -> tuple[SpeedRequest, Any]:
        named = ("--parts", *parts) if parts else ()
        return request_of("speed", *words, *SMALL, "--cache-dir", cache, *named, "--model", model)

    return of


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def small_work(monkeypatch):
    for name, value in {"PROBE_S": 0.05, "SAMPLE_S": 0.01, "LATENCY_DOCUMENTS": 300}.items():
        monkeypatch.setattr(command, name, value)


@pytest.mark.slow
def test_the_last_line_is_the_report_after_the_tables(options, capsys):
    assert speed(*options(parts=())) == ExitCode.OK
    *tables, last = capsys.readouterr().out.splitlines()
    report = msgspec.json.decode(last, type=SpeedReport)
    lengths = [time_tools.name for time_tools in report.encoding]
    assert lengths == ["32 tokens", "128 tokens", "256 tokens", "as in stdlib-code"]
    assert {len(row.tools[0].wall_s.samples) for row in report.encoding} == {2}
    assert report.latency[0].rows == 300
    assert report.conditions.python
    assert report.processor
    assert sum(line.startswith("|-") for line in tables) == 2


@pytest.mark.slow
def test_a_race_without_other_tools_runs(options, tmp_path, capsys, monkeypatch):
    folder = write_collection(tmp_path / "tiny")
    assert speed(*options(folder, "--rounds", 2, parts=())) == ExitCode.OK
    report = msgspec.json.decode(capsys.readouterr().out.splitlines()[-1], type=SpeedReport)
    (race_tools,) = report.races
    assert (race_tools.name, len(race_tools.tools[0].wall_s.samples)) == ("tiny", 2)
    assert (report.encoding, report.latency, report.indexes) == ((), (), None)
    assert "search" in race_tools.tools[0].phases_s

    differing = msgspec.structs.replace(race_tools.tools[0], agrees=False)
    race_tools = msgspec.structs.replace(race_tools, tools=(race_tools.tools[0], differing))
    report = msgspec.structs.replace(report, races=(race_tools,))
    monkeypatch.setattr(command, "measure", lambda *_: report)
    assert speed(*options(folder)) == ExitCode.BAD_INPUT
    assert "results differ" in capsys.readouterr().out


@pytest.mark.slow
def test_indexes_are_measured_on_a_named_collection_with_a_figure(options, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    draw = random.Random(0)  # many words, so that few scores are equal
    words = [f"word{n}" for n in range(60)]
    texts = {f"d{n}": ("", " ".join(draw.choices(words, k=40))) for n in range(120)}
    questions = {f"q{n}": " ".join(draw.choices(words, k=20)) for n in range(8)}
    qrels = {(f"q{number}", f"d{number}"): 1 for number in range(8)}
    folder = write_collection(tmp_path / "mine", texts, questions, qrels)
    figure = tmp_path / "mine.pdf"
    typed = (folder, "--figure", figure, "--index", "IVF8,Flat?nprobe=1", "Flat")
    assert speed(*options(*typed, parts=())) == ExitCode.OK
    report = msgspec.json.decode(capsys.readouterr().out.splitlines()[-1], type=SpeedReport)
    assert (report.races, report.encoding, report.latency) == ((), (), ())
    curve = report.indexes
    assert (curve.rows, curve.queries, curve.vectors) == (120, 8, "all documents of mine")
    recalls = {point.index: point.recall for point in curve.points}
    assert recalls.keys() == {"flat", "IVF8,Flat?nprobe=1", "Flat"}
    assert recalls["flat"] == 1.0
    assert recalls["Flat"] > 0.95 > recalls["IVF8,Flat?nprobe=1"]  # some scores are nearly equal
    assert figure.read_bytes().startswith(b"%PDF")


def test_openvino_is_refused_a_dtype_that_it_does_not_compute_in(options, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "check_installed", lambda tools: None)
    monkeypatch.setattr(command, "measure", None)
    write_bert(tmp_path / "bert")
    card = write_card(tmp_path / "card.toml", checkpoint=str(tmp_path / "bert"), pooling="mean")
    words = ("--against", "sentence-transformers-openvino", "--dtype", "float16")
    with pytest.raises(BenchError, match="does not compute in float16") as caught:
        speed(*options(*words, model=card, parts=("encode",)))
    assert "--dtype float32, bfloat16 or int8" in caught.value.hint


def test_the_command_line_names_the_tools_and_parts_that_there_are():
    assert set(get_args(Tool)) == set(DEFAULT_BATCH)
    assert get_args(Part) == PARTS
