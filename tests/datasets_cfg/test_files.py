"""Training files in the layouts of their programs, and files of documents."""

import gzip
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from datasets_cfg.readers.files import LAYOUTS, read_examples
from datasets_cfg.readers.reader import Document
from datasets_cfg.readers.reader import TrainingExample as Example
from foundation.errors import BenchError


def texts(query: str, positives: list[str], negatives: list[str], *scores: float) -> Example:
    sides = (tuple(Document("", "", text) for text in side) for side in (positives, negatives))
    return Example("", query, *sides, scores)


def ids(query: str, positives: list[str], negatives: list[str], *scores: float) -> Example:
    sides = (tuple(Document(name, "", "") for name in side) for side in (positives, negatives))
    return Example(query, "", *sides, scores)


# FlagEmbedding: examples/finetune/embedder/example_data/retrieval/msmarco.jsonl
FLAG = (
    '{"query": "color of urine", "pos": ["amber"], "neg": ["green", "red"], "pos_scores": [96.6], '
    '"neg_scores": [90, 89.5], "prompt": "Given a query", "type": "normal"}'
)
# Tevatron: docs/datasets.md, and the newer form of src/tevatron/retriever/dataset.py
TEVATRON = (
    '{"query_id": "1", "query": "color of urine", "positive_passages": [{"docid": "49", "title": '
    '"Urine", "text": "amber"}], "negative_passages": [{"docid": "7", "text": "green"}]}'
)
TEVATRON_IDS = (
    '{"query_id": "1", "query_text": "color", "query_image": null, "positive_document_ids": '
    '["49"], "negative_document_ids": ["7", "8"], "source": "msmarco"}'
)
# DPR: README.md, with the attributes of biencoder-nq-train.json
DPR_RECORD = {
    "dataset": "nq_train_psgs_w100",
    "question": "what’s the color",
    "answers": ["amber"],
    "positive_ctxs": [
        {"title": "Urine", "text": "amber", "score": 1000, "title_score": 1, "passage_id": "49"}
    ],
    "negative_ctxs": [
        {"title": "X", "text": "random", "score": 0, "title_score": 0, "passage_id": "3"}
    ],
    "hard_negative_ctxs": [
        {"title": "Y", "text": "green", "score": 8.1, "title_score": 0, "passage_id": "7"}
    ],
}
# sentence-transformers/msmarco-hard-negatives on the Hub: README.md
HARD_NEGATIVES = (
    '{"qid": 867436, "pos": [5238393], "neg": {"bm25": [11, 12, 13], '
    '"msmarco-distilbert-base-tas-b": [12, 21], "msmarco-MiniLM-L-6-v3": []}}'
)
DPR = Example(
    "", "what's the color", (Document("49", "Urine", "amber"),), (Document("7", "Y", "green"),)
)
TEVATRON_EXAMPLE = Example(
    "1", "color of urine", (Document("49", "Urine", "amber"),), (Document("7", "", "green"),)
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (FLAG, texts("color of urine", ["amber"], ["green", "red"], 96.6, 90, 89.5)),
        ('{"query": "q", "pos": ["p"]}', texts("q", ["p"], [])),
        (TEVATRON, TEVATRON_EXAMPLE),
        (TEVATRON_IDS, ids("1", ["49"], ["7", "8"])),
        (json.dumps([DPR_RECORD], indent=4), DPR),
        (
            "color of urine\tit is amber\tit is green\n",
            texts("color of urine", ["it is amber"], ["it is green"]),
        ),
        (HARD_NEGATIVES, ids("867436", ["5238393"], ["11", "12", "21", "13"])),
        ('{"qid": "PLAIN-3", "pos": []}', ids("PLAIN-3", [], [])),
        ('{"qid": 1, "query": "q", "pos": ["p"]}', texts("q", ["p"], [])),
        # Hofstätter et al.: README.md of neural-ranking-kd
        ("13.84\t-2.5e-1\t400\t154\t351\n", ids("400", ["154"], ["351"], 13.84, -0.25)),
        ("9\t1\ta color\tan amber\ta green\n", texts("a color", ["an amber"], ["a green"], 9, 1)),
        ("1185869\t0\t2942565\n", ids("1185869", ["0"], ["2942565"])),
        ("北京\t首都\t上海\n", texts("北京", ["首都"], ["上海"])),
        ('{"anchor": "q", "positive": "p", "negative": "n"}', texts("q", ["p"], ["n"])),
        (
            '{"query": "q", "positive": "p", "negative_1": "n", "negative_2": "m", '
            '"score": [3, 1, 2]}',
            texts("q", ["p"], ["n", "m"], 3, 1, 2),
        ),
        (
            '{"query": "q", "positive": "p", "negative": "n", "score": 2.5}',
            texts("q", ["p"], ["n"], 0, -2.5),
        ),
        (
            '{"query": "q", "positive": "p", "negative_1": "n", "negative_2": "m", '
            '"label": [2, -1]}',
            texts("q", ["p"], ["n", "m"], 0, -2, 1),
        ),
        ('{"query": "5", "positive": 0, "negative": "7"}', ids("5", ["0"], ["7"])),
        (
            '{"query_id": "5", "positive_id": "0", "negative_id": "7", "score": 1}',
            ids("5", ["0"], ["7"], 0, -1),
        ),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_record_in_the_layout_of_each_program_is_recognised(content, expected, packed, tmp_path):
    path = tmp_path / ("train.gz" if packed else "train")
    path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    assert list(read_examples(path)) == [expected]


def test_concatenated_arrays_are_read_to_the_end(tmp_path):
    array = json.dumps([DPR_RECORD], indent=4)
    (tmp_path / "train.json").write_text(f"{array}\n{array}\n[]\n")
    assert list(read_examples(tmp_path / "train.json")) == [DPR, DPR]


@pytest.mark.parametrize("block", [1, 7, 50])
def test_records_that_span_blocks_are_read_with_their_lines(block, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets_cfg.readers.files.BLOCK_LINES", block)
    path = tmp_path / "train.json"
    path.write_text(json.dumps([DPR_RECORD] * 5, indent=4))
    assert list(read_examples(path)) == [DPR] * 5
    wrong = json.dumps([*[DPR_RECORD] * 4, {"question": "q"}], indent=4)
    path.write_text(wrong)
    line = wrong[: wrong.rindex("{")].count("\n") + 1
    with pytest.raises(BenchError, match=rf"train\.json:{line}: .*there is no positive_ctxs"):
        list(read_examples(path))


def test_datasets_of_sentence_transformers_are_read_from_their_folders(tmp_path):
    datasets = pytest.importorskip("datasets")
    columns = {"anchor": ["q", "r"], "positive": ["p", "o"], "negative": ["n", "m"]}
    expected = [texts(q, [p], [n]) for q, p, n in zip(*columns.values(), strict=True)]
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "saved")
    (tmp_path / "hub").mkdir()
    parquet.write_table(pa.table(columns), tmp_path / "hub" / "train-00000-of-00001.parquet")
    lines = [
        json.dumps(dict(zip(columns, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    ]
    (tmp_path / "lines").mkdir()
    for number, line in enumerate(lines):
        (tmp_path / "lines" / f"{number}.jsonl").write_text(line)
    for folder in ("saved", "hub", "lines"):
        assert list(read_examples(tmp_path / folder)) == expected


TEXT = st.text(min_size=1, max_size=8).filter(lambda text: not text.isdecimal())  # not an id


@given(
    records=st.lists(
        st.tuples(TEXT, st.lists(TEXT, min_size=1, max_size=3), st.lists(TEXT, max_size=3)),
        max_size=5,
    ),
    indent=st.sampled_from([None, 1, 4]),
)
def test_any_texts_are_read_as_written(records, indent, tmp_path_factory):
    path = tmp_path_factory.mktemp("round") / "train.json"
    expected = [texts(q, p, n) for q, p, n in records]
    table = [{"query": q, "pos": p, "neg": n} for q, p, n in records]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in table))
    assert list(read_examples(path)) == expected if records else True
    path.write_text(json.dumps(table, indent=indent))
    assert list(read_examples(path)) == expected


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (FLAG + '\n{"query": "q", "pos": ["p"], "neg": ["n"]}', 2, "no scores, unlike the first"),
        ('{"query": "q", "pos": ["p"], "neg": ["n"], "neg_scores": [1]}', 1, "1 scores for 1 pos"),
        ('{"query": "q", "pos": ["p"]}\n\n{"query": "q"}', 3, "there is no pos"),
        ('{"query": "q", "pos": [1]}', 1, "FlagEmbedding: Expected `str | object`, got `int`"),
        ('{"query": "q", "pos": ["p"]}\n{"query": "q"', 2, "truncated"),
        ('{"query": "q", "pos": ["p", ""]}', 1, "or an empty one"),
        ('{"query": "q", "pos": ["p"], "positive": "o"}', 1, "FlagEmbedding and sentence-tr"),
        ('{"query": "q", "anchor": "a", "positive": "p"}', 1, "2 queries in one record"),
        (
            '{"query": "q", "pos": ["p", "o"], "neg": ["n"], "pos_scores": [1], '
            '"neg_scores": [2, 3]}',
            1,
            "1 + 2 scores for 2 positives and 1 negatives",
        ),
        ("1\t2\t3\n4\tsome text\t6\n", 2, "the row has a text, and the file has ids"),
        ('{"sentence1": "a", "label": 1}', 1, "the record has sentence1, label"),
        ("a b\tc\td\ne\tf\n", 2, "2 columns instead of 3"),
        ("\njust a text\n", 2, "no JSON and 1 tab-separated column"),
        ("1\tQ0\t2\t3\n", 1, "no JSON and 4 tab-separated columns"),
        ("q1\t9.5\t1\t2\t3\n", 1, "first 2 of 5 columns are not scores: could not convert"),
        ("1\tnan\t1\t2\t3\n", 1, "a score is not finite"),
        ('{"qid": 1, "pos": [2], "neg": {"bm25": [{"pid": 3}]}}', 1, "hard-negatives: Expected"),
        ('{"qid": 1, "pos": [2], "positive_id": 3}', 1, "by id and msmarco-hard-neg"),
        ('[\n{"question": "q", "positive_ctxs": [{"title": "no text"}]}\n]', 2, "text"),
        ('[\n{"question": "q",\n "positive_ctxs": oops}\n]', 3, "Expecting value"),
        ('[\n{"question": "q", "positive_ctxs": [{"text": "p"}]}', 3, "not closed"),
    ],
)
def test_a_malformed_record_gives_one_error_with_file_and_line(content, line, message, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(content)
    with pytest.raises(BenchError) as caught:
        list(read_examples(path))
    assert str(caught.value).startswith(f"{path}:{line}")
    assert message in str(caught.value)


def test_an_unknown_layout_is_refused_with_all_that_are_known(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}')
    with pytest.raises(BenchError) as caught:
        list(read_examples(tmp_path / "x.jsonl"))
    assert all(layout.name in caught.value.hint for layout in LAYOUTS)


def test_a_training_file_is_a_collection_in_which_equal_texts_are_one(tmp_path, open_):
    rows = [("q", "p", "n"), ("q", "other p", "p"), ("r", "p", "n")]
    names = ("anchor", "positive", "negative")
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    dataset = open_(path)
    assert dataset.queries.texts == ("q", "r")
    assert dataset.corpus.texts.to_pylist() == ["p", "n", "other p"]
    rows_of = dataset.corpus.rows_of(dataset.qrels.doc_ids).tolist()
    assert rows_of == [0, 2, 0]
    (tmp_path / "ids.tsv").write_text("1\t2\t3\n")
    with pytest.raises(BenchError, match="ids instead of texts"):
        open_(tmp_path / "ids.tsv")


def test_dpr_trains_on_ids_of_its_corpus_and_has_answers_otherwise(tmp_path, open_):
    (tmp_path / "psgs_w100.tsv").write_text('id\ttext\ttitle\n49\t"amber"\tUrine\n7\tgreen\tY\n')
    (tmp_path / "nq-test.qa.csv").write_text("who\t['me']\n")
    (tmp_path / "biencoder-nq-train.json").write_text(
        json.dumps([DPR_RECORD, DPR_RECORD], indent=4)
    )
    metadata = 'name = "dpr/nq"\n'
    (tmp_path / "dataset.toml").write_text(metadata)
    opened = {split: open_(tmp_path, split=split) for split in ("test", "train")}
    assert opened["test"].answers == {"0": ("me",)}
    training = opened["train"]
    assert list(training.qrels) == [("0", "49", 1), ("1", "49", 1)]
    assert training.queries.texts[0] == "what's the color"
    assert [each.negatives[0].id for each in training.reader.examples()] == ["7", "7"]
    assert training.metadata.counts.queries == 58_880
    assert training.corpus.folder == opened["test"].corpus.folder


def test_documents_are_read_from_a_corpus_alone_or_from_a_file_with_one_a_line(tmp_path, open_):
    def read(name: str) -> list[tuple[str, str]]:
        dataset = open_(tmp_path / name, with_judgements=False)
        assert len(dataset.queries) == 0
        columns = (dataset.corpus.titles.to_pylist(), dataset.corpus.texts.to_pylist())
        return list(zip(*columns, strict=True))

    (tmp_path / "notes.txt").write_text("one river\n\ntwo stones\n")
    (tmp_path / "notes.gz").write_bytes(gzip.compress(b"one river\ntwo stones"))
    (tmp_path / "notes.jsonl").write_text('{"text": "one river"}\n{"text": "two stones"}\n')
    for name in ("notes.txt", "notes.gz", "notes.jsonl"):
        assert read(name) == [("", "one river"), ("", "two stones")]
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "corpus.jsonl").write_text('{"_id": "d", "title": "T", "text": "one"}\n')
    assert read("alone") == [("T", "one")]
    (tmp_path / "bad.jsonl").write_text('{"text": "one"}\n{"contents": "two"}\n')
    with pytest.raises(BenchError, match=r"bad\.jsonl:2"):
        read("bad.jsonl")
