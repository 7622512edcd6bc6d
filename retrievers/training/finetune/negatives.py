"""Hard negatives: what a search finds for a query and nobody judged relevant.

The search is handed in, so that this room need not know collections. What it finds is cleaned:
relevant documents go, documents that repeat the text of a relevant one go, and so does what scores
too close to the relevant ones to be wrong (a margin; Qu et al., RocketQA, NAACL 2021, call such
documents false negatives).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import msgspec
import numpy as np

from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from foundation.records import Record
from retrievers.index.faiss_index import Hits
from retrievers.training.finetune.training_data import TextKeys, TrainingSet

if TYPE_CHECKING:
    from retrievers.models.model import Model

Source = Literal["bm25", "model"]
ROWS_AT_A_TIME = 1_024  # queries


class Mining(Record, kw_only=True):
    """Where the negatives of one round of training come from.

    Attributes:
        sources: ``bm25``, ``model`` (the encoder as it is: before training, or that of the last
            round), both, or none for in-batch negatives alone.
        depth: documents that are searched for each query.
        skip: how many of the best are left out, once the relevant ones are.
        keep: negatives kept for each query and source, the best ones.
        margin: of the model's scores: a negative scores at least this much below the lowest
            relevant document; None for no such filter.
        refresh_steps: search again with the encoder as trained so far, every so many steps (ANCE:
            Xiong et al., ICLR 2021); 0 for never.
        epochs: how often the round shows each query; None for as often as the preset says, and
            where that sets steps.
    """

    sources: tuple[Source, ...] = ()
    depth: int = 200
    skip: int = 0
    keep: int = 50
    margin: float | None = None
    refresh_steps: int = 0
    epochs: Annotated[float, msgspec.Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        if min(self.depth, self.keep) < 1 or min(self.skip, self.refresh_steps) < 0:
            raise ValueError("depth and keep are 1 or more, skip and refresh_steps 0 or more")
        if len(set(self.sources)) < len(self.sources):
            raise ValueError("a source of negatives is named twice")
        if "model" not in self.sources and (self.margin is not None or self.refresh_steps):
            raise ValueError('margin and refresh_steps need the source "model"')


@dataclass(frozen=True, eq=False)
class Mined:
    """Hits of a search for each query of a training set.

    Attributes:
        hits: best first, q x depth; rows of the training set's documents, -1 where unfilled.
        positive_scores: for each query the scores of its relevant documents on the same scale, in
            the order of `TrainingSet.positives`; empty arrays where there is none (BM25).
    """

    hits: Hits
    positive_scores: Sequence[Float32Array]


class Mine(Protocol):
    """Searches the documents of a training set for all of its queries."""

    def __call__(self, model: "Model | None", depth: int) -> Mined:
        """With an encoder, exactly; with BM25 where ``model`` is None."""
        ...


def hard_negatives(mined: Mined, examples: TrainingSet, settings: Mining) -> Int64Array:
    """Negatives of each query, best first, int64 ``(q, keep)``, -1 where there are fewer."""
    rows = np.full((len(examples), settings.keep), -1, np.int64)
    for start in range(0, len(examples), ROWS_AT_A_TIME):
        block = slice(start, min(start + ROWS_AT_A_TIME, len(examples)))
        rows_read = [mined.hits.rows[block], *examples.positives[block]]
        keys = TextKeys.read(examples.documents, rows_read)
        for query in range(block.start, block.stop):
            own = _of_query(mined, examples.positives[query], query, keys, settings)
            rows[query, : len(own)] = own
    return rows


def merged(pools: Sequence[Int64Array]) -> Int64Array:
    """The negatives of several sources beside each other, each once; int64 ``(q, most)``."""
    both = np.concatenate(pools, axis=1)
    kept = [np.array(list(dict.fromkeys(row[row >= 0].tolist())), np.int64) for row in both]
    rows = np.full((len(both), max([1, *map(len, kept)])), -1, np.int64)
    for query, own in enumerate(kept):
        rows[query, : len(own)] = own
    return rows


def mine_source(
    mine: Mine, model: "Model | None", examples: TrainingSet, settings: Mining
) -> Int64Array:
    """The negatives that a model finds, or BM25 where it is None, as `hard_negatives` gives them.

    Raises:
        BenchError: not one query has a negative.
    """
    if model is None:  # BM25's scores are on no scale that a margin could be of
        settings = msgspec.structs.replace(
            settings, sources=("bm25",), margin=None, refresh_steps=0
        )
    rows = hard_negatives(mine(model, settings.depth), examples, settings)
    if (rows < 0).all():
        source = "bm25" if model is None else "model"
        raise BenchError(
            f"the search with {source} found no negative for any query",
            "raise depth, or lower skip and margin",
        )
    return rows


def _of_query(
    mined: Mined, positives: Int64Array, query: int, keys: TextKeys, settings: Mining
) -> Int64Array:
    rows, scores = mined.hits.rows[query], mined.hits.scores[query]
    filled = rows >= 0
    rows, scores = rows[filled], scores[filled]
    wrong = ~np.isin(keys.of(rows), keys.of(positives))
    allowed = np.ones(len(rows), bool)
    own = mined.positive_scores[query]
    if settings.margin is not None and len(own):
        allowed = scores <= own.min() - np.float32(settings.margin)
    candidates = np.flatnonzero(wrong)[settings.skip :]
    kept: Int64Array = rows[candidates[allowed[candidates]]][: settings.keep]
    return kept
