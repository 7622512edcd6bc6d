"""BEIR's layout: a corpus, queries, and qrels for each split, as files or folders of files.

BEIR has ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/<split>.tsv``. Collections on the Hugging
Face Hub, such as mteb's, have the same parts as configurations, in JSON lines, Parquet or Arrow.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from datasets_cfg.readers import reader
from datasets_cfg.readers.qrels import BEIR_HEADER, QRELS_FORMS, read_qrels
from datasets_cfg.readers.reader import Document, Judgements, Queries, Reader
from foundation.errors import BenchError, report_error

_HINT = 'Write one JSON object per line, with the strings "_id" and "text"'
_QUERIES = ("queries", "query")
_QUERY_COLUMNS = {"_id", "id", "text"}
_QRELS = ("qrels", "default")


class _QueryLine(msgspec.Struct):
    text: str
    id: str | int | float | None = msgspec.field(name="_id", default=None)
    other_id: Any = msgspec.field(name="id", default=None)


class _DocumentLine(_QueryLine):
    title: str | float | msgspec.UnsetType | None = msgspec.UNSET


@dataclass(frozen=True)
class BeirReader(Reader):
    """A reader of BEIR's layout."""

    corpus_names = ("corpus.jsonl",)
    expected = "corpus.jsonl, queries.jsonl and qrels/{split}.tsv"

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        return bool(reader.list_splits(folder, ["corpus", *_with_prefix(folder, ["corpus"])]))

    def splits(self) -> Collection[str]:
        return self._judged_splits()

    def corpus_files(self) -> tuple[Path, ...]:
        return self._texts("corpus")

    def documents(self) -> Iterator[Document]:
        return read_documents(*self.corpus_files())

    def judgement_files(self) -> tuple[Path, ...]:
        return *self._texts(*_QUERIES), *self._qrels()

    def judgements(self) -> Judgements:
        queries = read_queries(*self._texts(*_QUERIES))
        qrels = self._qrels()
        return reader.keep_judged_queries(queries, read_qrels(*qrels), qrels[0])

    def query_fields(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the id of each query with further columns and the fields of its ``metadata``."""
        for path in self._texts(*_QUERIES):
            for number, row in reader.read_objects(path, _HINT):
                id_ = row.get("id") if row.get("_id") is None else row["_id"]
                own = {name: row[name] for name in row.keys() - _QUERY_COLUMNS}
                if isinstance(own.get("metadata"), dict):
                    own |= own.pop("metadata")
                yield reader.read_id(path, number, id_), own

    def _texts(self, *names: str) -> tuple[Path, ...]:
        missing = f"{self.folder} has no {names[0]}.jsonl"
        found = reader.list_splits(self.folder, [*names, *_with_prefix(self.folder, names)])
        return reader.choose_split(found, self.split, missing)

    def _qrels(self) -> tuple[Path, ...]:
        missing = f"{self.folder / 'qrels'} has no {self.split}.tsv"
        return reader.choose_split(self._judged_splits(), self.split, missing, only=False)

    def _judged_splits(self) -> dict[str, tuple[Path, ...]]:
        """Return the files of qrels by split, those in ``data`` only if there are no others."""
        names = [*_QRELS, *_with_prefix(self.folder, ["qrels"])]
        found = reader.list_splits(self.folder, names, QRELS_FORMS)
        return found or reader.list_splits(self.folder, ["data"], QRELS_FORMS)


def _with_prefix(folder: Path, names: Sequence[str]) -> list[str]:
    """Return the names of configurations such as ``en-corpus``, if all have one prefix.

    Raises:
        BenchError: there are several, as of a collection in several languages.
    """
    configurations = [path.name for path in sorted(folder.glob("*-corpus")) if path.is_dir()]
    prefixes = [name.removesuffix("corpus") for name in configurations]
    if len(prefixes) > 1 and not any(folder.glob("corpus*")):
        one = prefixes[0]
        links = f"ln -s ../{one}$part {one[:-1]}/$part"
        raise BenchError(
            f"{folder} has several collections: {', '.join(each[:-1] for each in prefixes)}",
            f"Make a folder of one: cd {folder} && mkdir {one[:-1]} && "
            f"for part in corpus queries qrels; do {links}; done",
        )
    return [f"{prefix}{name}" for prefix in prefixes for name in names]


def read_documents(*paths: Path) -> Iterator[Document]:
    """Yield the documents in ``paths``, with ``_id`` or ``id``, ``text`` and maybe ``title``.

    Raises:
        BenchError: one of several files has no titles at all, as if the column were lost.
    """
    titled = dict.fromkeys(paths, False)
    for path in paths:
        for number, line in reader.read_records(path, _DocumentLine, _HINT):
            titled[path] |= line.title is not msgspec.UNSET
            yield from _read_document(path, number, line)
    if len({*titled.values()}) > 1:
        without = next(path for path, has in titled.items() if not has)
        others = next(path for path, has in titled.items() if has)
        problem = f"{without} has no field title, and {others.name} has"
        report_error(BenchError(problem, 'Write "title": "" if its documents have no title.'))


def _read_document(path: Path, number: int, line: _DocumentLine) -> Iterator[Document]:
    """Yield a document, or report an error."""
    title = "" if line.title in (None, msgspec.UNSET) else line.title
    if not isinstance(title, str):
        if not math.isnan(title):
            problem = f"title is {title}: expected text"
            report_error(reader.line_error(path, number, problem, _HINT))
            return
        reader.assume("titles that are NaN are read as no title")
        title = ""
    yield Document(_id(path, number, line), title, line.text)


def read_queries(*paths: Path) -> Queries:
    """Return the queries in ``paths``, with ``_id`` or ``id``, and ``text``."""
    rows = (
        (number, _id(path, number, line), line.text)
        for path in paths
        for number, line in reader.read_records(path, _QueryLine, _HINT)
    )
    return reader.collect_queries(rows, paths[0])


def _id(path: Path, number: int, line: _QueryLine) -> str:
    value = line.other_id if line.id is None else line.id
    if value is None:
        report_error(reader.line_error(path, number, "field '_id' is missing", _HINT))
        return ""
    return reader.read_id(path, number, value)


def write_collection(
    folder: Path,
    documents: Iterable[Document],
    queries: Iterable[tuple[str, str]],
    qrels: Iterable[tuple[str, str, int]],
    metadata: Mapping[str, Any],
) -> None:
    """Write a collection into an empty ``folder``: BEIR's files of one split, and its metadata."""
    encode = msgspec.json.encode
    (folder / "qrels").mkdir()
    rows = (f"{query}\t{document}\t{grade}".encode() for query, document, grade in qrels)
    for name, lines in (
        ("corpus.jsonl", (encode({"_id": i, "title": t, "text": x}) for i, t, x in documents)),
        ("queries.jsonl", (encode({"_id": id_, "text": text}) for id_, text in queries)),
        (
            f"qrels/{metadata['split']}.tsv",
            itertools.chain(["\t".join(BEIR_HEADER).encode()], rows),
        ),
        ("dataset.toml", (b"%s = %s" % (k.encode(), encode(v)) for k, v in metadata.items())),
    ):
        with (folder / name).open("wb") as file:
            file.writelines(line + b"\n" for line in lines)
