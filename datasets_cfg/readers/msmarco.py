"""Layout of MS MARCO passage ranking and TREC-DL: tab-separated, no quoting, no header.

The official passages (``collection.tsv``) have no titles. ``para.title.txt`` by the authors of
RocketQA (Qu et al., NAACL 2021) adds them for the title track.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets_cfg.readers import reader
from datasets_cfg.readers.qrels import read_trec_qrels
from datasets_cfg.readers.reader import Document, Judgements, Reader
from foundation.errors import MissingFileError

_NO_MORE: tuple[int, list[str]] = (0, ["", ""])
_QUERIES = {
    "dev": ["queries.dev.small.tsv"],
    "dl19": ["msmarco-test2019-queries.tsv", "queries.dl19.judged.tsv"],
    "dl20": ["msmarco-test2020-queries.tsv", "queries.dl20.judged.tsv"],
}
_QRELS = {
    "dev": ["qrels.dev.small.tsv"],
    "dl19": ["2019qrels-pass.txt", "qrels.dl19-passage.txt"],
    "dl20": ["2020qrels-pass.txt", "qrels.dl20-passage.txt"],
}


@dataclass(frozen=True)
class MsmarcoReader(Reader):
    """A reader of MS MARCO's layout."""

    corpus_names = ("collection.tsv", "para.title.txt")
    expected = "collection.tsv, queries and qrels (and para.title.txt for the title track)"

    def splits(self) -> Collection[str]:
        files = {path.name.removesuffix(".gz") for path in self.folder.glob("*qrels*")}
        known = {name: split for split, names in _QRELS.items() for name in names}
        return {
            known.get(name) or name.removeprefix("qrels.").rpartition(".")[0]
            for name in files
            if name in known or name.startswith("qrels.")
        }

    def defaults(self) -> dict[str, Any]:
        """Return the measures of MS MARCO, except for the graded judgements of TREC-DL."""
        graded = self.split in ("dl19", "dl20")
        return {} if graded else {"main_measure": "RR@10", "measures": ["R@1000", "R@50"]}

    def corpus_files(self) -> tuple[Path, ...]:
        names = self.corpus_names if self.with_titles else self.corpus_names[:1]
        return tuple(reader.find_file(self.folder, [name]) for name in names)

    def documents(self) -> Iterator[Document]:
        collection, *titles = self.corpus_files()
        return read_titled_passages(collection, *titles) if titles else read_passages(collection)

    def judgement_files(self) -> tuple[Path, Path]:
        split = self.split
        queries = self._find(_QUERIES.get(split, []), [f"queries.{split}.tsv"])
        return queries, self._find(
            _QRELS.get(split, []), [f"qrels.{split}.tsv", f"qrels.{split}.txt"]
        )

    def _find(self, published: Sequence[str], others: Sequence[str]) -> Path:
        """Return the first published file that is there, or else the only one of the others."""
        for name in published:
            with suppress(MissingFileError):
                return reader.find_file(self.folder, [name])
        return reader.find_file(self.folder, [*published, *others], self.splits())

    def judgements(self) -> Judgements:
        path, qrels = self.judgement_files()
        queries = reader.read_tsv_queries(path)
        return reader.keep_judged_queries(queries, read_trec_qrels(qrels), qrels)


def read_passages(path: Path) -> Iterator[Document]:
    """Yield the documents in ``path``, a ``collection.tsv``."""
    for number, (id_, text) in reader.read_rows(path, 2, "\t"):
        yield Document(reader.read_id(path, number, id_), "", text)


def read_titled_passages(collection: Path, titles: Path) -> Iterator[Document]:
    """Yield the passages of ``collection`` joined with their ``titles``, which may be missing.

    Both files are read in parallel and must have the same order.
    """
    rows = reader.read_rows(titles, 2, "\t")
    number, (wanted, title) = next(rows, _NO_MORE)
    for document in read_passages(collection):
        if document.id != wanted:
            yield document
            continue
        yield document._replace(title=title)
        number, (wanted, title) = next(rows, _NO_MORE)
    if number:
        problem = f"passage {wanted!r} does not follow in {collection.name}"
        hint = f"Sort both files in the same way, for example `sort -n -o {titles} {titles}`."
        raise reader.line_error(titles, number, problem, hint)
