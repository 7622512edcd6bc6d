"""Readers of documents, queries and judgements, one module per layout of files.

A layout is a module of this package with a subclass of `Reader`. To add one, add a module.
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

from foundation.errors import BenchError, did_you_mean, format_count, format_names

READER_VERSION = 1  # increase it if a reader yields different documents from the same files


class Document(NamedTuple):
    """A document of a collection. ``title`` may be empty."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Queries:
    """Queries in file order. ``ids`` and ``texts`` have the same length."""

    ids: tuple[str, ...]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Qrels:
    """Relevance judgements (TREC qrels), one row per judged pair of query and document.

    Attributes:
        query_ids: query of each row, length n.
        doc_ids: document of each row, length n.
        grades: int32 ``(n,)``. 0 is judged not relevant, and negative grades occur in practice.
    """

    query_ids: tuple[str, ...]
    doc_ids: tuple[str, ...]
    grades: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.query_ids)

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        return zip(self.query_ids, self.doc_ids, self.grades.tolist(), strict=True)

    def queries(self) -> tuple[str, ...]:
        """Return distinct query ids by first appearance, the denominator of every mean."""
        return tuple(dict.fromkeys(self.query_ids))


class TrainingExample(NamedTuple):
    """A training query with its passages.

    Attributes:
        id: id of the query; "" if unknown.
        query: text of the query; "" if unknown.
        positives: relevant passages. Unknown ids, titles and texts are "".
        negatives: hard negatives.
        scores: a teacher's scores of the positives, then of the negatives; () for none.
    """

    id: str
    query: str
    positives: tuple[Document, ...]
    negatives: tuple[Document, ...]
    scores: tuple[float, ...] = ()


@dataclass(frozen=True)
class Judgements:
    """The queries of a collection, with the judgements or answers that score them.

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
    """A reader of one split of a collection. Every file may be gzip-compressed.

    Attributes:
        corpus_names: files that hold only documents. The first one identifies the layout of a
            folder.
        expected: files that belong into a folder, for people. ``{split}`` is replaced by the split.
        answers_decide: relevance is decided by the texts of documents, not by their ids.
        folder: folder that holds the files.
        split: queries and judgements to read.
        with_titles: join the documents with titles from a separate file.
    """

    corpus_names: ClassVar[tuple[str, ...]]
    expected: ClassVar[str]
    answers_decide: ClassVar[bool] = False

    folder: Path
    split: str
    with_titles: bool = False

    @abstractmethod
    def corpus_files(self) -> tuple[Path, ...]:
        """Return the files of the documents."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield the documents in file order."""

    @abstractmethod
    def judgement_files(self) -> tuple[Path, ...]:
        """Return the files of queries and judgements."""

    @abstractmethod
    def judgements(self) -> Judgements:
        """Return queries with their judgements."""

    def examples(self) -> Iterator[TrainingExample]:
        """Yield the hard negatives that come with the queries, by the ids of the collection."""
        return iter(())


def known_layouts() -> dict[str, type[Reader]]:
    """Return the readers of folders by the names of their layouts."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {
        module.__name__.rpartition(".")[2]: kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Reader) and kind is not Reader
        if kind.corpus_names
    }


def reader_of_layout(name: str) -> type[Reader]:
    """Return the reader of the layout ``name``.

    Raises:
        BenchError: the layout is unknown.
    """
    known = known_layouts()
    if name not in known:
        hint = did_you_mean(name, known, f"layouts: {', '.join(known)}")
        raise BenchError(f"there is no layout {name!r}", hint)
    return known[name]


def _corpora_below(folder: Path, tells: Mapping[str, str]) -> Iterator[Path]:
    """Yield the corpus files of collections one or two levels below a folder."""
    patterns = (f"{above}/{file}*" for file in tells.values() for above in ("*", "*/*"))
    return (path for pattern in patterns for path in folder.glob(pattern))


def detect_layout(folder: Path) -> str:
    """Return the layout of ``folder``, identified by its corpus file.

    Raises:
        BenchError: the folder holds no corpus file, or several.
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
            f"{folder} is not a collection, but a folder with "
            f"{format_count(len(inner), 'collection', 'collections')}",
            f"name one of them: {format_names([str(path) for path in inner])}",
        )
    problem = f"holds the corpora of {' and '.join(found)}" if found else "is not a collection"
    raise BenchError(
        f"{folder} {problem}",
        hint="put one of these files there, plain or .gz: "
        + ", ".join(f"{file} ({name})" for name, file in tells.items()),
    )
