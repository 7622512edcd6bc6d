"""Layouts of other tools: each form of a collection is the same dataset as BEIR's files."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bench.evaluation.judging import apply_protocol, drop_excluded, search_depth
from bench.evaluation.runs import Run
from datasets_cfg.catalogue import metadata_for, suite_for
from datasets_cfg.dataset import Dataset, all_assumptions
from datasets_cfg.download import detect_layout
from datasets_cfg.readers.qrels import read_qrels
from datasets_cfg.readers.reader import collect_assumptions
from datasets_cfg.readers.trec import read_topics
from datasets_cfg.verification import CHANGES_FILE, verify_dataset, write_repaired
from foundation.errors import BenchError
from foundation.records import read_object
from retrievers.index.hits import Hits
from tests.support.collections import DOCUMENTS, QRELS, QUERIES, ROOT, write_collection
from tests.support.hub import COMMIT, serve_dataset

Rows = list[dict[str, Any]]
CORPUS: Rows = [{"_id": id_, "title": t, "text": x} for id_, (t, x) in DOCUMENTS.items()]
ASKED: Rows = [{"_id": id_, "text": text} for id_, text in QUERIES.items()]
JUDGED: Rows = [{"query-id": q, "corpus-id": d, "score": g} for (q, d), g in QRELS.items()]
GRADES = list(zip(*zip(*QRELS, strict=True), QRELS.values(), strict=True))


def lines(path: Path, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def table(path: Path, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), path)


def with_id(rows: Rows) -> Rows:
    return [{"id": row["_id"], **{k: v for k, v in row.items() if k != "_id"}} for row in rows]


def parquet_of_hub(folder: Path) -> None:
    """The files that ``push_to_hub`` writes, with a corpus in two shards."""
    for number in (0, 1):
        table(folder / f"corpus/train-0000{number}-of-00002.parquet", CORPUS[number * 3 :][:3])
    table(folder / "queries/train-00000-of-00001.parquet", ASKED)
    table(folder / "qrels/train-00000-of-00001.parquet", JUDGED)


def converted_by_hub(folder: Path) -> None:
    """The files of the branch refs/convert/parquet, where mteb's qrels are the configuration
    default.
    """
    table(folder / "corpus/corpus/0000.parquet", CORPUS)
    table(folder / "queries/queries/0000.parquet", ASKED)
    table(folder / "default/test/0000.parquet", JUDGED)


def lines_of_mteb(folder: Path) -> None:
    lines(folder / "corpus.jsonl.gz", CORPUS)
    lines(folder / "queries.jsonl", with_id(ASKED))
    lines(folder / "qrels/test.jsonl", [{**row, "score": float(row["score"])} for row in JUDGED])


def splits_below_data(folder: Path) -> None:
    table(folder / "data/corpus-00000-of-00001.parquet", with_id(CORPUS))
    table(folder / "data/queries-00000-of-00001.parquet", ASKED)
    table(folder / "data/qrels-00000-of-00001.parquet", JUDGED)


def default_below_data(folder: Path) -> None:
    lines(folder / "corpus/test.jsonl", CORPUS)
    lines(folder / "queries/test.jsonl", ASKED)
    table(folder / "data/test-00000-of-00001.parquet", JUDGED)


def trec_qrels(folder: Path) -> None:
    lines(folder / "corpus.jsonl", CORPUS)
    lines(folder / "queries.jsonl", ASKED)
    (folder / "qrels").mkdir()
    rows = "".join(f"{query} 0 {document} {grade}\n" for query, document, grade in GRADES)
    (folder / "qrels/dev.tsv").write_text(rows)


def other_header(folder: Path) -> None:
    trec_qrels(folder)
    rows = "".join(f"{d}\t{g}.0\tan expert\t{q}\n" for q, d, g in GRADES)
    (folder / "qrels/dev.tsv").write_text(f"Corpus_ID\tRelevance \tby\tQuery_ID\n{rows}")


def repeated(folder: Path) -> None:
    lines(folder / "corpus.jsonl", [*CORPUS, CORPUS[2]])
    lines(folder / "queries.jsonl", [ASKED[0], *ASKED])
    lines(folder / "qrels.jsonl", [*JUDGED, JUDGED[0]])


FORMS: dict[Callable[[Path], None], set[str]] = {
    parquet_of_hub: {"the split train is used, the only one"},
    converted_by_hub: set(),
    lines_of_mteb: {"grades such as 1.0 are read as integers"},
    splits_below_data: set(),
    default_below_data: set(),
    trec_qrels: {
        "the split dev is used, the only one",
        "dev.tsv has four columns without a header, and is read as TREC qrels",
    },
    other_header: {
        "the split dev is used, the only one",
        "dev.tsv: Query_ID, Corpus_ID, Relevance are read as query, document and grade",
        "grades such as 1.0 are read as integers",
    },
    repeated: {
        "queries that occur twice, with equal texts, are read once",
        "documents that occur twice, with equal texts, are read once",
    },
}


def hashes(dataset: Dataset) -> tuple[str, str, str]:
    return dataset.corpus.sha256, dataset.queries_sha256, dataset.qrels_sha256


@pytest.mark.parametrize("write", FORMS, ids=lambda write: write.__name__)
def test_every_form_is_the_same_dataset_and_what_was_assumed_is_recorded(write, tmp_path, open_):
    write_collection(tmp_path / "beir")
    (tmp_path / "other").mkdir()
    write(tmp_path / "other")
    dataset = open_(tmp_path / "other")
    assert detect_layout(tmp_path / "other") == "beir"
    assert hashes(dataset) == hashes(open_(tmp_path / "beir"))
    assert set(all_assumptions(dataset)) == FORMS[write]
    assert {found.what for found in verify_dataset(dataset)} >= FORMS[write]
    assert all_assumptions(open_(tmp_path / "beir")) == {}


def test_integer_ids_nan_titles_and_lone_surrogates_are_counted(tmp_path, open_):
    table(tmp_path / "queries.parquet", [{"id": 7, "text": "wing"}])
    table(tmp_path / "qrels.parquet", [{"query-id": 7, "corpus-id": 1}])
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": 1, "title": NaN, "text": "a \\ud800b"}\n{"_id": 2, "title": null, "text": ""}\n'
    )
    dataset = open_(tmp_path)
    assert dataset.corpus.texts.to_pylist() == ["a �b", ""]
    assert dataset.corpus.titles.to_pylist() == ["", ""]
    assert list(dataset.qrels) == [("7", "1", 1)]
    assert all_assumptions(dataset) == {
        "ids that are integers are read as text": 5,
        "qrels.parquet has no grades, so all its documents have grade 1": 1,
        "titles that are NaN are read as no title": 1,
        "lone surrogates are read as U+FFFD": 1,
    }
    corpus = (tmp_path / "corpus.jsonl").read_text()
    (tmp_path / "corpus.jsonl").write_text(corpus.replace("NaN", "1.5"))
    with pytest.raises(BenchError, match=r"corpus.jsonl:1: title is 1.5: expected text"):
        _ = open_(tmp_path).corpus


def test_a_missing_shard_is_not_a_smaller_collection_nor_an_old_one_a_larger(tmp_path, open_):
    parquet_of_hub(tmp_path)
    second = tmp_path / "corpus/train-00001-of-00002.parquet"
    shutil.copy(second, tmp_path / "corpus/train-00000-of-00001.parquet")
    with pytest.raises(BenchError, match=r"mixes train-00000-of-00001\S+ with train-00000-"):
        open_(tmp_path)
    (tmp_path / "corpus/train-00000-of-00001.parquet").unlink()
    first = tmp_path / "corpus/train-00000-of-00002.parquet"
    (tmp_path / "corpus/train").mkdir()
    shutil.copy(first, tmp_path / "corpus/train/cache-0.arrow")
    assert not any("cache-0" in each for each in open_(tmp_path).assumptions)
    shutil.copy(first, tmp_path / "corpus/train.parquet")
    with pytest.raises(BenchError, match=r"mixes train-\S+ with train.parquet"):
        open_(tmp_path)
    (tmp_path / "corpus/train.parquet").unlink()
    second.unlink()
    with pytest.raises(BenchError, match=r"has 1 shard of train, but .*02\.parquet announces 2"):
        open_(tmp_path)


def test_judgements_without_a_split_are_those_of_the_split_that_was_asked_for(tmp_path, open_):
    write_collection(tmp_path)
    (tmp_path / "qrels/test.tsv").unlink()
    lines(tmp_path / "qrels.jsonl", JUDGED[:1])
    assert "qrels.jsonl is read as the split dev" in open_(tmp_path, split="dev").assumptions


ORIGINALS = {"corpus": "corpus.jsonl", "quer": "queries.jsonl", "": "qrels/test.tsv"}
SECOND_FILES = [
    "corpus.jsonl.gz",
    "corpus.parquet",
    "corpus/test.jsonl",
    "corpus/test-00000-of-00001.parquet",
    "data/corpus.jsonl",
    "queries.jsonl.gz",
    "queries.parquet",
    "query.jsonl",
    "queries/test.jsonl",
    "qrels/test.tsv.gz",
    "qrels/test.txt",
    "qrels/test.jsonl",
    "qrels/test/0000.parquet",
    "qrels.tsv",
    "default/test.tsv",
    "data/qrels/test.tsv",
]


@pytest.mark.parametrize("name", SECOND_FILES)
def test_a_second_file_that_could_be_meant_is_refused_unless_its_content_is_the_same(
    tmp_path, open_, name
):
    expected = hashes(open_(write_collection(tmp_path / "plain")))
    folder = write_collection(tmp_path / "both")
    original = folder / next(path for part, path in ORIGINALS.items() if part in name)
    second, content = folder / name, original.read_bytes()
    second.parent.mkdir(parents=True, exist_ok=True)

    def write(content: bytes) -> None:
        if second.suffix == ".parquet":
            is_json = original.suffix == ".jsonl"
            table(second, [json.loads(x) for x in content.splitlines()] if is_json else JUDGED[:1])
        elif second.suffix == ".jsonl" and original.suffix != ".jsonl":
            lines(second, JUDGED[:1])
        else:
            second.write_bytes(gzip.compress(content) if second.suffix == ".gz" else content)

    write(b"\n".join(content.splitlines()[:2]) + b"\n")
    with pytest.raises(BenchError, match="differ, and each could be meant") as caught:
        _ = open_(folder).corpus
    assert original.name in str(caught.value)
    assert second.name in str(caught.value)
    assert caught.value.hint == "Keep one of them in the folder."
    if original.suffix == ".jsonl" or second.suffix in (".tsv", ".txt", ".gz"):
        write(content)
        assert hashes(open_(folder)) == expected


def test_a_split_that_was_asked_for_is_not_replaced(tmp_path, open_):
    trec_qrels(tmp_path)
    with pytest.raises(BenchError, match=r"has no test\.tsv") as caught:
        open_(tmp_path, split="test")
    assert caught.value.hint == "Choose one of its splits with --split: dev."
    shutil.copy(tmp_path / "qrels/dev.tsv", tmp_path / "qrels/train.tsv")
    with pytest.raises(BenchError, match=r"has no test\.tsv") as caught:
        open_(tmp_path)
    assert caught.value.hint == "Choose one of its splits with --split: dev, train."


@pytest.mark.parametrize(
    ("content", "problem", "hint"),
    [
        ("q1\td1\t1\n", "and may be a judgement", "sed -i '1i query-id\\tcorpus-id\\tscore' "),
        ("q1 7 12 3\n", "or query, document, grade and one more column", "Write the header"),
        ("query-id\tdoc_id\tscore\tlabel\n", "the header is", "Write the header"),
        ("query-id\tcorpus-id\tscore\nq\td\tyes\n", "'yes' is not an integer", ""),
    ],
)
def test_qrels_that_can_mean_two_things_are_refused_with_both(content, problem, hint, tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text(content)
    with pytest.raises(BenchError, match=problem) as caught:
        read_qrels(path)
    assert hint in caught.value.hint


def test_judgements_of_one_file_have_the_same_columns(tmp_path):
    without = {key: value for key, value in JUDGED[0].items() if key != "score"}
    lines(tmp_path / "test.jsonl", [without, {**JUDGED[1], "score": 3}])
    with pytest.raises(BenchError, match=r"jsonl:2: .*score, unlike those of the first row"):
        read_qrels(tmp_path / "test.jsonl")


@pytest.mark.parametrize("part", ["corpus", "qrels"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_shard_without_a_column_that_others_have_is_refused(tmp_path, open_, part, first):
    parquet_of_hub(tmp_path)
    rows, lost = (CORPUS, "title") if part == "corpus" else (JUDGED, "score")
    shutil.rmtree(tmp_path / part)
    halves = rows[:3], [{k: v for k, v in row.items() if k != lost} for row in rows[3:]]
    for number, half in enumerate(halves[:: 1 if first else -1]):
        table(tmp_path / f"{part}/train-0000{number}-of-00002.parquet", half)
    with pytest.raises(
        BenchError, match=r"-of-00002.parquet has no (field title|grades), and train"
    ):
        _ = open_(tmp_path).corpus


def test_grades_and_ids_of_other_types_are_read_and_told(tmp_path):
    rows = [
        {"query-id": 1.0, "corpus-id": 2.0, "score": True},
        {"query-id": 1.0, "corpus-id": 3.0, "score": False},
    ]
    lines(tmp_path / "test.jsonl", rows)
    with collect_assumptions() as told:
        assert list(read_qrels(tmp_path / "test.jsonl")) == [("1", "2", 1), ("1", "3", 0)]
    assert told == {
        "ids such as 1.0 are read as integers": 4,
        "grades that are true or false are read as 1 or 0": 2,
    }
    (tmp_path / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t2 \nq\te\tTrue\n")
    assert list(read_qrels(tmp_path / "test.tsv")) == [("q", "d", 2), ("q", "e", 1)]


# TREC

TOPICS = """<top>
<num> Number: 301
<title> Wings &amp; lift < 3 kg

<desc> Description:
ignored
</top>
"""


XML = '<topics><topic number="301"><query>Wings &amp; lift < 3 kg</query></topic></topics>'


@pytest.mark.parametrize(
    ("topics", "name", "split"),
    [
        (TOPICS, ".robust04.txt", "robust04"),
        (XML, ".covid-round5.xml", "covid-round5"),
        (TOPICS, ".txt", "test"),
        (TOPICS, "", "test"),
    ],
)
def test_trec_topics_are_asked_by_their_titles(topics, name, split, tmp_path, open_):
    (tmp_path / f"topics{name}").write_text(topics)
    (tmp_path / f"qrels{name}").write_text("301 0 FR-1 1\n301 0 FR-2 0\n")
    assert open_(tmp_path, with_corpus=False).queries.texts == ("Wings & lift < 3 kg",)
    lines(tmp_path / "corpus.jsonl", [{"id": "FR-1", "title": "A", "text": "b"}])
    dataset = open_(tmp_path)
    assert (dataset.metadata.layout, dataset.metadata.split) == ("trec", split)
    assert dataset.corpus.titles.to_pylist() == ["A"]
    assert list(dataset.qrels) == [("301", "FR-1", 1), ("301", "FR-2", 0)]
    assert f"topics{name}: the titles of the topics are the queries" in dataset.assumptions
    (tmp_path / f"qrels{name.removesuffix('.xml')}.trec").write_text("301 0 FR-1 1\n")
    with pytest.raises(BenchError, match=r"several qrels of one split: qrels\S*, qrels"):
        open_(tmp_path)


TITLES = [
    ("<title> Wings with <i>lift</i> and drag </title> <desc> no", "Wings with lift and drag"),
    ("<title>Wings <desc> Description: no", "Wings"),
    ("<title>\n\nTopic: Wings\nand drag\n\n<narr> no", "Wings and drag"),
    ("<query>x < y and <b>z</b></query>", "x < y and z"),
]


@pytest.mark.parametrize(("title", "query"), TITLES)
@pytest.mark.parametrize("end", ["</top>", ""])
def test_a_title_ends_at_its_end_tag_or_the_next_field_and_a_topic_at_the_next(
    tmp_path, title, query, end
):
    path = tmp_path / "topics.txt"
    topics = [f"<top>\n<num> Number: {number}\n{title}\n{end}\n" for number in (1, 2)]
    path.write_text("".join(topics))
    with collect_assumptions() as told:
        found = read_topics(path)
    assert (found.ids, found.texts) == (("1", "2"), (query, query))
    assert told["topics without an end tag end at the next topic"] == (0 if end else 2)


def test_a_topic_without_a_number_is_named_by_its_line(tmp_path):
    (tmp_path / "topics.txt").write_text("<top>\n<num> 1\n<title> a\n</top>\n<top>\n<title> b\n")
    with pytest.raises(BenchError, match=r"topics.txt:5: a topic has no number or no title"):
        read_topics(tmp_path / "topics.txt")


# BRIGHT


@pytest.fixture
def bright(tmp_path, open_) -> Dataset:
    """Two hundred documents. Of three queries, two exclude documents."""
    documents = [{"id": f"d{n}", "content": f"passage {n}"} for n in range(200)]
    excluded = [["N/A"], [f"d{n}" for n in range(0, 90, 3)], ["d5", "d6"]]
    examples = [
        {"query": f"why {n}", "reasoning": "", "id": str(n), "excluded_ids": each}
        | {"gold_ids": [f"d{100 + n}", "d7"], "gold_ids_long": ["x"]}
        for n, each in enumerate(excluded)
    ]
    for split in ("biology", "pony"):
        table(tmp_path / f"bright/documents/{split}-00000-of-00001.parquet", documents)
        table(tmp_path / f"bright/examples/{split}-00000-of-00001.parquet", examples)
    return open_(tmp_path / "bright", split="pony")


def test_excluded_documents_leave_ranking_and_run_as_in_brights_own_program(bright):
    scores = np.random.default_rng(0).normal(size=(3, 200)).astype(np.float32)
    depth = search_depth(bright, 20)
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
    hits = Hits(np.take_along_axis(scores, rows, axis=1), rows)
    kept = drop_excluded(bright, hits, 20)
    run = Run.from_hits(hits, bright.queries.ids, bright.corpus.ids, bright.corpus.tie_rank)
    cut = apply_protocol(run, bright, 20)
    ids = bright.corpus.ids.to_pylist()
    for number, query in enumerate(bright.queries.ids):
        left = {ids[row]: score for row, score in enumerate(scores[number].tolist())}
        for name in bright.excluded.get(query, ()):
            left.pop(name)
        expected = sorted(left, key=lambda name: -left[name])[:20]
        assert [ids[row] for row in kept.rows[number]] == expected
        places = cut.documents[cut.offsets[number] : cut.offsets[number + 1]]
        assert [cut.ids[int(place)].as_py() for place in places] == expected


def test_exclusions_are_part_of_the_judgements(bright, open_):
    folder = bright.reader.folder
    assert bright.metadata.layout == "bright"
    assert {query: len(ids) for query, ids in bright.excluded.items()} == {"1": 30, "2": 2}
    path = folder / "examples/pony-00000-of-00001.parquet"
    table(path, [{**row, "excluded_ids": []} for row in parquet.read_table(path).to_pylist()])
    assert open_(folder, split="pony").qrels_sha256 != bright.qrels_sha256
    with pytest.raises(BenchError, match="excluded documents, which the copy cannot have"):
        write_repaired(lambda: bright, folder / "copy")


@pytest.mark.parametrize(("suite", "members"), [("nanobeir", 13), ("bright", 12)])
def test_declared_collections_name_a_commit_and_say_how_to_get_them(
    suite, members, open_, tmp_path
):
    names = suite_for(suite).members
    assert len(names) == members
    for name in names:
        repository, commit = metadata_for(name).hub.split("@")
        assert len(repository.split("/")) == 2
        assert len(commit) == 40
    with pytest.raises(BenchError, match="cannot get hf://") as caught:
        open_(names[0])
    assert f"bench fetch {names[0]}` on a connected machine" in caught.value.hint


# Copies, cut texts and repair


def test_verify_counts_unjudged_copies_and_cut_texts(tmp_path, open_):
    corpus: Rows = [{"_id": f"d{n}", "text": f"{n}" * 300} for n in range(6)]
    lines(tmp_path / "corpus.jsonl", [*corpus, {"_id": "copy", "text": "0" * 300}])
    lines(tmp_path / "queries.jsonl", [{"_id": f"q{n}", "text": "x"} for n in range(3)])
    judged = [("q0", "d0", 1), ("q1", "d0", 1), ("q1", "copy", 0), ("q2", "d1", 1)]
    rows = [{"query-id": q, "corpus-id": d, "score": g} for q, d, g in judged]
    lines(tmp_path / "qrels.jsonl", rows)
    found = verify_dataset(open_(tmp_path))
    assert [(each.severity, each.count, each.examples[:1]) for each in found] == [
        ("warning", 1, ("q0",)),
        ("note", 7, ("d0",)),
    ]


def test_a_copy_of_nfcorpus_would_count_as_wrong_for_112_queries(bench_data, open_):
    dataset = open_("beir/nfcorpus", data_dir=bench_data)
    (finding,) = verify_dataset(dataset)
    texts = dict(zip(dataset.corpus.ids.to_pylist(), dataset.corpus.texts.to_pylist(), strict=True))
    judged = set(zip(dataset.qrels.query_ids, dataset.qrels.doc_ids, strict=True))
    relevant = [(q, texts[d]) for q, d, grade in dataset.qrels if grade > 0]
    by_text: dict[str, list[str]] = {}
    for id_, text in texts.items():
        by_text.setdefault(text, []).append(id_)
    wrong = {q for q, text in relevant for id_ in by_text[text] if (q, id_) not in judged}
    assert (finding.severity, finding.count) == ("note", len(wrong)) == ("note", 112)


def test_a_repaired_copy_is_clean_and_lists_what_was_changed(tmp_path, open_):
    write_collection(tmp_path / "bad")
    with (tmp_path / "bad/corpus.jsonl").open("a") as file:
        file.write('{"_id": "d1", "text": "another"}\n{"_id": "d2"\n{"text": "no id"}\n')
        file.write('{"_id": 2.5, "text": "x"}\n{"_id": "title", "title": 7, "text": "x"}\n')
    with (tmp_path / "bad/queries.jsonl").open("a") as file:
        file.write('{"_id": "unjudged", "text": "x"}\n{"_id": "q1", "text": "another"}\n')
    (tmp_path / "bad/qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\n")
    with (tmp_path / "bad/qrels/test.tsv").open("a") as file:
        file.write("q1\td1\t0\nunknown\td1\t1\n")
    with pytest.raises(BenchError):
        open_(tmp_path / "bad")
    changes = write_repaired(lambda: open_(tmp_path / "bad"), tmp_path / "good")
    good = open_(tmp_path / "good")
    assert (tmp_path / "good" / CHANGES_FILE).read_text() == "".join(f"- {c}\n" for c in changes)
    assert len(changes) == 11
    assert sum(each.endswith(": the first one is kept: 1") for each in changes) == 2
    assert "queries without judgements are left out: 2" in changes
    assert changes[-1] == "splits that are left out: train"
    assert {each.severity for each in verify_dataset(good)} <= {"note", "warning"}
    assert good.corpus.texts.to_pylist() == [text for _, text in DOCUMENTS.values()]
    assert list(good.qrels) == [row for row in GRADES if row[1] != "not-here"]
    with pytest.raises(BenchError, match="exists already"):
        write_repaired(lambda: good, tmp_path / "good")


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("queries.jsonl", "", r"copy/qrels/test.tsv has no judgements"),
        ("corpus.jsonl", '{"_id": "a\\tb", "text": "x"}\n', r"id 'a\\tb' has a tab"),
        ("dataset.toml", 'split = "../../../outside"', "split is '../../../outside': expected"),
    ],
)
def test_a_copy_that_could_not_be_used_is_not_written(file, content, problem, tmp_path, open_):
    folder = write_collection(tmp_path / "bad")
    (folder / file).write_text(content)
    with pytest.raises(BenchError, match=problem):
        write_repaired(lambda: open_(folder), tmp_path / "copy")
    with pytest.raises(BenchError, match="has the name of a declared collection or suite"):
        write_repaired(lambda: open_(folder), tmp_path / "beir")
    assert {path.name for path in tmp_path.iterdir()} <= {"bad", "cache"}


@pytest.mark.parametrize(
    ("files", "split", "measure", "depth"),
    [
        ({"collection.tsv", "qrels.mine.tsv"}, "mine", "RR@10", 1000),
        ({"collection.tsv", "2019qrels-pass.txt"}, "dl19", "nDCG@10", 1000),
        ({"psgs_w100.tsv", "nq-dev.qa.csv"}, "dev", "Success@20", 100),
    ],
)
def test_the_layout_decides_measure_and_depth(files, split, measure, depth, tmp_path, open_):
    for name in files | {"queries.mine.tsv", "queries.dl19.judged.tsv"}:
        text = {"c": "1\tone\n", "p": "id\ttext\ttitle\n1\tone\t\n", "n": "who\t['one']\n"}
        (tmp_path / name).write_text(
            text.get(name[0], "7 0 1 1\n" if "qrels" in name else "7\ta\n")
        )
    metadata = open_(tmp_path).metadata
    assert (metadata.split, metadata.main_measure, metadata.depth) == (split, measure, depth)
    (tmp_path / "dataset.toml").write_text('main_measure = "RR@5"\ndepth = 7\nmeasures = []\n')
    metadata = open_(tmp_path).metadata
    assert (metadata.split, metadata.main_measure, metadata.depth) == (split, "RR@5", 7)


# ir_datasets


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset of local files in the registry of ir_datasets."""
    package = pytest.importorskip("ir_datasets")
    (tmp_path / "docs.tsv").write_text("".join(f"{d}\t{x}\n" for d, (_, x) in DOCUMENTS.items()))
    (tmp_path / "queries.tsv").write_text("".join(f"{q}\t{x}\n" for q, x in QUERIES.items()))
    rows = "".join(f"{query} 0 {document} {grade}\n" for query, document, grade in GRADES)
    (tmp_path / "qrels.txt").write_text(rows)
    made = package.create_dataset(
        *(str(tmp_path / name) for name in ("docs.tsv", "queries.tsv", "qrels.txt"))
    )
    for name in ("mine/test", "mine"):
        monkeypatch.setitem(package.registry._registered, name, made)
    return "ir_datasets:mine/test"


def test_a_dataset_of_ir_datasets_is_that_of_its_files(registered, tmp_path, open_):
    with pytest.raises(BenchError, match="downloads are off"):
        open_(registered)
    dataset = open_(registered, download=True)
    untitled = {id_: ("", text) for id_, (_, text) in DOCUMENTS.items()}
    write_collection(tmp_path / "beir", untitled)
    assert hashes(dataset) == hashes(open_(tmp_path / "beir"))
    assert dataset.name == "ir_datasets/mine/test"
    assert dataset.metadata.version.startswith("ir_datasets ")
    assert open_(registered).name == dataset.name
    with pytest.raises(BenchError, match=r"cannot read 'mine/none': there is no .*mine/none"):
        open_("ir_datasets:mine/none", download=True)
    assert open_("ir_datasets:mine", download=True).name == "ir_datasets/mine"
    with pytest.raises(BenchError, match="is not in "):
        open_(f"ir_datasets:../../../{tmp_path.name}/beir")


# The Hugging Face Hub


@pytest.mark.slow
def test_a_collection_of_the_hub_is_its_clone_at_a_commit_and_needs_no_network_later(tmp_path):
    """With a server of this test, in other processes, which read HF_ENDPOINT at import."""
    (tmp_path / "name").mkdir()
    parquet_of_hub(tmp_path / "name")
    (tmp_path / "name/name.py").write_text("raise SystemExit(9)\n")
    results = tmp_path / "results"
    places = {"HF_HOME": str(tmp_path / "hf"), "BENCH_CACHE": str(tmp_path / "cache")}
    environment = {**os.environ, **places, "HF_HUB_OFFLINE": "0", "no_proxy": "127.0.0.1"}

    def bench(*words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bench", *map(str, words)]
        return subprocess.run(
            command, env={**environment, **more}, cwd=ROOT, text=True, capture_output=True
        )

    with serve_dataset(tmp_path / "name", "owner/name") as server:
        run = ("run", "hf://owner/name", tmp_path / "name", "--model", "bm25", "--results", results)
        done = bench(*run, HF_ENDPOINT=server.base)
        assert done.returncode == 0, done.stderr
        assert not any(path.endswith(".py") for path in server.paths)
    stored = {
        r["protocol"]["collection"]: r for r in map(read_object, results.rglob("result.json"))
    }
    hub, clone = stored["hf/owner/name"], stored["name"]
    assert hub["measures"] == clone["measures"]
    assert f"hf://owner/name is read at commit {COMMIT}" in hub["assumptions"]
    assert f"hf://owner/name is read at commit {COMMIT}" in done.stderr
    again = bench("verify", "hf://owner/name", "hf://owner/other", "--json", HF_HUB_OFFLINE="1")
    found = json.loads(again.stdout)
    assert "error" not in {each["severity"] for each in found["hf://owner/name"]}
    assert "cannot get hf://owner/other" in found["hf://owner/other"][0]["what"]


def test_bytes_in_a_parquet_file_that_are_not_utf8_are_refused(tmp_path, open_):
    write_collection(tmp_path)
    (tmp_path / "corpus.jsonl").unlink()
    text = pa.array([b"\xff"]).view(pa.string())
    columns = {"_id": pa.array(["d1"]), "text": text}
    parquet.write_table(pa.table(columns), tmp_path / "corpus.parquet")
    with pytest.raises(BenchError, match=r"corpus\.parquet cannot be read: .*utf-8"):
        _ = open_(tmp_path).corpus


def test_only_columns_of_a_collection_are_read_from_parquet_and_both_formats_of_arrow(
    tmp_path, open_
):
    expected = open_(write_collection(tmp_path / "one")).corpus.sha256
    (tmp_path / "one/corpus.jsonl").unlink()
    no_date = pa.array([2**62] * len(CORPUS), pa.timestamp("us"))
    rows = pa.Table.from_pylist(CORPUS).append_column("when", no_date)
    parquet.write_table(rows, tmp_path / "one/corpus.parquet")
    assert open_(tmp_path / "one").corpus.sha256 == expected
    (tmp_path / "one/corpus.parquet").unlink()
    for write in (pa.ipc.new_file, pa.ipc.new_stream):
        with write(tmp_path / "one/corpus.arrow", rows.schema) as writer:
            writer.write_table(rows)
        assert open_(tmp_path / "one").corpus.sha256 == expected
    parquet.write_table(rows.select(["when"]), tmp_path / "one/qrels/dev.parquet")
    with pytest.raises(BenchError, match=r"dev\.parquet cannot be read: "):
        open_(tmp_path / "one", split="dev")
