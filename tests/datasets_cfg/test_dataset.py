import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datasets_cfg.catalogue import metadata_for
from datasets_cfg.dataset import Dataset, open_remembered, remember_folder
from datasets_cfg.readers.reader import Qrels
from datasets_cfg.verification import check_counts, count_differences
from foundation.errors import BenchError

HEADER = "query-id\tcorpus-id\tscore\n"
CORPUS = '{"_id":"d1","title":"T","text":"one"}\n{"_id":"d2","text":""}\n'
QUERIES = '{"_id":"q1","text":"ask 1"}\n{"_id":"q2","text":"ask 2"}\n'
FILES = {
    "corpus.jsonl": CORPUS,
    "queries.jsonl": QUERIES,
    "qrels/test.tsv": f"{HEADER}q2\td1\t2\nq1\td1\t1\n",
    "qrels/dev.tsv": f"{HEADER}q1\td1\t1\nq1\tgone\t1\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's own folder in BEIR's layout, called mine."""
    return fill(tmp_path / "mine", FILES)


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def corpora(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "corpora").glob("*"))


def test_a_folder_needs_no_metadata(folder, open_):
    dataset = open_(folder)

    assert (dataset.name, dataset.metadata.layout, dataset.metadata.split) == (
        "mine",
        "beir",
        "test",
    )
    assert dataset.metadata.main_measure == "nDCG@10"
    assert not dataset.metadata.exclude_self
    assert dataset.queries.ids == ("q1", "q2")
    assert list(dataset.qrels) == [("q2", "d1", 2), ("q1", "d1", 1)]
    assert dataset.answers is None
    assert dataset.corpus.texts.to_pylist() == ["one", ""]


def test_a_folder_may_declare_metadata(folder, open_):
    (folder / "dataset.toml").write_text(
        'name = "ours"\nsplit = "dev"\nexclude_self = true\n[counts]\ndocuments = 2\n'
    )
    dataset = open_(folder)

    assert (dataset.name, dataset.metadata.split, dataset.metadata.exclude_self) == (
        "ours",
        "dev",
        True,
    )
    assert dataset.queries.ids == ("q1",)


def test_a_folder_that_claims_a_declared_name_has_the_metadata_of_that_collection(folder, open_):
    (folder / "dataset.toml").write_text('name = "beir/scifact"\n')
    dataset = open_(folder)

    assert dataset.metadata == metadata_for("beir/scifact")
    assert count_differences(dataset) == [
        "documents: 5,183 published, 2 found",
        "queries: 300 published, 2 found",
        "judgements: 339 published, 2 found",
    ]
    with pytest.raises(BenchError, match="not the published beir/scifact: documents: 5,183"):
        check_counts(dataset, allow_mismatch=False)
    assert not check_counts(dataset, allow_mismatch=True)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("exclude_self = false", "beir/scifact but changes its exclude_self"),
        ("depth = 10\n[counts]\ndocuments = 2", "changes its counts and depth"),
        ('main_measure = "R@5"', "changes its main_measure"),
    ],
)
def test_a_claimed_name_with_other_metadata_is_refused(text, named, folder, open_):
    (folder / "dataset.toml").write_text(f'name = "beir/scifact"\n{text}\n')
    with pytest.raises(BenchError, match=named) as caught:
        open_(folder)
    assert f'Write name = "another" into {folder}' in caught.value.hint


def test_no_folder_is_the_embedded_collection_or_a_suite(folder, tmp_path, open_):
    own = fill(tmp_path / "stdlib-code", FILES)
    with pytest.raises(BenchError, match="name stdlib-code of an embedded collection"):
        open_(own)
    (folder / "dataset.toml").write_text('name = "beir"\n')
    with pytest.raises(BenchError, match="claims the name beir of a suite"):
        open_(folder)


@pytest.mark.parametrize(
    ("place", "name"),
    [("datasets--owner--set/snapshots/0a1b", "hf/owner/set"), ("set/snapshots/monday", "monday")],
)
def test_only_a_snapshot_in_the_cache_of_the_hub_has_the_name_of_its_repository(
    place, name, tmp_path, open_
):
    assert open_(fill(tmp_path / place, FILES)).name == name


def test_judgements_that_are_added_never_change_the_hash_of_the_own(folder, open_):
    dataset = open_(folder)
    judged = dataset.with_judgements(Qrels(("q1",), ("d2",), np.array([1], dtype=np.int32)))
    again = replace(judged.with_judgements(judged.qrels), assumptions={"x": 1})
    assert judged.qrels_sha256 == again.qrels_sha256 == dataset.qrels_sha256


@pytest.mark.parametrize(
    "text",
    [
        *('nmae = "x"', "depth = 'many'", "depth = 0", "depth =", "layout = 5", 'name = ["a"]'),
        *('split = ".."', "exclude_self = 1", 'main_measure = "nDCG@0"'),
        *("[counts]\ndocuments = -1", '[[archives]]\nurl = "file:///etc/passwd"'),
    ],
)
def test_a_mistake_in_declared_metadata_is_named(text, folder, open_):
    (folder / "dataset.toml").write_text(text)
    with pytest.raises(BenchError, match=r"dataset\.toml"):
        open_(folder)


def test_a_name_of_the_catalogue_wins_over_a_folder(tmp_path, open_, monkeypatch):
    fill(tmp_path / "beir" / "scifact", FILES)
    monkeypatch.chdir(tmp_path)

    assert open_("beir/scifact", data_dir=tmp_path).metadata.exclude_self
    assert not open_("./beir/scifact").metadata.exclude_self


def test_opening_does_not_read_the_corpus(folder, tmp_path, open_):
    (folder / "corpus.jsonl").write_text("not JSON\n")
    dataset = open_(folder)

    assert len(dataset.queries) == 2
    assert corpora(tmp_path) == []
    with pytest.raises(BenchError, match=r"corpus\.jsonl:1"):
        _ = dataset.corpus


def test_a_corpus_without_a_manifest_is_built_again(folder, tmp_path, open_, caplog):
    old = open_(folder).corpus
    manifest = corpora(tmp_path)[0] / "manifest.json"
    written = manifest.read_text()
    manifest.unlink()

    assert open_(folder).corpus.sha256 == old.sha256
    assert "rebuilding it" in caplog.text
    assert manifest.read_text() == written


def test_splits_share_one_corpus_which_is_built_once(folder, tmp_path, open_):
    first = open_(folder).corpus
    (built,) = corpora(tmp_path)
    made = (built / "manifest.json").stat().st_mtime_ns

    second = open_(folder, split="dev").corpus

    assert corpora(tmp_path) == [built]
    assert (built / "manifest.json").stat().st_mtime_ns == made
    assert first.sha256 == second.sha256


def test_a_changed_file_gives_another_corpus(folder, tmp_path, open_):
    old = open_(folder).corpus
    (folder / "corpus.jsonl").write_text(CORPUS.replace("one", "two"))
    status = (folder / "corpus.jsonl").stat()
    os.utime(folder / "corpus.jsonl", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    new = open_(folder).corpus

    assert len(corpora(tmp_path)) == 2
    assert old.texts.to_pylist() == ["one", ""]
    assert new.texts.to_pylist() == ["two", ""]


def test_title_tracks_are_two_corpora(tmp_path, open_):
    files = {
        "collection.tsv": "1\tone\n2\ttwo\n",
        "para.title.txt": "2\tTwo\n",
        "queries.dev.small.tsv": "7\task\n",
        "qrels.dev.small.tsv": "7 0 1 1\n",
    }
    fill(tmp_path / "data" / "msmarco", files)
    plain, titled = 'title_track = "no-title"\n', 'title_track = "title"\n'
    own = tmp_path / "data" / "msmarco"
    titles = []
    for track in (plain, titled):
        (own / "dataset.toml").write_text(f'split = "dev"\n{track}')
        titles.append(open_(own).corpus.titles.to_pylist())

    assert titles == [["", ""], ["", "Two"]]
    assert len(corpora(tmp_path)) == 2


def test_hashes_cover_content_and_not_order(folder, open_):
    before = open_(folder)
    lines = QUERIES.splitlines()
    fill(folder, {"queries.jsonl": "\n".join(reversed(lines))})
    fill(folder, {"qrels/test.tsv": f"{HEADER}q1\td1\t1\nq2\td1\t2\n"})
    reordered = open_(folder)
    fill(folder, {"queries.jsonl": QUERIES.replace("ask 2", "ask two")})
    fill(folder, {"qrels/test.tsv": f"{HEADER}q1\td1\t1\nq2\td1\t1\n"})
    changed = open_(folder)

    assert reordered.queries.ids == ("q2", "q1")
    assert before.queries_sha256 == reordered.queries_sha256 != changed.queries_sha256
    assert before.qrels_sha256 == reordered.qrels_sha256 != changed.qrels_sha256


def test_a_folder_is_recognised_by_its_name_and_content_until_they_change(
    folder, tmp_path, open_, bench_data
):
    def again(dataset: Dataset) -> Path | None:
        content = (dataset.name, dataset.queries_sha256, dataset.qrels_sha256)
        found = open_remembered(*content, dataset.metadata.split, dataset.cache_dir)
        return found and found.reader.folder

    remember_folder(open_("beir/scifact", data_dir=bench_data))
    assert not (tmp_path / "cache" / "folders").exists()  # it is found by its name
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    for split in ("test", "dev"):
        dataset = open_(folder, split=split)
        assert again(dataset) is None
        remember_folder(dataset)
        remember_folder(open_(copy, split=split))
        assert again(dataset) == folder
    for damage in (b"", b"\xff\0"):
        for path in (tmp_path / "cache" / "folders").iterdir():
            path.write_bytes(damage)
        assert again(dataset) is None
    remember_folder(dataset)
    fill(folder, {"queries.jsonl": QUERIES.replace("ask 1", "ask otherwise")})
    assert again(dataset) is None


def test_an_embedded_collection_has_the_declared_split_only(open_):
    dataset = open_("stdlib-code")
    assert not dataset.metadata.exclude_self
    assert len(dataset.corpus) == dataset.metadata.counts.documents
    with pytest.raises(BenchError, match=r"train\.tsv"):
        open_("stdlib-code", split="train")
    assert open_("stdlib-code/train").metadata.split == "train"


@pytest.mark.parametrize(
    ("corpus", "queries", "message"),
    [
        ({"d1": {"text": ["a"]}}, {"q": "a"}, "documents: d1.text is a list: expected text"),
        ({"d1": {"text": "a", "title": 3}}, {"q": "a"}, "documents: d1.title is 3: expected text"),
        ({"d1": {}}, {"q": "a"}, "documents: the field 'text' is missing in d1"),
        ({"": {"text": "a"}}, {"q": "a"}, "the id of a document or query is empty"),
        ({"d1": {"text": "a"}}, {"q": None}, "queries: q is None: expected text"),
    ],
)
def test_errors_about_dictionaries_name_the_document(tmp_path, corpus, queries, message):
    with pytest.raises(BenchError, match=message):
        Dataset.from_dicts(corpus, queries, {"q": {"d1": 1}}, cache_dir=tmp_path)
