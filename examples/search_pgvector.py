"""PostgreSQL with pgvector as a search system: a table of ids and embeddings.

python -m bench run mine --model examples/search_pgvector.py:Production --trust-code
"""

import json
import os

import psycopg
from sentence_transformers import SentenceTransformer


class Production:
    name = "pgvector"

    def __init__(self):
        self.database = psycopg.connect(os.environ["DATABASE"], autocommit=True)
        self.model = SentenceTransformer(os.environ["MODEL"])

    def search(self, queries, k):
        return self.search_vectors(self.model.encode(queries, normalize_embeddings=True), k)

    def search_vectors(self, vectors, k):
        sql = "select id, -(embedding <=> %s::vector) from documents order by 2 desc limit %s"
        sql = "select id, embedding <=> %s::vector as far from documents order by far limit %s"
        return [self.database.execute(sql, (str(v), k)).fetchall() for v in vectors.tolist()]

    def ids(self):
        rows = self.database.execute("select id from documents where embedding is not null")
        return [id_ for (id_,) in rows]

    def vectors(self, ids):
        sql = "select id, embedding::text from documents where id = any(%s)"
        stored = dict(self.database.execute(sql, (ids,)))
        return [json.loads(stored[id_]) for id_ in ids]
