"""BEIR's layout: ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/<split>.tsv``."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from datasets_cfg.readers.reader import (
    Document,
    Judgements,
    Queries,
    Reader,
    check_id,
    collect_queries,
    find_file,
    keep_judged_queries,
    read_beir_qrels,
    read_json_lines,
)

_HINT = 'write one JSON object per line, with the strings "_id" and "text"'


class _QueryLine(msgspec.Struct):
    text: str
    id: str = msgspec.field(name="_id")


class _DocumentLine(_QueryLine):
    title: str | None = None


@dataclass(frozen=True)
class BeirReader(Reader):
    """A reader of BEIR's layout."""

    corpus_names = ("corpus.jsonl",)
    expected = "corpus.jsonl, queries.jsonl and qrels/{split}.tsv"

    def corpus_files(self) -> tuple[Path, ...]:
        """Return the file of the documents."""
        return (find_file(self.folder, self.corpus_names),)

    def documents(self) -> Iterator[Document]:
        """Yield the documents."""
        return read_documents(*self.corpus_files())

    def judgement_files(self) -> tuple[Path, Path]:
        """Return the files of the queries and of the qrels."""
        qrels = self.folder / "qrels"
        splits = {path.name.split(".tsv")[0] for path in qrels.glob("*.tsv*")}
        return (
            find_file(self.folder, ["queries.jsonl"]),
            find_file(qrels, [f"{self.split}.tsv"], splits),
        )

    def judgements(self) -> Judgements:
        """Return queries and qrels of the split."""
        queries, qrels = self.judgement_files()
        return keep_judged_queries(read_queries(queries), read_beir_qrels(qrels), qrels)


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents in ``path``, a ``corpus.jsonl`` with ``_id``, ``text`` and maybe
    ``title``.

    Raises:
        BenchError: a malformed line, named with its number.
    """
    for number, line in read_json_lines(path, _DocumentLine, _HINT):
        yield Document(check_id(path, number, line.id), line.title or "", line.text)


def read_queries(path: Path) -> Queries:
    """Return the queries in ``path``, a ``queries.jsonl`` with the strings ``_id`` and ``text``."""
    lines = read_json_lines(path, _QueryLine, _HINT)
    return collect_queries(((number, line.id, line.text) for number, line in lines), path)
