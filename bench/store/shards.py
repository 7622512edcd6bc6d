"""Shards: the vectors of some thousands of texts that were encoded together, in three files.

A shard's name is the hash of the keys of its texts in order, which is the plan it was encoded by.
``NAME.f32`` or ``NAME.f16`` holds the vectors, row after row, little-endian; ``NAME.keys`` the
keys; ``NAME.json`` is written last and says what the other two must be. Whoever writes or removes
files of a shard holds the lock ``NAME.lock``.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from bench.store.keys import KEY_BYTES, keys_from_bytes, name_of
from foundation.arrays import Float32Array, UInt64Array
from foundation.errors import BenchError
from foundation.files import replacing, sha256_of_file
from foundation.locks import FileLock
from foundation.records import Record, decode_json
from retrievers.models.recipe import Recipe, Role, StoreDtype

FORMAT = 1
SUFFIXES: dict[StoreDtype, str] = {"float32": ".f32", "float16": ".f16"}
DTYPES: dict[StoreDtype, str] = {"float32": "<f4", "float16": "<f2"}
MANIFEST_NAME = re.compile(r"[0-9a-f]{32}\.json")


class ShardManifest(Record):
    """The content of a shard's files: ``(rows, dim)`` vectors of texts in one role."""

    format: int
    role: Role
    rows: int
    dim: int
    dtype: StoreDtype
    vectors_sha256: str
    keys_sha256: str


class DamagedShardError(Exception):
    """A shard is not what was written; the message says how."""


@dataclass(frozen=True)
class Shard:
    """Vectors ``(rows, dim)`` on disk, by the path of their manifest."""

    manifest_path: Path
    manifest: ShardManifest

    @property
    def rows(self) -> int:
        """Number of texts."""
        return self.manifest.rows

    @property
    def path(self) -> Path:
        """File of the vectors."""
        return self.manifest_path.with_suffix(SUFFIXES[self.manifest.dtype])

    @property
    def row_bytes(self) -> int:
        """Bytes of one vector on disk."""
        return self.manifest.dim * np.dtype(DTYPES[self.manifest.dtype]).itemsize

    @property
    def keys_path(self) -> Path:
        """File of the keys."""
        return self.manifest_path.with_suffix(".keys")

    @property
    def files(self) -> dict[Path, tuple[int, str]]:
        """Bytes and SHA-256 that the files of vectors and keys must have."""
        return {
            self.path: (self.rows * self.row_bytes, self.manifest.vectors_sha256),
            self.keys_path: (self.rows * KEY_BYTES, self.manifest.keys_sha256),
        }

    def check_content(self, path: Path, content: bytes) -> None:
        """Compare what was read of one of the files with its checksum.

        Raises:
            DamagedShardError: it is not what was written.
        """
        if (len(content), hashlib.sha256(content).hexdigest()) != self.files[path]:
            raise DamagedShardError(f"{path.name} does not fit its manifest")

    def check(self) -> None:
        """Compare the vectors with their checksum.

        Raises:
            DamagedShardError: they are not there, or not what was written.
        """
        try:
            size = self.path.stat().st_size
            if size != self.files[self.path][0]:
                raise DamagedShardError(f"{self.path.name} has {size:,} bytes")
            if sha256_of_file(self.path) != self.manifest.vectors_sha256:
                raise DamagedShardError(f"{self.path.name} has another checksum")
        except FileNotFoundError as error:
            raise DamagedShardError(f"{self.path.name} is missing") from error


def read_shard(manifest_path: Path) -> tuple[Shard, UInt64Array]:
    """Read a manifest and the keys, without the vectors.

    Raises:
        DamagedShardError: manifest and keys are not what was written.
        FileNotFoundError: there is no manifest.
    """
    shard = described(manifest_path, manifest_path.read_bytes())
    try:
        content = shard.keys_path.read_bytes()
    except FileNotFoundError as error:
        raise DamagedShardError(f"{shard.keys_path.name} is missing") from error
    shard.check_content(shard.keys_path, content)
    return shard, keys_from_bytes(content)


def described(manifest_path: Path, content: bytes) -> Shard:
    """The shard that a manifest says there is.

    Raises:
        DamagedShardError: it is no manifest.
    """
    try:
        manifest = decode_json(content, ShardManifest, manifest_path)
    except BenchError as error:
        raise DamagedShardError(f"{manifest_path.name} is not readable") from error
    if manifest.format != FORMAT:
        raise DamagedShardError(f"{manifest_path.name} has another format")
    return Shard(manifest_path, manifest)


def write_shard(
    folder: Path, role: Role, recipe: Recipe, keys: UInt64Array, vectors: Float32Array
) -> Path:
    """Keep vectors; returns the path of the manifest.

    Raises:
        BenchError: a number is too large for float16.
        OSError: no space is left.
    """
    content = stored(vectors, recipe)
    key_bytes = keys.astype("<u8").tobytes()
    manifest = ShardManifest(
        format=FORMAT,
        role=role,
        rows=len(vectors),
        dim=vectors.shape[1],
        dtype=recipe.store_dtype,
        vectors_sha256=hashlib.sha256(content.data).hexdigest(),
        keys_sha256=hashlib.sha256(key_bytes).hexdigest(),
    )
    path = folder / f"{name_of(keys)}.json"
    shard = Shard(path, manifest)
    described = msgspec.json.encode(manifest)
    write_files({shard.path: content.data, shard.keys_path: key_bytes, path: described})
    return path


def write_files(contents: Mapping[Path, bytes | memoryview]) -> None:
    """Write the files of a shard in the order given, in which the manifest is last.

    Raises:
        OSError: no space is left.
    """
    for path, content in contents.items():
        with replacing(path) as file:
            file.write(content)


def stored(vectors: Float32Array, recipe: Recipe) -> npt.NDArray[np.floating]:
    """Vectors as they are written: of the recipe's store dtype, little-endian, C order.

    Raises:
        BenchError: a number is too large for float16, which ends at 65,504.
    """
    with np.errstate(over="ignore"):
        content = np.ascontiguousarray(vectors, dtype=DTYPES[recipe.store_dtype])
    lost = int((~np.isfinite(content)).sum())
    if lost:
        largest = float(np.abs(vectors).max())
        raise BenchError(
            f"{recipe.model}: {lost:,} numbers of these vectors are too large for float16: "
            f"the largest is {largest:,.0f}, and float16 ends at 65,504",
            "leave out --set store_dtype=float16",
        )
    return content


def discard(manifest_path: Path) -> None:
    """Remove a damaged shard, unless it was written anew meanwhile or is just being written."""
    lock = FileLock.take(manifest_path.with_suffix(".lock"))
    if lock is None:
        return
    with lock, suppress(FileNotFoundError):
        try:
            read_shard(manifest_path)[0].check()
        except DamagedShardError:
            for suffix in (".json", *SUFFIXES.values(), ".keys"):  # the manifest first
                manifest_path.with_suffix(suffix).unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what killed processes left: temporary files, locks, and files without a manifest.

    What belongs to a name that somebody has locked stays.
    """
    files = defaultdict(set)
    for path in folder.iterdir():
        files[path.name.removeprefix(".").partition(".")[0]].add(path.name)
    for name, present in files.items():
        if f"{name}.lock" in present or _left_over(name, present):
            lock = FileLock.take(folder / f"{name}.lock")
            if lock is not None:
                with lock:
                    now = {path.name for path in folder.glob(f"*{name}.*")}
                    for leftover in _left_over(name, now):
                        (folder / leftover).unlink(missing_ok=True)  # `replacing` sweeps, too


def _left_over(name: str, present: set[str]) -> set[str]:
    unfinished = {file for file in present if file.startswith(f".{name}.")}
    if f"{name}.json" not in present:
        data = (*SUFFIXES.values(), ".keys")
        unfinished |= present & {f"{name}{suffix}" for suffix in data}
    return unfinished
