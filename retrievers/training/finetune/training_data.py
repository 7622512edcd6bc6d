"""Training data of a retriever: queries, their relevant documents, hard negatives, and batches.

Hard negatives are documents that a search finds and nobody judged relevant. Documents with the text
of a relevant one are removed and, with a margin, those whose score is too close to a relevant one
(false negatives: Qu et al., RocketQA, NAACL 2021).

Every epoch shows every query once, with one of its relevant documents. The documents of the other
queries in a batch are negatives, so a query whose document would be relevant to two queries of a
batch is deferred to a later batch.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from foundation.arrays import Float32Array, Int64Array, UInt64Array
from foundation.errors import BenchError
from foundation.files import add_to_hash
from retrievers.index.hits import Hits
from retrievers.models.resolve import Model
from retrievers.training.engine.context import world_size
from retrievers.training.objectives.masking import pad_rows
from retrievers.training.preset import Mining

if TYPE_CHECKING:
    from torch import Tensor

    from retrievers.training.finetune.student import TextInputs

MAX_DEFERRED = 4  # batches of queries that may be deferred for one batch
READ_ROWS = 4_096  # documents in memory at a time


class Documents(Protocol):
    """Documents that are read by row."""

    def __len__(self) -> int:
        """Return the number of documents."""
        ...

    def read(self, rows: Int64Array) -> tuple[list[str], list[str]]:
        """Return the titles and the texts of the documents at ``rows``, in that order."""
        ...


@dataclass(frozen=True, eq=False)
class NegativePool:
    """Hard negatives of each query, with the scores of a teacher if there is one.

    ``rows`` are int64 ``(q, keep)``, -1 if unfilled, and ``scores`` float32 in that shape.
    ``positive_scores`` are those of each query's relevant documents. Both are empty without a
    teacher.
    """

    rows: Int64Array
    scores: Float32Array = field(default_factory=lambda: np.empty((0, 0), np.float32))
    positive_scores: Sequence[Float32Array] = ()

    def take(self, queries: Int64Array) -> "NegativePool":
        """Return the pool of the queries at ``queries``, int64."""
        if not self.positive_scores:
            return NegativePool(self.rows[queries])
        positive_scores = [self.positive_scores[query] for query in queries]
        return NegativePool(self.rows[queries], self.scores[queries], positive_scores)

    def select(self, rows: Int64Array) -> "NegativePool":
        """Return the negatives of this pool at ``rows``, int64 ``(q, any)``, with scores."""
        scores = np.full(rows.shape, -np.inf, np.float32)
        for query, kept in enumerate(rows):
            order = np.argsort(self.rows[query])
            places = order[np.searchsorted(self.rows[query][order], kept[kept >= 0])]
            scores[query, kept >= 0] = self.scores[query][places]
        return NegativePool(rows, scores, self.positive_scores)

    def labels(self, query: int, positives: Int64Array, rows: Int64Array) -> Float32Array:
        """Return the teacher's scores of drawn documents, float32 ``(1 + negatives,)``.

        The first of ``rows`` is one of the query's ``positives``.
        """
        indices = [int(np.flatnonzero(self.rows[query] == row)[0]) for row in rows[1:]]
        score = self.positive_scores[query][positives == rows[0]]
        return np.concatenate([score, self.scores[query][indices]])


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Queries with their relevant documents.

    ``positives`` are the sorted rows of each query's relevant documents, int64. ``negatives`` came
    with the queries. ``searched`` has hashes of what negatives are searched in, by name.
    """

    queries: tuple[str, ...]
    positives: tuple[Int64Array, ...]
    documents: Documents
    trained_on: tuple[str, ...]
    negatives: NegativePool | None = None
    searched: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.queries)

    def take(self, queries: Int64Array) -> "TrainingSet":
        """Return the training set with only the queries at ``queries``, int64."""
        taken = queries.tolist()
        return TrainingSet(
            queries=tuple(self.queries[query] for query in taken),
            positives=tuple(self.positives[query] for query in taken),
            documents=self.documents,
            trained_on=self.trained_on,
            negatives=self.negatives and self.negatives.take(queries),
            searched=self.searched,
        )

    @cached_property
    def sha256(self) -> str:
        """Hash of the texts of queries and relevant documents, and of negatives with scores."""
        digest = hashlib.sha256()
        add_to_hash(digest, map(_encode, self.queries))
        digest.update(np.array([len(rows) for rows in self.positives]).tobytes())
        for titles, texts in _read_batches(self.documents, np.concatenate(self.positives)):
            for document in zip(titles, texts, strict=True):
                add_to_hash(digest, map(_encode, document))
        if (pool := self.negatives) is not None:
            digest.update(pool.rows.tobytes())
            digest.update(TextKeys.read(self.documents, [pool.rows]).keys.tobytes())
            for scores in (pool.scores, *pool.positive_scores):
                digest.update(scores.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class TextKeys:
    """Hashes of document texts (64 bits of BLAKE2b), which are equal for equal title and text.

    ``rows`` are sorted, int64 ``(m,)``, and ``keys`` uint64 ``(m,)``.
    """

    rows: Int64Array
    keys: UInt64Array

    @classmethod
    def read(cls, documents: Documents, rows: Iterable[Int64Array]) -> "TextKeys":
        """Compute the keys of all documents at ``rows``, int64 arrays. Rows of -1 are ignored."""
        occurs = np.zeros(len(documents), np.bool_)  # smaller than a sorted copy of all rows
        for line in (line for some in rows for line in np.atleast_2d(some)):
            occurs[line[line >= 0]] = True
        wanted = np.flatnonzero(occurs)
        keys = [
            _hash_text(title, text)
            for titles, texts in _read_batches(documents, wanted)
            for title, text in zip(titles, texts, strict=True)
        ]
        return cls(wanted, np.array(keys, np.uint64))

    def of(self, rows: Int64Array) -> UInt64Array:
        """Return the keys of ``rows``, uint64 in the same shape. All rows must have been read."""
        return self.keys[np.searchsorted(self.rows, rows)]


@dataclass(frozen=True, eq=False)
class MinedHits:
    """Results of a search for all queries of a training set.

    ``hits`` are ``(q, depth)`` with rows of the training set's documents, -1 if unfilled.
    ``lowest`` is the lowest score of a relevant document of each query, float32 ``(q,)``, infinite
    for BM25.
    """

    hits: Hits
    lowest: Float32Array


# Searches with a model, or with BM25 for None, for so many documents for each query.
NegativeSearch = Callable[[Model | None, int], MinedHits]


def select_negatives(mined: MinedHits, examples: TrainingSet, settings: Mining) -> Int64Array:
    """Select hard negatives, the best ones first: int64 ``(q, keep)``, -1 if unfilled.

    Raise if no query has a negative.
    """
    found = np.full((len(examples), settings.keep), -1, np.int64)
    keys = TextKeys.read(examples.documents, [mined.hits.rows, *examples.positives])
    limits = mined.lowest - np.float32(settings.margin or 0)
    for query, (rows, scores) in enumerate(zip(mined.hits.rows, mined.hits.scores, strict=True)):
        relevant = np.isin(keys.of(rows), keys.of(examples.positives[query]))
        wrong = np.flatnonzero((rows >= 0) & ~relevant)[settings.skip :]
        if settings.margin is not None:
            wrong = wrong[scores[wrong] <= limits[query]]
        kept = rows[wrong[: settings.keep]]
        found[query, : len(kept)] = kept
    if (found < 0).all():
        raise BenchError("the search found no negatives", "Raise depth, or lower skip and margin.")
    return found


def given_hits(pool: NegativePool) -> MinedHits:
    """Return the negatives of a ``pool`` in the form of a search's results, in their order."""
    scores = np.zeros(pool.rows.shape, np.float32)
    return MinedHits(Hits(scores, pool.rows), np.full(len(scores), np.inf, np.float32))


def merge_negatives(pools: Sequence[Int64Array], queries: int) -> Int64Array:
    """Merge negatives of sources, int64 ``(q, any)`` each, without repetition, -1 if unfilled."""
    both = np.concatenate([np.empty((queries, 0), np.int64), *pools], axis=1)
    kept = [np.array(list(dict.fromkeys(row[row >= 0].tolist())), np.int64) for row in both]
    return pad_rows(kept, -1)


def drop_queries_without_negatives(
    examples: TrainingSet, pool: NegativePool
) -> tuple[TrainingSet, NegativePool]:
    """Return the queries of ``examples`` that have negatives, and these negatives."""
    left = np.flatnonzero((pool.rows >= 0).any(axis=1))
    if not len(left):
        raise BenchError("no negatives are left", "Lower teacher.margin, or raise rounds.depth.")
    return examples.take(left), pool.take(left)


def _read_batches(documents: Documents, rows: Int64Array) -> Iterator[tuple[list[str], list[str]]]:
    for start in range(0, len(rows), READ_ROWS):
        yield documents.read(rows[start : start + READ_ROWS])


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _hash_text(title: str, text: str) -> int:
    content = _encode(f"{len(title)} {title}{text}")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


@dataclass(frozen=True, eq=False)
class BatchOrder:
    """Queries of each step and a relevant document of each, int64 ``(steps, batch)``.

    In ``conflicting_batches`` a document is relevant to two queries, because no other batch was
    found.
    """

    queries: Int64Array
    positives: Int64Array
    conflicting_batches: int = 0

    @property
    def batch_size(self) -> int:
        """Queries of a batch."""
        return int(self.queries.shape[1])


@dataclass(frozen=True, eq=False)
class Batches:
    """Collator of sentence-transformers' trainer.

    The columns are ``query``, ``document_0`` (relevant), ``document_1`` and so on, with ``count``
    negatives. Draws depend only on the seed and the index in the order. ``keys`` cover all relevant
    documents and negatives. The trainer requires ``valid_label_columns``.
    """

    examples: TrainingSet
    order: BatchOrder
    pool: NegativePool
    keys: TextKeys
    inputs: "TextInputs"
    count: int
    seed: int
    valid_label_columns: tuple[str, ...] = ()

    def __call__(self, features: Sequence[Mapping[str, int]]) -> "dict[str, Tensor]":
        """Return the tensors of a batch, with ``label`` if a teacher scored the pool."""
        from torch import from_numpy

        indices = np.array([feature["index"] for feature in features])
        queries = self.order.queries.ravel()[indices]
        steps = np.unique(indices // self.order.batch_size).tolist()
        banned = {step: self._relevant_keys(step) for step in steps}
        drawn = [self._draw_rows(p, banned[p // self.order.batch_size]) for p in indices.tolist()]
        rows = np.stack(drawn, axis=1)
        texts = [self.examples.queries[query] for query in queries.tolist()]
        tensors = self.inputs.queries(texts)
        batch = {f"query_{name}": tensor for name, tensor in tensors.items()}
        for column, documents in enumerate(rows):
            tensors = self.inputs.documents(*self.examples.documents.read(documents))
            batch |= {f"document_{column}_{name}": tensor for name, tensor in tensors.items()}
        if self.pool.positive_scores:
            pairs = zip(queries.tolist(), rows.T, strict=True)
            labels = [self.pool.labels(q, self.examples.positives[q], shown) for q, shown in pairs]
            batch["label"] = from_numpy(np.stack(labels))
        return batch

    def _draw_rows(self, index: int, banned: Sequence[int]) -> Int64Array:
        """Return the rows of a relevant document and its negatives, int64 ``(1 + count,)``."""
        query = int(self.order.queries.ravel()[index])
        positive = self.order.positives.ravel()[index : index + 1]
        rng = np.random.default_rng((self.seed, 1, index))
        pool = self.pool.rows[query]
        negatives = draw_negatives(pool, banned, self.keys, self.count, rng)
        if self.count and negatives[0] < 0:  # all are banned, or the pool is empty
            negatives = draw_negatives(pool, (), self.keys, self.count, rng)
        if self.count and negatives[0] < 0:
            relevant, documents = self.examples.positives[query], len(self.examples.documents)
            negatives = random_negatives(relevant, documents, self.count, rng)
        return np.concatenate([positive, negatives])

    def _relevant_keys(self, step: int) -> Sequence[int]:
        relevant = [self.examples.positives[query] for query in self.order.queries[step].tolist()]
        return self.keys.of(np.concatenate(relevant)).tolist() if self.count else []


def plan_order(
    examples: TrainingSet, keys: TextKeys, batch_size: int, steps: int, seed: int
) -> BatchOrder:
    """Choose the queries of each batch. ``keys`` cover all relevant documents."""
    check_batch_size(len(examples), batch_size)
    relevant = [frozenset(keys.of(rows).tolist()) for rows in examples.positives]
    stream, waiting = _shuffled_epochs(examples, keys, seed), deque[_Example]()
    batches = [_next_batch(stream, waiting, relevant, batch_size) for _ in range(steps)]
    return BatchOrder(
        np.array([[shown.query for shown in batch] for batch, _ in batches], np.int64),
        np.array([[shown.positive for shown in batch] for batch, _ in batches], np.int64),
        conflicting_batches=sum(conflict for _, conflict in batches),
    )


def check_batch_size(queries: int, batch_size: int) -> None:
    """Raise if ``batch_size`` exceeds the number of ``queries``."""
    if batch_size > queries:
        raise BenchError(
            f"batch_size is {batch_size}, but there are only {queries:,} training queries",
            "Lower batch_size: a query that occurs twice in a batch would be its own negative.",
        )


def per_device(batch_size: int) -> int:
    """Return each device's share of a batch, or raise if the devices cannot share it evenly."""
    count, rest = divmod(batch_size, world_size())
    if rest:
        raise BenchError(
            f"{world_size()} devices cannot share a batch of {batch_size} evenly",
            "Use a batch_size that is a multiple of the number of devices.",
        )
    return count


def draw_negatives(
    pool: Int64Array, banned: Sequence[int], keys: TextKeys, count: int, rng: np.random.Generator
) -> Int64Array:
    """Draw ``count`` negatives from ``pool``, int64 rows, without repetition if there are enough.

    ``banned`` are keys of texts that are relevant to a query of the batch. All rows of the result,
    int64 ``(count,)``, are -1 if no negative is allowed.
    """
    rows = pool[pool >= 0]
    rows = rows[~np.isin(keys.of(rows), np.array(banned, np.uint64))]
    if not len(rows):
        return np.full(count, -1, np.int64)
    first = rng.permutation(rows)[:count]
    return np.concatenate([first, rng.choice(rows, count - len(first))])


def random_negatives(
    relevant: Int64Array, documents: int, count: int, rng: np.random.Generator
) -> Int64Array:
    """Draw ``count`` of ``documents`` documents that are not ``relevant``, int64 ``(count,)``.

    The rows ``relevant`` are sorted. Drawn rows may repeat.
    """
    others = documents - len(relevant)
    if not others:
        raise BenchError("every document is relevant to a query, so there are no negatives")
    ranks = rng.integers(others, size=count)  # ranks among the other documents
    before = np.searchsorted(relevant - np.arange(len(relevant)), ranks, side="right")
    return np.asarray(ranks + before, np.int64)


class _Example(NamedTuple):
    """Query, one of its relevant documents, and the key of that document's text."""

    query: int
    positive: int
    key: int


def _shuffled_epochs(examples: TrainingSet, keys: TextKeys, seed: int) -> Iterator[_Example]:
    """Yield examples, epoch after epoch, without end."""
    for epoch in count():
        rng = np.random.default_rng((seed, epoch))
        order, draws = rng.permutation(len(examples)), rng.random(len(examples))
        for query in order.tolist():
            rows = examples.positives[query]
            row = rows[int(draws[query] * len(rows))]
            yield _Example(query, int(row), int(keys.of(row)))


def _next_batch(
    stream: Iterator[_Example], waiting: deque[_Example], keys: Sequence[frozenset[int]], size: int
) -> tuple[list[_Example], bool]:
    """Return the next batch, and whether a document in it is relevant to two queries.

    Examples that this batch defers are put before those ``waiting``.
    """
    chosen, deferred, conflict = list[_Example](), list[_Example](), False
    shown, relevant = set[int](), set[int]()  # keys of texts
    while len(chosen) < size:
        new = None
        if len(deferred) >= MAX_DEFERRED * size:
            present = {example.query for example in chosen}
            new = next((example for example in deferred if example.query not in present), None)
        if new is not None:
            deferred.remove(new)
            conflict = True
        else:
            new = waiting.popleft() if waiting else next(stream)
            if new.key in relevant or not shown.isdisjoint(keys[new.query]):
                deferred.append(new)
                continue
        chosen.append(new)
        shown.add(new.key)
        relevant |= keys[new.query]
    waiting.extendleft(reversed(deferred))
    return chosen, conflict
