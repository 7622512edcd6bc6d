"""Tables are well-formed Markdown that show what qualifies a score."""

import msgspec
import pytest

from bench.evaluation.judging import suite_mean
from bench.evaluation.result_record import Result
from bench.requests.outcomes import MissingEvaluation
from bench.runner.run import EncodingCost
from datasets_cfg.catalogue import expand_names, suite_for
from datasets_cfg.verification import Finding
from reports.evaluation import (
    collection_table,
    costs_table,
    findings,
    gaps_list,
    means_table,
)
from tests.support import results as records
from tests.support.markdown import numbers, rows_of, tables_of

PROTOCOL = msgspec.structs.replace(
    records.PROTOCOL, version="beir-1.0.0", exclude_self=False, depth=1000
)
RESULT = msgspec.structs.replace(
    records.RESULT,
    measures={"nDCG@10": 0.123449, "R@100": 0.5},
    queries=1234,
    documents=56789,
    protocol=PROTOCOL,
    recipe=None,
)


def changed(**fields) -> Result:
    return msgspec.structs.replace(RESULT, **fields)


def with_protocol(**fields) -> Result:
    return changed(protocol=msgspec.structs.replace(PROTOCOL, **fields))


def row_of(result: Result, published=None) -> dict[str, str]:
    (row,) = rows_of(collection_table([result], published or {}))
    return row


def test_the_main_measure_stands_first_and_empty_columns_are_hidden():
    result = changed(measures={"R@100": 0.5, "nDCG@10": 0.123449})
    assert list(row_of(result).items()) == [
        ("model", "words"),
        ("nDCG@10", "0.1234"),
        ("R@100", "0.5000"),
    ]


@pytest.mark.parametrize(
    ("fields", "column", "cell"),
    [
        ({"judged_at_10": 0.0}, "judged@10", "0.0000"),
        ({"tie_low": 0.1, "tie_high": 0.2}, "ties", "0.1000–0.2000"),
        ({"tie_low": 0.0, "tie_high": 0.2}, "ties", "0.0000–0.2000"),
        ({"index": "HNSW32"}, "index", "HNSW32"),
        (
            {"index_recall": {"recall@10": 0.98765, "recall@100": 1.0}},
            "index recall",
            "10: 0.988, 100: 1.000",
        ),
        ({"unanswered": 3}, "unanswered", "3"),
    ],
)
def test_empty_columns_are_left_out(fields, column, cell):
    assert row_of(changed(**fields))[column] == cell
    assert column not in row_of(RESULT)


def test_a_model_trained_on_the_collection_is_marked():
    assert row_of(changed(in_domain=True))["model"] == "words (in-domain)"


def test_the_published_score_of_the_collection_and_main_measure_is_shown():
    published = {
        ("words", "beir/tiny", "nDCG@10"): 0.5,
        ("words", "beir/tiny", "R@100"): 0.6,
        ("words", "beir/other", "nDCG@10"): 0.7,
        ("others", "beir/tiny", "nDCG@10"): 0.8,
    }
    assert row_of(RESULT, published)["published"] == "0.5000"
    assert "published" not in row_of(with_protocol(official=False), published)
    del published["words", "beir/tiny", "nDCG@10"]
    assert "published" not in row_of(RESULT, published)


def test_the_heading_names_what_was_evaluated():
    heading = collection_table([RESULT], {}).splitlines()[0]
    assert heading.startswith("beir/tiny: ")
    assert numbers(heading) == ["1,234", "56,789", "1000"]
    assert all(word in heading for word in ("beir-1.0.0", "test split"))


@pytest.mark.parametrize(
    "fields", [{"title_track": "no-title"}, {"exclude_self": True}, {"official": False}]
)
def test_the_heading_names_the_rules(fields):
    told, plain = (
        collection_table([result], {}).splitlines()[0].split(", ")
        for result in (with_protocol(**fields), RESULT)
    )
    assert len(told) == len(plain) + 1
    assert set(plain) < set(told)


def test_a_complete_mean_names_its_measure_and_number_of_sets():
    values = dict.fromkeys(expand_names(["beir"]), 0.25)
    mean = suite_mean("beir", "nDCG@10", values, {"beir/nq"}, "words")
    (row,) = rows_of(means_table([mean], {("words", "beir", "nDCG@10"): 0.3}))
    assert row == {
        "suite": "beir",
        "mean of": "nDCG@10, 14 sets",
        "model": "words",
        "mean": "0.2500",
        "zero-shot mean": "0.2500 (13 sets)",
        "published": "0.3000",
        "missing": "",
    }


def test_a_gap_is_shown_in_place_of_the_mean_and_says_what_is_missing():
    members = suite_for("beir-13").members
    mean = suite_mean("beir-13", "nDCG@10", dict.fromkeys(members[2:], 0.25))
    (row,) = rows_of(means_table([mean], {}))
    assert (row["mean"], row["zero-shot mean"]) == ("", "")
    assert row["missing"] == f"2 of 13: {members[0]}, {members[1]}"


def test_findings_are_listed_with_their_counts_and_advice():
    listed = [
        Finding("error", "documents without text", 1234, ("a", "b"), "remove them"),
        Finding("note", "harmless", 1, (), ""),
    ]
    assert findings("beir/tiny", listed).splitlines() == [
        "beir/tiny:",
        "  error: documents without text: 1,234 (a, b)",
        "    remove them",
        "  note: harmless",
    ]


def test_costs_of_collections_are_summed():
    row = EncodingCost(
        model="m",
        collection="a",
        documents=1000,
        to_encode=400,
        tokens=9000,
        encode_s=60.0,
        memory_bytes=10**9,
        disk_bytes=10**6,
    )
    other = msgspec.structs.replace(row, collection="b", memory_bytes=3 * 10**9)
    _, second, together = rows_of(costs_table([row, other]))
    assert (second["tokens"], second["encode"]) == ("9,000", "60.0 s")
    last = ["total", "", "2,000", "800", "18,000", "0:02:00", "3GB", "2MB"]
    assert list(together.values()) == last


def test_gaps_are_listed_once_by_cause_within_80_columns():
    names = ["beir/nq", "beir/fiqa", "beir/cqadupstack/programmers"]
    lost = "NAME.zip from https://host/NAME.zip: not found in /cache/data/{}, and downloads are off"
    gaps = [
        MissingEvaluation(name, "", lost.format(name), f"Run `bench fetch {name}`.")
        for name in names
    ]
    gaps += [MissingEvaluation("beir/scifact", model, "cut short") for model in ("a", "b")]
    gaps.insert(1, MissingEvaluation("mine", "", "corpus.jsonl: line 3: no text", "Fix it."))
    table, causes = gaps_list(gaps).split("\n\n")
    rows = {row["not evaluated"]: (row["model"], row["cause"]) for row in tables_of(table)[0]}
    assert rows == {
        **dict.fromkeys(names, ("all", "1")),
        "mine": ("all", "2"),
        "beir/scifact": ("a, b", "3"),
    }
    assert causes.split("\n") == [
        "1. not found in /cache/data/NAME, and downloads are off. Run `bench fetch NAME`.",
        "2. corpus.jsonl: line 3: no text. Fix it.",
        "3. cut short.",
    ]
    assert max(map(len, gaps_list(gaps).splitlines())) <= 80
