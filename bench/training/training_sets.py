"""Collections as training data: texts of corpora, and queries with their relevant documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.training.leaks import seen
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from datasets_cfg.readers import Queries
from foundation.arrays import Int64Array
from foundation.errors import BenchError
from retrievers.encoders.protocol import join
from retrievers.training.finetune.training_data import TrainingSet
from retrievers.training.pretrain.texts import LazyTexts


class CorpusTexts(LazyTexts):
    """The documents of corpora, one after the other, each as title, space and text.

    Documents without a word are left out. A document is read from disk when it is asked for.
    """

    def __init__(self, corpora: Sequence[Corpus]) -> None:
        self.corpora = corpora
        self.rows = [_with_words(corpus) for corpus in corpora]
        self.ends = np.cumsum([len(rows) for rows in self.rows])

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def text_at(self, place: int) -> str:
        """Title and text of a document."""
        number = int(np.searchsorted(self.ends, place, side="right"))
        rows = self.rows[number]
        row = int(rows[place - (self.ends[number] - len(rows))])
        corpus = self.corpora[number]
        return join("space", "", corpus.titles[row].as_py(), corpus.texts[row].as_py())[0]


def _with_words(corpus: Corpus) -> Int64Array:
    """Rows of the documents that have a title or a text."""
    empty = pc.and_(_blank(corpus.titles), _blank(corpus.texts))
    rows: Int64Array = np.flatnonzero(~np.asarray(empty.combine_chunks()))
    return rows


def _blank(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.equal(pc.binary_length(pc.utf8_trim_whitespace(texts)), 0)


@dataclass(frozen=True, eq=False)
class Split:
    """The training split of one collection, as far as it can be trained on.

    Attributes:
        queries: those with a relevant document that the corpus has.
        positives: rows of the corpus for each, rising.
    """

    dataset: Dataset
    queries: Queries
    positives: tuple[Int64Array, ...]

    @classmethod
    def of(cls, dataset: Dataset, without: frozenset[str] = frozenset()) -> "Split":
        """Judged relevant is what has a grade of 1 or more; ``without`` are ids of queries.

        Raises:
            BenchError: no query is left.
        """
        rows = dataset.corpus.rows_of(dataset.qrels.doc_ids)
        relevant: dict[str, list[int]] = {}
        for (query, _, grade), row in zip(dataset.qrels, rows.tolist(), strict=True):
            if grade > 0 and row >= 0 and query not in without:
                relevant.setdefault(query, []).append(row)
        pairs = zip(dataset.queries.ids, dataset.queries.texts, strict=True)
        kept = [(id_, text) for id_, text in pairs if id_ in relevant]
        if not kept:
            raise BenchError(
                f"{dataset.name} has no query to train on in its split {dataset.facts.split}",
                "its qrels must name relevant documents of its corpus",
            )
        ids, texts = zip(*kept, strict=True)
        positives = tuple(np.unique(np.array(relevant[id_], np.int64)) for id_ in ids)
        return cls(dataset, Queries(ids, texts), positives)

    def only(self, rows: Sequence[int]) -> "Split":
        """Some of its queries, at least one."""
        ids, texts = self.queries.ids, self.queries.texts
        queries = Queries(tuple(ids[row] for row in rows), tuple(texts[row] for row in rows))
        return Split(self.dataset, queries, tuple(self.positives[row] for row in rows))


def draw_queries(splits: Sequence[Split], count: int, seed: int) -> tuple[Split, ...]:
    """Splits with so many queries in all, drawn at random; those of fewer are among those of more.

    Raises:
        BenchError: there are fewer.
    """
    ends = np.cumsum([0, *(len(split.queries) for split in splits)])
    if count > ends[-1]:
        raise BenchError(
            f"{count:,} queries are to be trained on, and there are {ends[-1]:,}",
            "leave queries out, which takes all",
        )
    drawn = np.sort(np.random.default_rng(seed).permutation(ends[-1])[:count])
    rows = [drawn[(drawn >= first) & (drawn < end)] - first for first, end in pairwise(ends)]
    return tuple(
        split.only(own.tolist()) for split, own in zip(splits, rows, strict=True) if len(own)
    )


@dataclass(frozen=True, eq=False)
class CorpusDocuments:
    """Documents of several corpora, one after the other."""

    corpora: tuple[Corpus, ...]

    @property
    def starts(self) -> Int64Array:
        """First row of each corpus, and the number of all documents."""
        return np.cumsum([0, *map(len, self.corpora)], dtype=np.int64)

    def __len__(self) -> int:
        return sum(map(len, self.corpora))

    def read(self, rows: Int64Array) -> tuple[list[str], list[str]]:
        """Titles and texts of the rows, in their order."""
        titles, texts = np.empty(len(rows), object), np.empty(len(rows), object)
        of_corpus = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(of_corpus).tolist():
            places = np.flatnonzero(of_corpus == number)
            corpus = self.corpora[number]
            local = rows[places] - self.starts[number]
            titles[places] = _at(corpus.titles, local)
            texts[places] = _at(corpus.texts, local)
            corpus.release_pages()
        return list(titles), list(texts)


def training_set(splits: Sequence[Split]) -> TrainingSet:
    """Queries and relevant documents of several collections."""
    documents = CorpusDocuments(tuple(split.dataset.corpus for split in splits))
    starts = documents.starts
    return TrainingSet(
        queries=tuple(text for split in splits for text in split.queries.texts),
        positives=tuple(
            rows + start
            for split, start in zip(splits, starts[:-1], strict=True)
            for rows in split.positives
        ),
        documents=documents,
        trained_on=seen([split.dataset.name for split in splits]),
    )


def _at(column: pa.ChunkedArray, rows: Int64Array) -> list[str]:
    """Values of some rows, chunk by chunk: Arrow joins the chunks that it takes rows from."""
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    chunk_of = np.searchsorted(ends, rows, side="right")
    values = np.empty(len(rows), object)
    for number in np.unique(chunk_of).tolist():
        places = np.flatnonzero(chunk_of == number)
        chunk = column.chunk(number)
        first = int(ends[number]) - len(chunk)
        values[places] = chunk.take(pa.array(rows[places] - first)).to_pylist()
    return list(values)
