"""Tables of speed say what was measured, and give no ratio that would mislead."""

import msgspec

from reports.speed import (
    encoding_table,
    indexes_table,
    latency_table,
    phases_table,
    race_table,
    speed_tables,
)
from tests.support.markdown import numbers, rows_of
from tests.support.speed_report import REPORT


def test_the_heading_names_the_machine():
    heading = speed_tables(REPORT).splitlines()[0]
    for said in ("minilm", "cpu", "Some Processor", "2 threads", "float32", "load 0.2"):
        assert said in heading
    assert "commit 0123456789ab," in heading
    conditions = msgspec.structs.replace(REPORT.conditions, dirty=True)
    changed = msgspec.structs.replace(REPORT, conditions=conditions)
    assert "with changes" in speed_tables(changed).splitlines()[0]


def test_parts_that_were_not_measured_have_no_table():
    nothing = {"encoding": (), "latency": (), "indexes": None, "races": ()}
    assert "|" not in speed_tables(msgspec.structs.replace(REPORT, **nothing))
    assert speed_tables(REPORT).count("\n|-") == 5


def test_phases_are_shown_only_for_our_encoder():
    rows = rows_of(phases_table([REPORT.encoding[0], REPORT.races[0]]))
    assert [row["documents"] for row in rows] == ["32 tokens", "beir/nfcorpus"]
    assert [row["forward"] for row in rows] == ["0.850 [0.825–0.875]", ""]
    assert [row["search"] for row in rows] == ["", "0.500"]


def test_encoding_names_the_tool_with_its_version_and_the_lengths():
    first, second, *_, last = rows_of(encoding_table(REPORT.encoding))
    assert first["tool"] == "bench 1.2"
    assert second["tool"] == "sentence-transformers 1.2 (batch 32, its default)"
    assert (first["documents"], first["mean length"]) == ("32 tokens", "32.0 tokens")
    assert (first["tokens/s"], first["our speed-up"]) == ("3,200", "")
    assert (second["our speed-up"], second["largest difference"]) == ("2.00 x", "2.0e-07")
    assert last["our speed-up"] == "results differ"


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
        "size": "46.1MB",
    }


def test_a_race_shows_scores_before_it_gives_a_ratio():
    text = race_table(REPORT.races)
    assert numbers(text.splitlines()[0])[-1] == "0.0005"
    ours, theirs = rows_of(text)
    assert (ours["documents"], ours["queries"]) == ("3,633", "323")
    assert (ours["nDCG@10"], ours["our speed-up"]) == ("0.31594", "")
    assert (theirs["nDCG@10"], theirs["our speed-up"]) == ("0.31600", "2.00 x")
    assert theirs["processor, s"] == "300.000"
