"""Vectors to neighbours: FAISS indexes."""
