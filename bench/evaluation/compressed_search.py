"""Search of compressed documents: their size, rescoring of candidates, and the whole search.

Exact search compares float32 queries with decoded documents. FAISS compares them with its own codes
of the same precision.
"""

from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from bench.evaluation.exact import ArrayVectors, exact_search
from bench.evaluation.index_search import index_row_bytes, train_index
from foundation.arrays import Float32Array, Int64Array
from retrievers.encoders.views import StoredViews, View, ViewedVectors, encode_codes
from retrievers.index.faiss_index import FaissIndex, IndexSpec, import_faiss
from retrievers.index.hits import Hits, replace_by_similarity, sort_canonically
from retrievers.models.card import Precision, Recipe


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


def view_for_rescoring(stored: StoredViews, recipe: Recipe) -> ViewedVectors:
    """Return the documents that candidates are scored again with, from the ``stored`` ones."""
    precision: Precision = "int8" if recipe.compression.rescore_by == "int8" else "float32"
    view = msgspec.structs.replace(View.of(recipe), dimensions=None, precision=precision)
    return ViewedVectors(stored, view)


def rescore_hits(
    hits: Hits, queries: Float32Array, documents: ViewedVectors, tie_rank: Int64Array, k: int
) -> Hits:
    """Return the best ``k`` hits by all dimensions of queries and documents.

    Args:
        hits: candidates.
        queries: float32 ``(q, dim)``, as stored.
        documents: result of `view_for_rescoring`.
        tie_rank: int64 ``(n,)``, see `sort_canonically`.
        k: depth.
    """
    scored = replace_by_similarity(hits, documents.view.queries(queries), documents.rows)
    return sort_canonically(scored, tie_rank, k)


def build_index(vectors: ArrayVectors, recipe: Recipe, spec: IndexSpec, device: str) -> FaissIndex:
    """Build an index of FAISS over vectors in memory, by the compression of ``recipe``."""
    documents = ViewedVectors(vectors, View.of(recipe), rounded=False)
    precise = spec.with_precision(recipe.compression.precision)
    index = FaissIndex(precise, documents.dim, faiss_device(device))
    train_index(index, documents)
    index.add(documents.rows(np.arange(vectors.shape[0])))
    return index


@dataclass(frozen=True)
class CompressedSearch:
    """Search of vectors in memory by the compression of a recipe, for measurements of time.

    Attributes:
        stored: vectors of the documents, before the compression.
        recipe: recipe with its compression.
        device: device of the search.
        index: index of FAISS over these documents; None for exact search, whose documents are
            decoded once.
    """

    stored: ArrayVectors
    recipe: Recipe
    device: str
    index: FaissIndex | None = None

    def search(self, queries: Float32Array, k: int) -> Hits:
        """Return the ``k`` best documents of ``queries``, float32 ``(q, dim)`` as encoded.

        With rescoring, there are at most so many as candidates.
        """
        wanted = min(self.recipe.compression.rescore or k, len(self._every))
        searched = View.of(self.recipe).queries(queries, rounded=self.index is None)
        if self.index:
            hits = self.index.search(searched, wanted)
        else:
            hits = exact_search(self._decoded, searched, wanted, self._every, device=self.device)
        if self.recipe.compression.rescore is None:
            return hits
        return rescore_hits(hits, queries, self._again, self._every, min(k, wanted))

    @cached_property
    def _every(self) -> Int64Array:
        return np.arange(self.stored.shape[0])

    @cached_property
    def _decoded(self) -> ArrayVectors:
        return ArrayVectors(ViewedVectors(self.stored, View.of(self.recipe)).rows(self._every))

    @cached_property
    def _again(self) -> ViewedVectors:
        return view_for_rescoring(self.stored, self.recipe)


def faiss_device(device: str) -> str:
    """Return the device of FAISS for ``device``: a GPU if this FAISS supports it, else the CPU."""
    if device == "cpu" or not getattr(import_faiss(), "get_num_gpus", lambda: 0)():
        return "cpu"
    return "cuda" if device == "auto" else device
