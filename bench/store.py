"""Vectors on disk, encoded once.

A corpus is cut into planned shards of consecutive rows. A shard's name is the hash of everything
that decides its bytes: the recipe's fingerprint, the role, and the texts. So the same model over
the same texts finds its vectors again, in whatever collection, split or process; a run that was
stopped continues with the first shard that is missing; nothing else has to be remembered.
"""

import errno
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bench.atomic import replacing
from bench.errors import BenchError
from datasets_cfg.corpus import Corpus
from retrievers.encoder import Encoder

Floats = npt.NDArray[np.float32]
Advance = Callable[[int], None]

SHARD_ROWS = 2048  # a minute or two of work for a small model on two cores

logger = logging.getLogger(__name__)


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a shard's file must hold: float32 ``(rows, dim)`` in C order, little-endian."""

    rows: int
    dim: int
    sha256: str


@dataclass(frozen=True)
class Shard:
    """Consecutive rows of a corpus: the first of them, how many, and the file of their vectors."""

    start: int
    rows: int
    path: Path

    @property
    def manifest_path(self) -> Path:
        """Written after the vectors: a shard without it does not exist."""
        return self.path.with_suffix(".json")

    def is_whole(self, dim: int) -> bool:
        """Whether the vectors are there, and are the bytes that were written.

        Damage is said: somebody should know that a disk or a copy is not to be trusted.
        """
        try:
            stated = msgspec.json.decode(self.manifest_path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            return False
        except (msgspec.DecodeError, UnicodeDecodeError):
            stated = None
        whole = self.path.exists() and stated == Manifest(self.rows, dim, _sha256(self.path))
        if not whole:
            logger.warning("%s is damaged: its %d texts are encoded again", self.path, self.rows)
        return whole

    def write(self, vectors: Floats) -> None:
        """Keep the vectors of these rows.

        Raises:
            BenchError: no space is left.
        """
        content = np.ascontiguousarray(vectors, dtype="<f4")
        rows, dim = content.shape
        manifest = Manifest(rows, dim, hashlib.sha256(content.data).hexdigest())
        try:
            with replacing(self.path) as file:
                file.write(content.data)
            with replacing(self.manifest_path) as file:
                file.write(msgspec.json.encode(manifest))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise BenchError(
                f"no space left for {content.nbytes:,} bytes of vectors in {self.path.parent}",
                "make room, or name another place with --cache-dir, and type the same command: "
                "finished shards are kept",
            ) from error


@dataclass(frozen=True)
class StoredVectors:
    """Vectors of a corpus in the files of its shards; satisfies ``exact.Vectors``."""

    shards: tuple[Shard, ...]
    dim: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of documents and length of a vector."""
        return sum(shard.rows for shard in self.shards), self.dim

    def tiles(self, rows: int) -> Iterator[tuple[int, Floats]]:
        """First row and float32 ``(m, dim)`` of whole shards, about ``rows`` at a time."""
        together = max(1, rows // SHARD_ROWS)
        for first in range(0, len(self.shards), together):
            some = self.shards[first : first + together]
            yield some[0].start, self._read(some)

    def rows(self, wanted: npt.NDArray[np.int64]) -> Floats:
        """Vectors of some rows, in rising order; float32 ``(len(wanted), dim)``."""
        parts = []
        for shard in self.shards:
            first, last = np.searchsorted(wanted, [shard.start, shard.start + shard.rows])
            if first < last:
                parts.append(self._read([shard])[wanted[first:last] - shard.start])
        return np.concatenate(parts) if parts else np.empty((0, self.dim), np.float32)

    def _read(self, shards: Sequence[Shard]) -> Floats:
        vectors = np.empty((sum(shard.rows for shard in shards), self.dim), dtype="<f4")
        offset = 0
        for shard in shards:
            with shard.path.open("rb") as file:
                size = file.readinto(vectors[offset : offset + shard.rows].data)
            if size != shard.rows * self.dim * 4:
                raise BenchError(
                    f"{shard.path} was cut short while it was read", "type the same command again"
                )
            offset += shard.rows
        return vectors


@dataclass(frozen=True)
class Plan:
    """The shards of one corpus for one encoder, and which of them must be encoded."""

    vectors: StoredVectors
    missing: tuple[Shard, ...]

    @property
    def missing_rows(self) -> int:
        """Documents that must be encoded."""
        return sum(shard.rows for shard in self.missing)


class VectorStore:
    """Vectors by content, below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def plan(self, encoder: Encoder, corpus: Corpus) -> Plan:
        """Cut a corpus into shards and see which are there. Reads every text, encodes none."""
        shards = tuple(
            Shard(start, len(texts), self._path(encoder, "document", [*titles, *texts]))
            for start, titles, texts in corpus.iter_batches(SHARD_ROWS)
        )
        missing = tuple(shard for shard in shards if not shard.is_whole(encoder.dim))
        return Plan(StoredVectors(shards, encoder.dim), missing)

    def documents(
        self, encoder: Encoder, corpus: Corpus, plan: Plan, advance: Advance | None = None
    ) -> StoredVectors:
        """Vectors of a corpus; what is missing is encoded, shard by shard.

        Raises:
            BenchError: no space is left.
            RetrieverError: the encoder fails.
        """
        missing = {shard.start: shard for shard in plan.missing}
        for start, titles, texts in corpus.iter_batches(SHARD_ROWS) if missing else ():
            if start in missing:
                missing[start].write(encoder.encode_documents(titles, texts, advance))
        return plan.vectors

    def queries(self, encoder: Encoder, texts: Sequence[str]) -> Floats:
        """Vectors of queries, float32 ``(q, dim)``; encoded where they are not stored."""
        shard = Shard(0, len(texts), self._path(encoder, "query", texts))
        if not shard.is_whole(encoder.dim):
            shard.write(encoder.encode_queries(texts))
        return StoredVectors((shard,), encoder.dim).rows(np.arange(len(texts)))

    def remember(
        self, encoder: Encoder, about: str, compute: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """A JSON-able fact about an encoder: computed once, and read afterwards."""
        path = self._path(encoder, "fact", [about]).with_suffix(".fact.json")
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            found = compute()
        with replacing(path) as file:
            file.write(msgspec.json.encode(found))
        return found

    def _path(self, encoder: Encoder, role: str, texts: Iterable[str]) -> Path:
        fingerprint = encoder.recipe.fingerprint
        digest = hashlib.sha256(f"{fingerprint} {role}".encode())
        for text in texts:
            content = text.encode()
            digest.update(len(content).to_bytes(8, "little"))
            digest.update(content)
        return self._folder / fingerprint[:16] / f"{digest.hexdigest()}.f32"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
