"""A record of where users' own collections lie, by the content of queries and judgements.

A result holds the name of its collection, which for a folder of the user's own says nothing of
where it lies. The cache remembers that, so that the texts behind a result are found again.
"""

from pathlib import Path

import msgspec

from datasets_cfg.catalogue import dataset_names
from datasets_cfg.dataset import Dataset, open_dataset
from foundation.errors import BenchError
from foundation.files import replacing, sha256_of
from foundation.records import Record, read_json

MOST = 8  # folders of one content


class Folders(Record):
    """Folders that held the same queries and judgements, the last used first."""

    folders: tuple[str, ...] = ()


def remember(dataset: Dataset) -> None:
    """Remember the folder of a collection of the user's own; declared ones are found by name."""
    if dataset.name in dataset_names():
        return
    path = _path(dataset.cache_dir, dataset.queries_sha256, dataset.qrels_sha256)
    here, known = str(dataset.reader.folder.resolve()), _read(path).folders
    if known[:1] != (here,):
        others = [folder for folder in known if folder != here]
        with replacing(path) as file:
            file.write(msgspec.json.encode(Folders((here, *others)[:MOST])))


def open_remembered(
    queries_sha256: str, qrels_sha256: str, split: str, cache_dir: Path
) -> Dataset | None:
    """The collection of this content, if a folder that held it still does.

    Args:
        queries_sha256, qrels_sha256: as of `Dataset`.
        split: which judgements.
    """
    for folder in _read(_path(cache_dir, queries_sha256, qrels_sha256)).folders:
        try:
            dataset = open_dataset(folder, cache_dir=cache_dir, split=split or None, download=False)
        except BenchError:
            continue  # moved or changed since
        if (dataset.queries_sha256, dataset.qrels_sha256) == (queries_sha256, qrels_sha256):
            return dataset
    return None


def _read(path: Path) -> Folders:
    if not path.is_file():
        return Folders()
    try:
        return read_json(path, Folders)
    except BenchError:
        return Folders()  # only a memory: written anew by the next run


def _path(cache_dir: Path, queries_sha256: str, qrels_sha256: str) -> Path:
    return cache_dir / "folders" / f"{sha256_of([[queries_sha256, qrels_sha256]])[:16]}.json"
