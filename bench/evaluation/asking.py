"""Asking a search system: threads, time limits, attempts, and a file that keeps each response.

A response is written as soon as it arrives, as one line of JSON, so that a command that is killed
or fails loses none. A last line that was not written to its end is dropped.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from tqdm import tqdm

from foundation.errors import BenchError, first_line, name_path_in_errors
from foundation.files import FileLock
from retrievers.encoders.search_system import Ranking, SearchSystem

PAUSES_S = (0.0, 1.0, 5.0)  # before each attempt at a call
TICK_S = 0.2  # between two looks at the clock
IN_FLIGHT_S = 1.0  # wait for the other threads when a query has failed
LONGEST = 300  # characters of a system's own words


class Response(msgspec.Struct, frozen=True):
    """What a system returned for a query: a line of the file.

    Attributes:
        query: id of the query.
        k: number of rows that it was asked for.
        seconds: wall-clock time of the call, which may be for several queries.
        ids: documents in the order of the system.
        scores: their scores, None where one is NaN or infinite; None if ids came alone.
    """

    query: str
    k: int
    seconds: float
    ids: list[str]
    scores: list[float | None] | None


@dataclass(frozen=True)
class ResponseFile:
    """The responses of one state of a system, in memory and in an open file.

    ``responses`` has the last response to each query. ``added`` are ids of this process.
    """

    path: Path
    handle: int
    size: int
    responses: dict[str, Response]
    added: list[str] = field(default_factory=list)

    def add(self, response: Response) -> None:
        """Append a response. Threads may call it at the same time."""
        line = msgspec.json.encode(response) + b"\n"
        with name_path_in_errors(self.path):
            written = os.write(self.handle, line)  # one call, whose lines do not mix
            if written < len(line):
                os.write(self.handle, line[written:])  # raises on a full disk
        self.responses[response.query] = response
        self.added.append(response.query)

    def forget_added(self) -> None:
        """Remove the responses of this process from the file."""
        os.truncate(self.handle, self.size)


@contextmanager
def open_responses(path: Path) -> Iterator[ResponseFile]:
    """Open the file of responses ``path``, while no other process adds to it."""
    with name_path_in_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock.acquire(path.with_suffix(".lock")):
            content = path.read_bytes() if path.exists() else b""
            complete = content[: content.rfind(b"\n") + 1]
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.truncate(handle, len(complete))
                yield ResponseFile(path, handle, len(complete), _read_lines(complete))
            finally:
                os.close(handle)


def _read_lines(content: bytes) -> dict[str, Response]:
    """Return the last response to each query. A damaged line counts as not asked."""
    decoder, found = msgspec.json.Decoder(Response), dict[str, Response]()
    for line in content.splitlines():
        with suppress(msgspec.DecodeError):
            response = decoder.decode(line)
            found[response.query] = response
    return found


@dataclass(eq=False)
class _Call:
    """Some queries that are asked together: their ids and texts."""

    ids: list[str]
    texts: list[str]
    attempt: int = 0
    started: float = 0.0

    @property
    def label(self) -> str:
        """The queries, for messages."""
        return f"query {self.ids[0]!r}" + f" to {self.ids[-1]!r}" * (len(self.ids) > 1)


class Caller:
    """Threads that ask a system, each one call at a time.

    A call that exceeds its time is left to its thread, and another thread takes over.

    Args:
        system: the system, which threads share.
        k: number of rows to ask for.
        timeout_s: time limit of a call, in seconds.
        receive: takes each response, in the thread that asked.
    """

    def __init__(
        self, system: SearchSystem, k: int, timeout_s: float, receive: Callable[[Response], None]
    ) -> None:
        self._system, self._k, self._timeout_s = system, k, timeout_s
        self._receive = receive
        self._waiting: deque[_Call] = deque()
        self._running: set[_Call] = set()
        self._lock, self._stopped = threading.Lock(), False
        self._ended = threading.Condition(self._lock)  # all calls did, or one failed for good
        self._left = self._answered = 0  # calls, and queries
        self._failure: Exception | None = None

    def ask(self, queries: Mapping[str, str], concurrency: int, title: str = "") -> None:
        """Ask ``queries``, texts by id, so many calls at once, with a progress bar if titled.

        Raises:
            BenchError: a query failed at every attempt. Other responses were received.
        """
        ids, batch = list(queries), self._system.batch
        for start in range(0, len(ids), batch):
            some = ids[start : start + batch]
            self._waiting.append(_Call(some, [queries[each] for each in some]))
        self._left = len(self._waiting)
        for _ in range(min(concurrency, self._left)):
            threading.Thread(target=self._work, daemon=True).start()
        with tqdm(desc=title, total=len(ids), unit=" queries", disable=not title) as bar:
            try:
                while self._left:
                    # Looking seldom leaves the interpreter to the threads that ask.
                    with self._ended:
                        self._ended.wait_for(self._has_ended, min(TICK_S, self._timeout_s))
                    bar.update(self._answered - bar.n)
                    if self._failure:
                        raise self._failure
                    self._end_late_calls()
                bar.update(self._answered - bar.n)
            except BaseException:
                self._stop()
                raise

    def _has_ended(self) -> bool:
        return not self._left or self._failure is not None

    def _end_late_calls(self) -> None:
        """Try calls that exceed their time again, in other threads."""
        late = time.perf_counter() - self._timeout_s
        with self._lock:
            expired = {call for call in self._running if call.started < late}
            self._running -= expired
        for call in expired:
            self._retry(call, TimeoutError(f"no response in {self._timeout_s:g} s"))
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        """Ask one call after the other."""
        while True:
            try:
                call = self._waiting.popleft()
            except IndexError:
                return
            if call.attempt:
                time.sleep(PAUSES_S[call.attempt])
            with self._lock:
                if self._stopped or self._failure:
                    return
                call.started = time.perf_counter()
                self._running.add(call)
            failure: BaseException | None = None
            rankings: list[Ranking] = []
            try:
                rankings = self._system.search(call.texts, self._k)
            except (Exception, SystemExit) as error:  # whatever code of the user raises
                failure = error
            seconds = time.perf_counter() - call.started
            with self._lock:
                if call not in self._running:
                    return  # it took too long, and another thread took over
                self._running.remove(call)
                if not failure:
                    self._deliver(call, rankings, seconds)
            if failure:
                self._retry(call, failure)

    def _deliver(self, call: _Call, rankings: list[Ranking], seconds: float) -> None:
        """Hand over the responses of a call. The caller holds the lock."""
        try:
            for query, ranking in zip(call.ids, rankings, strict=True):
                self._receive(Response(query, self._k, seconds, ranking.ids, ranking.scores))
            self._answered += len(call.ids)
            self._left -= 1
        except Exception as error:  # such as a full disk
            self._failure = error
        if self._has_ended():
            self._ended.notify()

    def _retry(self, call: _Call, failure: BaseException) -> None:
        """Put a failed call first, or report it: after its last attempt, or if it was answered.

        An answer that cannot be read is a `BenchError`, and would be the same again.
        """
        is_answered = isinstance(failure, BenchError)
        if not is_answered and call.attempt + 1 < len(PAUSES_S):
            self._waiting.appendleft(_Call(call.ids, call.texts, call.attempt + 1))
            return
        own = first_line(failure)
        own = own if is_answered else f"{type(failure).__name__}: {own}"
        times = f" {call.attempt + 1} times" if call.attempt else ""
        problem = f"{self._system.name} failed{times} on {call.label}: "
        hint = failure.hint if isinstance(failure, BenchError) else ""
        with self._ended:
            self._failure = self._failure or BenchError(problem + own[:LONGEST], hint)
            self._ended.notify()

    def _stop(self) -> None:
        """Let calls in flight end, for a short time, and receive nothing afterwards."""
        self._stopped = True
        until = time.perf_counter() + IN_FLIGHT_S
        while self._running and time.perf_counter() < until:
            time.sleep(0.01)
        with self._lock:
            self._running.clear()
