"""What makes a collection the published one: the checksum of its archive, else its counts."""

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from datasets_cfg import dataset as dataset_module
from datasets_cfg.dataset import Dataset, open_dataset
from datasets_cfg.facts import Archive, Counts, Facts
from datasets_cfg.published import check_published, differences
from foundation.errors import BenchError

FILES = {
    "corpus.jsonl": '{"_id": "d1", "text": "one"}\n{"_id": "d2", "text": "two"}\n',
    "queries.jsonl": '{"_id": "q1", "text": "ask"}\n',
    "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
}
# The archive is right, and whoever declared these counts was wrong.
WRONG = Counts(documents=3, queries=2, judgements=9)
Declare = Callable[[Facts], None]


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Declare:
    """Let a declared collection have other facts."""
    monkeypatch.delenv("BENCH_DATA", raising=False)

    def as_scifact(facts: Facts) -> None:
        monkeypatch.setattr(dataset_module, "facts_for", lambda _: facts)

    return as_scifact


@pytest.fixture
def archive(file_server) -> Archive:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as opened:
        for name, text in FILES.items():
            opened.writestr(f"scifact/{name}", text)
    file_server.files["scifact.zip"] = content.getvalue()
    md5 = hashlib.md5(content.getvalue()).hexdigest()
    return Archive(file_server.url("scifact.zip"), md5, folder="scifact")


def facts_of(archive: Archive) -> Facts:
    return Facts("beir/scifact", "beir", archives=(archive,), counts=WRONG)


def opened(cache: Path, **options: object) -> Dataset:
    return open_dataset("beir/scifact", cache_dir=cache, **options)  # type: ignore[arg-type]


def test_what_an_archive_of_the_published_checksum_held_is_official_whatever_was_counted(
    declare, archive, tmp_path
):
    declare(facts_of(archive))
    assert check_published(opened(tmp_path), allow_mismatch=False)
    assert check_published(opened(tmp_path), allow_mismatch=False, with_corpus=False)


def test_a_copy_of_the_unpacked_folder_is_official_too(declare, archive, tmp_path):
    declare(facts_of(archive))
    opened(tmp_path / "cache")
    shutil.copytree(tmp_path / "cache" / "data" / "beir" / "scifact", tmp_path / "copy")
    assert differences(opened(tmp_path / "other cache", data_dir=tmp_path / "copy")) == []


def cut_corpus(folder: Path) -> None:
    (folder / "corpus.jsonl").write_text('{"_id": "d1", "text": "one"}\n')


def other_judgements(folder: Path) -> None:
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td2\t1\n")


def no_record(folder: Path) -> None:
    (folder / "scifact.zip.provenance.json").unlink()


def record_of_another_archive(folder: Path) -> None:
    path = folder / "scifact.zip.provenance.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"md5": "0" * 32}))


@pytest.mark.parametrize(
    "spoil", [cut_corpus, other_judgements, no_record, record_of_another_archive]
)
def test_changed_files_and_files_of_unknown_origin_are_counted(spoil, declare, archive, tmp_path):
    declare(facts_of(archive))
    spoil(opened(tmp_path).reader.folder)
    dataset = opened(tmp_path)
    with pytest.raises(BenchError, match="not the published beir/scifact: documents: 3 published"):
        check_published(dataset, allow_mismatch=False)
    assert not check_published(dataset, allow_mismatch=True)


def test_a_damaged_record_of_the_origin_is_named(declare, archive, tmp_path):
    declare(facts_of(archive))
    path = opened(tmp_path).reader.folder / "scifact.zip.provenance.json"
    path.write_text("{")
    with pytest.raises(BenchError, match=r"provenance\.json is not JSON") as caught:
        differences(opened(tmp_path))
    assert caught.value.hint == f"remove it: rm {path}"


def test_an_archive_without_a_published_checksum_proves_nothing(
    declare, archive, tmp_path, file_server
):
    declare(facts_of(Archive(archive.url, folder="scifact")))
    dataset = opened(tmp_path)
    assert not list(dataset.reader.folder.glob("*.provenance.json"))
    assert differences(dataset)


def test_files_of_the_user_with_the_published_counts_are_official(declare, archive, tmp_path):
    counts = Counts(documents=2, queries=1, judgements=1, dangling_judgements=5, distinct_texts=1)
    declare(Facts("beir/scifact", "beir", archives=(archive,), counts=counts))
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    dataset = opened(tmp_path / "cache", data_dir=tmp_path)
    assert dataset.reader.folder == tmp_path
    assert check_published(dataset, allow_mismatch=False)
