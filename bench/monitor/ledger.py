"""The ledger of a watch: one JSON line for each checkpoint on each collection, kept over restarts.

No line is ever changed: the file is written anew with one line more. A checkpoint that was deleted
since stays; one whose files changed gets new lines, and the later ones count.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Self, cast

import msgspec

from bench.results.location import place_of
from bench.results.result import RESULT_FILE, Protocol
from foundation.atomic import replacing
from foundation.errors import BenchError
from foundation.locks import FileLock
from foundation.records import Record, decode_json

SCHEMA = 1


class Evaluated(Record, kw_only=True, tag_field="kind", tag="evaluated"):
    """A checkpoint on one collection.

    Attributes:
        checkpoint: name of its folder.
        files_sha256: of all files that decide its vectors: weights, configuration, tokenizer.
        settings: hash of how it was used: pooling, prompts, lengths, precision.
        fingerprint: of the recipe, its files included, on this collection.
        value: mean of the measure.
        result: folder of the result.
    """

    schema: int = SCHEMA
    checkpoint: str
    step: int
    files_sha256: str
    settings: str
    fingerprint: str
    protocol: Protocol
    measure: str
    value: float
    result: str
    time: str

    @property
    def collection(self) -> str:
        """Name of the collection."""
        return self.protocol.collection


class Broken(Record, kw_only=True, tag_field="kind", tag="broken"):
    """A checkpoint that could not be evaluated, and why."""

    schema: int = SCHEMA
    checkpoint: str
    step: int
    why: str
    time: str


Line = Evaluated | Broken


def has_result(line: Evaluated) -> bool:
    """True while the result of an evaluation is where it was put."""
    return (place_of(line.result) / RESULT_FILE).exists()


def now() -> str:
    """The time as a ledger states it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Ledger:
    """Lines in the order written. One process at a time writes to a ledger.

    Raises:
        BenchError: another process has it, or it is damaged.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock.take(path.with_suffix(".lock"))
        if lock is None:
            raise BenchError(
                f"another watch writes to {path}", "stop it first, or name another --out"
            )
        self._lock = lock
        self._path = path
        self.lines = read_ledger(path)

    def add(self, line: Line) -> None:
        """Write a line, unless the last one of the checkpoint says the same."""
        if isinstance(line, Broken) and self._said(line):
            return
        self.lines = (*self.lines, line)
        with replacing(self._path) as file:
            file.write(msgspec.json.Encoder().encode_lines(self.lines))

    def _said(self, line: Broken) -> bool:
        earlier = [other for other in self.lines if other.checkpoint == line.checkpoint]
        last = earlier[-1] if earlier else None
        return isinstance(last, Broken) and last.why == line.why

    def find(
        self, checkpoint: str, fingerprint: str, protocol: Protocol, measure: str
    ) -> Evaluated | None:
        """The last line of this very evaluation whose result is still there."""
        asked = (checkpoint, fingerprint, protocol, measure)
        for evaluation in reversed(self.evaluated()):
            told = (
                evaluation.checkpoint,
                evaluation.fingerprint,
                evaluation.protocol,
                evaluation.measure,
            )
            if told == asked and has_result(evaluation):
                return evaluation
        return None

    def files_of(self, checkpoint: str) -> str:
        """Hash of the files that were evaluated last under this name; "" for none."""
        digests = [
            evaluation.files_sha256
            for evaluation in self.evaluated()
            if evaluation.checkpoint == checkpoint
        ]
        return digests[-1] if digests else ""

    def evaluated(self) -> tuple[Evaluated, ...]:
        """All evaluations."""
        return tuple(line for line in self.lines if isinstance(line, Evaluated))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let another process write."""
        self._lock.release()


def read_ledger(path: Path) -> tuple[Line, ...]:
    """Lines of a ledger; none where there is no file.

    Raises:
        BenchError: it is damaged.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ()
    kind, hint = cast(type[Line], Line), "remove that line, or name another --out"
    return tuple(
        decode_json(text, kind, f"{path}, line {number}", hint)
        for number, text in enumerate(content.splitlines(), start=1)
    )
