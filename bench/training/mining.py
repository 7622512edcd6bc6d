"""The suite's own search, looking for the negatives of a training set."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.evaluate import search
from bench.evaluate.index_search import ExactSearch, default_budget
from bench.evaluate.retrieval import encode_documents, search_device
from bench.store import VectorStore
from bench.training.training_sets import CorpusDocuments, Split
from foundation.arrays import Float32Array
from retrievers.encoders.bm25 import BM25
from retrievers.encoders.protocol import Clock
from retrievers.encoders.routed import open_encoder
from retrievers.index.faiss_index import Hits
from retrievers.models.model import Model, resolve_model
from retrievers.training.finetune.training_data import Mined


@dataclass(frozen=True)
class Searcher:
    """The suite's search over the collections of a training set, each with its own queries.

    Attributes:
        splits: as the training set was made of.
        store: of vectors of models that others use too.
        own: folder below which models are temporary, and so are their vectors.
        max_memory: bytes that this process may hold while it searches; None for most of what is
            free.
    """

    splits: tuple[Split, ...]
    store: VectorStore
    own: Path
    device: str = "auto"
    max_memory: int | None = None

    def __call__(self, model: Model | None, depth: int) -> Mined:
        """Search with an encoder, exactly; with BM25 where ``model`` is None."""
        searches = [self._search(split, model, depth) for split in self.splits]
        starts = CorpusDocuments(tuple(split.dataset.corpus for split in self.splits)).starts
        rows = [
            np.where(hits.rows >= 0, hits.rows + start, -1)
            for (hits, _), start in zip(searches, starts[:-1], strict=True)
        ]
        scores = np.concatenate([hits.scores for hits, _ in searches])
        return Mined(
            Hits(scores, np.concatenate(rows)),
            [scores_of_query for _, own in searches for scores_of_query in own],
        )

    def _search(
        self, split: Split, model: Model | None, depth: int
    ) -> tuple[Hits, list[Float32Array]]:
        dataset = split.dataset
        beyond = depth + 1 if dataset.facts.exclude_self else depth
        if model is None:
            hits = _search_bm25(split, beyond)
            scores = [np.empty(0, np.float32)] * len(split.queries)
        else:
            hits, scores = self._with_vectors(split, model, beyond)
        if dataset.facts.exclude_self:
            hits = search.drop_self(hits, dataset.corpus.rows_of(split.queries.ids), depth)
        return hits, scores

    def _with_vectors(
        self, split: Split, model: Model, depth: int
    ) -> tuple[Hits, list[Float32Array]]:
        dataset, clock = split.dataset, Clock()
        encoder = open_encoder(model.for_dataset(dataset.name), self.device)
        folder = self.own / "vectors"
        temporary = self._is_temporary(model)
        store = VectorStore(folder) if temporary else self.store
        plan = store.plan(encoder, dataset.corpus)
        vectors = encode_documents(dataset, encoder, store, plan, clock)
        queries = store.queries(encoder, split.queries.texts)
        budget = self.max_memory or default_budget()
        exact = ExactSearch(dataset, search_device(self.device), budget, clock)
        hits = exact(vectors, queries, depth)
        scores = [
            _scores(vectors.rows(rows), query)
            for rows, query in zip(split.positives, queries, strict=True)
        ]
        if temporary:
            shutil.rmtree(folder)
        return hits, scores

    def _is_temporary(self, model: Model) -> bool:
        """True where its weights, or those of its adapter, change when training goes on."""
        places = [model.adapter, model.document.root if model.document else None]
        own = self.own.resolve()
        return any(place is not None and place.is_relative_to(own) for place in places)


def _scores(documents: Float32Array, query: Float32Array) -> Float32Array:
    """Scores of exact search: the dot product in float64, rounded to float32."""
    return (documents.astype(np.float64) @ query.astype(np.float64)).astype(np.float32)


def _search_bm25(split: Split, depth: int) -> Hits:
    corpus = split.dataset.corpus
    bm25 = BM25(resolve_model("bm25").recipe)
    batches = ((titles, texts) for _, titles, texts in corpus.iter_batches(10_000))
    bm25.index(batches, folder=split.dataset.cache_dir)
    return search.by_query(bm25, split.queries.texts, depth, corpus.tie_rank)
