"""Tables of speed say what was measured, and give no ratio that would mislead."""

import msgspec
import pytest

from bench.speed.records import Spread
from reports.speed import (
    growth_table,
    indexes_table,
    latency_table,
    phases_table,
    race_table,
    speed_tables,
    throughput_table,
)
from tests.support.markdown import added, numbers, rows_of
from tests.support.speed_report import REPORT, racer

RACE = REPORT.races[0]


def test_the_heading_says_on_what_it_was_measured():
    heading = speed_tables(REPORT).splitlines()[0]
    for said in (
        "minilm",
        "cpu",
        "Some Processor",
        "2 threads",
        "float32",
        "commit 0123456789ab",
        "load 0.2",
    ):
        assert said in heading
    assert "900.0 MB" in heading
    assert "VmHWM" in heading


def test_a_changed_checkout_is_marked():
    conditions = msgspec.structs.replace(REPORT.conditions, dirty=True)
    changed = msgspec.structs.replace(REPORT, conditions=conditions)
    assert "with changes" in speed_tables(changed).splitlines()[0]


def test_what_was_not_measured_has_no_table():
    empty = msgspec.structs.replace(
        REPORT, phases=None, throughput=(), latency=(), indexes=(), growth=(), races=()
    )
    assert "|" not in speed_tables(empty)
    assert speed_tables(REPORT).count("\n|-") == 6


def test_phases_stand_longest_first_with_the_whole_last():
    rows = rows_of(phases_table(REPORT.phases))
    assert [row["phase"] for row in rows] == ["forward", "load", "all, on the wall"]
    assert rows[0]["seconds"] == "1.950 [1.925–1.975]"
    assert rows[0]["of the whole"] == "93%"


def test_throughput_names_the_tool_with_its_version_and_the_lengths():
    first, second, *_ = rows_of(throughput_table(REPORT.throughput))
    assert first["tool"] == "bench 1.2"
    assert second["tool"] == "sentence-transformers 1.2 (batch 32, its default)"
    assert (first["documents"], first["mean length"]) == ("32 tokens", "32.0 tokens")
    assert (first["tokens/s"], first["our speed-up"]) == ("3,200", "")
    assert (second["our speed-up"], second["largest difference"]) == ("2.00 x", "2.0e-07")


def test_a_tool_with_other_vectors_has_no_ratio():
    *_, last = rows_of(throughput_table(REPORT.throughput))
    assert last["our speed-up"] == "vectors differ"


def test_latency_is_in_milliseconds_with_its_conditions():
    text = latency_table(REPORT.latency)
    assert numbers(text.splitlines()[0])[-2:] == ["30,000", "100"]
    assert [row["p95, ms"] for row in rows_of(text)] == ["7.00", "2.00", "9.00"]


def test_indexes_show_recall_speed_and_what_they_cost():
    rows = rows_of(indexes_table(REPORT.indexes))
    assert rows[1] == {
        "index": "HNSW32?efSearch=16",
        "recall@10": "0.9500",
        "queries/s": "6,300 [6,150–6,450]",
        "build, s": "1.50",
        "size": "46.1 MB",
    }


def test_growth_shows_the_exponent_with_its_error_and_a_line():
    (row,) = rows_of(growth_table(REPORT.growth))
    assert (row["exponent"], row["standard error"]) == ("0.980", "0.020")
    assert row["straight line"] == "0.03 + 0.097 each"
    assert row["sizes"] == "10 to 40"


def test_a_race_shows_scores_before_it_gives_a_ratio():
    text = race_table(RACE)
    assert numbers(text.splitlines()[0]) == ["1", "3,633", "323"]
    ours, theirs = rows_of(text)
    assert (ours["nDCG@10"], ours["our time / theirs"]) == ("0.31594", "")
    assert (theirs["nDCG@10"], theirs["our time / theirs"]) == ("0.31600", "0.500")
    assert (theirs["processor, s"], theirs["of the processor"]) == ("300.000", "0.500")
    assert numbers(text.splitlines()[-1]) == ["0.0005", "0.500"]


def test_where_scores_differ_there_is_no_ratio():
    runs = (racer("bench", 0.3, 100), racer("mteb", 0.4, 200))
    text = race_table(msgspec.structs.replace(RACE, runs=runs, agree=False, ratio=None))
    assert numbers(text.splitlines()[-1]) == ["0.0005"]
    assert all(row["our time / theirs"] == "" for row in rows_of(text))


def test_a_quick_look_says_that_it_is_no_published_score():
    quick, whole = race_table(msgspec.structs.replace(RACE, limit=200)), race_table(RACE)
    assert "published" in added(quick, whole)
    assert "published" not in whole


def test_a_race_against_nobody_says_what_to_type():
    text = race_table(msgspec.structs.replace(RACE, runs=RACE.runs[:1], ratio=None))
    assert "--against" in text.splitlines()[-1]


@pytest.mark.parametrize("samples", [[1.5], [1.5, 1.5]])
def test_one_sample_has_no_quartiles(samples):
    phases = msgspec.structs.replace(REPORT.phases, busy_s={}, wall_s=Spread.of(samples))
    (row,) = rows_of(phases_table(phases))
    assert ("[" in row["seconds"]) is (len(samples) > 1)
