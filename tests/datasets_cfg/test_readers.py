import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from datasets_cfg.download import detect_layout, reader_of_layout
from datasets_cfg.readers.beir import read_documents, read_queries
from datasets_cfg.readers.dpr import read_passages as read_dpr_passages
from datasets_cfg.readers.dpr import read_questions
from datasets_cfg.readers.msmarco import read_passages, read_titled_passages
from datasets_cfg.readers.qrels import read_qrels, read_trec_qrels
from datasets_cfg.readers.reader import Document, Reader
from foundation.errors import BenchError
from tests.support.examples import with_examples

HEADER = "query-id\tcorpus-id\tscore\n"
unicode_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
an_id = unicode_text.filter(lambda text: text and "\0" not in text)
one_column = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\t\r\n"), min_size=1, max_size=20
).filter(lambda text: text.strip() and not text.startswith("\ufeff"))
quick = with_examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])

Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file below the test's folder; a name that ends in .gz is compressed."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = as_bytes(content)
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write_file


@pytest.fixture
def beir(write: Write, tmp_path: Path) -> Reader:
    """Two documents, three queries, of which two are judged in the split test."""
    write("corpus.jsonl", '{"_id":"d1","title":"T","text":"one"}\n{"_id":"d2","text":"two"}\n')
    write("queries.jsonl", "".join(f'{{"_id":"q{n}","text":"ask {n}"}}\n' for n in (3, 1, 2)))
    write("qrels/test.tsv", f"{HEADER}q1\td1\t2\nq3\td2\t0\n")
    return reader_of_layout("beir")(tmp_path, "test")


def as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def fails_at(path: Path, line: int, message: str) -> str:
    """Pattern of an error that names the file, the line and what is wrong."""
    return rf"{path.name}:{line}\b.*{message}"


# BEIR


def test_beir_documents_and_judged_queries_come_in_file_order(beir):
    judgements = beir.judgements()

    assert list(beir.documents()) == [Document("d1", "T", "one"), Document("d2", "", "two")]
    assert judgements.queries.ids == ("q3", "q1")
    assert judgements.queries.texts == ("ask 3", "ask 1")
    assert list(judgements.qrels) == [("q1", "d1", 2), ("q3", "d2", 0)]
    assert judgements.answers is None


def test_beir_files_may_be_compressed_and_carry_a_byte_order_mark(write, tmp_path):
    write("corpus.jsonl.gz", '\ufeff{"_id":"d1","text":"one"}\r\n\r\n')
    write("queries.jsonl.gz", '\ufeff{"_id":"q1","text":"ask"}')
    write("qrels/test.tsv.gz", f"\ufeff{HEADER}q1\td1\t1\n".replace("\n", "\r\n"))
    reader = reader_of_layout("beir")(tmp_path, "test")

    assert list(reader.documents()) == [Document("d1", "", "one")]
    assert list(reader.judgements().qrels) == [("q1", "d1", 1)]
    assert [path.name for path in reader.corpus_files()] == ["corpus.jsonl.gz"]


@quick
@given(rows=st.lists(st.tuples(an_id, unicode_text, unicode_text), min_size=1))
def test_any_unicode_document_survives_json_lines(rows, tmp_path):
    path = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"_id": id_, "title": title, "text": text}) for id_, title, text in rows]
    path.write_text("\n".join(lines), encoding="utf-8")

    assert list(read_documents(path)) == [Document(*row) for row in rows]


def test_truncated_gzip_data_are_named_with_their_line(write):
    text = "".join(f'{{"_id":"d{n}","text":"{n * 7919}"}}\n' for n in range(5000))
    path = write("corpus.jsonl.gz", text)
    path.write_bytes(path.read_bytes()[:-5000])

    with pytest.raises(BenchError, match=r"corpus.jsonl.gz:\d\d+: .*[Ee]nd-of-stream"):
        list(read_documents(path))


# qrels


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("", "has no judgements"),
        ("q1\td1\t0\nq3\td2\t-1\n", ": none of the 2 judgements has a grade"),
    ],
)
def test_qrels_without_a_relevant_document_are_refused(rows, problem, beir, write):
    write("qrels/test.tsv", HEADER + rows)
    with pytest.raises(BenchError, match=rf"test\.tsv ?{problem}"):
        beir.judgements()


def test_only_the_fields_of_a_query_are_checked_in_its_line(beir, write):
    write("queries.jsonl", '{"_id":"q1","text":"ask","title":5}\n')
    write("qrels/test.tsv", f"{HEADER}q1\td1\t1\n")
    assert beir.judgements().queries.texts == ("ask",)


def test_judged_queries_without_text_are_counted_and_named(beir, write):
    rows = "".join(f"x{n}\td1\t1\n" for n in range(7))
    write("qrels/test.tsv", f"{HEADER}q1\td1\t1\n{rows}")
    with pytest.raises(BenchError, match=r"7 judged queries are not .*: x0, x1, x2, x3 and 3 more"):
        beir.judgements()


# MS MARCO


@quick
@given(rows=st.lists(st.tuples(one_column, one_column), min_size=1))
def test_any_unicode_passage_survives_tab_separation(rows, tmp_path):
    path = tmp_path / "collection.tsv"
    path.write_bytes("".join(f"{id_}\t{text}\n" for id_, text in rows).encode())

    assert list(read_passages(path)) == [Document(id_, "", text) for id_, text in rows]


def test_titles_join_by_id_and_may_be_missing(write):
    collection = write("collection.tsv", "0\ta\n1\tb\n2\tc\n")
    titles = write("para.title.txt.gz", "0\tA\n2\tC\n")

    titled = list(read_titled_passages(collection, titles))

    assert titled == [Document("0", "A", "a"), Document("1", "", "b"), Document("2", "C", "c")]


@pytest.mark.parametrize(("titles", "line"), [("2\tC\n1\tB\n", 2), ("9\tZ\n", 1)])
def test_a_title_that_is_left_over_is_refused(titles, line, write):
    collection = write("collection.tsv", "0\ta\n1\tb\n2\tc\n")
    path = write("para.title.txt", titles)

    with pytest.raises(BenchError, match=fails_at(path, line, "does not follow")):
        list(read_titled_passages(collection, path))


OFFICIAL_NAMES = {
    "dev": ("queries.dev.small.tsv", "qrels.dev.small.tsv"),
    "dl19": ("msmarco-test2019-queries.tsv.gz", "2019qrels-pass.txt"),
    "dl20": ("msmarco-test2020-queries.tsv.gz", "2020qrels-pass.txt"),
    "mine": ("queries.mine.tsv", "qrels.mine.tsv"),
}


def test_the_splits_of_an_msmarco_folder_are_named_if_another_is_asked_for(tmp_path):
    for name in ("qrels.dev.small.tsv", "2019qrels-pass.txt", "qrels.mine.tsv.gz", "mine.qrels"):
        (tmp_path / name).touch()
    with pytest.raises(BenchError) as caught:
        reader_of_layout("msmarco")(tmp_path, "test").judgements()
    assert caught.value.hint.startswith("Choose one of its splits with --split: dev, dl19, mine")


@pytest.mark.parametrize("split", list(OFFICIAL_NAMES))
def test_msmarco_splits_are_found_by_their_distributed_names(split, write, tmp_path):
    queries, qrels = OFFICIAL_NAMES[split]
    write(queries, "7\t leading space\n8\tnot judged\n")
    write(qrels, "7 Q0 d1 1\n")

    judgements = reader_of_layout("msmarco")(tmp_path, split).judgements()

    assert judgements.queries.ids == ("7",)
    assert judgements.queries.texts == (" leading space",)
    assert list(judgements.qrels) == [("7", "d1", 1)]


# DPR


def test_dpr_questions_are_numbered_and_have_answers_but_no_qrels(write):
    path = write("nq-test.qa.csv", "who’s there\t['O\\'Neil', \"two\"]\nwhen\t['3']\n")

    judgements = read_questions(path)

    assert judgements.queries.ids == ("0", "1")
    assert judgements.queries.texts == ("who's there", "when")
    assert judgements.answers == {"0": ("O'Neil", "two"), "1": ("3",)}
    assert len(judgements.qrels) == 0


# Layouts


def test_a_folder_with_two_layouts_is_refused(write, tmp_path):
    write("corpus.jsonl", "")
    write("collection.tsv", "")
    with pytest.raises(BenchError, match="beir and msmarco"):
        detect_layout(tmp_path)


# What is wrong in a file


DPR_HEADER = "id\ttext\ttitle\n"
BAD_JSON = [
    ('{"_id":"d2","text":"cut', "is not JSON: Input data was truncated"),
    ('{"_id":"d2" "text":"x"}', "is not JSON: JSON is malformed"),
    ('{"_id":"d2"}', "field 'text' is missing"),
    ('{"_id":2.5,"text":"x"}', "the id is 2.5: expected"),
    ('{"id":true,"text":"x"}', "the id is True: expected text"),
    ('{"_id":"d2","text":"\\ud800', "is not JSON"),
    ('{"_id":"","text":"x"}', "the id is empty"),
    ('{"_id":"d\\u00002","text":"x"}', r"the id 'd\\x002' contains NUL"),
    ('{"_id":"d2","text":null}', "text is None: expected text"),
    ("[]", "expected a table"),
    (b'{"_id":"d2","text":"\xe9"}', "not UTF-8"),
]
BAD_ANSWERS = [
    ("when", "1 columns instead of 2"),
    ("when\t__import__('os').getcwd()", "not a Python list of strings"),
    ("when\t[]", "not a Python list of strings"),
    ("when\t'abc'", "not a Python list of strings"),
]
BAD_FILES = [
    (read_qrels, "q1\td1\t1\n", 1, "the header is"),
    (read_qrels, f"{HEADER}q1\td1\t1\nq1\td2\n", 3, "2 columns instead of 3"),
    (read_qrels, f"{HEADER}q1\td1\t0.5\n", 2, "'0.5' is not an integer"),
    (read_qrels, f"{HEADER}q1\td1\t99999999999\n", 2, "not an integer"),
    (read_qrels, f"{HEADER}q1\td1\t1\nq1\td1\t2\n", 3, "has grades 1 and 2"),
    (read_trec_qrels, "q1 0 d1 1\nq1 0 d2\n", 2, "3 columns instead of 4"),
    (read_passages, "0\ta\n1\n", 2, "1 columns instead of 2"),
    (read_passages, b"0\ta\n1\tb\n2\t\xff\n", 3, "not UTF-8"),
    (read_dpr_passages, "1\ttext\ttitle\n", 1, "the header is"),
    (read_dpr_passages, f"{DPR_HEADER}1\ttext\n", 2, "2 columns instead of 3"),
    (read_dpr_passages, f'{DPR_HEADER}1\t"open\tA\n2\tx\ty\n', 3, "unexpected end of data"),
    (read_dpr_passages, DPR_HEADER.encode() + b"1\t\xff\tx\n", 2, "not UTF-8"),
    *((read_questions, f"who\t['me']\n{line}\n", 2, message) for line, message in BAD_ANSWERS),
    *(
        (read, b'{"_id":"d1","text":"fine"}\n' + as_bytes(line), 2, message)
        for read in (read_documents, read_queries)
        for line, message in BAD_JSON
    ),
]


@pytest.mark.parametrize(("read", "content", "line", "message"), BAD_FILES)
def test_a_bad_line_is_refused_by_its_number(read, content, line, message, write):
    path = write("bad.txt.gz", content)
    with pytest.raises(BenchError, match=fails_at(path, line, message)):
        list(read(path))


# Real collections; counts as their distributors publish them


@pytest.mark.parametrize(
    ("layout", "folder", "split", "documents", "queries", "judgements"),
    [
        ("beir", "beir/scifact", "test", 5183, 300, 339),
        ("beir", "beir/scifact", "train", 5183, 809, 919),
        ("beir", "beir/nfcorpus", "test", 3633, 323, 12334),
        ("beir", "classic/cranfield", "test", 1400, 225, 1837),
        ("beir", "classic/cisi", "test", 1460, 76, 3114),
        ("msmarco", "msmarco-sample", "dev", 34988, 6980, 7437),
        ("msmarco", "msmarco-sample", "dev.sample", 34988, 1780, 1781),
        ("msmarco", "msmarco-sample", "dl19", 34988, 43, 9260),
        ("msmarco", "msmarco-sample", "dl20", 34988, 54, 11386),
        ("dpr", "nq-dpr-sample", "test", 18394, 3610, 0),
    ],
)
def test_real_collections_have_their_counts(
    layout, folder, split, documents, queries, judgements, bench_data
):
    reader = reader_of_layout(layout)(bench_data / folder, split)
    read = reader.judgements()

    assert detect_layout(bench_data / folder) == layout
    assert sum(1 for _ in reader.documents()) == documents
    assert (len(read.queries), len(read.qrels)) == (queries, judgements)
