"""Content hashes: fields are preceded by their lengths, so that "a b" + "c" is not "a" + "b c"."""

import hashlib
from collections.abc import Iterable
from pathlib import Path


class ContentHash:
    """SHA-256 over records of fields."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, fields: Iterable[bytes]) -> None:
        """Add one record: each field preceded by its length, 8 bytes little-endian."""
        for field in fields:
            self._digest.update(len(field).to_bytes(8, "little"))
            self._digest.update(field)

    def hexdigest(self) -> str:
        """Hash of all records so far, 64 hexadecimal digits."""
        return self._digest.hexdigest()


def sha256_of(records: Iterable[Iterable[str]]) -> str:
    """Content hash of records of texts, in the order given."""
    content = ContentHash()
    for record in records:
        content.add(field.encode() for field in record)
    return content.hexdigest()


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
