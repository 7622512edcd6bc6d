"""A batch of places in the order of training becomes the tensors of queries and documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from foundation.arrays import Float32Array, Int64Array
from retrievers.training.finetune.inputs import Inputs
from retrievers.training.finetune.order import Order, draw_negatives, random_negatives
from retrievers.training.finetune.training_data import TextKeys, TrainingSet


@dataclass(frozen=True, eq=False)
class Pool:
    """Hard negatives of each query.

    Attributes:
        rows: int64 ``(q, keep)``, -1 where unfilled.
        scores: the teacher's, float32 ``(q, keep)``; None without one.
        positive_scores: the teacher's of each relevant document; empty without one.
    """

    rows: Int64Array
    scores: Float32Array | None = None
    positive_scores: Sequence[Float32Array] = ()

    def take(self, queries: Int64Array) -> "Pool":
        """The pool of some of the queries."""
        scores = None if self.scores is None else self.scores[queries]
        own = [self.positive_scores[query] for query in queries] if self.positive_scores else ()
        return Pool(self.rows[queries], scores, own)


@dataclass(frozen=True, eq=False)
class Batches:
    """Collator of sentence-transformers' trainer: ``query``, ``document_0`` (relevant), ...

    What it draws follows from the seed and the place alone, so that a resumed training goes on
    with the batches that it would have had.

    Attributes:
        keys: of all relevant documents and all negatives.
        count: negatives of each query.
    """

    examples: TrainingSet
    order: Order
    pool: Pool | None
    keys: TextKeys
    inputs: Inputs
    count: int
    seed: int
    valid_label_columns: tuple[str, ...] = ()  # the trainer asks for it

    def __call__(self, features: Sequence[Mapping[str, int]]) -> dict[str, torch.Tensor]:
        """Tensors of the places ``features[i]["place"]``, and ``label`` where a teacher scored."""
        places = np.array([feature["place"] for feature in features])
        queries = self.order.queries.ravel()[places]
        steps = np.unique(places // self.order.batch_size).tolist()
        banned = {step: self._banned(step) for step in steps}
        own = (self._rows(p, banned[p // self.order.batch_size]) for p in places.tolist())
        rows = np.stack(list(own), axis=1)
        batch = {}
        texts = [self.examples.queries[query] for query in queries.tolist()]
        for name, tensor in self.inputs.queries(texts).items():
            batch[f"query_{name}"] = tensor
        for column, documents in enumerate(rows):
            titles, bodies = self.examples.documents.read(documents)
            for name, tensor in self.inputs.documents(titles, bodies).items():
                batch[f"document_{column}_{name}"] = tensor
        if self.pool is not None and self.pool.scores is not None:
            pairs = zip(queries.tolist(), rows.T, strict=True)
            labels = np.stack([self._scores(query, own_rows) for query, own_rows in pairs])
            batch["label"] = torch.from_numpy(labels)
        return batch

    def rows_at(self, place: int) -> Int64Array:
        """The documents of a place, int64 ``(1 + count,)``: the relevant one, then negatives."""
        return self._rows(place, self._banned(place // self.order.batch_size))

    def _rows(self, place: int, banned: Sequence[int]) -> Int64Array:
        query = int(self.order.queries.ravel()[place])
        positive = self.order.positives.ravel()[place : place + 1]
        rng = np.random.default_rng((self.seed, 1, place))
        pool = np.empty(0, np.int64) if self.pool is None else self.pool.rows[query]
        negatives = draw_negatives(pool, banned, self.keys, self.count, rng)
        if self.count and negatives[0] < 0:  # all are relevant to others of the batch, or none is
            negatives = draw_negatives(pool, (), self.keys, self.count, rng)
        if self.count and negatives[0] < 0:
            relevant, documents = self.examples.positives[query], len(self.examples.documents)
            negatives = random_negatives(relevant, documents, self.count, rng)
        return np.concatenate([positive, negatives])

    def _banned(self, step: int) -> Sequence[int]:
        """Keys of what is relevant to any query of the step."""
        own = [self.examples.positives[query] for query in self.order.queries[step].tolist()]
        return self.keys.of(np.concatenate(own)).tolist() if self.count else []

    def _scores(self, query: int, rows: Int64Array) -> Float32Array:
        """The teacher's scores of the documents of one place."""
        if self.pool is None or self.pool.scores is None:
            raise ValueError("there is no teacher")
        positive = np.flatnonzero(self.examples.positives[query] == rows[0])[0]
        places = [int(np.flatnonzero(self.pool.rows[query] == row)[0]) for row in rows[1:]]
        return np.concatenate(
            [
                self.pool.positive_scores[query][positive : positive + 1],
                self.pool.scores[query][places],
            ]
        )
