"""Golden sets: questions with the ids of their relevant documents, in one table.

A table is a CSV, TSV, JSON lines or Parquet file. Another table in the folder may hold the
documents; without one, only rankings of ids can be scored.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from datasets_cfg.readers import reader
from datasets_cfg.readers.reader import Document, Judgements, Qrels, Queries, Reader
from foundation.errors import BenchError, MissingFileError, format_names

FORMS = (".csv", ".tsv", ".jsonl", ".parquet")
SEPARATORS = ";,|"
# Names of columns in lower case, with _ for blanks and hyphens.
_QUESTION = r"(user_)?(question|query)(_text)?"
_QUESTION_ID = r"q(uery|uestion)?_?id|_?id"
_RELEVANT = (
    r"(expected|relevant|gold(en)?|positive|correct|target|ground_truth|reference)_"
    r"((doc(ument)?|passage|chunk|context|source|corpus)s?_?)?(ids?)?|"
    r"(doc(ument)?|passage|chunk|corpus)s?_?ids?"
)
_DOCUMENT_ID = r"_?id|(doc(ument)?|passage|chunk|corpus)_?id"
_TITLE = r"title|heading"
_TEXT = r"text|body|contents?|passage|chunk|document"


class _Table(NamedTuple):
    """A file and its columns that have a role."""

    path: Path
    columns: tuple[str, ...]

    def column(self, pattern: str) -> str:
        """Return the only column whose name matches ``pattern``, or "" if there is none."""
        names = [name for name in self.columns if re.fullmatch(pattern, _normal(name))]
        if len(names) > 1:
            problem = f"{self.path} has several columns for one role: {format_names(names)}"
            raise BenchError(problem, "Rename or remove one of them.")
        return names[0] if names else ""

    @property
    def question_id(self) -> str:
        """Column of the ids of questions, or ""."""
        others = {*self.columns} - {self.column(_QUESTION), self.column(_RELEVANT)}
        return self._replace(columns=tuple(sorted(others))).column(_QUESTION_ID)

    @property
    def is_golden(self) -> bool:
        """True if it has questions and the ids of their documents."""
        return self._has(_QUESTION) and self._has(_RELEVANT)

    @property
    def has_documents(self) -> bool:
        """True if it has documents with ids."""
        return not self.is_golden and self._has(_DOCUMENT_ID) and self._has(_TEXT)

    def _has(self, pattern: str) -> bool:
        return any(re.fullmatch(pattern, _normal(name)) for name in self.columns)


@dataclass(frozen=True)
class GoldenReader(Reader):
    """A reader of a golden set, whose only split is test."""

    corpus_names = ()
    expected = "golden.csv (question, relevant_ids) and documents.csv (id, title, text)"
    patterns = tuple(f"*{form}" for form in FORMS)

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """Return whether a table in ``folder`` has questions and the ids of their documents."""
        return any(table.is_golden for table in _tables(folder))

    @staticmethod
    def is_golden(path: Path) -> bool:
        """Return whether a path is that of a table of questions and the ids of their documents."""
        is_table = path.suffix in FORMS and path.is_file()
        return is_table and _Table(path, _column_names(path)).is_golden

    def splits(self) -> Sequence[str]:
        return ("test",)

    def has_documents(self) -> bool:
        return any(table.has_documents for table in _tables(self.folder))

    def corpus_files(self) -> tuple[Path, ...]:
        return (self._only("has_documents", "documents").path,)

    def documents(self) -> Iterator[Document]:
        table = self._only("has_documents", "documents")
        id_, title, text = map(table.column, (_DOCUMENT_ID, _TITLE, _TEXT))
        reader.assume(_roles(table, id=id_, title=title, text=text), None)
        for number, row in _rows(table.path):
            name = reader.read_id(table.path, number, row.get(id_))
            yield Document(name, str(row.get(title) or ""), str(row.get(text) or ""))

    def judgement_files(self) -> tuple[Path, ...]:
        return (self._only("is_golden", "questions").path,)

    def judgements(self) -> Judgements:
        """Return the questions with grade 1 for their documents.

        The id of a question is its own or, without a column of ids, the number of its row. Rows
        with the same question are one.
        """
        table, question, relevant, id_ = self._questions()
        roles = _roles(table, id=id_ or "the number of the row", question=question)
        reader.assume(f"{roles}, relevant documents: {relevant}", None)
        split = _Separator(table.path, relevant)
        ids, pairs = dict[str, str](), dict[tuple[str, str], int]()
        for number, row in _rows(table.path):
            text = str(row.get(question) or "").strip()
            documents = split(row.get(relevant))
            if not text or not documents:
                reader.assume("rows without a question or without a relevant document are left out")
                continue
            name = reader.read_id(table.path, number, row.get(id_) if id_ else str(number))
            if text in ids:
                reader.assume("rows with the same question are read as one")
            pairs |= {(ids.setdefault(text, name), document): 1 for document in documents}
        if len({*ids.values()}) < len(ids):
            problem = f"{table.path}: two questions have the same {id_}"
            raise BenchError(problem, "Give each question an id of its own, or remove the column.")
        queries = Queries(tuple(ids.values()), tuple(ids))
        return reader.keep_judged_queries(queries, Qrels.of(pairs), table.path)

    def query_fields(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the id of each question with the other columns of its first row."""
        table, question, relevant, id_ = self._questions()
        seen = set[str]()
        for number, row in _rows(table.path):
            text = str(row.get(question) or "").strip()
            if text and text not in seen:
                seen.add(text)
                others = {k: v for k, v in row.items() if k not in (question, relevant, id_)}
                name = row.get(id_) if id_ else str(number)
                yield reader.read_id(table.path, number, name), others

    def _questions(self) -> tuple[_Table, str, str, str]:
        """Return the table of questions, and its columns of questions, relevant and own ids."""
        table = self._only("is_golden", "questions")
        return table, table.column(_QUESTION), table.column(_RELEVANT), table.question_id

    def _only(self, role: str, what: str) -> _Table:
        """Return the only table with a role."""
        found = [table for table in _tables(self.folder) if getattr(table, role)]
        if not found:
            known = "an id and a text in each row of a CSV, JSON lines or Parquet file"
            ids = " Ids alone suffice for a search system and for `python -m bench score`."
            hint = f"Add a table with {known}.{ids if role == 'has_documents' else ''}"
            raise MissingFileError(f"{self.folder} has no {what}", hint)
        (first,) = reader.choose_only([(table.path,) for table in found])
        return next(table for table in found if table.path == first)


@dataclass(frozen=True)
class _Separator:
    """The separator of ids in a column, which is the same in all rows."""

    path: Path
    column: str

    @cached_property
    def _character(self) -> str:
        """The only separator that occurs in the column, or ""."""
        texts = (row.get(self.column) for _, row in _rows(self.path))
        plain = [each for each in texts if isinstance(each, str) and not each.startswith("[")]
        used = [mark for mark in SEPARATORS if any(mark in each for each in plain)]
        if len(used) > 1:
            problem = f"{self.path}: the ids in {self.column} could be separated by any of"
            raise BenchError(f"{problem} {' '.join(used)}", 'Write lists such as ["d1", "d2"].')
        if used:
            reader.assume(f"{self.path.name}: ids are separated by {used[0]}", None)
        return "".join(used)

    def __call__(self, value: Any) -> list[str]:
        """Return the ids in ``value``: a list, a JSON list, or ids with a separator."""
        if isinstance(value, str) and value.lstrip().startswith("["):
            try:
                value = json.loads(value.replace("'", '"') if '"' not in value else value)
            except ValueError as error:
                raise BenchError(f"{self.path}: {value[:80]!r} is not a list: {error}") from error
        if isinstance(value, str):
            value = value.split(self._character) if self._character else [value]
        listed = value if isinstance(value, list) else [] if value is None else [value]
        names = (reader.read_id(self.path, 0, _stripped(each)) for each in listed if each != "")
        return [name for name in names if name]


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _normal(name: str) -> str:
    return re.sub(r"[ -]+", "_", name.strip().lower())


def _roles(table: _Table, **columns: str) -> str:
    named = ", ".join(f"{role}: {column}" for role, column in columns.items() if column)
    return f"{table.path.name} is read with {named}"


def _tables(folder: Path) -> list[_Table]:
    """Return the tables right in ``folder`` with the names of their columns."""
    tables = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix in FORMS and path.is_file():
            tables.append(_Table(path, _column_names(path)))
    return tables


def _column_names(path: Path) -> tuple[str, ...]:
    """Return the columns of the first row, or () if it cannot be read."""
    try:
        with reader.collect_assumptions():  # of a file that another reader may read
            return next(((*row,) for _, row in _rows(path)), ())
    except BenchError:
        return ()


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a table with their numbers, from 1."""
    if path.suffix in reader.TEXT_FORMS:
        yield from reader.read_objects(path)
    else:
        number, header = next(reader.read_lines(path), (1, b""))
        delimiter = max(",;\t", key=reader.decode_line(path, number, header).count)
        rows = reader.read_csv(path, delimiter)
        _, names = next(rows, (1, list[str]()))
        for number, (_, fields) in enumerate(rows, start=1):
            yield number, dict(zip(names, fields, strict=True))
