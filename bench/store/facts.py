"""Facts about an encoder, kept beside its vectors: each in a file with a checksum of its own."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from bench.store.shards import DamagedShardError
from foundation.errors import BenchError
from foundation.records import Record, decode_json

FACT_SUFFIX = ".fact.json"


class _KeptFact(Record):
    """A fact as it is on disk; ``sha256`` is of ``value`` as it stands there."""

    about: str
    sha256: str
    value: msgspec.Raw


def fact_path(folder: Path, about: str) -> Path:
    """Where a fact is kept."""
    return folder / f"{hashlib.sha256(about.encode()).hexdigest()}{FACT_SUFFIX}"


def encode_fact(about: str, fact: dict[str, Any]) -> bytes:
    """The bytes of a fact on disk."""
    value = msgspec.json.encode(fact)
    kept = _KeptFact(about, hashlib.sha256(value).hexdigest(), msgspec.Raw(value))
    return msgspec.json.encode(kept)


def read_fact(path: Path) -> dict[str, Any] | None:
    """Read a fact; None where there is none, or one of an older version without a checksum.

    Raises:
        DamagedShardError: it is not what was written.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if b'"sha256"' not in content:
        return None
    try:
        kept = decode_json(content, _KeptFact, path.name)
        if hashlib.sha256(kept.value).hexdigest() != kept.sha256:
            raise DamagedShardError(f"{path.name} has another checksum")
        if fact_path(path.parent, kept.about) != path:
            raise DamagedShardError(f"{path.name} is a fact about something else")
        return decode_json(bytes(kept.value), dict[str, Any], path.name)
    except BenchError as error:
        raise DamagedShardError(str(error)) from error
