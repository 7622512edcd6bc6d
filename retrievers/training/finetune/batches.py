"""Batches of fine-tuning: the queries of each step, their negatives, and the tensors.

The order depends only on the examples and a seed. Every epoch shows every query once, with one of
its relevant documents. The documents of the other queries in a batch are negatives, so no document
in a batch should be relevant to two of its queries. A query that would add such a document is
deferred to a later batch.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
import torch

from foundation.arrays import Int64Array
from foundation.errors import BenchError
from retrievers.training.engine.arguments import world_size
from retrievers.training.finetune.student import TextInputs
from retrievers.training.finetune.training_data import NegativePool, TextKeys, TrainingSet

MAX_DEFERRED = 4  # batches of queries that may be deferred for one batch


@dataclass(frozen=True, eq=False)
class BatchOrder:
    """Queries of each step, and the relevant document shown with each.

    Attributes:
        queries: numbers of the queries, int64 ``(steps, batch)``.
        positives: rows of their relevant documents, int64 ``(steps, batch)``.
        conflicting_batches: number of batches in which a document is relevant to two queries,
            because no batch without such a document was found.
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

    The columns are ``query``, ``document_0`` (relevant), ``document_1`` and so on. Random draws
    depend only on the seed and the index in the order, so a resumed training sees the batches that
    it would have seen.

    Attributes:
        examples: queries and relevant documents.
        order: queries of each step.
        pool: negatives to draw from.
        keys: keys of the texts of all relevant documents and all negatives.
        inputs: tokenization of queries and documents.
        count: negatives of each query.
        seed: seed of the draws.
        valid_label_columns: required by the trainer.
    """

    examples: TrainingSet
    order: BatchOrder
    pool: NegativePool
    keys: TextKeys
    inputs: TextInputs
    count: int
    seed: int
    valid_label_columns: tuple[str, ...] = ()  # required by the trainer

    def __call__(self, features: Sequence[Mapping[str, int]]) -> dict[str, torch.Tensor]:
        """Return the tensors of a batch, with ``label`` if a teacher scored the pool.

        Args:
            features: indices into the order, each as ``{"index": i}``.
        """
        indices = np.array([feature["index"] for feature in features])
        queries = self.order.queries.ravel()[indices]
        steps = np.unique(indices // self.order.batch_size).tolist()
        banned = {step: self._relevant_keys(step) for step in steps}
        drawn = [self._draw_rows(p, banned[p // self.order.batch_size]) for p in indices.tolist()]
        rows = np.stack(drawn, axis=1)
        batch = {}
        texts = [self.examples.queries[query] for query in queries.tolist()]
        for name, tensor in self.inputs.queries(texts).items():
            batch[f"query_{name}"] = tensor
        for column, documents in enumerate(rows):
            titles, bodies = self.examples.documents.read(documents)
            for name, tensor in self.inputs.documents(titles, bodies).items():
                batch[f"document_{column}_{name}"] = tensor
        if self.pool.positive_scores:
            pairs = zip(queries.tolist(), rows.T, strict=True)
            labels = [self.pool.labels(q, self.examples.positives[q], shown) for q, shown in pairs]
            batch["label"] = torch.from_numpy(np.stack(labels))
        return batch

    def rows_at(self, index: int) -> Int64Array:
        """Return the rows of a relevant document and its negatives, int64 ``(1 + count,)``.

        Args:
            index: index into the flattened order.
        """
        return self._draw_rows(index, self._relevant_keys(index // self.order.batch_size))

    def _draw_rows(self, index: int, banned: Sequence[int]) -> Int64Array:
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
        """Return the keys of all documents that are relevant to a query of the step."""
        relevant = [self.examples.positives[query] for query in self.order.queries[step].tolist()]
        return self.keys.of(np.concatenate(relevant)).tolist() if self.count else []


def plan_order(
    examples: TrainingSet, keys: TextKeys, batch_size: int, steps: int, seed: int
) -> BatchOrder:
    """Choose the queries of each batch.

    Args:
        examples: queries and relevant documents.
        keys: keys of the texts of all relevant documents.
        batch_size: queries of a batch.
        steps: number of batches.
        seed: seed of the order.

    Raises:
        BenchError: If there are fewer queries than ``batch_size``.
    """
    check_batch(len(examples), batch_size)
    relevant = [frozenset(keys.of(rows).tolist()) for rows in examples.positives]
    stream, waiting = _shuffled_epochs(examples, keys, seed), deque[_Example]()
    batches = [_next_batch(stream, waiting, relevant, batch_size) for _ in range(steps)]
    return BatchOrder(
        np.array([[shown.query for shown in batch] for batch, _ in batches], np.int64),
        np.array([[shown.positive for shown in batch] for batch, _ in batches], np.int64),
        conflicting_batches=sum(conflict for _, conflict in batches),
    )


def check_batch(queries: int, batch_size: int) -> None:
    """Raise if ``batch_size`` exceeds the number of ``queries``."""
    if batch_size > queries:
        raise BenchError(
            f"batch_size is {batch_size}, but there are only {queries:,} training queries",
            "Lower batch_size: a query that occurs twice in a batch would be its own negative.",
        )


def per_device(batch_size: int) -> int:
    """Return the number of examples of a batch of ``batch_size`` that each device gets.

    Raises:
        BenchError: If the devices cannot share a batch evenly.
    """
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
    """Draw negatives of a query at random, without repetition if there are enough.

    Args:
        pool: rows of the query's negatives, int64, -1 if unfilled.
        banned: keys of texts that are relevant to a query of the batch.
        keys: keys of the texts of all negatives.
        count: number of negatives.
        rng: random generator.

    Returns:
        Rows, int64 ``(count,)``, all -1 if no negative is allowed.
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
    """Draw documents that are not relevant. Rows may repeat.

    Args:
        relevant: sorted rows of the relevant documents, int64.
        documents: number of documents.
        count: number of negatives.
        rng: random generator.

    Returns:
        Rows, int64 ``(count,)``.

    Raises:
        BenchError: If all documents are relevant.
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

    Args:
        waiting: examples deferred by earlier batches. Examples that this batch defers are put
            first.
        keys: keys of the relevant documents of each query.
    """
    chosen, deferred, conflict = list[_Example](), list[_Example](), False
    shown, relevant = set[int](), set[int]()  # keys of texts
    while len(chosen) < size:
        new = _first_absent(deferred, chosen) if len(deferred) >= MAX_DEFERRED * size else None
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


def _first_absent(deferred: Sequence[_Example], chosen: Sequence[_Example]) -> _Example | None:
    """Return the first deferred example whose query is not in the batch."""
    there = {one.query for one in chosen}
    return next((one for one in deferred if one.query not in there), None)
