"""Vectors to neighbours: `hits` (`Hits` and their canonical order) and `faiss_index`."""
