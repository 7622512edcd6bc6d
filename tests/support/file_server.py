"""A web server on the loopback interface, with the faults that downloads meet."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """Serves ``files`` (path to content); ``cuts`` ends one response after another early."""

    base: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)  # bytes sent before the connection breaks
    failures: list[int] = field(default_factory=list)  # status codes to answer first
    requests: list[str | None] = field(default_factory=list)  # Range header of each request
    paths: list[str] = field(default_factory=list)  # of each request
    headers: dict[str, str] = field(default_factory=dict)  # of all answers
    redirects: dict[str, str] = field(default_factory=dict)  # path to the address to go to

    def url(self, path: str) -> str:
        return f"{self.base}/{path}"


def hash_content(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def do_GET(self) -> None:
        faults = self.server.faults
        asked, path = self.headers.get("Range"), self.path.partition("?")[0].lstrip("/")
        faults.requests.append(asked)
        faults.paths.append(path)
        content = faults.files.get(path)
        if target := faults.redirects.get(path):
            self.send_response(302)
            self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if faults.failures or content is None:
            self.send_error(faults.failures.pop(0) if faults.failures else 404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and faults.ranges else 0
        if start >= len(content) > 0:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        for name, value in {"ETag": f'"{hash_content(content)}"', **faults.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        end = start + faults.cuts.pop(0) if faults.cuts else len(content)
        self.wfile.write(content[start:end] if self.command == "GET" else b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Keep the test output clean."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    faults: FileServer


@contextmanager
def serve() -> Iterator[FileServer]:
    """A running server that forgets everything afterwards."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.faults = FileServer(base=f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.faults
        server.shutdown()
        thread.join()
