"""Tokenizers in processes of their own, so that a GPU does not wait for one core's token ids.

Each process is given the tokenizer as text, then blocks of texts, and answers with ids and lengths
as bytes: a message is its length, 8 bytes little-endian, and as many bytes. It starts no threads of
its own, and ends with its standard input or when it is told to. ``multiprocessing`` would run a
user's script again in each process where the script is not guarded against that.
"""

import json
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, cast

import msgspec
import numpy as np
from tokenizers import Tokenizer

from foundation.records import Record
from retrievers.encoders.document_text import Segments
from retrievers.encoders.text_tokenizer import TextTokenizer
from retrievers.encoders.tokens import Tokens
from retrievers.models.recipe import TruncationSide

BLOCK = 1_024  # texts that a process gets at a time
MOST_CACHED = 4  # processes: together millions of tokens a second from the cache of words
MOST = 16  # without it
RESERVED = 2  # cores: for what drives the GPU, and for what reads and writes
IDS, LENGTHS = "<i4", "<i8"
LENGTH_BYTES = 8
# Modules are found where this process finds them, whatever the folder or installation.
PROGRAM = f"""
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from {__name__} import main
main()
"""
ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "RAYON")},
}

logger = logging.getLogger(__name__)


class WorkerStart(Record):
    """The first message to a process: what `TextTokenizer` is made from."""

    content: str
    side: TruncationSide
    typed: bool
    split_special_tokens: bool


class TokenizedBlock(Record):
    """Texts to tokenise."""

    segments: list[tuple[str, str | None]]
    max_tokens: int | None


class Answer(Record):
    """`Tokens` of a block, little-endian."""

    ids: bytes
    lengths: bytes
    types: bytes | None


def useful_processes(tokenizer: TextTokenizer) -> int:
    """Number of processes that serve a GPU, as far as there are cores beside what drives it."""
    most = MOST_CACHED if tokenizer.cached else MOST
    return max(0, min(most, len(os.sched_getaffinity(0)) - RESERVED))


class TokenizerProcesses:
    """A tokenizer in several processes; they start with the first texts that are many.

    Args:
        tokenizer: what each process is a copy of; few texts are left to it.
        processes: 1 or more.
    """

    def __init__(self, tokenizer: TextTokenizer, processes: int) -> None:
        self._own = tokenizer
        self._threads = ThreadPoolExecutor(processes)  # each asks one process
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        self._ended = False  # one of them, before its time
        self.started: list[subprocess.Popen[bytes]] = []
        self._closing = weakref.finalize(self, _close, self._threads, self.started)

    def special_tokens(self, paired: bool) -> int:
        """Number of tokens that are put around a text, or a pair of texts."""
        return self._own.special_tokens(paired)

    def __call__(self, segments: Sequence[Segments], max_tokens: int | None) -> Tokens:
        """Token ids, the same that `TextTokenizer` gives."""
        if len(segments) <= BLOCK:
            return self._own(segments, max_tokens)
        blocks = [
            TokenizedBlock(list(segments[start : start + BLOCK]), max_tokens)
            for start in range(0, len(segments), BLOCK)
        ]
        return Tokens.concatenate(list(self._threads.map(self._ask, blocks)))

    def close(self) -> None:
        """End the processes."""
        self._closing()

    def _ask(self, block: TokenizedBlock) -> Tokens:
        if self._ended:
            return self._own(block.segments, block.max_tokens)
        try:
            process = getattr(self._of_thread, "process", None)
            if process is None:
                process = self._of_thread.process = self._start()
            _send(process.stdin, block)
            answer = msgspec.msgpack.decode(_receive(process.stdout), type=Answer)
        except (OSError, EOFError) as error:
            with self._lock:
                if not self._ended:
                    logger.warning(
                        "a process that tokenises has ended (%s): this one does the work", error
                    )
                self._ended = True
            return self._own(block.segments, block.max_tokens)
        types = None if answer.types is None else np.frombuffer(answer.types, IDS)
        return Tokens(np.frombuffer(answer.ids, IDS), np.frombuffer(answer.lengths, LENGTHS), types)

    def _start(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, json.dumps([str(path) for path in sys.path])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,  # Ctrl-C is for the one that ends them
        )
        self.started.append(process)
        own = self._own
        content = own.tokenizer.to_str()
        _send(process.stdin, WorkerStart(content, own.side, own.typed, own.split_special_tokens))
        return process


def _close(threads: ThreadPoolExecutor, started: Sequence["subprocess.Popen[bytes]"]) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    # First: where this process has forked others, they hold the pipes, and closing ends nothing.
    for process in started:
        process.terminate()
    for process in started:
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # what was not sent yet is not wanted
                cast("IO[bytes]", pipe).close()
        process.wait()


def _send(pipe: IO[bytes] | None, message: Record) -> None:
    content = msgspec.msgpack.encode(message)
    stream = cast("IO[bytes]", pipe)
    stream.write(len(content).to_bytes(LENGTH_BYTES, "little"))
    stream.write(content)
    stream.flush()


def _receive(pipe: IO[bytes] | None) -> bytes:
    """The next message.

    Raises:
        EOFError: the other side has ended.
    """
    stream = cast("IO[bytes]", pipe)
    size = int.from_bytes(_read(stream, LENGTH_BYTES), "little")
    return _read(stream, size)


def _read(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError("no answer")
    return content


def main() -> None:
    """Tokenise what comes on standard input until it ends."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    start = msgspec.msgpack.decode(_receive(source), type=WorkerStart)
    tokenizer = TextTokenizer(
        Tokenizer.from_str(start.content),
        start.side,
        start.typed,
        split_special_tokens=start.split_special_tokens,
    )
    while True:
        try:
            message = _receive(source)
        except EOFError:
            return
        block = msgspec.msgpack.decode(message, type=TokenizedBlock)
        tokens = tokenizer(block.segments, block.max_tokens)
        types = None if tokens.types is None else tokens.types.astype(IDS).tobytes()
        ids, lengths = tokens.ids.astype(IDS), tokens.lengths.astype(LENGTHS)
        _send(target, Answer(ids.tobytes(), lengths.tobytes(), types))
