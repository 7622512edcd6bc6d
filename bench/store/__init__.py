"""Vector store: every text is encoded once and found by its content."""

from bench.store.planning import EncodingPlan
from bench.store.shards import StoredVectors
from bench.store.store import VectorStore

__all__ = ["EncodingPlan", "StoredVectors", "VectorStore"]
