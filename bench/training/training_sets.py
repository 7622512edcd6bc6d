"""Training data from collections: texts of corpora, judged queries, and detection of leaks.

A leak is a training query that the model will also be scored on. Published train splits can share
questions with their own test split: two training queries of SciFact and four of NFCorpus have the
text of a test query under a different id.
"""

import logging
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from datasets_cfg.readers.reader import Queries, TrainingExample
from foundation.arrays import Int64Array
from foundation.errors import BenchError, format_count
from foundation.files import hash_records, sha256_of_file
from retrievers.encoders.protocol import join
from retrievers.training.finetune.training_data import NegativePool, TrainingSet
from retrievers.training.objectives.masking import pad_rows
from retrievers.training.pretrain.texts import LazyTexts

logger = logging.getLogger(__name__)

NAMED_QUERIES = 3
PASSAGES_AT_ONCE = 1 << 18  # of training files, looked up in a corpus
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, eq=False)
class CorpusDocuments:
    """Documents of several corpora, one corpus after the other."""

    corpora: tuple[Corpus, ...]

    @cached_property
    def starts(self) -> Int64Array:
        """First row of each corpus, followed by the total number of documents, int64."""
        return np.cumsum([0, *map(len, self.corpora)], dtype=np.int64)

    def __len__(self) -> int:
        return sum(map(len, self.corpora))

    def document_at(self, row: int) -> tuple[str, str]:
        """Return the title and the text of the document at ``row``."""
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        corpus, inner = self.corpora[number], row - int(self.starts[number])
        return corpus.titles[inner].as_py(), corpus.texts[inner].as_py()

    def read(self, rows: Int64Array) -> tuple[list[str], list[str]]:
        """Return the titles and the texts of the documents at ``rows``, in that order."""
        found = [self.document_at(row) for row in rows.tolist()]
        for corpus in self.corpora:
            corpus.release_pages()
        return [title for title, _ in found], [text for _, text in found]


class CorpusTexts(LazyTexts):
    """Documents of several corpora as texts of title, space and text, without blank ones."""

    def __init__(self, corpora: Sequence[Corpus]) -> None:
        self.documents = CorpusDocuments(tuple(corpora))
        starts = self.documents.starts[:-1]
        rows = [
            _rows_with_words(corpus) + start for corpus, start in zip(corpora, starts, strict=True)
        ]
        self.rows = np.concatenate([np.empty(0, np.int64), *rows])
        self.sha256 = hash_records([[corpus.sha256] for corpus in corpora])

    def __len__(self) -> int:
        return len(self.rows)

    def text_at(self, index: int) -> str:
        """Return title and text of the document at ``index``."""
        return join("space", "", *self.documents.document_at(int(self.rows[index])))[0]


def _rows_with_words(corpus: Corpus) -> Int64Array:
    trimmed = map(pc.utf8_trim_whitespace, (corpus.titles, corpus.texts))
    titles, texts = (pc.binary_length(column).to_numpy() for column in trimmed)
    return np.flatnonzero((titles > 0) | (texts > 0))


@dataclass(frozen=True, eq=False)
class TrainSplit:
    """Training split of a collection, without the queries that cannot be trained on.

    ``positives`` are the sorted rows of each query's relevant documents, int64, and ``negatives``
    hard negatives that come with the queries.
    """

    dataset: Dataset
    positives: tuple[Int64Array, ...]
    negatives: NegativePool | None = None

    @classmethod
    def of(cls, dataset: Dataset, without: frozenset[str] = frozenset()) -> "TrainSplit":
        """Return the usable part of a split, without the ids ``without``.

        Documents with a grade of 1 or more are relevant.
        """
        rows = dataset.corpus.rows_of(dataset.qrels.doc_ids)
        relevant: dict[str, list[int]] = {}
        for (query, _, grade), row in zip(dataset.qrels, rows.tolist(), strict=True):
            if grade > 0 and row >= 0 and query not in without:
                relevant.setdefault(query, []).append(row)
        kept = [index for index, id_ in enumerate(dataset.queries.ids) if id_ in relevant]
        if not kept:
            raise BenchError(
                f"the split {dataset.metadata.split} of {dataset.name} has no queries to train on",
                "Its qrels must name relevant documents of its corpus.",
            )
        ids = dataset.queries.ids
        return cls(
            _select_queries(dataset, kept),
            tuple(np.unique(np.array(relevant[ids[index]], np.int64)) for index in kept),
        )

    def select(self, rows: Sequence[int]) -> "TrainSplit":
        """Return the split with only the queries at ``rows``, at least one."""
        return TrainSplit(
            _select_queries(self.dataset, rows),
            tuple(self.positives[row] for row in rows),
            self.negatives and self.negatives.take(np.array(rows)),
        )

    def with_given(self, examples: Iterable[TrainingExample], keep: int) -> "TrainSplit":
        """Return the queries of ``examples`` with their first ``keep`` negatives each.

        An example's relevant documents are added to the judged ones, or replace them if they have a
        teacher's scores. Without examples, the split itself is returned.
        """
        given = _find_given(self.dataset, examples, keep)
        if given is None:
            return self
        count = len(self.positives)
        relevant = _group(given[given["relevant"]], count)
        negatives = _group(given[~given["relevant"]], count)
        scored = not np.isnan(given["score"]).any()
        kept = np.unique(given["query"][given["relevant"]] if scored else given["query"]).tolist()
        if not kept:
            raise BenchError(
                "none of the scored records has a relevant passage in the corpus of "
                f"{self.dataset.name}",
                "Their ids must be those of the collection.",
            )
        positives, scores = [], []
        for number in kept:
            rows, first = np.unique(relevant[number]["row"], return_index=True)
            positives.append(rows if scored else np.union1d(rows, self.positives[number]))
            scores.append(relevant[number]["score"][first])
        split = replace(self.select(kept), positives=tuple(positives))
        pool = NegativePool(pad_rows([negatives[number]["row"] for number in kept], -1))
        if (pool.rows < 0).all():
            return split
        if scored:
            padded = pad_rows([negatives[number]["score"] for number in kept], -np.inf)
            pool = NegativePool(pool.rows, padded, scores)
        return replace(split, negatives=pool)


# A passage of an example: numbers of query and document, whether it is relevant, and its score.
_GIVEN = np.dtype([("query", "i8"), ("row", "i8"), ("relevant", "?"), ("score", "f4")])


def _find_given(
    dataset: Dataset, examples: Iterable[TrainingExample], keep: int
) -> npt.NDArray[np.void] | None:
    numbers = {id_: number for number, id_ in enumerate(dataset.queries.ids)}
    free = [keep] * len(numbers)  # negatives that a query can still take
    blocks, block, ids, read, taken = list[Any](), list[Any](), list[str](), 0, 0
    for example in examples:
        read += 1
        if not example.id or not all(each.id for each in (*example.positives, *example.negatives)):
            problem = "the records with negatives have texts instead of ids"
            raise BenchError(problem, "Name their file with --on.")
        if (number := numbers.get(example.id)) is None:
            continue
        negatives = example.negatives[: free[number]]
        free[number] -= len(negatives)
        passages = (*example.positives, *negatives)
        relevant = [True] * len(example.positives) + [False] * len(negatives)
        scores = example.scores[: len(passages)] or [np.nan] * len(passages)
        block += [(number, -1, *each) for each in zip(relevant, scores, strict=True)]
        ids += [document.id for document in passages]
        taken += len(passages)
        if len(ids) >= PASSAGES_AT_ONCE:
            blocks.append(_resolve(dataset, block, ids))
            block, ids = [], []
    if not read:
        return None
    passages_in_corpus = np.concatenate([*blocks, _resolve(dataset, block, ids)])
    if not len(passages_in_corpus):
        raise BenchError(
            f"none of the {read:,} records with negatives has a query of {dataset.name} and a "
            "passage of its corpus",
            "Their ids must be those of the collection.",
        )
    if missing := taken - len(passages_in_corpus):
        logger.warning(
            "%s of %s passages of the records with negatives are not in %s, and are left out",
            f"{missing:,}",
            f"{taken:,}",
            dataset.name,
        )
    return passages_in_corpus


def _resolve(
    dataset: Dataset, block: Sequence[tuple[int, int, bool, float]], ids: Sequence[str]
) -> npt.NDArray[np.void]:
    """Look up the rows of a block of passages, and drop passages that are not in the corpus."""
    passages = np.array(block, _GIVEN)
    passages["row"] = dataset.corpus.rows_of(ids)
    return passages[passages["row"] >= 0]


def _group(given: npt.NDArray[np.void], queries: int) -> list[npt.NDArray[np.void]]:
    ordered = given[np.argsort(given["query"], kind="stable")]
    return np.split(ordered, np.searchsorted(ordered["query"], np.arange(1, queries)))


def _select_queries(dataset: Dataset, rows: Sequence[int]) -> Dataset:
    ids, texts = dataset.queries.ids, dataset.queries.texts
    queries = Queries(tuple(ids[row] for row in rows), tuple(texts[row] for row in rows))
    return replace(dataset, queries=queries)


def hash_split(dataset: Dataset) -> dict[str, str]:
    """Return hashes of everything that a fine-tuning reads of a split, by name."""
    name, read = dataset.name, {}
    read[name] = f"{dataset.corpus.sha256} {dataset.qrels_sha256}"
    read[f"{name} queries"] = dataset.queries_sha256
    read[f"{name} excludes self"] = str(bool(dataset.metadata.exclude_self))
    if dataset.overlay:
        read[f"{name} imported judgements"] = dataset.overlay
    if next(iter(dataset.reader.examples()), None) is not None:
        files = sorted({*dataset.reader.corpus_files(), *dataset.reader.judgement_files()})
        read[f"{name} negatives"] = hash_records([[sha256_of_file(file)] for file in files])
    return read


def training_set(splits: Sequence[TrainSplit]) -> TrainingSet:
    """Combine ``splits`` of several collections into one training set."""
    if len(splits) > 1 and any(split.negatives is not None for split in splits):
        raise BenchError(
            "one of these collections comes with negatives",
            "Fine-tune on one after the other, or put training files of one layout into a folder.",
        )
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
        negatives=splits[0].negatives,
        searched={
            name: digest for split in splits for name, digest in hash_split(split.dataset).items()
        },
    )


def leaked_queries(training: Dataset, evaluated: Sequence[Dataset]) -> frozenset[str]:
    """Return the ids of training queries that read like an evaluated one, with warnings."""
    left_out: set[str] = set()
    for other in evaluated:
        if shared := find_leaks(training, other):
            named = ", ".join(shared[:NAMED_QUERIES])
            more = ", …" if len(shared) > NAMED_QUERIES else ""
            count = format_count(len(shared), "training query", "training queries")
            print(
                f"warning: {count} of {training.name} with the text of a test query of "
                f"{other.name}, left out: {named}{more}",
                file=sys.stderr,
            )
        left_out.update(shared)
    return frozenset(left_out)


def find_leaks(training: Dataset, evaluated: Dataset) -> tuple[str, ...]:
    """Return the ids of training queries that have the text of an evaluated query.

    Raise if a training query is itself evaluated. Any two splits share their documents.
    """
    related = same_collections(training.name) == same_collections(evaluated.name)
    files = [
        {path.resolve() for path in each.reader.corpus_files()} for each in (training, evaluated)
    ]
    same = related or files[0] & files[1]  # elsewhere, ids collide by accident
    if same and (ids := set(training.queries.ids) & set(evaluated.queries.ids)):
        raise BenchError(
            f"split {training.metadata.split} of {training.name} has "
            f"{format_count(len(ids), 'query', 'queries')} of split {evaluated.metadata.split}, on "
            f"which {evaluated.name} is evaluated",
            'Train on another split: --split train, or in a grid split = "train".',
        )
    texts = {normalise_query(text) for text in evaluated.queries.texts}
    queries = zip(training.queries.ids, training.queries.texts, strict=True)
    return tuple(id_ for id_, text in queries if normalise_query(text) in texts)


def normalise_query(text: str) -> str:
    """Return the words of ``text`` without case, punctuation and Unicode compatibility variants."""
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


# Names of one collection: equal corpora and training queries or, for stdlib-code, one source.
FAMILIES = (("beir/msmarco", "msmarco", "msmarco-title"), ("beir/nq", "dpr/nq"), ("stdlib-code",))


def same_collections(name: str) -> tuple[str, ...]:
    """Return the names of all collections that training on the collection ``name`` has seen."""
    for members in FAMILIES:
        if any(f"{name}/".startswith(f"{member}/") for member in members):
            return members
    return (name,)


def trained_collections(names: Sequence[str]) -> tuple[str, ...]:
    """Return the collections that a model trained on ``names`` states as trained on, each once."""
    return tuple(dict.fromkeys(member for name in names for member in same_collections(name)))
