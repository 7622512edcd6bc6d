"""A server of OpenAI's embeddings API on the loopback interface, whose answers tests can change."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

THREADS = 32  # requests whose texts are encoded at the same time

Encode = Callable[[list[str]], np.ndarray]


@dataclass(frozen=True)
class Request:
    """A request as it arrived.

    Attributes:
        number: from 0, in order of arrival.
        headers: by lower-case name.
        body: decoded JSON, with ``input`` and ``model``.
        in_flight: requests being answered, with this one.
    """

    number: int
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    in_flight: int

    @property
    def texts(self) -> list[str]:
        given = self.body["input"]
        return [given] if isinstance(given, str) else list(given)


@dataclass(frozen=True)
class Reply:
    """A reply to send instead of vectors.

    Attributes:
        status: HTTP status.
        body: encoded as JSON, or sent as it is if it is bytes.
        headers: such as ``retry-after``.
        broken: end the connection in the middle of the body.
    """

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    broken: bool = False


@dataclass
class EmbeddingServer:
    """ASGI application for ``POST /v1/embeddings``. Fields may change while it runs.

    Attributes:
        encode: texts to vectors ``(n, dim)``; called in threads, several at a time.
        before: gives a `Reply` to send instead, or None to answer with vectors.
        change: changes the entries of an answer, each with ``index`` and ``embedding``, an array.
        max_batch: larger requests are refused with 413, as TEI does.
        delay_s: seconds until every answer, by request.
        requests: all requests so far.
    """

    encode: Encode
    before: Callable[[Request], Reply | None] = lambda request: None
    change: Callable[[list[dict[str, Any]], Request], list[dict[str, Any]]] = (
        lambda entries, request: entries
    )
    max_batch: int | None = None
    delay_s: Callable[[Request], float] = lambda request: 0.0
    requests: list[Request] = field(default_factory=list)
    _in_flight: int = 0
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS))

    @property
    def texts(self) -> list[str]:
        """All texts of all requests, in order of arrival."""
        return [text for request in self.requests for text in request.texts]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        content = b""
        while (message := await receive())["type"] == "http.request":
            content += message.get("body", b"")
            if not message.get("more_body"):
                break
        if (scope["method"], scope["path"]) != ("POST", "/v1/embeddings"):
            await _send(send, Reply(404, {"error": {"message": "not found"}}))
            return
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        self._in_flight += 1
        request = Request(len(self.requests), headers, json.loads(content), self._in_flight)
        self.requests.append(request)
        try:
            await asyncio.sleep(self.delay_s(request))
            await _send(send, self.before(request) or await self._answer(request))
        finally:
            self._in_flight -= 1

    async def _answer(self, request: Request) -> Reply:
        texts = request.texts
        if self.max_batch is not None and len(texts) > self.max_batch:
            message = f"batch size {len(texts)} > maximum allowed batch size {self.max_batch}"
            return Reply(413, {"message": message, "code": 413, "type": "Validation"})
        loop = asyncio.get_running_loop()
        vectors = np.asarray(await loop.run_in_executor(self._pool, self.encode, texts))
        entries = [{"index": row, "embedding": vector} for row, vector in enumerate(vectors)]
        data = [
            {"object": "embedding", **entry, "embedding": list(map(float, entry["embedding"]))}
            for entry in self.change(entries, request)
        ]
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        model = request.body["model"]
        return Reply(200, {"object": "list", "data": data, "model": model, "usage": usage})


async def _send(send: Any, reply: Reply) -> None:
    body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    named = [
        (name.encode(), value.encode()) for name, value in {**headers, **reply.headers}.items()
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": named})
    part = body[: len(body) // 2] if reply.broken else body
    await send({"type": "http.response.body", "body": part})


@contextmanager
def running(application: Any, port: int = 0) -> Iterator[str]:
    """Serve an application with uvicorn in a thread, and yield the URL, which ends in ``/v1``.

    Args:
        application: an `EmbeddingServer`.
        port: 0 for a free one.
    """
    uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn: pip install uvicorn")
    with socket.create_server(("127.0.0.1", port)) as listening:
        config = uvicorn.Config(application, log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


@contextmanager
def serving(encode: Encode, **fields: Any) -> Iterator[tuple[str, EmbeddingServer]]:
    """Serve ``encode``, and yield the URL and the application, whose hooks can be set."""
    application = EmbeddingServer(encode, **fields)
    with running(application) as url:
        yield url, application


def serve_model(encoder: Any) -> Encode:
    """Return the function that a faithful server calls: this program's own encoder, no prompts."""
    lock = threading.Lock()

    def encode(texts: Sequence[str]) -> np.ndarray:
        with lock:
            return np.asarray(encoder.encode_queries(list(texts)))

    return encode
