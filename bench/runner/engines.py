"""Engines: processes of this machine, or tasks on a Ray cluster, that encode documents.

`WorkerProcesses` fill the same store, as ``bench work`` does on another machine. They need no
messages, since the leases of the store divide the work. A `RayCluster` runs tasks, each of which
encodes one shard and returns its vectors: nodes need the program and the model, but neither
collections nor a shared folder, and this process reads, leases and writes every shard.

Both have a context manager ``encoding``, which yields a function that wraps a loaded model so that
the engine encodes its documents.
"""

import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, cast

from bench.evaluation.exact import has_gpu
from bench.evaluation.retriever import Retriever
from bench.evaluation.vector_retriever import VectorRetriever
from bench.runner.workspace import Workspace
from bench.store.store import TOKENIZING, library_versions
from datasets_cfg.corpus import Corpus
from foundation.arrays import Float32Array
from foundation.errors import BenchError, as_picklable_error, import_package, to_one_line
from foundation.machine import count_threads, watch_parent
from retrievers.encoders.protocol import Callback, Encoder, PhaseTimer
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import Model

# Environment variables that Ray's workers need with the values of this process.
SETTINGS = ("HF_HOME", "HF_HUB_OFFLINE", "HF_TOKEN", "TOKENIZERS_PARALLELISM")
TASKS_PER_WORKER = 2  # one running, one waiting
RETRIES = 5  # if a worker or node is lost
CONNECT_S = 5.0

logger = logging.getLogger(__name__)

Distribute = Callable[[Retriever], Retriever]
TaskResult = tuple[Float32Array, Mapping[str, float], Mapping[str, int]] | Exception


class EncodingTask(NamedTuple):
    """A corpus for another process to encode with the prompts of a collection. Can be pickled."""

    collection: str
    corpus: Path
    model: Model


def worker_count(requested: int, processors: int, gpus: int) -> int:
    """Return ``requested``, or if it is 0 one per GPU, or one per eight CPU cores without GPUs."""
    return requested or gpus or max(1, processors // 8)


class WorkerProcesses:
    """Processes that share the CPU cores and GPUs of this machine with this process.

    Each takes shards without a lease. A dead process loses its lease, and so costs at most
    the shards that it was encoding.
    """

    def __init__(self, workers: int, device: str) -> None:
        """Divide threads and GPUs among ``workers`` processes, including this one.

        Raises:
            BenchError: the device is one GPU of several.
        """
        gpus = _gpus(device) if workers != 1 else []
        self.workers = worker_count(workers, count_threads(), len(gpus))
        self.threads = max(1, count_threads() // self.workers)
        self.environments = [
            {
                "OMP_NUM_THREADS": str(self.threads),
                "TQDM_DISABLE": "1",
                **({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}),
            }
            for number in range(1, self.workers)
        ]

    @contextmanager
    def encoding(self, workspace: Workspace, work: Sequence[EncodingTask]) -> Iterator[Distribute]:
        """Encode the corpora of ``work`` in child processes while the block lasts."""
        if self.workers == 1:
            yield lambda model: model
            return
        import torch  # not needed if all vectors are stored

        children = [_start(workspace, work, environment) for environment in self.environments]
        threads = torch.get_num_threads()
        torch.set_num_threads(min(threads, self.threads))
        try:
            yield lambda model: model
        finally:
            torch.set_num_threads(threads)
            for child in children:
                child.kill()
                child.join()


def _gpus(device: str) -> list[str]:
    """Return the GPUs that children may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    if ":" in device:
        raise BenchError(f"--workers uses all GPUs, not {device} alone", "Use --device cuda.")
    if device == "cpu" or not has_gpu():
        return []
    if given := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return given.split(",")
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def _start(
    workspace: Workspace, work: Sequence[EncodingTask], environment: Mapping[str, str]
) -> BaseProcess:
    """Start a child process that encodes the corpora with these environment variables."""
    device = "cpu" if workspace.device == "cpu" else "auto"  # a child sees only its GPU
    child = get_context("spawn").Process(
        target=_encode_all, args=(replace(workspace, device=device), work), daemon=True
    )
    before = dict(os.environ)
    os.environ.update(environment)  # a child reads it before it loads libraries
    try:
        child.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return child


def _encode_all(workspace: Workspace, work: Sequence[EncodingTask]) -> None:
    """Encode the corpora in order. Main function of a child process."""
    watch_parent()
    logging.basicConfig(level=logging.ERROR)  # the parent logs the same warnings
    loaded = dict[str, Encoder]()
    try:
        for each in work:
            name = each.model.recipe.fingerprint
            if name not in loaded:
                loaded[name] = open_encoder(each.model, workspace.device)
            encoder, corpus = loaded[name].for_dataset(each.collection), Corpus.open(each.corpus)
            workspace.store.encode_documents(encoder, corpus, workspace.store.plan(encoder, corpus))
    except KeyboardInterrupt:
        return
    except Exception as error:
        print(f"warning: a worker failed: {as_picklable_error(error)}", file=sys.stderr)


class RayCluster:
    """A Ray cluster with a fixed number of concurrent tasks.

    Ray repeats a task whose worker was lost.
    """

    def __init__(self, address: str | None, workers: int, device: str, **options: Any) -> None:
        """Divide the cluster at ``address``, or a new one on this machine, among tasks.

        Args:
            address: address of the cluster; None for a new one.
            workers: number of tasks; 0 for one per GPU or one per eight CPU cores.
            device: device of the workspace. With ``cpu`` tasks use no GPU.
            options: further options of ``ray.init``.

        Raises:
            BenchError: Ray is not installed, or the cluster cannot be reached.
        """
        self.ray = connect_to_ray(address, **options)
        has = self.ray.cluster_resources()
        gpus = 0 if device == "cpu" else int(has.get("GPU", 0))
        self.workers = worker_count(workers, int(has.get("CPU", 1)), gpus)
        largest = max(node["Resources"].get("CPU", 1) for node in self.ray.nodes() if node["Alive"])
        self._device = "auto" if gpus else "cpu"
        self._task = self.ray.remote(
            num_cpus=max(1, min(int(has.get("CPU", 1) / self.workers), int(largest))),
            num_gpus=min(1.0, gpus / self.workers),
            max_retries=RETRIES,
            retry_exceptions=True,  # only Ray raises: errors of encoders are values
        )(_encode_in_worker)

    @contextmanager
    def encoding(self, workspace: Workspace, work: Sequence[EncodingTask]) -> Iterator[Distribute]:
        """Encode documents by tasks while the block lasts, then disconnect."""
        try:
            yield self._distribute
        finally:
            self.ray.shutdown()

    def _distribute(self, loaded: Retriever) -> Retriever:
        def wrap(one: Retriever) -> Retriever:
            encoder = cast(Encoder, RayEncoder(self, one.model, one.require_encoder()))
            return replace(cast(VectorRetriever, one), encoder=encoder)

        return loaded.with_encoders(wrap)

    def submit(self, arguments: Sequence[Any]) -> Any:
        """Submit a task with these ``arguments`` and return the reference to its `TaskResult`."""
        return self._task.remote(str(Path.cwd()), self._device, *arguments)


class RayEncoder:
    """An encoder whose shards are encoded by tasks of a cluster.

    Attributes:
        timer: measures the phases of the tasks.
    """

    def __init__(
        self, cluster: RayCluster, model: Model, encoder: Encoder, collection: str = ""
    ) -> None:
        """Encode documents on ``cluster`` with ``model``, and everything else with ``encoder``.

        ``collection`` is the one whose prompts are used; "" for none.
        """
        self._cluster, self._encoder = cluster, encoder
        self._model, self._collection = model, collection
        self.timer = encoder.timer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def for_dataset(self, name: str) -> Encoder:
        """Return this encoder with the prompts of the dataset ``name``."""
        encoder = self._encoder.for_dataset(name)
        return cast(Encoder, RayEncoder(self._cluster, self._model, encoder, name))

    def prepare_documents(self, titles: Sequence[str], texts: Sequence[str]) -> "RayShard":
        """Return a task, not yet submitted, for a shard of documents with their titles."""
        texts_of_shard = list(titles), list(texts)
        arguments = (self._model, self._collection, self._tokens_sha256, *texts_of_shard)
        return RayShard(self._cluster, self.timer, arguments)

    @cached_property
    def _tokens_sha256(self) -> str:
        return self._encoder.hash_tokens("document")


class RayShard:
    """The texts of a shard. `launch` submits them, and a call waits for their vectors.

    Attributes:
        in_flight: number of shards to launch ahead.
    """

    def __init__(self, cluster: RayCluster, timer: PhaseTimer, arguments: Sequence[Any]) -> None:
        """Store the ``arguments`` of a task for ``cluster``, with a ``timer`` for its phases."""
        self._cluster, self._timer, self._arguments = cluster, timer, arguments
        self._reference: Any = None
        self.in_flight = TASKS_PER_WORKER * cluster.workers

    def launch(self) -> None:
        """Submit the task."""
        self._reference = self._cluster.submit(self._arguments)

    def __call__(self, advance: Callback | None = None) -> Float32Array:
        """Return the vectors of the documents, float32 ``(n, dim)``.

        Raises:
            BenchError: the cluster loses every worker that runs the task.
        """
        if self._reference is None:
            self.launch()
        ray = self._cluster.ray
        try:
            answer: TaskResult = ray.get(self._reference)
        except ray.exceptions.RayError as error:
            problem = f"a worker of the Ray cluster was lost: {to_one_line(str(error))}"
            raise BenchError(problem, "Repeat the command: written shards are kept.") from error
        if isinstance(answer, Exception):
            raise answer
        vectors, seconds, counts = answer
        self._timer.add(seconds, counts)
        if advance:
            advance(len(vectors))
        return vectors


def connect_to_ray(address: str | None, **options: Any) -> Any:
    """Return the module ``ray``, connected to the cluster at ``address``, or to a new local one.

    Raises:
        BenchError: Ray is not installed, or the cluster cannot be reached.
    """
    hint = "Run `pip install 'retrieval-bench[ray]'`."
    ray = import_package("ray", "--engine ray needs Ray", hint)
    settings = {name: os.environ[name] for name in SETTINGS if name in os.environ}
    options |= {"address": address} if address else {"address": "local", "include_dashboard": False}
    try:
        if address and re.fullmatch(r"[^/]+:\d+", address):  # Ray would try for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_S).close()
        ray.init(
            **options,
            runtime_env={"env_vars": {**settings, "TQDM_DISABLE": "1"}},
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except (OSError, ValueError, RuntimeError) as error:
        problem = f"no Ray cluster at {address or 'this machine'}: {to_one_line(str(error))}"
        hint = "Run `ray start --head`, or omit --address for a cluster on this machine."
        raise BenchError(problem, hint) from error
    return ray


_loaded: dict[str, Encoder] = {}  # by fingerprint, in a worker
_checked: set[tuple[str, str]] = set()  # fingerprints and hashes of token ids


def _encode_in_worker(
    folder: str,
    device: str,
    model: Model,
    collection: str,
    tokens_sha256: str,
    titles: Sequence[str],
    texts: Sequence[str],
) -> TaskResult:
    """Encode documents in a worker of the cluster, and return errors as values.

    Paths are relative to ``folder``, if it exists there. ``tokens_sha256`` is the hash of the token
    ids of fixed documents in the coordinating process, which must be the worker's, too.
    """
    try:
        with suppress(OSError):
            os.chdir(folder)
        name = model.recipe.fingerprint
        if name not in _loaded:
            _loaded[name] = open_encoder(model, device)
        encoder = _loaded[name].for_dataset(collection) if collection else _loaded[name]
        check = encoder.recipe.fingerprint, tokens_sha256
        if check not in _checked and encoder.hash_tokens("document") != tokens_sha256:
            raise BenchError(
                f"{model.card.name}: the worker on {socket.gethostname()} makes other token ids "
                f"than the coordinator; it has {library_versions(TOKENIZING)}",
                "Install the same versions of transformers and tokenizers on all machines.",
            )
        _checked.add(check)
        before = encoder.timer.copy()
        vectors = encoder.encode_documents(titles, texts)
        spent = encoder.timer.since(before)
        return vectors, spent.seconds, spent.counts
    except Exception as error:
        return as_picklable_error(error)
