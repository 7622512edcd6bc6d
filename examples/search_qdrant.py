"""A collection of Qdrant as a search system; the payload field doc_id holds the document's id.

python -m bench explain examples/search_qdrant.py:Production --on mine \
    --checkpoint minilm --trust-code
"""

import os

import requests
from sentence_transformers import SentenceTransformer

COLLECTION = os.environ.get("QDRANT_COLLECTION", "http://localhost:6333/collections/documents")


class Production:
    name = "qdrant"

    def __init__(self):
        self.model = SentenceTransformer(os.environ["EMBEDDING_MODEL"])

    def ask(self, path, **body):
        body["with_payload"] = ["doc_id"]
        response = requests.post(f"{COLLECTION}/points/{path}", json=body)
        response.raise_for_status()
        return response.json()["result"]

    def search(self, queries, k):
        return self.search_vectors(self.model.encode(queries), k)

    def search_vectors(self, vectors, k):
        found = [self.ask("query", query=vector, limit=k) for vector in vectors.tolist()]
        return [[(p["payload"]["doc_id"], p["score"]) for p in each["points"]] for each in found]

    def ids(self):
        found, offset = [], None
        while True:
            page = self.ask("scroll", limit=1000, offset=offset)
            found += [one["payload"]["doc_id"] for one in page["points"]]
            offset = page["next_page_offset"]
            if offset is None:
                return found

    def vectors(self, ids):
        wanted = {"must": [{"key": "doc_id", "match": {"any": ids}}]}
        page = self.ask("scroll", filter=wanted, limit=len(ids), with_vector=True)
        stored = {one["payload"]["doc_id"]: one["vector"] for one in page["points"]}
        return [stored[id_] for id_ in ids]
