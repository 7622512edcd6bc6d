"""Repaired copies of collections (``verify --fix``)."""

from collections.abc import Callable, Iterator
from pathlib import Path

from datasets_cfg.dataset import INHERITED_FACTS, Dataset
from datasets_cfg.readers.beir import write_collection
from datasets_cfg.readers.reader import Document, collect_assumptions
from foundation.errors import BenchError, collect_errors
from foundation.files import replace_folder

CHANGES_FILE = "CHANGES.md"


def write_repaired(open_collection: Callable[[], Dataset], folder: Path) -> list[str]:
    """Write a copy of a collection in BEIR's layout, and what was changed into its `CHANGES_FILE`.

    Lines that cannot be read are left out, as are judgements of unknown documents. The first of
    several documents, queries or grades with the same id is kept.

    Args:
        open_collection: opens the collection.
        folder: new folder. Its last part is the name of the copy in results.

    Returns:
        What was changed, a sentence each.

    Raises:
        BenchError: the folder exists, a file is missing or has an unclear header, or the collection
            has answers or excluded documents, which BEIR's layout cannot hold.
    """
    if folder.exists():
        raise BenchError(f"{folder} exists already", "choose a new folder for the copy")
    with collect_errors() as wrong, collect_assumptions() as assumptions:
        dataset = open_collection()
        if dataset.answers is not None or dataset.excluded:
            problem = f"{dataset.name} has answers or excluded documents"
            raise BenchError(f"{problem}, which the copy cannot have", "omit --fix")
        known, repeated = set[str](), 0

        def documents() -> Iterator[Document]:
            nonlocal repeated
            for document in dataset.reader.documents():
                repeated += document.id in known
                if document.id and document.id not in known:
                    known.add(document.id)
                    yield document

        facts = {name: getattr(dataset.facts, name) for name in INHERITED_FACTS}
        facts |= {"name": folder.name, "layout": "beir", "split": dataset.facts.split}
        with replace_folder(folder) as unfinished:
            write_collection(
                unfinished,
                documents(),
                zip(dataset.queries.ids, dataset.queries.texts, strict=True),
                (row for row in dataset.qrels if row[1] in known),
                {name: fact for name, fact in facts.items() if fact is not None},
            )
            changes = {f"{error}: left out, or the first kept": n for error, n in wrong.values()}
            changes |= {**dataset.assumptions, **assumptions}
            changes["documents with the id of an earlier one are left out"] = repeated
            unknown = sum(id_ not in known for id_ in dataset.qrels.doc_ids)
            changes["judgements of unknown documents are left out"] = unknown
            lines = [f"{what}: {count:,}" for what, count in changes.items() if count]
            text = "".join(f"- {line}\n" for line in lines) or "Nothing was changed.\n"
            (unfinished / CHANGES_FILE).write_text(text, "utf-8")
    return lines
