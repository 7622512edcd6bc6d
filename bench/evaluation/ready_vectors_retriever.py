"""Ready vectors as a retriever, whose ids are compared with those of a collection."""

from dataclasses import dataclass, replace
from typing import cast

from bench.evaluation.retriever import SearchFacts
from bench.evaluation.vector_retriever import VectorRetriever
from datasets_cfg.dataset import Dataset
from foundation.errors import format_names
from retrievers.encoders.ready_vectors import ReadyVectors
from retrievers.index.hits import Hits
from retrievers.models.card import Role


@dataclass(frozen=True, kw_only=True)
class ReadyVectorsRetriever(VectorRetriever):
    """Vectors of a folder with exact search, or with an index."""

    def check(self, dataset: Dataset, depth: int) -> int:
        """Estimate the peak memory of a search in bytes.

        Raises:
            BenchError: a document or query has no vector, or too little memory.
        """
        for role, ids in self._ids_of(dataset).items():
            vectors = self._vectors.vectors[role]
            if missing := vectors.find_missing(ids):
                raise vectors.lacks(missing, len(ids))
        return super().check(dataset, depth)

    def find(self, dataset: Dataset, depth: int) -> tuple[Hits, SearchFacts]:
        """Return hits, and warn of vectors of documents that the collection lacks."""
        hits, facts = super().find(dataset, depth)
        self.model.check_unchanged()
        ids = self._vectors.vectors["document"].ids
        extra = ids.difference(self._ids_of(dataset)["document"], sort=False)
        if not len(extra):
            return hits, facts
        names = format_names([*extra[:3]])
        about = f"{len(extra):,} of {len(ids):,} document vectors are ignored: {dataset.name} does "
        warnings = [*facts.preflight["warnings"], f"{about}not contain their ids ({names})"]
        return hits, replace(facts, preflight={**facts.preflight, "warnings": warnings})

    def _ids_of(self, dataset: Dataset) -> dict[Role, list[str]]:
        return {"document": dataset.corpus.ids.to_pylist(), "query": [*dataset.queries.ids]}

    @property
    def _vectors(self) -> ReadyVectors:
        return cast(ReadyVectors, self.encoder)

    @property
    def _loading_bytes(self) -> int:
        """Size of the files, in bytes."""
        return sum(size for size, _ in self.model.checkpoint.stamps.values())
