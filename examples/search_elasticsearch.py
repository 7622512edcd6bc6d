"""An index of Elasticsearch with a dense_vector field as a search system.

For OpenSearch, the query is {"knn": {"embedding": {"vector": [...], "k": k}}}.

python -m bench explain examples/search_elasticsearch.py:Production --on mine \
    --checkpoint minilm --trust-code
"""

import os

import requests
from sentence_transformers import SentenceTransformer

INDEX = os.environ.get("ELASTICSEARCH_INDEX", "http://localhost:9200/documents")


class Production:
    name = "elasticsearch"

    def __init__(self):
        self.model = SentenceTransformer(os.environ["EMBEDDING_MODEL"])

    def ask(self, **body):
        response = requests.post(f"{INDEX}/_search", json=body)
        response.raise_for_status()
        return response.json()["hits"]["hits"]

    def search(self, queries, k):
        return self.search_vectors(self.model.encode(queries), k)

    def search_vectors(self, vectors, k):
        knn = {"field": "embedding", "k": k, "num_candidates": max(100, k)}
        found = [self.ask(knn=knn | {"query_vector": v}, size=k) for v in vectors.tolist()]
        return [[(hit["_id"], hit["_score"]) for hit in hits] for hits in found]

    def ids(self):
        found, after = [], {}
        while hits := self.ask(size=1000, sort=["id"], _source=False, **after):
            found += [hit["_id"] for hit in hits]
            after = {"search_after": hits[-1]["sort"]}
        return found

    def vectors(self, ids):
        query = {"ids": {"values": ids}}
        hits = self.ask(query=query, size=len(ids), _source=["embedding"])
        stored = {hit["_id"]: hit["_source"]["embedding"] for hit in hits}
        return [stored[id_] for id_ in ids]
