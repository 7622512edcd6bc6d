"""Read vectors that another program made, with the ids of their documents and queries.

A folder holds them for both roles, in one file or several. Words in the names of files, or of the
arrays in them, tell the role: ``documents.npy``, ``corpus-00001.parquet``, ``query_vectors`` in an
``.npz``. A file is read completely, except for ``.npy``, which is memory-mapped.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foundation.arrays import Float32Array
from foundation.errors import BenchError, format_names, wrap_errors
from retrievers.models.card import Role

if TYPE_CHECKING:
    import pandas as pd

WORDS: Mapping[Role, frozenset[str]] = {
    "document": frozenset({"document", "documents", "doc", "docs", "corpus", "passages"}),
    "query": frozenset({"query", "queries", "questions", "topics"}),
}
PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".bin")
CONVERT = (
    "Convert it where you trust it: vectors, ids = pickle.load(open(FILE, 'rb')); "
    "numpy.savez('documents.npz', vectors=vectors, ids=[str(i) for i in ids])"
)
LAYOUT = (
    "Name its files after their role: documents.npy with documents.ids.txt (an id in each line), "
    "documents.npz or .safetensors with ids beside it, or documents.parquet with a column of ids "
    "and one of vectors; likewise queries."
)
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class IdVectors:
    """Vectors of one role.

    Attributes:
        role: what they are vectors of.
        ids: id of each vector, all distinct.
        parts: vectors, ``(n, dim)`` each, in the order of the ids.
    """

    role: Role
    ids: "pd.Index"
    parts: tuple[Array, ...]

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        return int(self.parts[0].shape[1])

    def find_missing(self, ids: Sequence[str]) -> list[str]:
        """Return those of ``ids`` that have no vector."""
        rows = self.ids.get_indexer(list(ids))
        return [name for name, row in zip(ids, rows, strict=True) if row < 0]

    def lacks(self, missing: Sequence[str], of: int) -> BenchError:
        """Return the error for ids without a vector, ``missing`` among ``of`` ids."""
        has = "has" if len(missing) == 1 else "have"
        names, known = format_names(missing[:3]), format_names([*self.ids[:3]])
        return BenchError(
            f"{len(missing):,} of {of:,} ids {has} no {self.role} vector: {names}; the "
            f"{len(self.ids):,} vectors are of {known} ...",
            "Add their vectors, also if a text is empty, or write ids as the collection does.",
        )

    def rows(self, ids: Sequence[str]) -> Float32Array:
        """Return the vectors of ``ids``, float32 ``(len(ids), dim)``.

        Raises:
            BenchError: an id has no vector.
        """
        rows = self.ids.get_indexer(list(ids))
        if (rows < 0).any():
            raise self.lacks(self.find_missing(ids), len(ids))
        found = np.empty((len(ids), self.dim), np.float32)
        ends = np.cumsum([len(part) for part in self.parts])
        part_of = np.searchsorted(ends, rows, side="right")
        for number in np.unique(part_of):
            places, part = np.flatnonzero(part_of == number), self.parts[number]
            found[places] = part[rows[places] - (ends[number] - len(part))]
        return found


def read_vectors(files: Sequence[Path]) -> dict[Role, IdVectors]:
    """Read the vectors of both roles.

    Args:
        files: the files of `vector_files`.

    Raises:
        BenchError: a role, ids or vectors are missing, or they do not fit together.
    """
    ids: dict[Role, list[Array]] = {role: [] for role in WORDS}
    vectors: dict[Role, list[Array]] = {role: [] for role in WORDS}
    seen = []
    for path in files:
        for name, array in _read_arrays(path):
            role = _role_of(name, path.stem)
            seen.append(f"{path.name}: {name}" if name != path.stem else path.name)
            if role is not None:
                kind = vectors if array.ndim == 2 else ids
                kind[role].append(array)
            elif array.ndim == 2:
                raise BenchError(f"{seen[-1]} names neither documents nor queries", LAYOUT)
    found = {role: _join(role, ids[role], vectors[role], files[0].parent, seen) for role in WORDS}
    if (wide := found["document"].dim) != (asked := found["query"].dim):
        raise BenchError(f"{files[0].parent}: documents have {wide} dimensions, queries {asked}")
    return found


def vector_files(folder: Path) -> list[Path]:
    """Return the files of vectors and ids in ``folder``, in the order of their numbers."""
    inside = folder.iterdir() if folder.is_dir() else [folder]
    files = sorted((path for path in inside if path.is_file()), key=_natural_order)
    pickled = [path for path in files if path.suffix in PICKLES]
    if pickled:
        raise BenchError(f"{pickled[0]} is a pickle, which can run code when it is read", CONVERT)
    found = [path for path in files if path.suffix in READERS]
    if not found:
        raise BenchError(f"there are no vectors in {folder}", LAYOUT)
    return found


def _natural_order(path: Path) -> list[tuple[bool, int, str]]:
    """Return a key that sorts ``part-2`` before ``part-10``."""
    parts = re.findall(r"\d+|\D+", path.name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _role_of(name: str, stem: str) -> Role | None:
    """Return the role that the name of an array states, or else that of its file."""
    for text in (name, stem):
        words = {*re.findall(r"[a-z]+", text.lower())}
        stated = [role for role, known in WORDS.items() if words & known]
        if len(stated) == 1:
            return stated[0]
    return None


def _read_arrays(path: Path) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a file with their names: vectors with two dimensions, ids with one."""
    with wrap_errors(f"{path} cannot be read", "Write it again, or convert it to .npy."):
        yield from READERS[path.suffix](path)


def _read_npy(path: Path) -> Iterator[tuple[str, Array]]:
    yield path.stem, np.load(path, mmap_mode="r", allow_pickle=False)


def _read_npz(path: Path) -> Iterator[tuple[str, Array]]:
    with np.load(path, allow_pickle=False) as arrays:
        yield from ((name, arrays[name]) for name in arrays.files)


def _read_safetensors(path: Path) -> Iterator[tuple[str, Array]]:
    from safetensors.numpy import load_file

    yield from load_file(path).items()


def _read_parquet(path: Path) -> Iterator[tuple[str, Array]]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.combine_chunks()
        if hasattr(values, "flatten") and len(values):
            yield (
                path.stem,
                values.flatten().to_numpy(zero_copy_only=False).reshape(len(values), -1),
            )
        elif name in ("id", "_id") or name.endswith("id"):
            yield path.stem, np.array(values.to_pylist())


def _read_lines(path: Path) -> Iterator[tuple[str, Array]]:
    yield path.stem, np.array(path.read_text("utf-8").splitlines())


def _read_json(path: Path) -> Iterator[tuple[str, Array]]:
    content = json.loads(path.read_text("utf-8"))
    if isinstance(content, list):
        yield path.stem, np.array(content)


READERS: Mapping[str, Callable[[Path], Iterator[tuple[str, Array]]]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".parquet": _read_parquet,
    ".txt": _read_lines,
    ".json": _read_json,
}


def _join(
    role: Role, ids: Sequence[Array], vectors: Sequence[Array], folder: Path, seen: Sequence[str]
) -> IdVectors:
    """Return the vectors of one role, or raise a `BenchError` if ids and vectors do not fit."""
    import pandas as pd

    for what, found in {"vectors": vectors, "ids": ids}.items():
        if not found:
            problem = f"{folder} has no {what} of {role} (found: {format_names(seen)})"
            raise BenchError(problem, LAYOUT)
    if bad := [part.dtype for part in vectors if part.dtype.kind != "f"]:
        problem = f"{folder}: vectors of {role} are {bad[0]}, not floating-point numbers"
        raise BenchError(problem, "Give the vectors before they were compressed.")
    if len({part.shape[1] for part in vectors}) > 1:
        widths = format_names(sorted({str(part.shape[1]) for part in vectors}))
        raise BenchError(f"{folder}: vectors of {role} have different dimensions: {widths}")
    counts = [len(part) for part in vectors], [len(part) for part in ids]
    if sum(counts[0]) != sum(counts[1]) or (len(ids) == len(vectors) and counts[0] != counts[1]):
        problem = f"{folder}: {counts[0]} vectors of {role}, but {counts[1]} ids"
        raise BenchError(problem, "Each file of vectors needs its ids, in the same order.")
    names = pd.Index([str(name) for part in ids for name in part.tolist()])
    if not names.is_unique:
        twice = names[names.duplicated()][0]
        raise BenchError(f"{folder}: the {role} {twice} has two vectors", "Keep one of the two.")
    return IdVectors(role, names, tuple(vectors))
