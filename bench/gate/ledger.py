"""Small records beside the results, each a file of its own that is written once.

So several processes may write, and object stores can hold them. What is damaged is named in a
warning and left out: no decision may depend on a record being there.
"""

import hashlib
import logging
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from bench.results.location import Place, files_below, replacing
from foundation.errors import BenchError
from foundation.records import Record, decode_json

logger = logging.getLogger(__name__)

DIGITS = 16  # of a key in a path
Kept = TypeVar("Kept", bound=Record)


def key_of(*fields: object) -> str:
    """Fields in 16 hexadecimal digits, which name a folder."""
    return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()[:DIGITS]


def read_records(folder: Place, name: str, kind: type[Kept]) -> Iterator[Kept]:
    """Records in the files of this name below a folder; none where there is no folder."""
    for path in files_below(folder, name) if folder.is_dir() else ():
        try:
            yield decode_json(path.read_bytes(), kind, path)
        except (BenchError, OSError) as error:
            logger.warning("%s is left out: %s", path, error)


def write_once(path: Place, record: Record) -> None:
    """Write a record where none is yet."""
    if not path.exists():
        with replacing(path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(record), indent=1))
