"""Files of a collection to documents, queries and judgements: one module per layout."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from datasets_cfg.corpus import Document
from datasets_cfg.readers import beir, dpr, msmarco
from datasets_cfg.readers.judgements import Judgements
from foundation.errors import BenchError

READER_VERSION = 1  # raised when a reader yields other documents from the same files
# What documents come from, in each layout; the first file tells the layout of a folder.
CORPUS_FILES = {
    "beir": (beir.CORPUS,),
    "msmarco": (msmarco.COLLECTION, msmarco.TITLES),
    "dpr": (dpr.PASSAGES,),
}


class Reader(Protocol):
    """One split of a collection in the files of some layout."""

    @property
    def folder(self) -> Path:
        """Folder that holds the files."""
        ...

    def corpus_files(self) -> tuple[Path, ...]:
        """Files that the documents come from."""
        ...

    def documents(self) -> Iterator[Document]:
        """Stream the documents, in file order."""
        ...

    def judgement_files(self) -> tuple[Path, ...]:
        """Files that queries and judgements come from."""
        ...

    def judgements(self) -> Judgements:
        """Queries with their judgements."""
        ...


def reader_for(
    layout: str,
    folder: Path,
    split: str,
    titled: bool = False,
    files: Mapping[msmarco.Role, str] | None = None,
) -> Reader:
    """Reader of a folder in the given layout: "beir", "msmarco" or "dpr".

    ``titled`` joins the passages of MS MARCO with their titles, ``files`` names its files where
    they are called otherwise.

    Raises:
        BenchError: there is no such layout.
    """
    match layout:
        case "beir":
            return beir.BeirReader(folder, split)
        case "msmarco":
            return msmarco.MsmarcoReader(folder, split, titled, files or {})
        case "dpr":
            return dpr.DprReader(folder, split)
    raise BenchError(f"there is no layout {layout!r}", hint=f"layouts: {', '.join(CORPUS_FILES)}")


def detect_layout(folder: Path) -> str:
    """Name the layout of a folder by the corpus file that it holds.

    Raises:
        BenchError: it holds none, or more than one.
    """
    layouts = [
        layout
        for layout, (name, *_) in CORPUS_FILES.items()
        if (folder / name).is_file() or (folder / f"{name}.gz").is_file()
    ]
    if len(layouts) == 1:
        return layouts[0]
    expected = ", ".join(f"{name} ({layout})" for layout, (name, *_) in CORPUS_FILES.items())
    raise BenchError(
        f"{folder} holds the corpus of {' and '.join(layouts) if layouts else 'no known layout'}",
        hint=f"one of these files belongs there, plain or .gz: {expected}",
    )
