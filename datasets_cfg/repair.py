"""Repaired copies of collections (``verify --fix``)."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from datasets_cfg.catalogue import dataset_names, suite_names
from datasets_cfg.dataset import INHERITED_FACTS, Dataset, open_dataset
from datasets_cfg.readers.beir import write_collection
from datasets_cfg.readers.reader import Document, RepeatedError, collect_assumptions
from foundation.errors import BenchError, collect_errors
from foundation.files import replace_folder

CHANGES_FILE = "CHANGES.md"


def write_repaired(open_collection: Callable[[], Dataset], folder: Path) -> list[str]:
    """Write a copy of a collection in BEIR's layout, and what was changed into its `CHANGES_FILE`.

    Lines that cannot be read are left out, as are judgements of unknown queries and documents,
    queries without judgements, and other splits. The first of several documents, queries or grades
    with the same id is kept. Returned is what was changed, a sentence each.
    """
    if folder.exists():
        raise BenchError(f"{folder} exists already", "choose a new folder for the copy")
    if folder.name in (*dataset_names(), *suite_names()):
        problem = f"{folder} has the name of a declared collection or suite"
        raise BenchError(problem, "choose another name for the copy")
    with collect_errors() as wrong:
        dataset = open_collection()
        if dataset.answers is not None or dataset.excluded:
            problem = f"{dataset.name} has answers or excluded documents"
            raise BenchError(f"{problem}, which the copy cannot have", "omit --fix")
    with collect_errors():  # again, since a dataset holds only its judged queries
        unjudged = dataset.reader.judgements().unjudged
    split, asked, known = dataset.facts.split, set(map(_check_id, dataset.queries.ids)), set[str]()
    repeated = 0

    def documents() -> Iterator[Document]:
        nonlocal repeated
        for document in dataset.reader.documents():
            repeated += document.id in known
            if document.id and document.id not in known:
                known.add(_check_id(document.id))
                yield document

    facts = {name: getattr(dataset.facts, name) for name in INHERITED_FACTS}
    facts |= {"name": folder.name, "layout": "beir", "split": split}
    with replace_folder(folder) as unfinished:
        with collect_errors() as wrong_documents, collect_assumptions() as assumptions:
            write_collection(
                unfinished,
                documents(),
                zip(dataset.queries.ids, dataset.queries.texts, strict=True),
                (row for row in dataset.qrels if row[0] in asked and row[1] in known),
                {name: fact for name, fact in facts.items() if fact is not None},
            )
        try:
            open_dataset(str(unfinished), cache_dir=dataset.cache_dir)
        except BenchError as error:
            problem = str(error).replace(str(unfinished), str(folder))
            raise BenchError(f"the copy cannot be used: {problem}", error.hint) from error
        changes = Counter[str]()
        for first, count in (wrong | wrong_documents).values():
            done = "the first one is kept" if isinstance(first, RepeatedError) else "left out"
            changes[f"{first}: {done}"] = count
        changes.update(dataset.assumptions)
        changes.update(assumptions)
        changes["documents with the id of an earlier one are left out"] = repeated
        unknown = sum(id_ not in known for id_ in dataset.qrels.doc_ids)
        changes["judgements of unknown documents are left out"] = unknown
        changes["queries without judgements are left out"] = unjudged
        lines = [f"{what}: {count:,}" for what, count in changes.items() if count]
        if others := sorted({*dataset.reader.splits()} - {split, ""}):
            lines.append(f"splits that are left out: {', '.join(others)}")
        text = "".join(f"- {line}\n" for line in lines) or "Nothing was changed.\n"
        (unfinished / CHANGES_FILE).write_text(text, "utf-8")
    return lines


def _check_id(id_: str) -> str:
    """Return ``id_``, or raise if it cannot be written into a line of qrels."""
    if any(mark in id_ for mark in "\t\r\n"):
        problem = f"the id {id_!r} has a tab or a line break, which the copy cannot have"
        raise BenchError(problem, "rename it")
    return id_
