import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from datasets_cfg.catalogue import Counts, Metadata
from datasets_cfg.dataset import Dataset
from datasets_cfg.download import reader_of_layout
from datasets_cfg.readers.reader import Document, Qrels, Queries
from datasets_cfg.verification import evaluation_findings, verify_dataset
from foundation.errors import BenchError

CLEAN = [
    Document("d1", "", "a first text"),
    Document("d2", "two words of a title", ""),
    Document("d3", "a title", "and a text"),
]
JUDGED = [("q1", "d1", 1), ("q2", "d3", 2), ("q2", "d2", 0)]


def dataset_of(
    folder: Path,
    documents: list[Document] = CLEAN,
    judged: list[tuple[str, str, int]] = JUDGED,
    metadata: Metadata | None = None,
) -> Dataset:
    lines = [
        json.dumps({"_id": id_, "title": title, "text": text}) for id_, title, text in documents
    ]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    queries, ids, grades = zip(*judged, strict=True)
    asked = tuple(dict.fromkeys(queries))
    return Dataset(
        metadata or Metadata("mine", "beir"),
        Queries(asked, asked),
        Qrels(queries, ids, np.array(grades, dtype=np.int32)),
        None,
        reader_of_layout("beir")(folder, "test"),
        folder / "cache",
    )


def test_clean_data_have_no_findings(tmp_path):
    assert verify_dataset(dataset_of(tmp_path)) == []


EMPTY = (Document("d4", " ", "\t"), Document("d5", "", "a third text"), Document("d6", "", ""))
PUBLISHED = Metadata("mine", "beir", counts=Counts(dangling_judgements=1))


@pytest.mark.parametrize(
    ("more", "metadata", "found", "said"),
    [
        ((("q1", "gone", 1), ("q2", "no", 0)), None, ("warning", 2, ("gone", "no")), "1 of them"),
        ((("q2", "no", 0),), None, ("note", 1, ("no",)), ""),
        ((("q1", "gone", 1),), PUBLISHED, ("note", 1, ("gone",)), "as in the published data"),
        ((("q3", "d1", 0), ("q4", "d1", -1)), None, ("warning", 2, ("q3", "q4")), ""),
        (EMPTY, None, ("note", 2, ()), ""),
    ],
    ids=["a missing document", "not relevant", "published", "no relevant document", "empty"],
)
def test_verify_reports_each_oddity_with_its_severity(more, metadata, found, said, tmp_path):
    documents = [*CLEAN, *(one for one in more if isinstance(one, Document))]
    judged = [*JUDGED, *(one for one in more if not isinstance(one, Document))]
    (finding,) = verify_dataset(dataset_of(tmp_path, documents, judged, metadata))
    assert (finding.severity, finding.count, finding.examples) == found
    assert said in finding.what


@pytest.mark.parametrize(("text", "severity"), [("d1", "warning"), ("another", "note")])
def test_colliding_ids_of_undeclared_meaning_name_the_fact_to_set(text, severity, tmp_path):
    documents = [*CLEAN[1:], Document("d1", "", text)]
    findings = verify_dataset(dataset_of(tmp_path, documents, judged=[*JUDGED, ("d1", "d3", 1)]))
    (found,) = [each for each in findings if "fewer than" not in each.what]
    assert (found.severity, found.count, found.examples) == (severity, 1, ("d1",))
    assert f"{int(text == 'd1')} of these documents have the text of their query" in found.what
    assert f"Write into {tmp_path / 'dataset.toml'}: exclude_self = true" in found.suggestion


def test_warnings_before_an_evaluation_are_about_what_affects_scores(tmp_path):
    judged = [*JUDGED, ("d1", "d1", 1), ("q1", "gone", 1)]
    metadata = Metadata("mine", "beir", counts=Counts(documents=3))
    undecided = evaluation_findings(dataset_of(tmp_path, judged=judged, metadata=metadata))
    decided = msgspec.structs.replace(metadata, exclude_self=False)
    assert [finding.count for finding in undecided] == [1, 1]
    assert undecided[:1] == evaluation_findings(
        dataset_of(tmp_path, judged=judged, metadata=decided)
    )


@pytest.mark.parametrize(
    ("name", "measures", "grades", "noted"),
    [
        ("mine", ("R@100",), (0, 1, 2, 3), 1),
        ("mine", ("R@100",), (0, 1, 2), 0),
        ("mine", ("R(rel=2)@100",), (0, 1, 2, 3), 0),
        ("mine", ("R(rel=1)@100",), (0, 1, 2, 3), 0),
        ("beir/msmarco", ("R@100",), (0, 1, 2, 3), 0),  # BEIR counts grade 1
    ],
)
def test_grades_of_trec_dl_get_a_note_unless_the_lowest_relevant_grade_is_stated(
    name, measures, grades, noted, tmp_path
):
    judged = [("q1", f"d{row % 3 + 1}", grade) for row, grade in enumerate(grades)]
    metadata = Metadata(name, "beir", measures=measures, exclude_self=False)
    dataset = dataset_of(tmp_path, judged=judged, metadata=metadata)
    for found in (verify_dataset(dataset), evaluation_findings(dataset)):
        notes = [each for each in found if "TREC-DL" in each.what]
        assert [(each.severity, each.count) for each in notes] == [("note", 1)] * noted
        assert all("R(rel=2)@1000" in each.suggestion for each in notes)


@pytest.mark.parametrize(("document", "warned"), [("d1", 1), ("d2", 0)])
def test_colliding_ids_warn_where_a_relevant_document_would_be_dropped(document, warned, tmp_path):
    metadata = Metadata("mine", "beir", exclude_self=True)
    found = verify_dataset(
        dataset_of(tmp_path, judged=[*JUDGED, ("d1", document, 1)], metadata=metadata)
    )
    assert [(each.severity, each.count) for each in found] == [("warning", 1)] * warned
    assert all("exclude_self = false" in each.suggestion for each in found)


def test_counts_that_differ_are_errors_and_come_first(tmp_path):
    metadata = Metadata("mine", "beir", counts=Counts(documents=5, queries=2))
    findings = verify_dataset(
        dataset_of(tmp_path, judged=[*JUDGED, ("q1", "gone", 1)], metadata=metadata)
    )
    assert [finding.severity for finding in findings] == ["error", "warning"]
    assert "documents: 5 published, 3 found" in findings[0].what


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("beir/scifact", []),
        ("classic/cranfield", [("note", 225), ("note", 2)]),  # colliding ids, empty documents
        ("classic/cisi", [("note", 76), ("warning", 2)]),  # copies of relevant documents
    ],
)
def test_verify_finds_only_the_known_oddities_of_real_collections(
    name, expected, bench_data, open_
):
    found = verify_dataset(open_(name, data_dir=bench_data))
    assert sorted((each.severity, each.count) for each in found) == sorted(expected)


def write_wrong(folder: Path) -> Path:
    """Write a collection whose files have several kinds of wrong lines."""
    (folder / "qrels").mkdir()
    document, query = '{"_id": "d1", "text": "x"}\n', '{"_id": "q1", "text": "x"}\n'
    wrong = '{"_id": "", "text": "x"}\n' * 20 + '{"_id": "d2"}\n' * 3
    (folder / "corpus.jsonl").write_text(document + wrong)
    (folder / "queries.jsonl").write_text(query + query.replace('"x"', '"y"') * 2)
    grades = "q1\td1\t1\n" + "q1\td2\tx\n" * 4
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + grades)
    return folder


def test_verify_counts_wrong_lines_by_kind_and_builds_no_corpus_without_them(tmp_path, open_):
    folder = write_wrong(tmp_path)
    found = verify_dataset(lambda: open_(folder))
    assert sorted((each.severity, each.count) for each in found) == [
        *(("error", count) for count in (1, 2, 3, 4, 20))
    ]
    assert any("corpus.jsonl:2: the id is empty" in each.what for each in found)
    assert not list(tmp_path.glob("cache/corpora/*/*.arrow"))
    with pytest.raises(BenchError, match="occurs twice"):
        open_(folder)


def test_verify_counts_lines_that_are_not_utf8_and_reports_no_other_error_about_them(
    tmp_path, open_
):
    folder = write_wrong(tmp_path)
    (folder / "corpus.jsonl").write_text('{"_id": "d1", "text": "a first text"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "x"}\n')
    wrong = b"query-id\tcorpus-id\tscore\n" + b"q1\td\xff\t1\n" * 2
    (folder / "qrels" / "test.tsv").write_bytes(wrong)
    (found,) = verify_dataset(lambda: open_(folder))
    assert (found.severity, found.count) == ("error", 2)
    assert "test.tsv:2: not UTF-8 (byte 0xff at column 5)" in found.what


@pytest.mark.parametrize("qrels", [None, "query\tdocument\n"])
def test_a_collection_that_cannot_be_opened_is_a_finding(qrels, tmp_path, open_):
    folder = write_wrong(tmp_path)
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "x"}\n')
    (folder / "qrels" / "test.tsv").unlink()
    if qrels:
        (folder / "qrels" / "test.tsv").write_text(qrels)
    (found,) = verify_dataset(lambda: open_(folder))
    assert (found.severity, found.count) == ("error", 1)
    assert "test.tsv" in found.what


def test_verify_reports_blank_queries_and_ids_with_spaces(tmp_path):
    documents = [*CLEAN, Document("d 4", "", "another text")]
    dataset = dataset_of(tmp_path, documents)
    queries = Queries(dataset.queries.ids, ("\t", *dataset.queries.texts[1:]))
    found = verify_dataset(replace(dataset, queries=queries))
    assert [(each.severity, each.examples) for each in found] == [
        ("warning", (repr(dataset.queries.ids[0]),)),
        ("warning", ("'d 4'",)),
    ]


@pytest.mark.parametrize("layout", ["msmarco", "dpr"])
def test_numbers_that_are_both_query_and_document_ids_are_not_reported(layout, tmp_path):
    judged = [("q1", "d1", 1), ("d1", "d3", 1)]
    dataset = dataset_of(tmp_path, judged=judged, metadata=Metadata("mine", layout))
    assert evaluation_findings(dataset) == []
