"""Runs: canonical order, TREC files in and out, and what is refused."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluation import run_files
from bench.evaluation.run_files import encode_columnar, encode_trec, read_run_file
from bench.evaluation.runs import Run, find_strings
from foundation.errors import BenchError
from retrievers.index.hits import Hits

IDS = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=4)
SPACED = IDS | st.sampled_from(
    ["", "a b", "a%20b", "a\tb", "a\nb", "\u00a0", "a\u2028", "\x1f", "\x85x"]
)
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


@given(st.lists(st.tuples(st.sampled_from("pq"), IDS, st.sampled_from([0.0, 1.0, -2.5]))))
def test_the_order_is_that_of_sorting_score_and_bytes(rows):
    rows = list({(query, doc): (query, doc, score) for query, doc, score in rows}.values())
    run = Run.from_rows(*([row[i] for row in rows] for i in range(3)))
    for query_id, doc_ids, _ in run.rankings():
        own = [(score, doc.encode()) for query, doc, score in rows if query == query_id]
        assert [doc.encode() for doc in doc_ids] == [doc for _, doc in sorted(own, reverse=True)]


@given(st.data())
def test_hits_give_the_run_of_their_rows(data):
    names = data.draw(st.lists(IDS, min_size=1, max_size=6, unique=True))
    in_order = sorted(names, key=str.encode)
    ranks = np.array([in_order.index(name) for name in names])
    places = st.lists(st.sampled_from(range(len(names))), unique=True, max_size=len(names))
    found = data.draw(st.lists(places, min_size=1, max_size=3))
    hits = Hits(
        np.full((len(found), len(names)), -np.inf, np.float32),
        np.full((len(found), len(names)), -1),
    )
    for query, rows in enumerate(found):
        hits.rows[query, : len(rows)] = rows
        hits.scores[query, : len(rows)] = np.arange(len(rows), 0, -1)
    run = Run.from_hits(hits, "pqr"[: len(found)], pa.array(names, pa.large_string()), ranks)
    assert [docs for _, docs, _ in run.rankings()] == [
        [names[row] for row in rows] for rows in found
    ]
    assert run.ids.to_pylist() == [name for name in in_order if name in run.doc_ids.to_pylist()]


@given(st.lists(IDS), st.lists(IDS, min_size=1))
def test_places_of_ids_are_those_of_a_search_from_the_first(held, asked):
    run = Run.from_rows([str(number) for number in range(len(held))], held, [1.0] * len(held))
    known = run.ids.to_pylist()
    expected = [known.index(name) if name in known else -1 for name in asked]
    assert find_strings(pa.array(asked, pa.large_string()), run.ids).tolist() == expected


@pytest.mark.parametrize(
    ("scores", "queries", "problem"), [([np.nan], "q", "NaN"), ([1, 1], "qq", "occurs twice")]
)
def test_hits_without_a_number_or_of_one_query_twice_are_refused(scores, queries, problem):
    hits = Hits(np.array(scores, np.float32)[:, None], np.zeros((len(scores), 1), np.int64))
    with pytest.raises(BenchError, match=problem):
        Run.from_hits(hits, queries, pa.array(["a"], pa.large_string()), np.arange(1))


@pytest.mark.parametrize(
    "text",
    [
        "q\tQ0\ta\t1\t1.5\tt\nq\tQ0\tb\t2\t0.5\tt\n",
        "q  Q0 a 1   1.5 t  \n  q Q0 b 2 5e-1 t",
        "q Q0 a 1 1.5 t\r\nq Q0 b 2 +.5 t\r\n",
        "\n \nq Q0 a 1 1.5 t\n\n\t\nq Q0 b 2 0.5 t\n\n",
    ],
    ids=["tabs", "blanks", "carriage returns", "empty lines"],
)
def test_any_white_space_separates_columns(tmp_path, text):
    assert rows_of(read_run_file(write(tmp_path, text)).run) == [("q", "a", 1.5), ("q", "b", 0.5)]


@pytest.mark.parametrize("block_bytes", [1, 7, 20])
def test_the_size_of_a_block_does_not_matter(tmp_path, monkeypatch, block_bytes):
    path = write(tmp_path, "".join(f"q{i % 3} Q0  d{i} 1 {i / 8} t\n" for i in range(20)))
    whole = rows_of(read_run_file(path).run)
    monkeypatch.setattr(run_files, "_BLOCK_BYTES", block_bytes)
    assert rows_of(read_run_file(path).run) == whole


GOOD = "q Q0 a 1 2.5 t\n\n"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("q Q0 b 2 1.5", "Expected 6 columns, got 5: q Q0 b 2 1.5"),
        ("q Q0 b 2 high t", "invalid value 'high'"),
        ("q Q0 b 2 1_0.5 t", "invalid value '1_0.5'"),
        ("q Q0 b 2 １ t", "invalid value '１'"),
        ("q Q0 b 2 1e39 t", "beyond the range of float32"),
        ("q Q0 a 2 1.5 t", "document 'a' occurs twice for query 'q'"),
        (b"q Q0 \xff 2 1.5 t", "invalid UTF8"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, line, problem):
    line = line if isinstance(line, bytes) else line.encode()
    path = write(tmp_path, GOOD.encode() + line + b"\n")
    with pytest.raises(BenchError, match="line 3: ") as caught:
        read_run_file(path)
    assert str(path) in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize("name", ["run.trec", "run.arrow"])
@given(data=st.data())
def test_a_written_run_reads_back_bit_for_bit(tmp_path_factory, name, data):
    ids = SPACED if name == "run.arrow" else IDS
    rows = data.draw(st.dictionaries(st.tuples(ids, ids), SCORES, min_size=1, max_size=8))
    pairs = list(rows)
    run = Run.from_rows([q for q, _ in pairs], [d for _, d in pairs], list(rows.values()))
    path = tmp_path_factory.mktemp("runs") / name
    path.write_bytes(encode_columnar(run) if name == "run.arrow" else encode_trec(run, "tag"))
    again = read_run_file(path).run
    assert again.query_ids == run.query_ids
    assert again.offsets.tolist() == run.offsets.tolist()
    assert again.doc_ids.equals(run.doc_ids)
    assert again.scores.tobytes() == run.scores.tobytes()


def test_a_columnar_file_keeps_queries_without_documents(tmp_path):
    none = Run.from_rows([], [], [])
    empty = Run(("p", ""), np.zeros(3, np.int64), none.ids, none.documents, none.scores)
    path = write(tmp_path, encode_columnar(empty).to_pybytes(), "empty.arrow")
    assert read_run_file(path).run.query_ids == ("p", "")


def test_other_programs_read_a_columnar_file(tmp_path):
    run = Run.from_rows("qqp", ["b", "a", "b"], [0.5, 1.5, 2.5])
    path = write(tmp_path, encode_columnar(run).to_pybytes(), "run.arrow")
    frame = pd.read_feather(path)
    assert frame.astype({"query": str, "document": str}).values.tolist() == [
        ["q", "a", 1.5],
        ["q", "b", 0.5],
        ["p", "b", 2.5],
    ]


def test_a_columnar_file_in_any_order_gives_the_canonical_one(tmp_path):
    """Also with a dictionary that is not in order, or holds an id twice."""
    columns = {
        "query": pa.array(["q", "p", "q", "q"], pa.large_string()).dictionary_encode(),
        "document": pa.DictionaryArray.from_arrays(
            pa.array([2, 0, 1, 3], pa.int32()), pa.array(["z", "b", "a", "é"], pa.large_string())
        ),
        "score": pa.array([1, 1, 1, 2], pa.float32()),
    }
    assert rows_of(read_run_file(arrow_file(tmp_path, columns)).run) == [
        ("q", "é", 2.0),
        ("q", "b", 1.0),
        ("q", "a", 1.0),
        ("p", "z", 1.0),
    ]
    twice = pa.array(["a", "a", "b", "c"], pa.large_string())
    columns["document"] = pa.DictionaryArray.from_arrays(pa.array([0, 2, 1, 3], pa.int32()), twice)
    with pytest.raises(BenchError, match="document 'a' occurs twice for query 'q'"):
        read_run_file(arrow_file(tmp_path, columns))


def arrow_file(folder: Path, columns: dict[str, pa.Array]) -> Path:
    batch = pa.record_batch(columns)
    with pa.ipc.new_file(folder / "run.arrow", batch.schema) as writer:
        writer.write_batch(batch)
    return folder / "run.arrow"


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_columnar_file_that_is_cut_is_refused_by_name(tmp_path, kept):
    content = encode_columnar(Run.from_rows("qqp", "bab", [1, 2, 3])).to_pybytes()
    path = write(tmp_path, b"ARROW1" + content[6 : int(kept * len(content))], "run.arrow")
    with pytest.raises(BenchError, match=r"run\.arrow: damaged"):
        read_run_file(path)


def test_a_written_line_has_six_columns_ranks_from_one_and_float32_digits():
    run = Run.from_rows("qq", ["a", "b"], [1 / 3, 2.0])
    written = encode_trec(run, "minilm")
    assert gzip.decompress(written) == b"q Q0 b 1 2 minilm\nq Q0 a 2 0.33333334 minilm\n"
    assert written == encode_trec(run, "minilm")


@pytest.mark.parametrize(
    ("place", "bad"),
    [("query id", ""), ("document id", "a b"), ("tag", ""), ("tag", "a b"), ("tag", "\u00a0")],
)
def test_ids_that_a_run_file_cannot_hold_are_refused_by_name(bad, place):
    names = {"query id": "q", "document id": "d", "tag": "t", place: bad}
    run = Run.from_rows([names["query id"]], [names["document id"]], [1.0])
    with pytest.raises(BenchError, match=f"^{place} ") as caught:
        encode_trec(run, names["tag"])
    assert repr(bad) in str(caught.value)
