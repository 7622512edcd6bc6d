"""Vectors on disk: every text encoded once, found by its content."""

from bench.store.planning import Plan
from bench.store.store import VectorStore
from bench.store.vectors import StoredVectors

__all__ = ["Plan", "StoredVectors", "VectorStore"]
