"""Vectors on disk: every text encoded once, found by its content."""

from bench.store.planning import EncodingPlan
from bench.store.store import VectorStore
from bench.store.vectors import StoredVectors

__all__ = ["EncodingPlan", "StoredVectors", "VectorStore"]
