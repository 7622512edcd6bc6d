"""Runs: canonical order, TREC files in and out, and what is refused."""

import gzip
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluate import runs as runs_module
from bench.evaluate.runs import Run, read_run, write_run
from foundation.errors import BenchError
from retrievers.index.faiss_index import Hits

IDS = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=4)
SCORES = st.floats(width=32, allow_nan=False, allow_infinity=False)


def rows_of(run: Run) -> list[tuple[str, str, float]]:
    return [
        (query_id, doc_id, score)
        for query_id, doc_ids, scores in run.rankings()
        for doc_id, score in zip(doc_ids, scores.tolist(), strict=True)
    ]


def write(folder: Path, text: str | bytes, name: str = "run.trec") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_documents_are_ordered_by_score_then_by_id_in_bytes_both_falling():
    run = Run.from_rows("qqqqq", ["a", "é", "z", "b", "\U0001f600"], [1, 1, 1, 2, 1])
    assert [doc for _, doc, _ in rows_of(run)] == ["b", "\U0001f600", "é", "z", "a"]


def test_scores_that_differ_only_beyond_float32_are_tied():
    run = Run.from_rows("qq", ["a", "b"], [1.00000001, 1.0])
    assert [doc for _, doc, _ in rows_of(run)] == ["b", "a"]


@given(st.lists(st.tuples(st.sampled_from("pq"), IDS, st.sampled_from([0.0, 1.0, -2.5]))))
def test_the_order_is_that_of_sorting_score_and_bytes(rows):
    rows = list({(query, doc): (query, doc, score) for query, doc, score in rows}.values())
    run = Run.from_rows(*([row[i] for row in rows] for i in range(3)))
    for query_id, doc_ids, _ in run.rankings():
        own = [(score, doc.encode()) for query, doc, score in rows if query == query_id]
        assert [doc.encode() for doc in doc_ids] == [doc for _, doc in sorted(own, reverse=True)]


def test_hits_become_a_run_without_their_unfilled_places():
    hits = Hits(
        np.array([[2, 1, -np.inf], [-np.inf] * 3, [3, 2, 1]], dtype=np.float32),
        np.array([[3, 0, -1], [-1, -1, -1], [1, 2, 3]]),
    )
    ids = pa.chunked_array([["a", "b"], ["c", "d"]], type=pa.large_string())
    run = Run.from_hits(hits, ["p", "q", "r"], ids)
    assert run.query_ids == ("p", "q", "r")
    assert run.offsets.tolist() == [0, 2, 2, 5]
    assert run.doc_ids.to_pylist() == ["d", "a", "b", "c", "d"]
    assert run.scores.tolist() == [2, 1, 3, 2, 1]


def test_hits_with_a_nan_score_are_refused():
    hits = Hits(np.array([[np.nan]], dtype=np.float32), np.array([[0]]))
    with pytest.raises(BenchError, match="NaN"):
        Run.from_hits(hits, ["q"], pa.array(["a"], pa.large_string()))


def test_a_query_id_that_occurs_twice_is_refused():
    hits = Hits(np.ones((2, 1), dtype=np.float32), np.array([[0], [0]]))
    with pytest.raises(BenchError, match="occurs twice"):
        Run.from_hits(hits, ["q", "q"], pa.array(["a"], pa.large_string()))


def test_the_rank_column_is_ignored(tmp_path):
    run = read_run(write(tmp_path, "q Q0 a 1 1.5 t\nq Q0 b 2 2.5 t\n"))
    assert rows_of(run) == [("q", "b", 2.5), ("q", "a", 1.5)]


@pytest.mark.parametrize(
    "text",
    [
        "q\tQ0\ta\t1\t1.5\tt\nq\tQ0\tb\t2\t0.5\tt\n",
        "q  Q0 a 1   1.5 t  \n  q Q0 b 2 5e-1 t",
        "q Q0 a 1 1.5 t\r\nq Q0 b 2 +.5 t\r\n",
        "\n \nq Q0 a 1 1.5 t\n\n\t\nq Q0 b 2 0.5 t\n\n",
    ],
)
def test_any_white_space_separates_columns(tmp_path, text):
    assert rows_of(read_run(write(tmp_path, text))) == [("q", "a", 1.5), ("q", "b", 0.5)]


@pytest.mark.parametrize("block_bytes", [1, 7, 20])
def test_the_size_of_a_block_does_not_matter(tmp_path, monkeypatch, block_bytes):
    path = write(tmp_path, "".join(f"q{i % 3} Q0  d{i} 1 {i / 8} t\n" for i in range(20)))
    whole = rows_of(read_run(path))
    monkeypatch.setattr(runs_module, "_BLOCK_BYTES", block_bytes)
    assert rows_of(read_run(path)) == whole


def test_quotes_and_commas_are_part_of_an_id(tmp_path):
    run = read_run(write(tmp_path, 'q Q0 "a,b 1 1 t\n"q" Q0 \'c 1 1 t\n'))
    assert rows_of(run) == [("q", '"a,b', 1.0), ('"q"', "'c", 1.0)]


def test_queries_of_a_file_may_be_interleaved(tmp_path):
    text = "q Q0 a 1 1 t\np Q0 a 1 4 t\nq Q0 b 1 2 t\np Q0 b 1 3 t\n"
    run = read_run(write(tmp_path, text))
    assert rows_of(run) == [("q", "b", 2.0), ("q", "a", 1.0), ("p", "a", 4.0), ("p", "b", 3.0)]


def test_shuffled_lines_give_the_same_rankings(tmp_path):
    lines = [f"q{i % 7} Q0 d{i} 1 {i % 5} t\n" for i in range(200)]
    plain = read_run(write(tmp_path, "".join(lines)))
    random.Random(1).shuffle(lines)
    shuffled = read_run(write(tmp_path, "".join(lines)))
    assert sorted(rows_of(shuffled)) == sorted(rows_of(plain))
    assert {q: docs for q, docs, _ in shuffled.rankings()} == {
        q: docs for q, docs, _ in plain.rankings()
    }


GOOD = "q Q0 a 1 2.5 t\n\n"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("q Q0 b 2 1.5", "5 columns instead of 6"),
        ("q Q0 b 2 1.5 my tag", "7 columns instead of 6"),
        ("q Q0 b 2 high t", "score 'high' is not a number"),
        ("q Q0 b 2 1,5 t", "score '1,5' is not a number"),
        ("q Q0 b 2 nan t", "score 'nan' is not a finite float32"),
        ("q Q0 b 2 -inf t", "score '-inf' is not a finite float32"),
        ("q Q0 b 2 1e39 t", "score '1e39' is not a finite float32"),
        ("q Q0 a 2 1.5 t", "document 'a' occurs twice for query 'q'"),
        (b"q Q0 \xff 2 1.5 t", "not UTF-8"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, line, problem):
    line = line if isinstance(line, bytes) else line.encode()
    path = write(tmp_path, GOOD.encode() + line + b"\n")
    with pytest.raises(BenchError, match="line 3: ") as caught:
        read_run(path)
    assert str(path) in str(caught.value)
    assert problem in str(caught.value)


def test_one_document_may_be_found_by_two_queries(tmp_path):
    run = read_run(write(tmp_path, "q Q0 a 1 1 t\np Q0 a 1 1 t\n"))
    assert len(run) == 2


@pytest.mark.parametrize("text", ["", "\n", " \n\t\n"])
def test_an_empty_file_is_refused(tmp_path, text):
    with pytest.raises(BenchError, match="is empty"):
        read_run(write(tmp_path, text))


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(BenchError, match="nowhere"):
        read_run(tmp_path / "nowhere.trec")


def test_a_truncated_gzip_file_is_refused(tmp_path):
    whole = gzip.compress("".join(f"q Q0 d{i} 1 {i} t\n" for i in range(500)).encode())
    with pytest.raises(BenchError, match="cannot read run"):
        read_run(write(tmp_path, whole[: len(whole) // 2], "run.trec.gz"))


def test_a_file_that_is_not_gzip_is_refused(tmp_path):
    with pytest.raises(BenchError, match="cannot read run"):
        read_run(write(tmp_path, "q Q0 a 1 1 t\n", "run.trec.gz"))


@pytest.mark.parametrize("name", ["run.trec", "run.trec.gz"])
@given(rows=st.dictionaries(st.tuples(IDS, IDS), SCORES, min_size=1, max_size=8))
def test_a_written_run_reads_back_bit_for_bit(tmp_path_factory, name, rows):
    pairs = list(rows)
    run = Run.from_rows([q for q, _ in pairs], [d for _, d in pairs], list(rows.values()))
    path = tmp_path_factory.mktemp("runs") / name
    write_run(run, path, "tag")
    again = read_run(path)
    assert again.query_ids == run.query_ids
    assert again.offsets.tolist() == run.offsets.tolist()
    assert again.doc_ids.equals(run.doc_ids)
    assert again.scores.tobytes() == run.scores.tobytes()


def test_a_written_line_has_six_columns_a_rank_from_one_and_nine_digits(tmp_path):
    run = Run.from_rows("qq", ["a", "b"], [1 / 3, 2.0])
    write_run(run, tmp_path / "run.trec", "minilm")
    lines = (tmp_path / "run.trec").read_text().splitlines()
    assert lines == ["q Q0 b 1 2 minilm", "q Q0 a 2 0.333333343 minilm"]


def test_equal_runs_give_equal_compressed_files(tmp_path):
    run = Run.from_rows("q", ["a"], [1.0])
    write_run(run, tmp_path / "one.gz", "t")
    write_run(run, tmp_path / "two.gz", "t")
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()


@pytest.mark.parametrize("bad", ["", "a b", "a\tb", "a\nb", "\u00a0", "a\u2028", "\x1f", "\x85x"])
@pytest.mark.parametrize("place", ["query id", "document id", "tag"])
def test_what_a_run_file_cannot_carry_is_refused_by_name(tmp_path, bad, place):
    names = {"query id": "q", "document id": "d", "tag": "t", place: bad}
    run = Run.from_rows([names["query id"]], [names["document id"]], [1.0])
    with pytest.raises(BenchError, match=f"^{place} ") as caught:
        write_run(run, tmp_path / "run.trec", names["tag"])
    assert repr(bad) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = write(tmp_path, "old")

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(BenchError, match="No space left on device"):
        write_run(Run.from_rows("q", ["a"], [1.0]), path, "t")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_has_the_permissions_of_any_new_file(tmp_path):
    write_run(Run.from_rows("q", ["a"], [1.0]), tmp_path / "run.trec", "t")
    other = write(tmp_path, "", "other")
    assert (tmp_path / "run.trec").stat().st_mode == other.stat().st_mode
