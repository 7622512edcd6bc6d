"""Search of vectors: the steps that evaluation, deployment and speed measurements share.

Documents may be compressed. Exact search compares float32 queries with decoded documents; FAISS
compares them with its own codes of the same precision. Candidates may be scored again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import msgspec
import numpy as np

from bench.evaluation.exact import ArrayVectors, exact_search
from bench.evaluation.index_search import index_row_bytes, progress_bar, train_index
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array, Int64Array
from retrievers.encoders.bm25 import BM25
from retrievers.encoders.protocol import PhaseTimer
from retrievers.encoders.views import StoredViews, View, ViewedVectors, encode_codes
from retrievers.index.faiss_index import FaissIndex, IndexSpec, faiss_device
from retrievers.index.hits import Hits, replace_by_similarity, sort_canonically
from retrievers.models.card import Precision, Recipe

Find = Callable[[Float32Array, int], Hits]


@dataclass(frozen=True)
class VectorSearch:
    """Find candidates for encoded queries, and score them again if the recipe says so.

    Attributes:
        recipe: recipe with its compression.
        view: view of the documents that ``find`` searches; None for the stored vectors.
        find: returns the best candidates of transformed queries.
        tie_rank: int64 ``(n,)``, see `sort_canonically`.
        stored: vectors as encoded, which score candidates again; None if none do.
        in_faiss: whether ``find`` searches an index of FAISS, which rounds queries itself.
    """

    recipe: Recipe
    view: View | None
    find: Find
    tie_rank: Int64Array
    stored: StoredViews | None
    in_faiss: bool

    def search(self, queries: Float32Array, k: int) -> Hits:
        """Return the ``k`` best documents of ``queries``, float32 ``(q, dim)`` as encoded.

        With rescoring, there are at most as many as candidates.
        """
        return self.rescore(self.candidates(queries, k), queries, k)

    def candidates(self, queries: Float32Array, k: int) -> Hits:
        """Return the best documents of ``queries`` before they are scored again."""
        wanted = self.recipe.compression.rescore or k
        return self.find(transform_queries(queries, self.view, self.in_faiss), wanted)

    def rescore(self, hits: Hits, queries: Float32Array, k: int) -> Hits:
        """Return the best ``k`` candidates by all dimensions of documents and ``queries``."""
        chosen = self.recipe.compression
        if chosen.rescore is None or self.stored is None:
            return hits
        precision: Precision = "int8" if chosen.rescore_by == "int8" else "float32"
        view = msgspec.structs.replace(View.of(self.recipe), dimensions=None, precision=precision)
        rows = ViewedVectors(self.stored, view).rows
        scored = replace_by_similarity(hits, view.queries(queries), rows)
        return sort_canonically(scored, self.tie_rank, min(k, hits.rows.shape[1]))


def transform_queries(queries: Float32Array, view: View | None, in_faiss: bool) -> Float32Array:
    """Return ``queries`` as a search of documents with ``view`` compares them."""
    return view.queries(queries, rounded=not in_faiss) if view else queries


def search_in_memory(
    stored: ArrayVectors,
    recipe: Recipe,
    device: str,
    index: FaissIndex | None = None,
    tie_rank: Int64Array | None = None,
) -> VectorSearch:
    """Return the search of vectors in memory.

    Args:
        stored: vectors of the documents, before the compression.
        recipe: recipe with its compression.
        device: device of exact search.
        index: index of FAISS over these documents; None for exact search, whose documents are
            decoded here.
        tie_rank: int64 ``(n,)``, see `sort_canonically`; None for the order of the documents.
    """
    every, view = np.arange(stored.shape[0]), View.of(recipe)
    ranks = every if tie_rank is None else tie_rank

    @cache
    def decoded() -> ArrayVectors:
        return ArrayVectors(ViewedVectors(stored, view).rows(every))

    def find(queries: Float32Array, k: int) -> Hits:
        few = min(k, len(every))
        if index is not None:
            return index.search(queries, few)
        return exact_search(decoded(), queries, few, ranks, device=device)

    return VectorSearch(recipe, view, find, ranks, stored, in_faiss=index is not None)


def build_index(vectors: ArrayVectors, recipe: Recipe, spec: IndexSpec, device: str) -> FaissIndex:
    """Build an index of FAISS over vectors in memory, by the compression of ``recipe``."""
    documents = ViewedVectors(vectors, View.of(recipe), rounded=False)
    precise = spec.with_precision(recipe.compression.precision)
    index = FaissIndex(precise, documents.dim, faiss_device(device))
    train_index(index, documents)
    index.add(documents.rows(np.arange(vectors.shape[0])))
    return index


def search_bm25(dataset: Dataset, bm25: BM25, depth: int, timer: PhaseTimer | None = None) -> Hits:
    """Return the best ``depth`` documents of each query by ``bm25``, self-matches included.

    A ``timer`` gets the seconds of the search, without those of the index, as ``search_s``.
    """
    corpus = dataset.corpus
    batches = ((titles, texts) for _, titles, texts in corpus.iter_batches(10_000))
    with progress_bar(f"{dataset.name}: bm25 indexes", len(corpus)) as bar:
        bm25.index(batches, bar.update, dataset.cache_dir)
    hits = Hits.empty(len(dataset.queries), depth)
    with (timer or PhaseTimer()).phase("search_s"):
        for row, query in enumerate(dataset.queries.texts):  # hits may tie beyond the depth
            ranked = sort_canonically(bm25.search([query], depth), corpus.tie_rank, depth)
            hits.scores[row], hits.rows[row] = ranked.scores[0], ranked.rows[0]
    return hits


def bytes_per_document(recipe: Recipe, spec: IndexSpec) -> int:
    """Return the bytes that a search reads of each document, on average.

    They are its vector or codes, its links in a graph or its id in an inverted list, and what
    candidates are scored again with.

    Args:
        recipe: recipe with its compression.
        spec: index of these documents.

    Raises:
        BenchError: FAISS is missing, or the specification is invalid.
    """
    chosen = recipe.compression
    dim = chosen.dimensions or recipe.dim
    if spec.needs_faiss:
        searched = index_row_bytes(spec.with_precision(chosen.precision), dim)
    elif chosen.precision == "float32":
        searched = dim * np.dtype(recipe.store_dtype).itemsize
    else:
        zeros = np.zeros((2, dim), np.float32)
        searched = encode_codes(zeros[:1], chosen.precision, zeros).nbytes
    return searched + rescoring_bytes(recipe)


def rescoring_bytes(recipe: Recipe) -> int:
    """Return the bytes of a document that candidates are scored again with."""
    if recipe.compression.rescore is None:
        return 0
    is_int8 = recipe.compression.rescore_by == "int8"
    return recipe.dim * (1 if is_int8 else np.dtype(recipe.store_dtype).itemsize)
