"""The part of the Hugging Face Hub's API that downloads a dataset, on the loopback interface."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serve_dataset(folder: Path, repository: str) -> Iterator[tuple[str, list[str]]]:
    """Serve ``folder`` as the only commit of a dataset. Yield the endpoint and requested paths."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    requested: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            resolve = f"/datasets/{repository}/resolve/{COMMIT}/"
            path = self.path.partition("?")[0]
            if path == f"/api/datasets/{repository}/tree/{COMMIT}":  # huggingface-hub 1
                content = json.dumps([_describe(folder, name) for name in files]).encode()
            elif path.startswith(f"/api/datasets/{repository}"):
                listed = [{"rfilename": name} for name in files]
                info = {"id": repository, "sha": COMMIT, "siblings": listed, "private": False}
                content = json.dumps(info).encode()
            elif path.removeprefix(resolve) in files:
                content = (folder / path.removeprefix(resolve)).read_bytes()
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{_hash(content)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Keep the test output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", requested
        server.shutdown()


def _describe(folder: Path, name: str) -> dict[str, object]:
    content = (folder / name).read_bytes()
    return {"type": "file", "path": name, "size": len(content), "oid": _hash(content)}


def _hash(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
