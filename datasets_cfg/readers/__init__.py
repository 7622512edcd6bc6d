"""Files of a collection to documents, queries and judgements: one module per layout.

A layout is a module of this package, of its name, with a class that is a `Reader`: nothing else is
to be edited.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from foundation.errors import BenchError, did_you_mean
from foundation.printable import format_names

READER_VERSION = 1  # raised when a reader yields other documents from the same files


class Document(NamedTuple):
    """One document of a collection as its reader yields it; ``title`` may be empty."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Queries:
    """Queries in file order: ``ids`` and ``texts`` have the same length."""

    ids: tuple[str, ...]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Qrels:
    """Relevance judgements (TREC qrels), one row per judged (query, document) pair.

    Attributes:
        query_ids: query of each row, length n.
        doc_ids: document of each row, length n.
        grades: int32 ``(n,)``; 0 is judged not relevant, negative grades occur in the wild.
    """

    query_ids: tuple[str, ...]
    doc_ids: tuple[str, ...]
    grades: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.query_ids)

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        return zip(self.query_ids, self.doc_ids, self.grades.tolist(), strict=True)

    def queries(self) -> tuple[str, ...]:
        """Distinct query ids in order of first appearance: the denominator of every mean."""
        return tuple(dict.fromkeys(self.query_ids))


@dataclass(frozen=True)
class Judgements:
    """The queries of a collection and the judgements or answers that score them.

    Attributes:
        queries: the queries that have judgements, in file order.
        qrels: relevance judgements; empty if answers decide.
        answers: accepted answers of each query id; None if qrels decide.
    """

    queries: Queries
    qrels: Qrels
    answers: Mapping[str, tuple[str, ...]] | None = None


@dataclass(frozen=True)
class Reader(ABC):
    """One split of a collection in the files of some layout; every file may be gzip-compressed.

    Attributes:
        corpus_names: files that hold documents alone; the first tells the layout of a folder.
        expected: files that belong into a folder, for people; ``{split}`` stands for the split.
        answers_decide: what is found is decided by the texts of documents, not by their ids.
        folder: folder that holds the files.
        split: whose queries and judgements are read.
        with_titles: join the documents with titles from a file of their own.
    """

    corpus_names: ClassVar[tuple[str, ...]]
    expected: ClassVar[str]
    answers_decide: ClassVar[bool] = False

    folder: Path
    split: str
    with_titles: bool = False

    @abstractmethod
    def corpus_files(self) -> tuple[Path, ...]:
        """Files that the documents come from."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Stream the documents, in file order."""

    @abstractmethod
    def judgement_files(self) -> tuple[Path, ...]:
        """Files that queries and judgements come from."""

    @abstractmethod
    def judgements(self) -> Judgements:
        """Queries with their judgements."""


def known_layouts() -> dict[str, type[Reader]]:
    """Classes of readers by the names of their layouts."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {
        module.__name__.rpartition(".")[2]: kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Reader) and kind is not Reader
    }


def reader_of_layout(name: str) -> type[Reader]:
    """The class that reads a layout.

    Raises:
        BenchError: there is no such layout.
    """
    known = known_layouts()
    if name not in known:
        hint = did_you_mean(name, known, f"layouts: {', '.join(known)}")
        raise BenchError(f"there is no layout {name!r}", hint)
    return known[name]


def _corpora_below(folder: Path, tells: Mapping[str, str]) -> Iterator[Path]:
    return (path for file in tells.values() for path in folder.glob(f"*/{file}*"))


def detect_layout(folder: Path) -> str:
    """Name the layout of a folder by the corpus file that it holds.

    Raises:
        BenchError: it holds none, or more than one.
    """
    tells = {name: kind.corpus_names[0] for name, kind in known_layouts().items()}
    found = [
        name
        for name, file in tells.items()
        if (folder / file).is_file() or (folder / f"{file}.gz").is_file()
    ]
    if len(found) == 1:
        return found[0]
    inner = [] if found else sorted({path.parent for path in _corpora_below(folder, tells)})
    if inner:
        raise BenchError(
            f"{folder} is not a collection; there are {len(inner)} in it",
            f"name them: {format_names([str(path) for path in inner])}",
        )
    raise BenchError(
        f"{folder} holds the corpus of {' and '.join(found) if found else 'no known layout'}",
        hint="one of these files belongs there, plain or .gz: "
        + ", ".join(f"{file} ({name})" for name, file in tells.items()),
    )
