"""PostgreSQL with pgvector as a search system: documents(id text, embedding vector).

python -m bench explain examples/search_pgvector.py:Production --on mine \
    --checkpoint minilm --trust-code
"""

import json
import os

import psycopg
from sentence_transformers import SentenceTransformer


class Production:
    name = "pgvector"

    def __init__(self):
        self.database = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
        self.model = SentenceTransformer(os.environ["EMBEDDING_MODEL"])

    def search(self, queries, k):
        return self.search_vectors(self.model.encode(queries), k)

    def search_vectors(self, vectors, k):
        sql = """select id, 1 - (embedding <=> %(query)s::vector) from documents
                 order by embedding <=> %(query)s::vector limit %(k)s"""
        values = ({"query": str(vector), "k": k} for vector in vectors.tolist())
        return [self.database.execute(sql, each).fetchall() for each in values]

    def ids(self):
        return [row[0] for row in self.database.execute("select id from documents")]

    def vectors(self, ids):
        sql = "select id, embedding::text from documents where id = any(%s)"
        stored = dict(self.database.execute(sql, (ids,)).fetchall())
        return [json.loads(stored[id_]) for id_ in ids]
