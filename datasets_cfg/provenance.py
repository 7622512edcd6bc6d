"""A record of the archive that the files of a folder came from, if its checksum was right.

The record lies beside the files and holds the hash of each, so that it vouches for nothing that was
cut, changed or put there afterwards.
"""

from collections.abc import Iterable
from pathlib import Path

from datasets_cfg.facts import Archive, Facts
from foundation.files import sha256_of_file
from foundation.records import Record, read_json, write_json


class Provenance(Record):
    """The files that were taken from one archive.

    Attributes:
        url: of the archive.
        md5: of the archive, compared before anything was taken out.
        sha256: hash of each file, by its path below the folder.
    """

    url: str
    md5: str
    sha256: dict[str, str]


def record_provenance(folder: Path, archive: Archive, names: Iterable[str]) -> None:
    """Remember that files of ``folder`` came from an archive whose checksum was compared.

    Args:
        names: paths of the files below ``folder``.
    """
    hashes = {name: sha256_of_file(folder / name) for name in sorted(names)}
    write_json(_record_path(folder, archive), Provenance(archive.url, archive.md5, hashes))


def are_as_published(facts: Facts, folder: Path, files: Iterable[Path]) -> bool:
    """True if all of ``files`` came from archives of the published checksums, unchanged since.

    Reads the files, unless one of them has no record.

    Raises:
        BenchError: a record is damaged.
    """
    recorded: dict[Path, str] = {}
    for archive in facts.archives:
        path = _record_path(folder, archive)
        if archive.md5 and path.is_file():
            record = read_json(path, Provenance, f"remove it: rm {path}")
            if record.md5 == archive.md5:
                recorded |= {folder / name: sha256 for name, sha256 in record.sha256.items()}
    files = list(files)
    return all(file in recorded for file in files) and all(
        sha256_of_file(file) == recorded[file] for file in files
    )


def _record_path(folder: Path, archive: Archive) -> Path:
    return folder / f"{archive.file_name}.provenance.json"
