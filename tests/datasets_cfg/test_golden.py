"""Golden sets as teams have them: each form is the same collection as BEIR's files."""

import csv
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from datasets_cfg.dataset import Dataset, all_assumptions, open_dataset
from datasets_cfg.download import folder_of_table
from foundation.errors import BenchError

DOCUMENTS = [("d1", "Wings", "lift of a wing"), ("d2", "", "heat; in a slab"), ("d3", "X", "drag")]
QUESTIONS = [("what lifts a wing?", ["d1", "d3"]), ("how does heat flow?", ["d2"])]
SEPARATED = [";", ",", "|"]


def write(path: Path, columns: list[str], rows: list[tuple[object, ...]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        with path.open("w", newline="") as file:
            delimiter = "\t" if path.suffix == ".tsv" else ","
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerows([columns, *rows])
    return path


def write_documents(folder: Path, name: str = "docs.parquet") -> None:
    write(folder / name, ["id", "title", "body"], DOCUMENTS)


@pytest.fixture
def open_(tmp_path: Path):
    def opened(folder: Path, **options: object) -> Dataset:
        return open_dataset(str(folder), cache_dir=tmp_path / "cache", **options)

    return opened


def assert_read(dataset: Dataset, ids: tuple[str, ...] = ("1", "2")) -> None:
    assert dataset.metadata.layout == "golden"
    assert dataset.corpus.ids.to_pylist() == ["d1", "d2", "d3"]
    assert dataset.corpus.titles.to_pylist() == ["Wings", "", "X"]
    assert dataset.corpus.texts.to_pylist() == [text for _, _, text in DOCUMENTS]
    assert dataset.queries.ids == ids
    assert dataset.queries.texts == tuple(question for question, _ in QUESTIONS)
    assert sorted(dataset.qrels) == [(ids[0], "d1", 1), (ids[0], "d3", 1), (ids[1], "d2", 1)]


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("separator", [*SEPARATED, "list", "JSON list"])
def test_each_form_and_separator_is_the_same_collection(tmp_path, open_, form, separator):
    def listed(ids: list[str]) -> object:
        if separator == "list" and form in ("jsonl", "parquet"):
            return ids
        return json.dumps(ids) if "list" in separator else f" {separator} ".join(ids)

    write_documents(tmp_path / "set")
    rows = [(question, listed(ids)) for question, ids in QUESTIONS]
    write(tmp_path / f"set/golden.{form}", ["question", "expected_doc_ids"], rows)
    dataset = open_(tmp_path / "set")
    assert_read(dataset)
    told = all_assumptions(dataset)
    assert (
        f"golden.{form} is read with id: the number of the row, question: question, relevant "
        "documents: expected_doc_ids" in told
    )
    assert "docs.parquet is read with id: id, title: title, text: body" in told
    if separator in SEPARATED:
        assert f"golden.{form}: ids are separated by {separator}" in told


@pytest.mark.parametrize(
    ("question", "relevant", "documents"),
    [
        ("Question", "relevant_ids", "docs.csv"),
        ("query", "doc_ids", "chunks.jsonl"),
        ("user query", "gold_ids", "corpus_export.tsv"),
        ("Question", "Expected Document IDs", "chunks.jsonl"),
        ("query", "chunk_ids", "docs.csv"),
    ],
)
def test_columns_by_the_names_that_teams_give_them(tmp_path, open_, question, relevant, documents):
    write_documents(tmp_path / "set", documents)
    rows = [(f"q-{n}", text, ";".join(ids)) for n, (text, ids) in enumerate(QUESTIONS)]
    write(tmp_path / "set/golden.csv", ["id", question, relevant], rows)
    assert_read(open_(tmp_path / "set"), ("q-0", "q-1"))


def test_rows_with_the_same_question_are_one_and_rows_without_an_answer_are_left_out(
    tmp_path, open_
):
    write_documents(tmp_path / "set")
    (first, _), second = QUESTIONS
    rows = [(first, "d1"), (second[0], "d2"), (first, "d3"), ("nothing?", "")]
    write(tmp_path / "set/golden.csv", ["question", "relevant_ids"], rows)
    dataset = open_(tmp_path / "set")
    assert_read(dataset)
    assert dataset.assumptions["rows with the same question are read as one"] == 1
    left = "rows without a question or without a relevant document are left out"
    assert dataset.assumptions[left] == 1


def test_without_documents_rankings_of_ids_can_be_scored(tmp_path, open_):
    rows = [(question, ";".join(ids)) for question, ids in QUESTIONS]
    write(tmp_path / "set/golden.csv", ["question", "relevant_ids"], rows)
    dataset = open_(tmp_path / "set", with_corpus=False)
    assert len(dataset.qrels) == 3
    with pytest.raises(BenchError, match="has no documents"):
        _ = open_(tmp_path / "set").corpus


def test_further_columns_are_fields_of_the_queries(tmp_path, open_):
    write_documents(tmp_path / "set")
    languages = ["de", "en"]
    pairs = zip(QUESTIONS, languages, strict=True)
    rows = [(text, ";".join(ids), language) for (text, ids), language in pairs]
    write(tmp_path / "set/golden.csv", ["question", "relevant_ids", "language"], rows)
    reader = open_(tmp_path / "set").reader
    assert reader.query_values("language") == {"1": ("de",), "2": ("en",)}
    with pytest.raises(BenchError) as caught:
        reader.query_values("langage")
    assert "language" in caught.value.hint


def test_what_can_mean_two_things_is_refused(tmp_path, open_):
    write_documents(tmp_path / "set")
    rows = [("a?", "d1;d2"), ("b?", "d1|d3")]
    golden = write(tmp_path / "set/golden.csv", ["question", "relevant_ids"], rows)
    with pytest.raises(BenchError, match=r"could be separated by any of ; \|"):
        open_(tmp_path / "set")
    write(golden, ["question", "relevant_ids", "gold_ids"], [("a?", "d1", "d2")])
    with pytest.raises(BenchError, match="several columns for one role: relevant_ids, gold_ids"):
        open_(tmp_path / "set")
    write(golden, ["question", "relevant_ids"], [("a?", "d1")])
    write(tmp_path / "set/other.csv", ["question", "relevant_ids"], [("a?", "d2")])
    with pytest.raises(BenchError, match="differ, and each could be meant"):
        open_(tmp_path / "set")


def test_configurations_with_a_prefix_are_read_if_there_is_one(tmp_path, open_):
    folder = tmp_path / "mteb"
    write(folder / "en-corpus/test.parquet", ["_id", "title", "text"], DOCUMENTS)
    write(folder / "en-queries/test.jsonl", ["_id", "text"], [("q", "wing")])
    write(folder / "en-qrels/test.jsonl", ["query-id", "corpus-id", "score"], [("q", "d1", 1)])
    dataset = open_(folder)
    assert len(dataset.corpus) == 3
    assert list(dataset.qrels) == [("q", "d1", 1)]
    (folder / "de-corpus").mkdir()
    with pytest.raises(BenchError, match="several collections: de, en") as caught:
        open_(folder)
    assert "mkdir de && for part in corpus queries qrels" in caught.value.hint


def test_a_file_that_is_named_like_a_part_and_not_read_is_told(tmp_path, open_):
    write(tmp_path / "set/corpus.jsonl", ["_id", "title", "text"], DOCUMENTS)
    write(tmp_path / "set/queries.jsonl", ["_id", "text"], [("q", "wing")])
    write(tmp_path / "set/qrels/test.jsonl", ["query-id", "corpus-id", "score"], [("q", "d1", 1)])
    (tmp_path / "set/queries.tsv").write_text("q\tanother\n")
    (tmp_path / "set/qrels/test.csv").write_text("query-id,corpus-id,score\nq,d2,1\n")
    told = open_(tmp_path / "set").assumptions
    assert {"queries.tsv is not read", "qrels/test.csv is not read"} <= told.keys()


def test_the_path_of_a_table_stands_for_its_folder_if_that_is_a_golden_set(tmp_path):
    golden = write(tmp_path / "set/golden.csv", ["question", "relevant_ids"], [("a?", "d1")])
    write_documents(tmp_path / "set", "docs.csv")
    assert folder_of_table(str(golden)) == str(tmp_path / "set")
    documents = str(tmp_path / "set/docs.csv")
    assert folder_of_table(documents) == documents
    assert folder_of_table("beir/scifact") == "beir/scifact"
    (tmp_path / "set/corpus.jsonl").write_text('{"_id": "d1", "text": "a"}\n')
    assert folder_of_table(str(golden)) == str(golden)  # the folder is another collection


def test_numbered_files_are_parts_of_one(tmp_path, open_):
    folder = tmp_path / "set"
    paths = [folder / f"corpus/part-{number:05}-5d-c000.snappy.parquet" for number in range(3)]
    for number, (path, document) in enumerate(zip(paths, DOCUMENTS, strict=True)):
        write(path, ["_id", "title", "text"], [document])
        write(folder / f"queries/{number + 1}.jsonl", ["_id", "text"], [(f"q{number}", "wing")])
    write(folder / "qrels/test.jsonl", ["query-id", "corpus-id", "score"], [("q2", "d1", 1)])
    dataset = open_(folder)
    assert dataset.corpus.ids.to_pylist() == ["d1", "d2", "d3"]
    assert dataset.queries.ids == ("q2",)
    told = all_assumptions(dataset)
    assert "1.jsonl to 3.jsonl are read as parts of one file" in told
    assert f"{paths[0].name} to {paths[2].name} are read as parts of one file" in told
    paths[1].unlink()
    with pytest.raises(BenchError, match=r"set has no corpus\.jsonl"):
        _ = open_(folder).corpus
