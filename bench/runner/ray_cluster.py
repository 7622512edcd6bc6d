"""Tasks on a Ray cluster, each of which encodes one shard and returns its vectors.

Ray transfers texts and vectors. Nodes need the program and the model, but neither collections nor a
shared folder. This process reads, leases and writes every shard. Ray repeats a task whose worker
was lost. A task that does not end although the others did is submitted once more.
"""

import logging
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from bench.evaluation.collection_search import LoadedModel
from bench.runner.worker_processes import Distribute, EncodingTask, worker_count
from bench.runner.workspace import Workspace
from foundation.arrays import Float32Array
from foundation.errors import BenchError, as_picklable_error
from retrievers.encoders.open import open_encoder
from retrievers.encoders.protocol import Callback, Encoder, PhaseTimer
from retrievers.models.resolve import Model

# Environment variables that workers need with the values of this process.
SETTINGS = ("HF_HOME", "HF_HUB_OFFLINE", "HF_TOKEN", "TOKENIZERS_PARALLELISM")
POLL_S = 5.0
PATIENCE_S = 120.0  # for a task while no other is running
TASKS_PER_WORKER = 2  # one running, one waiting
RETRIES = 5  # if a worker or node is lost

RETRY_HINT = "repeat the command: shards that are written are kept"

RayModule = Any  # the module, imported on use
TaskResult = tuple[Float32Array, Mapping[str, float], Mapping[str, int]] | Exception


class RayCluster:
    """A Ray cluster with a fixed number of concurrent tasks.

    Args:
        address: address of the cluster; None for a cluster on this machine.
        workers: number of tasks; 0 for one per GPU or one per eight CPU cores.
        device: device of the workspace. With ``cpu`` tasks use no GPU.
        options: further options of ``ray.init``.

    Raises:
        BenchError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str | None, workers: int, device: str, **options: Any) -> None:
        """Divide the cluster at ``address`` among ``workers`` tasks for ``device``."""
        self.ray = connect_to_ray(address, **options)
        has = self.ray.cluster_resources()
        gpus = 0 if device == "cpu" else int(has.get("GPU", 0))
        self.machines = worker_count(workers, int(has.get("CPU", 1)), gpus)
        largest = max(node["Resources"].get("CPU", 1) for node in self.ray.nodes() if node["Alive"])
        self._head: str = self.ray.get_runtime_context().gcs_address
        self._device = "auto" if gpus else "cpu"
        self._task = self.ray.remote(
            num_cpus=max(1, min(int(has.get("CPU", 1) / self.machines), int(largest))),
            num_gpus=min(1.0, gpus / self.machines),
            max_retries=RETRIES,
            retry_exceptions=True,  # only Ray raises: errors of encoders are values
        )(_encode_in_worker)
        self._pending: set[Any] = set()

    @contextmanager
    def encoding(self, workspace: Workspace, work: Sequence[EncodingTask]) -> Iterator[Distribute]:
        """Encode documents by tasks while the block lasts, then disconnect.

        Args:
            workspace: folders and device.
            work: corpora to encode, with their models.
        """
        try:
            yield self._distribute
        finally:
            self.ray.shutdown()

    def _distribute(self, loaded: LoadedModel) -> LoadedModel:
        if loaded.encoder is None:
            return loaded
        encoder = RayEncoder(self, loaded.model, loaded.encoder)
        return LoadedModel(loaded.model, cast(Encoder, encoder))

    def submit(self, arguments: Sequence[Any]) -> Any:
        """Submit a task with these ``arguments`` and return the reference to its `TaskResult`."""
        reference = self._task.remote(str(Path.cwd()), self._device, *arguments)
        self._pending.add(reference)
        return reference

    def wait_for(self, reference: Any, arguments: Sequence[Any]) -> TaskResult:
        """Return the result of a task, submitting it again if it is lost or does not end.

        Args:
            reference: as returned by `submit`.
            arguments: of the task.

        Raises:
            BenchError: the cluster is gone, or loses every worker that runs the task.
        """
        copies, idle_s, lost = [reference], 0.0, 0
        while True:
            try:
                ready, _ = self.ray.wait(copies, timeout=POLL_S)
                if ready:
                    self._pending.difference_update(copies)
                    answer: TaskResult = self.ray.get(ready[0])
                    return answer
            except self.ray.exceptions.RayError as error:
                self._check_head()
                self._pending.difference_update(copies)
                lost += 1
                if lost > RETRIES:
                    reason = " ".join(str(error).split())
                    raise BenchError(
                        f"a worker of the Ray cluster was lost: {reason}", RETRY_HINT
                    ) from error
                copies = [self.submit(arguments)]
            self._check_head()
            others = list(self._pending.difference(copies))
            busy = others and self.ray.wait(others, num_returns=len(others), timeout=0)[1]
            idle_s = 0.0 if busy else idle_s + POLL_S
            if idle_s >= PATIENCE_S and len(copies) == 1:
                copies.append(self.submit(arguments))

    def _check_head(self) -> None:
        """Raise if the head of the cluster is gone, since Ray ends processes that lose it."""
        if not _is_listening(self._head):
            raise BenchError(f"the Ray cluster at {self._head} is gone", RETRY_HINT)


class RayEncoder:
    """An encoder whose shards are encoded by tasks of a cluster."""

    def __init__(
        self, cluster: RayCluster, model: Model, encoder: Encoder, collection: str = ""
    ) -> None:
        """Encode on ``cluster`` with ``model``.

        Args:
            cluster: cluster that runs the tasks.
            model: model of the tasks.
            encoder: encoder for everything else.
            collection: collection whose prompts are used; "" for none.
        """
        self._cluster, self._encoder = cluster, encoder
        self._model, self._collection = model, collection
        self.timer: PhaseTimer = getattr(encoder, "timer", None) or PhaseTimer()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def for_dataset(self, name: str) -> Encoder:
        """Return this encoder with the prompts of the dataset ``name``."""
        encoder = self._encoder.for_dataset(name)
        return cast(Encoder, RayEncoder(self._cluster, self._model, encoder, name))

    def prepare_documents(self, titles: Sequence[str], texts: Sequence[str]) -> "RayShard":
        """Return a task for a shard of documents, not yet submitted.

        Args:
            titles: title of each document.
            texts: body of each document.
        """
        arguments = (self._model, self._collection, list(titles), list(texts))
        return RayShard(self._cluster, self.timer, arguments)


class RayShard:
    """The texts of a shard. `launch` submits them, and a call waits for their vectors."""

    def __init__(self, cluster: RayCluster, timer: PhaseTimer, arguments: Sequence[Any]) -> None:
        """Store the ``arguments`` of a task for ``cluster``, with a ``timer`` for its phases."""
        self._cluster, self._clock, self._arguments = cluster, timer, arguments
        self._reference: Any = None
        self.in_flight = TASKS_PER_WORKER * cluster.machines

    def launch(self) -> None:
        """Submit the task."""
        self._reference = self._cluster.submit(self._arguments)

    def __call__(self, advance: Callback | None = None) -> Float32Array:
        """Return the vectors of the documents, float32 ``(n, dim)``.

        Args:
            advance: called with the number of documents.

        Raises:
            BenchError: the encoder fails, or the cluster is gone.
        """
        if self._reference is None:
            self.launch()
        answer = self._cluster.wait_for(self._reference, self._arguments)
        if isinstance(answer, Exception):
            raise answer
        vectors, seconds, counts = answer
        self._clock.add(seconds, counts)
        if advance:
            advance(len(vectors))
        return vectors


def connect_to_ray(address: str | None, **options: Any) -> RayModule:
    """Return the Ray module, connected to a cluster or to a new one on this machine.

    Args:
        address: address of the cluster; None for a new one.
        options: options of ``ray.init``.

    Raises:
        BenchError: Ray is not installed, or the cluster cannot be reached.
    """
    try:
        import ray
    except ImportError as error:
        raise BenchError("--engine ray needs Ray", "pip install 'retrieval-bench[ray]'") from error
    settings = {name: os.environ[name] for name in SETTINGS if name in os.environ}
    options |= {"address": address} if address else {"address": "local", "include_dashboard": False}
    try:
        if address and re.fullmatch(r"[^/]+:\d+", address) and not _is_listening(address):
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
            "run `ray start --head`, or omit --address for a cluster on this machine",
        ) from error
    return ray


def _is_listening(address: str) -> bool:
    """Return whether something listens at ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), POLL_S).close()
    except OSError:
        return False
    return True


_loaded_models: list[tuple[Model, Encoder]] = []


def _encode_in_worker(
    folder: str, device: str, model: Model, collection: str, titles: Any, texts: Any
) -> TaskResult:
    """Encode documents in a worker of the cluster, and return errors as values.

    Args:
        folder: folder that paths are relative to, if it exists there.
        device: device to encode on.
        model: model to encode with.
        collection: collection whose prompts are used; "" for none.
        titles: title of each document.
        texts: body of each document.
    """
    try:
        with suppress(OSError):
            os.chdir(folder)
        if model not in [known for known, _ in _loaded_models]:
            _loaded_models.append((model, open_encoder(model, device)))
        encoder = next(encoder for known, encoder in _loaded_models if known == model)
        encoder = encoder.for_dataset(collection) if collection else encoder
        timer: PhaseTimer = getattr(encoder, "timer", None) or PhaseTimer()
        before = timer.copy()
        vectors = encoder.encode_documents(titles, texts)
        spent = timer.since(before)
        return vectors, spent.seconds, spent.counts
    except Exception as error:
        return as_picklable_error(error)
