"""Exact search in a collection, within the memory that there is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from tqdm import tqdm

from bench.evaluate.exact import exact_search
from bench.evaluate.memory import SearchPlan, plan_search
from bench.store.vectors import StoredVectors
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array
from retrievers.encoders.clock import Clock
from retrievers.encoders.views import Viewed
from retrievers.index.faiss_index import Hits

Vectors: TypeAlias = StoredVectors | Viewed


@dataclass(frozen=True)
class ExactSearch:
    """Exact search in the documents of a collection.

    Attributes:
        device: where candidates are found; the ranking is the same everywhere.
        budget: bytes that this process may hold.
        clock: told how long kinds of work take.
    """

    dataset: Dataset
    device: str
    budget: int
    clock: Clock

    def plan(self, vectors: Vectors, queries: int, depth: int) -> SearchPlan:
        """The plan of a search within the budget: tile rows and bytes of a block.

        Raises:
            BenchError: too little memory; the message has the estimate.
        """
        held = vectors.dim + (vectors.stored.shape[1] if isinstance(vectors, Viewed) else 0)
        documents = len(self.dataset.corpus)
        return plan_search(self.budget, documents, held, queries, depth, device=self.device)

    def __call__(self, vectors: Vectors, queries: Float32Array, depth: int) -> Hits:
        """The best documents of each query ``(q, dim)``, in canonical order."""
        corpus = self.dataset.corpus

        def search(advance: Callable[[int], None]) -> Hits:
            plan = self.plan(vectors, len(queries), depth)
            return exact_search(
                vectors,
                queries,
                depth,
                corpus.tie_rank,
                tile_rows=plan.tile_rows,
                block_bytes=plan.block_bytes,
                device=self.device,
                advance=advance,
                clock=self.clock,
            )

        hits: Hits = with_bar(f"{self.dataset.name}: search", len(corpus), search)
        return hits


def with_bar(title: str, total: int, work: Callable[[Callable[[int], None]], Any]) -> Any:
    """Do work that tells how many documents it is through with, and show a bar."""
    with tqdm(desc=title, total=total, unit=" documents", unit_scale=True) as bar:
        return work(bar.update)
