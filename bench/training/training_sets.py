"""Collections as training data: texts of corpora, judged queries, and which of them leak.

Leaks are training queries that are queries that the model will be scored on: a published train
split can share questions with its own test split. Two of SciFact's and four of NFCorpus's training
queries have the text of a test query, under other ids.
"""

import re
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from datasets_cfg.readers import Queries
from foundation.arrays import Int64Array
from foundation.errors import BenchError
from retrievers.encoders.protocol import join
from retrievers.training.finetune.training_data import TrainingSet
from retrievers.training.pretrain.texts import LazyTexts

NAMED_QUERIES = 3
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, eq=False)
class CorpusDocuments:
    """Documents of several corpora, one after the other."""

    corpora: tuple[Corpus, ...]

    @cached_property
    def starts(self) -> Int64Array:
        """First row of each corpus, and the number of all documents."""
        return np.cumsum([0, *map(len, self.corpora)], dtype=np.int64)

    def __len__(self) -> int:
        return sum(map(len, self.corpora))

    def document_at(self, row: int) -> tuple[str, str]:
        """Title and text of a row."""
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        corpus, inner = self.corpora[number], row - int(self.starts[number])
        return corpus.titles[inner].as_py(), corpus.texts[inner].as_py()

    def read(self, rows: Int64Array) -> tuple[list[str], list[str]]:
        """Titles and texts of the rows, in their order."""
        found = [self.document_at(row) for row in rows.tolist()]
        for corpus in self.corpora:
            corpus.release_pages()
        return [title for title, _ in found], [text for _, text in found]


class CorpusTexts(LazyTexts):
    """The documents of corpora, one after the other, each as title, space and text.

    Documents without a word are left out. A document is read from disk when it is asked for.
    """

    def __init__(self, corpora: Sequence[Corpus]) -> None:
        self.documents = CorpusDocuments(tuple(corpora))
        starts = self.documents.starts[:-1]
        rows = [
            _rows_with_words(corpus) + start for corpus, start in zip(corpora, starts, strict=True)
        ]
        self.rows = np.concatenate([np.empty(0, np.int64), *rows])

    def __len__(self) -> int:
        return len(self.rows)

    def text_at(self, index: int) -> str:
        """Title and text of a document."""
        return join("space", "", *self.documents.document_at(int(self.rows[index])))[0]


def _rows_with_words(corpus: Corpus) -> Int64Array:
    """Rows of the documents that have a title or a text."""
    empty = pc.and_(_is_blank(corpus.titles), _is_blank(corpus.texts))
    rows: Int64Array = np.flatnonzero(~np.asarray(empty.combine_chunks()))
    return rows


def _is_blank(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.equal(pc.binary_length(pc.utf8_trim_whitespace(texts)), 0)


@dataclass(frozen=True, eq=False)
class TrainingSplit:
    """The training split of one collection, as far as it can be trained on.

    Attributes:
        dataset: with those of its queries that have a relevant document in the corpus.
        positives: rows of the corpus for each, rising.
    """

    dataset: Dataset
    positives: tuple[Int64Array, ...]

    @classmethod
    def of(cls, dataset: Dataset, without: frozenset[str] = frozenset()) -> "TrainingSplit":
        """Judged relevant is what has a grade of 1 or more; ``without`` are ids of queries.

        Raises:
            BenchError: no query is left.
        """
        rows = dataset.corpus.rows_of(dataset.qrels.doc_ids)
        relevant: dict[str, list[int]] = {}
        for (query, _, grade), row in zip(dataset.qrels, rows.tolist(), strict=True):
            if grade > 0 and row >= 0 and query not in without:
                relevant.setdefault(query, []).append(row)
        kept = [index for index, id_ in enumerate(dataset.queries.ids) if id_ in relevant]
        if not kept:
            raise BenchError(
                f"{dataset.name} has no query to train on in its split {dataset.facts.split}",
                "its qrels must name relevant documents of its corpus",
            )
        ids = dataset.queries.ids
        return cls(
            _select_queries(dataset, kept),
            tuple(np.unique(np.array(relevant[ids[index]], np.int64)) for index in kept),
        )

    def select(self, rows: Sequence[int]) -> "TrainingSplit":
        """Some of its queries, at least one."""
        return TrainingSplit(
            _select_queries(self.dataset, rows), tuple(self.positives[row] for row in rows)
        )


def _select_queries(dataset: Dataset, rows: Sequence[int]) -> Dataset:
    ids, texts = dataset.queries.ids, dataset.queries.texts
    queries = Queries(tuple(ids[row] for row in rows), tuple(texts[row] for row in rows))
    return replace(dataset, queries=queries)


def draw_queries(
    splits: Sequence[TrainingSplit], count: int, seed: int
) -> tuple[TrainingSplit, ...]:
    """Splits with so many queries in all, drawn at random; those of fewer are among those of more.

    Raises:
        BenchError: there are fewer.
    """
    ends = np.cumsum([0, *(len(split.positives) for split in splits)])
    if count > ends[-1]:
        raise BenchError(
            f"{count:,} queries are to be trained on, and there are {ends[-1]:,}",
            "leave queries out, which takes all",
        )
    drawn = np.sort(np.random.default_rng(seed).permutation(ends[-1])[:count])
    rows = [drawn[(drawn >= first) & (drawn < end)] - first for first, end in pairwise(ends)]
    return tuple(
        split.select(chosen.tolist())
        for split, chosen in zip(splits, rows, strict=True)
        if len(chosen)
    )


def training_set(splits: Sequence[TrainingSplit]) -> TrainingSet:
    """Queries and relevant documents of several collections."""
    documents = CorpusDocuments(tuple(split.dataset.corpus for split in splits))
    starts = documents.starts
    return TrainingSet(
        queries=tuple(text for split in splits for text in split.dataset.queries.texts),
        positives=tuple(
            rows + start
            for split, start in zip(splits, starts[:-1], strict=True)
            for rows in split.positives
        ),
        documents=documents,
        trained_on=trained_collections([split.dataset.name for split in splits]),
    )


def leaked_queries(training: Dataset, evaluated: Sequence[Dataset]) -> frozenset[str]:
    """Ids of the training queries that must be left out.

    Raises:
        BenchError: see `find_leaks`.
    """
    left_out: set[str] = set()
    for other in evaluated:
        if shared := find_leaks(training, other):
            named = ", ".join(shared[:NAMED_QUERIES])
            more = ", …" if len(shared) > NAMED_QUERIES else ""
            print(
                f"warning: {len(shared)} training queries of {training.name} read like test "
                f"queries of {other.name} and are left out: {named}{more}",
                file=sys.stderr,
            )
        left_out.update(shared)
    return frozenset(left_out)


def find_leaks(training: Dataset, evaluated: Dataset) -> tuple[str, ...]:
    """Ids of the training queries that read like an evaluated one.

    A judged pair leaks with its query: documents alone are shared by any two splits.

    Raises:
        BenchError: a training query is itself evaluated.
    """
    related = related_collections(training.name) == related_collections(evaluated.name)
    same = related or _same_files(training, evaluated)
    ids, texts = shared_queries(training.queries, evaluated.queries, same)
    if ids:
        raise BenchError(
            f"split {training.facts.split} of {training.name} has {len(ids)} queries of the split "
            f"{evaluated.facts.split} that {evaluated.name} is evaluated on",
            'train on another split: --split train; in a grid split = "train"',
        )
    return texts


def shared_queries(
    training: Queries, evaluated: Queries, ids_count: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Ids of training queries that are evaluated: by id, and by text.

    Args:
        ids_count: whether both are of one collection; ids of two collide by accident.
    """
    ids = set(evaluated.ids) if ids_count else set()
    texts = {normalise_query(text) for text in evaluated.texts}
    pairs = list(zip(training.ids, training.texts, strict=True))
    return (
        tuple(id_ for id_, _ in pairs if id_ in ids),
        tuple(id_ for id_, text in pairs if normalise_query(text) in texts),
    )


def normalise_query(text: str) -> str:
    """Words of a text without case, punctuation or Unicode's compatibility variants."""
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


# Collections under several names: one corpus and the same training queries, or, of stdlib-code, one
# source.
FAMILIES = (
    ("beir/msmarco", "msmarco", "msmarco-title"),
    ("beir/nq", "dpr/nq"),
    ("stdlib-code",),
)


def related_collections(name: str) -> tuple[str, ...]:
    """Names that count as seen by a model that was trained on the collection."""
    for members in FAMILIES:
        if any(f"{name}/".startswith(f"{member}/") for member in members):
            return members
    return (name,)


def trained_collections(names: Sequence[str]) -> tuple[str, ...]:
    """Collections that the card of a model states as trained on, each once."""
    return tuple(dict.fromkeys(member for name in names for member in related_collections(name)))


def _same_files(dataset: Dataset, other: Dataset) -> bool:
    paths = [{path.resolve() for path in each.reader.corpus_files()} for each in (dataset, other)]
    return bool(paths[0] & paths[1])
