"""Corpora, encoders and stores small enough to look at every byte."""

from pathlib import Path

import numpy as np

from bench.store.shards import StoredVectors
from bench.store.store import VectorStore
from datasets_cfg.corpus import Corpus
from datasets_cfg.readers.reader import Document
from retrievers.encoders.hashing import HashingEncoder
from retrievers.models.card import Recipe

DIM = 8
RECIPE = Recipe(
    model="words",
    kind="hashing",
    dim=DIM,
    normalize=True,
    title_join="space",
    max_query_tokens=32,
    max_document_tokens=32,
)


class CountingEncoder(HashingEncoder):
    """Keeps the texts of every call."""

    def __init__(self, recipe: Recipe = RECIPE) -> None:
        super().__init__(recipe)
        self.documents: list[str] = []
        self.queries: list[str] = []

    def encode_documents(self, titles, texts, advance=None):
        self.documents += texts
        return super().encode_documents(titles, texts, advance)

    def encode_queries(self, texts, advance=None):
        self.queries += texts
        return super().encode_queries(texts, advance)


def numbered(count: int, first: int = 0) -> list[tuple[str, str]]:
    return [(f"title {n}", f"text of document {n}") for n in range(first, first + count)]


def corpus_of(documents: list[tuple[str, str]], folder: Path) -> Corpus:
    named = [Document(str(row), title, text) for row, (title, text) in enumerate(documents)]
    return Corpus.build(named, folder)


def encode(store: VectorStore, corpus: Corpus, encoder=None) -> StoredVectors:
    encoder = encoder or CountingEncoder()
    return store.documents(encoder, corpus, store.plan(encoder, corpus))


def everything(vectors: StoredVectors) -> np.ndarray:
    return vectors.rows(np.arange(vectors.shape[0]))


def directly(corpus: Corpus) -> np.ndarray:
    titles, texts = corpus.titles.to_pylist(), corpus.texts.to_pylist()
    return HashingEncoder(RECIPE).encode_documents(titles, texts)


def files_below(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}
