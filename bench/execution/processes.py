"""Workers on this machine: processes with a share of its processors, or with a GPU each.

They are started as programs of their own, so that the number of threads is known before any
library is loaded, and end when the process that started them does, however that ends.
"""

import logging
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from bench.execution.pool import Event
from foundation.errors import BenchError
from foundation.failures import sendable

PROCESSORS_PER_WORKER = 8
END_S = 5.0

Environment = dict[str, str]


@dataclass(frozen=True)
class _Process:
    program: subprocess.Popen[bytes]
    connection: Connection


class ProcessPool:
    """Processes on this machine. None is started before it has work.

    Args:
        environments: of each worker, beside what this process has.
        spreads_search: whether each worker has a GPU of its own.
    """

    def __init__(self, environments: Sequence[Environment], spreads_search: bool = False) -> None:
        self._environments = environments
        self._processes: dict[int, _Process] = {}
        self.spreads_search = spreads_search

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._environments)

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the workers that were started, by their number."""
        return {number: each.program.pid for number, each in self._processes.items()}

    def call(self, worker: int, method: str, *arguments: Any) -> None:
        """Send work to a worker, which is started where there is none."""
        if worker not in self._processes:
            self._processes[worker] = _started(self._environments[worker])
        with suppress(BrokenPipeError):  # it has just ended: `wait` tells of it
            self._processes[worker].connection.send((method, arguments))

    def wait(self, timeout_s: float) -> Iterator[Event]:
        """Events since the last call; waits up to ``timeout_s`` for the first."""
        numbers = {each.connection: number for number, each in self._processes.items()}
        for ready in wait(list(numbers), timeout_s):
            number = numbers[ready]  # type: ignore[index]
            try:
                kind, value = self._processes[number].connection.recv()
            except (EOFError, ConnectionResetError):
                yield Event(number, "lost", self._ended(number))
            else:
                yield Event(number, kind, value)

    def end(self, worker: int) -> None:
        """End a worker at once, also one that is stopped."""
        self._processes[worker].program.kill()
        self._ended(worker)

    def close(self) -> None:
        """End all workers."""
        for worker in list(self._processes):
            self.end(worker)

    def _ended(self, worker: int) -> str:
        process = self._processes.pop(worker)
        process.connection.close()
        with suppress(subprocess.TimeoutExpired):
            process.program.wait(END_S)
        code = process.program.returncode
        if code == -signal.SIGKILL:
            return "killed, as the system does where memory is short"
        return f"its process ended with {code}"


def environments(workers: int, threads: int, gpus: int) -> list[Environment]:
    """Environments of workers that share GPUs, or the threads where there are none."""
    shares = [{"OMP_NUM_THREADS": str(max(1, threads // workers))} for _ in range(workers)]
    if gpus:
        for number, share in enumerate(shares):
            share["CUDA_VISIBLE_DEVICES"] = _visible()[number % gpus]
    return shares


def worker_count(asked: int | None, processors: int, gpus: int) -> int:
    """Number of workers: as asked, else one for each GPU, or for every eight processors."""
    return asked or gpus or max(1, processors // PROCESSORS_PER_WORKER)


def gpu_count(device: str) -> int:
    """Number of GPUs that workers may use.

    Raises:
        BenchError: one of them was named.
    """
    if ":" in device:
        raise BenchError(f"--workers use every GPU, and --device {device} is one", "--device cuda")
    if device == "cpu":
        return 0
    from bench.evaluate.exact.choose_engine import sees_gpu

    if not sees_gpu():
        return 0
    import torch

    return torch.cuda.device_count()


def _visible() -> list[str]:
    """Names of the GPUs that this process sees, as ``CUDA_VISIBLE_DEVICES`` has them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given:
        return given.split(",")
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def _started(environment: Environment) -> _Process:
    own, theirs = socket.socketpair()
    paths = os.pathsep.join(filter(None, sys.path))
    with theirs:
        program = subprocess.Popen(
            [sys.executable, "-m", "bench.execution.processes", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": paths, "TQDM_DISABLE": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=2,  # standard output is for tables
        )
    return _Process(program, Connection(own.detach()))


def main(handle: int) -> None:
    """Do what comes through a socket, until nobody is at its other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this decides
    logging.basicConfig(level=logging.ERROR)  # what there is to say is said there
    connection, requests = Connection(handle), queue.SimpleQueue[bytes]()
    threading.Thread(target=_receive, args=(connection, requests), daemon=True).start()
    from bench.execution.corpus_worker import Worker

    worker, sending = Worker(), threading.Lock()

    def send(kind: str, value: Any) -> None:
        with sending:
            connection.send((kind, value))

    while True:
        try:
            method, arguments = pickle.loads(requests.get())  # from the process that started this
            answer = getattr(worker, method)(*arguments, lambda done: send("advanced", done))
        except Exception as error:
            send("failed", sendable(error))
        else:
            send("answered", answer)


def _receive(connection: Connection, requests: "queue.SimpleQueue[bytes]") -> None:
    """Put requests into a queue; end the process, whatever it does, when nobody is left."""
    while True:
        try:
            requests.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
