"""BRIGHT's layout (Su et al., ICLR 2025): one split for each domain, and excluded documents.

``examples`` holds queries with the ids of their relevant documents and of those that BRIGHT removes
from the ranking, ``documents`` the passages.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from datasets_cfg.readers import reader
from datasets_cfg.readers.reader import Document, Judgements, Qrels, Reader

_NONE = "N/A"  # excluded id of a query without any


class _DocumentRow(msgspec.Struct):
    id: str
    content: str


class _Example(msgspec.Struct):
    id: str
    query: str
    gold_ids: tuple[str, ...]
    excluded_ids: tuple[str, ...]


@dataclass(frozen=True)
class BrightReader(Reader):
    """A reader of BRIGHT's layout. A split is a domain, such as biology."""

    corpus_names = ()
    expected = "documents/{split}-*.parquet and examples/{split}-*.parquet"
    patterns = ("documents/{split}-*", "examples/{split}-*")

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        return all(reader.list_splits(folder, [name]) for name in ("documents", "examples"))

    def splits(self) -> Collection[str]:
        return reader.list_splits(self.folder, ["examples"])

    def corpus_files(self) -> tuple[Path, ...]:
        return self._files("documents")

    def documents(self) -> Iterator[Document]:
        for path in self.corpus_files():
            for number, row in reader.read_records(path, _DocumentRow):
                yield Document(reader.read_id(path, number, row.id), "", row.content)

    def judgement_files(self) -> tuple[Path, ...]:
        return self._files("examples")

    def judgements(self) -> Judgements:
        """Return queries that have relevant documents, with the excluded documents of each."""
        paths = self.judgement_files()
        rows = [each for path in paths for each in reader.read_records(path, _Example)]
        asked = ((number, row.id, row.query) for number, row in rows)
        queries = reader.collect_queries(asked, paths[0])
        qrels = Qrels.of({(row.id, gold): 1 for _, row in rows for gold in row.gold_ids})
        excluded = {row.id: tuple(set(row.excluded_ids) - {_NONE}) for _, row in rows}
        judged = reader.keep_judged_queries(queries, qrels, paths[0])
        return replace(judged, excluded={q: e for q, e in excluded.items() if e})

    def _files(self, name: str) -> tuple[Path, ...]:
        missing = f"{self.folder} has no {name}/{self.split}-*.parquet"
        found = reader.list_splits(self.folder, [name])
        return reader.choose_split(found, self.split, missing, only=False)
