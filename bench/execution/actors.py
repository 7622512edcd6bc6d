"""Workers on a Ray cluster, or on a cluster of this machine alone: one actor each.

An actor that is lost is replaced by a new one, which begins wherever the cluster has room. Ray
carries names of shards, queries and rankings; vectors of documents are in the store.
"""

import logging
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.execution.pool import Event
from foundation.errors import BenchError, first_line
from foundation.failures import sendable

# What the workers must have as this process has it, wherever they are.
SETTINGS = ("BENCH_DATA", "HF_HOME", "HF_HUB_OFFLINE", "HF_TOKEN", "TOKENIZERS_PARALLELISM")
ANSWER_S = 5.0  # of an actor that is asked how far it is

Ray = Any  # the module, which is imported when it is asked for


class _Actor:
    """A worker inside an actor: errors are values, and how far it is can be asked meanwhile."""

    def __init__(self, folder: str) -> None:
        from bench.execution.corpus_worker import Worker

        with suppress(OSError):  # paths are relative to it, where it is shared
            os.chdir(folder)
        logging.basicConfig(level=logging.ERROR)  # what there is to say is said by the driver
        self._worker = Worker()
        self._done = 0

    def work(self, method: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
        """Do a call of `Worker`; ``answered`` or ``failed``, and what with."""
        try:
            return "answered", getattr(self._worker, method)(*arguments, self._advance)
        except Exception as error:
            return "failed", sendable(error)

    def done(self) -> int:
        """Number of texts or rows that this actor is through with, since it began."""
        return self._done

    def _advance(self, number: int) -> None:
        self._done += number


class ActorPool:
    """Actors of a Ray cluster. None is started before it has work.

    Args:
        ray: the module, connected to a cluster.
        size: number of workers.
        cpus, gpus: that each has to itself.
        spreads_search: whether they are on several machines or GPUs.
    """

    def __init__(
        self, ray: Ray, size: int, cpus: float, gpus: float, spreads_search: bool = False
    ) -> None:
        self._ray, self.size, self.spreads_search = ray, size, spreads_search
        self._head: str = ray.get_runtime_context().gcs_address
        self._kind = ray.remote(
            num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0, max_concurrency=2
        )(_Actor)
        self._actors: dict[int, Any] = {}
        self._work: dict[Any, int] = {}  # references to answers that are awaited
        self._asked: dict[int, Any] = {}  # references to how far busy actors are
        self._done: dict[int, int] = {}

    def call(self, worker: int, method: str, *arguments: Any) -> None:
        """Send work to an actor, which is started where there is none."""
        if worker not in self._actors:
            self._actors[worker], self._done[worker] = self._kind.remote(str(Path.cwd())), 0
        actor = self._actors[worker]
        self._work[actor.work.remote(method, arguments)] = worker

    def wait(self, timeout_s: float) -> Iterator[Event]:
        """Events since the last call; waits up to ``timeout_s`` for the first.

        Raises:
            BenchError: the cluster is gone.
        """
        end = time.monotonic() + timeout_s
        ready, _ = self._ray.wait(list(self._work), timeout=timeout_s)
        for reference in ready:
            worker = self._work.pop(reference)
            yield from self._advanced(worker, self._last(worker))
            try:
                kind, value = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                self._forget(worker)
                self._check_cluster()
                yield Event(worker, "lost", first_line(error))
            else:
                yield Event(worker, kind, value)
        if not ready:
            self._check_cluster()
            for worker in self._work.values():
                yield from self._advanced(worker, self._how_far(worker))
            time.sleep(max(0.0, end - time.monotonic()))

    def end(self, worker: int) -> None:
        """End an actor, whatever it does or waits for."""
        self._ray.kill(self._actors[worker])
        for reference in [own for own, number in self._work.items() if number == worker]:
            del self._work[reference]
        self._forget(worker)

    def close(self) -> None:
        """Leave the cluster, which ends all actors."""
        self._ray.shutdown()

    def _check_cluster(self) -> None:
        """See that the head of the cluster is there: Ray ends processes that have lost it.

        Raises:
            BenchError: it is not.
        """
        if not _answers(self._head):
            raise BenchError(
                f"the Ray cluster at {self._head} is gone",
                "start it, and type the same command again: shards that are written are kept",
            )

    def _forget(self, worker: int) -> None:
        del self._actors[worker]
        self._asked.pop(worker, None)

    def _advanced(self, worker: int, done: int) -> Iterator[Event]:
        if done > self._done[worker]:
            yield Event(worker, "advanced", done - self._done[worker])
            self._done[worker] = done

    def _last(self, worker: int) -> int:
        """Progress of an actor that has answered, in texts or rows."""
        try:
            return int(self._ray.get(self._actors[worker].done.remote(), timeout=ANSWER_S))
        except self._ray.exceptions.RayError:
            return 0

    def _how_far(self, worker: int) -> int:
        """Progress of a busy actor, in texts or rows; 0 until it answers."""
        if worker not in self._asked:
            self._asked[worker] = self._actors[worker].done.remote()
        ready, _ = self._ray.wait([self._asked[worker]], timeout=0)
        if not ready:
            return 0
        try:
            return int(self._ray.get(self._asked.pop(worker)))
        except self._ray.exceptions.RayError:
            return 0  # it is lost, as its work will tell


def connect(address: str | None, **options: Any) -> Ray:
    """Ray, connected to the cluster of an address, or to one that is started on this machine.

    Args:
        options: of ``ray.init``.

    Raises:
        BenchError: Ray is not installed, or there is no cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise BenchError("--engine ray needs Ray", "pip install 'retrieval-bench[ray]'") from error
    if ray.is_initialized():
        return ray
    settings = {name: os.environ[name] for name in SETTINGS if name in os.environ}
    options |= {"address": address} if address else {"address": "local", "include_dashboard": False}
    try:
        if address and re.fullmatch(r"[^/]+:\d+", address) and not _answers(address):
            raise ConnectionError("nothing listens there")  # Ray would try for minutes
        ray.init(
            **options,
            runtime_env={"env_vars": {**settings, "TQDM_DISABLE": "1"}},
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BenchError(
            f"no Ray cluster at {address or 'this machine'}: {' '.join(str(error).split())}",
            "ray start --head, or leave --address out for one on this machine",
        ) from error
    return ray


def _answers(address: str) -> bool:
    """True where something listens at ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), ANSWER_S).close()
    except OSError:
        return False
    return True


def actor_pool(address: str | None, workers: int | None, gpus: float | None) -> ActorPool:
    """Actors on a cluster: as many as asked, else one for each GPU, or for every eight processors.

    Args:
        gpus: of each actor; None for one where the cluster has any.

    Raises:
        BenchError: there is no cluster, or it has not a node that could hold one of them.
    """
    from bench.execution.processes import worker_count

    ray = connect(address)
    has = ray.cluster_resources()
    share = gpus if gpus is not None else min(1.0, has.get("GPU", 0.0))
    by_gpus = int(has.get("GPU", 0.0) / share) if share else 0
    size = worker_count(workers, int(has.get("CPU", 1)), by_gpus)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("GPU", 0.0) >= share for node in nodes):
        ray.shutdown()
        raise BenchError(
            f"no node of this cluster has {share:g} GPUs: all have {has.get('GPU', 0.0):g}",
            "--gpus-per-worker 0 encodes on processors",
        )
    cpus = max(1, int(has.get("CPU", 1) / size))
    cpus = min(cpus, int(max(node.get("CPU", 0.0) for node in nodes)))
    return ActorPool(ray, size, cpus, share, spreads_search=len(nodes) > 1 or by_gpus > 1)
