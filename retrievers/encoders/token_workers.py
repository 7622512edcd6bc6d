"""Processes that tokenise, because the interpreter lock makes a GPU wait for threads that do.

Converting token ids to arrays and freeing the tokenizer's strings hold the lock. A worker is a
plain child process with a lock of its own, which imports neither torch nor the user's main module.
So it can be used in notebooks, in scripts without a guard and in daemonic processes, where
`multiprocessing` cannot. It ends when its input is closed, at the latest by the end of its parent.
"""

import logging
import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, Any

import msgspec
import numpy as np
from tokenizers import Tokenizer

from retrievers.encoders.protocol import Segments
from retrievers.encoders.tokens import TextTokenizer, Tokens

LENGTH_BYTES = 8  # before each message
TEXTS_PER_REQUEST = 128  # some tens of milliseconds, so that all workers finish together
MOST_WORKERS = 32  # of about 50 MB each with BERT's vocabulary
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

logger = logging.getLogger(__name__)


class TokenWorkers:
    """Processes with copies of a tokenizer. Threads can share them.

    A text whose worker has died, or could not be started, is tokenised in this process.

    Args:
        tokenizer: tokenizer to copy.
        count: number of processes; None for the allowed CPU cores, up to `MOST_WORKERS`.
    """

    def __init__(self, tokenizer: TextTokenizer, count: int | None = None) -> None:
        count = count or min(len(os.sched_getaffinity(0)), MOST_WORKERS)
        self._tokenizer, self._threads = tokenizer, ThreadPoolExecutor(count)
        self._idle: SimpleQueue[Any] = SimpleQueue()  # None for a worker that has died
        workers: list[Any] = []
        weakref.finalize(self, _end, workers)
        content = self._threads.submit(tokenizer.settings)
        for _ in range(count):
            self._threads.submit(_start, content, workers, self._idle)

    def __call__(self, segments: Sequence[Segments], max_tokens: int | None) -> Tokens:
        """Return the token ids of texts and pairs: see `TextTokenizer`."""
        starts = range(0, len(segments), TEXTS_PER_REQUEST)
        requests = [(segments[start : start + TEXTS_PER_REQUEST], max_tokens) for start in starts]
        return Tokens.join(list(self._threads.map(self._tokenize, requests)))

    def _tokenize(self, request: tuple[Sequence[Segments], int | None]) -> Tokens:
        worker, answered = self._idle.get(), None
        try:
            if worker is not None:
                _send(worker.stdin, request)
                tokens = _unpack(*_receive(worker.stdout))
                answered = worker  # one that was interrupted could answer the request before
                return tokens
        except (OSError, EOFError, msgspec.DecodeError):
            logger.warning("a process that tokenises has died: this one does its work")
        finally:
            self._idle.put(answered)
        return self._tokenizer(*request)


def _start(content: Future[dict[str, Any]], workers: list[Any], idle: SimpleQueue[Any]) -> None:
    """Start a worker with a copy of a tokenizer, or put None into ``idle`` if that fails."""
    worker: Any = None
    try:
        tokenizer = content.result()  # fails if parts of it are written in Python
        worker = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what fails there fails again in this process
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **ONE_THREAD},
            process_group=0,  # Ctrl-C is for the parent
        )
        workers.append(worker)
        _send(worker.stdin, tokenizer)
    finally:
        idle.put(worker)


def _end(workers: Sequence[Any]) -> None:
    for worker in workers:
        worker.kill()
        with suppress(OSError), worker:  # closes its pipes, and waits
            pass


def serve() -> None:
    """Read a tokenizer and then requests from stdin, and write their tokens to stdout."""
    settings = _receive(sys.stdin.buffer)
    settings["tokenizer"] = Tokenizer.from_str(settings["tokenizer"])
    tokenizer = TextTokenizer(**settings)
    with suppress(EOFError):
        while True:
            tokens = tokenizer(*_receive(sys.stdin.buffer))
            _send(sys.stdout.buffer, (tokens.ids, tokens.lengths, tokens.types))


def _send(stream: IO[bytes], message: Any) -> None:
    """Write a message of plain values and arrays, after its length."""
    content = msgspec.msgpack.encode(message, enc_hook=memoryview)
    stream.write(len(content).to_bytes(LENGTH_BYTES, "little") + content)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    """Read a message, in which arrays are bytes. Raise EOFError if the stream ends."""
    size = int.from_bytes(_read(stream, LENGTH_BYTES), "little")
    return msgspec.msgpack.decode(_read(stream, size))


def _read(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content


def _unpack(ids: bytes, lengths: bytes, types: bytes | None) -> Tokens:
    return Tokens(
        np.frombuffer(ids, np.int32),
        np.frombuffer(lengths, np.int64),
        None if types is None else np.frombuffer(types, np.int32),
    )
