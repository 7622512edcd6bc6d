"""A collection of a Chroma server as a search system.

python -m bench explain examples/search_chroma.py:Production --on mine \
    --checkpoint minilm --trust-code
"""

import os

import chromadb
from sentence_transformers import SentenceTransformer


class Production:
    name = "chroma"

    def __init__(self):
        client = chromadb.HttpClient(port=int(os.environ.get("CHROMA_PORT", "8000")))
        self.collection = client.get_collection("documents", embedding_function=None)
        self.model = SentenceTransformer(os.environ["EMBEDDING_MODEL"])

    def search(self, queries, k):
        return self.search_vectors(self.model.encode(queries), k)

    def search_vectors(self, vectors, k):
        found = self.collection.query(query_embeddings=vectors, n_results=k)
        pairs = zip(found["ids"], found["distances"], strict=True)
        return [[(id_, -far) for id_, far in zip(*pair, strict=True)] for pair in pairs]

    def ids(self):
        return self.collection.get(include=[])["ids"]

    def vectors(self, ids):
        found = self.collection.get(ids=ids, include=["embeddings"])
        stored = dict(zip(found["ids"], found["embeddings"], strict=True))
        return [stored[id_] for id_ in ids]
