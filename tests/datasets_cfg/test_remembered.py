"""Folders of collections of the user's own are found again by their content."""

import shutil
from pathlib import Path

import pytest

from datasets_cfg.dataset import Dataset, open_dataset, open_remembered, remember

HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "d1", "text": "one"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "ask"}\n')
    for split in ("test", "dev"):
        (folder / "qrels" / f"{split}.tsv").write_text(f"{HEADER}q1\td1\t{len(split)}\n")
    return folder


def opened(folder: Path, split: str | None = None) -> Dataset:
    return open_dataset(str(folder), cache_dir=folder.parent / "cache", split=split)


def again(dataset: Dataset) -> Dataset | None:
    hashes = dataset.queries_sha256, dataset.qrels_sha256
    return open_remembered(*hashes, dataset.facts.split, dataset.cache_dir)


def test_a_folder_is_found_again_by_what_it_holds(mine):
    for split in ("test", "dev"):
        dataset = opened(mine, split)
        assert again(dataset) is None
        remember(dataset)
        found = again(dataset)
        assert found is not None
        assert (found.reader.folder, found.facts.split) == (mine, split)


def test_what_was_changed_or_moved_is_not_found(mine):
    dataset = opened(mine)
    remember(dataset)
    (mine / "queries.jsonl").write_text('{"_id": "q1", "text": "ask otherwise"}\n')
    assert again(dataset) is None
    shutil.rmtree(mine)
    assert again(dataset) is None


def test_the_folder_that_was_used_last_comes_first_and_the_next_one_serves_where_it_is_gone(
    mine, tmp_path
):
    remember(opened(mine))
    copy = shutil.copytree(mine, tmp_path / "copy")
    dataset = opened(copy)
    remember(dataset)
    assert again(dataset).reader.folder == copy
    shutil.rmtree(copy)
    assert again(dataset).reader.folder == mine


def test_a_damaged_memory_is_forgotten(mine):
    dataset = opened(mine)
    remember(dataset)
    (path,) = (dataset.cache_dir / "folders").iterdir()
    path.write_bytes(b"\xff")
    assert again(dataset) is None
    remember(dataset)
    assert again(dataset) is not None


def test_a_declared_collection_is_not_remembered(bench_data, tmp_path):
    remember(open_dataset("beir/scifact", cache_dir=tmp_path, data_dir=bench_data))
    assert not (tmp_path / "folders").exists()
