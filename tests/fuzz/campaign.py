"""Mutations shared out among processes; one that dies or hangs is an outcome like others."""

import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from queue import Empty, Queue

from tests.fuzz.worker import Outcome, Trial, work

PATIENCE_S = 120.0  # for one mutation; the first of a process imports the libraries
GOOD = ("refused", "accepted")


def trials(seed: int, mutations: int, subjects: Sequence[str]) -> Iterator[Trial]:
    """The subjects by turns."""
    turns = enumerate(islice(cycle(subjects), mutations))
    return (Trial(seed, subject, turn // len(subjects)) for turn, subject in turns)


class Worker:
    """A process, started when it is first asked and again when it has died."""

    def __init__(self) -> None:
        self._process: multiprocessing.process.BaseProcess | None = None

    def attempt(self, trial: Trial) -> Outcome:
        """The outcome of one mutation, however it ends."""
        began = time.monotonic()
        if self._process is None or not self._process.is_alive():
            self._start()
        self._connection.send(trial)
        try:
            if self._connection.poll(PATIENCE_S):
                outcome: Outcome = self._connection.recv()
                return outcome
            verdict, detail = "hang", f"no answer in {PATIENCE_S:.0f} s"
        except (EOFError, ConnectionError):
            assert self._process is not None
            self._process.join()
            log = Path(self._place.name) / "native.log"
            verdict = f"killed by {self._process.exitcode}"
            detail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        self.stop()
        return Outcome(trial, "", verdict, detail, time.monotonic() - began)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._place = tempfile.TemporaryDirectory(prefix="bench-fuzz-", ignore_cleanup_errors=True)
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, Path(self._place.name)))
        self._process.start()
        theirs.close()

    def stop(self) -> None:
        """End the process and remove its files."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._place.cleanup()
            self._process = None


def campaign(
    seed: int, mutations: int, subjects: Sequence[str], workers: int, seconds: float
) -> Iterator[Outcome]:
    """Outcomes as they come, until all are tried or the time is over."""
    waiting: Queue[Trial] = Queue()
    for trial in trials(seed, mutations, subjects):
        waiting.put(trial)
    done: Queue[Outcome] = Queue()
    ends = time.monotonic() + seconds

    def one_after_the_other() -> None:
        worker = Worker()
        try:
            while time.monotonic() < ends:
                done.put(worker.attempt(waiting.get_nowait()))
        except Empty:
            pass
        finally:
            worker.stop()

    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(one_after_the_other) for _ in range(workers)]
        while not (all(one.done() for one in running) and done.empty()):
            try:
                yield done.get(timeout=0.2)
            except Empty:
                continue
        for one in running:
            one.result()
