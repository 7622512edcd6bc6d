"""Engines: processes or cluster tasks that encode documents for this process.

`WorkerProcesses` run on this machine and fill the same store, as ``bench work`` does on another
one. They need no messages, since the leases of the store divide the work.
`bench.runner.ray_cluster.RayCluster` runs tasks, each of which returns the vectors of one shard.

Both have ``machines``, how many times as fast as this process they encode, and a context manager
``encoding``, which yields a function that wraps a loaded model so that the engine encodes its
documents.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from bench.evaluation.collection_search import LoadedModel
from bench.evaluation.exact.tile_search import count_threads, has_gpu
from bench.runner.workspace import Workspace
from datasets_cfg.corpus import Corpus
from foundation.errors import BenchError, as_picklable_error
from retrievers.encoders.open import open_encoder
from retrievers.encoders.protocol import Encoder
from retrievers.encoders.transformer import SharedNetworks
from retrievers.models.resolve import Model

POLL_S = 1.0
STOPPED_POLLS = 5  # in a row until a stopped child is killed

Distribute = Callable[[LoadedModel], LoadedModel]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncodingTask:
    """A corpus for another process to encode. Can be pickled.

    Attributes:
        collection: collection whose prompts the model uses.
        corpus: folder of the corpus.
        model: model to encode with.
    """

    collection: str
    corpus: Path
    model: Model


def worker_count(requested: int, processors: int, gpus: int) -> int:
    """Return the number of workers.

    Args:
        requested: number of workers from the command line. 0 means one per GPU, or one per
            eight CPU cores without GPUs.
        processors: number of CPU cores.
        gpus: number of GPUs.
    """
    return requested or gpus or max(1, processors // 8)


class WorkerProcesses:
    """Processes that share the CPU cores and GPUs of this machine with this process.

    Each takes shards that nobody has leased. A dead process loses its lease, and a stopped one is
    killed, so each costs at most the shards that it was encoding.

    Args:
        workers: number of processes including this one; 0 for one per GPU or one per eight CPU
            cores.
        device: device of the workspace.

    Raises:
        BenchError: the device is one GPU of several.
    """

    def __init__(self, workers: int, device: str) -> None:
        """Divide threads and GPUs among ``workers`` processes on ``device``."""
        gpus = _gpus(device) if workers != 1 else []
        self.workers = worker_count(workers, count_threads(), len(gpus))
        self.machines = max(1, min(self.workers, len(gpus)))
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
        """Encode in child processes while the block lasts.

        Args:
            workspace: folders and device.
            work: corpora to encode, with their models.
        """
        if self.workers == 1:
            yield lambda model: model
            return
        import torch  # not needed if all vectors are stored

        children = [_start(workspace, work, environment) for environment in self.environments]
        threads, over = torch.get_num_threads(), threading.Event()
        watching = threading.Thread(target=_kill_stopped, args=(children, over), daemon=True)
        watching.start()
        torch.set_num_threads(min(threads, self.threads))
        try:
            yield lambda model: model
        finally:
            over.set()
            torch.set_num_threads(threads)
            for child in children:
                child.kill()
                child.join()


def _gpus(device: str) -> list[str]:
    """Return the GPUs that children may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    if ":" in device:
        raise BenchError(f"--workers uses all GPUs, not {device} alone", "use --device cuda")
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


def _kill_stopped(children: Sequence[BaseProcess], over: threading.Event) -> None:
    """Kill children that somebody has stopped, since they would keep their leases."""
    stopped = dict.fromkeys(children, 0)
    while not over.wait(POLL_S):
        for child in children:
            try:
                status = psutil.Process(child.pid).status()
            except psutil.NoSuchProcess:
                continue
            stopped[child] = stopped[child] + 1 if status == psutil.STATUS_STOPPED else 0
            if stopped[child] == STOPPED_POLLS:
                logger.warning("worker %d was stopped: killing it", child.pid)
                child.kill()


def _encode_all(workspace: Workspace, work: Sequence[EncodingTask]) -> None:
    """Encode the corpora in order. Main function of a child process."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    logging.basicConfig(level=logging.ERROR)  # the parent logs the same warnings
    networks, loaded = SharedNetworks(), dict[str, Encoder]()
    try:
        for each in work:
            name = each.model.recipe.fingerprint
            if name not in loaded:
                loaded[name] = open_encoder(each.model, workspace.device, networks=networks)
            encoder, corpus = loaded[name].for_dataset(each.collection), Corpus.open(each.corpus)
            workspace.store.encode_documents(encoder, corpus, workspace.store.plan(encoder, corpus))
    except KeyboardInterrupt:
        return
    except Exception as error:
        print(f"warning: a worker failed: {as_picklable_error(error)}", file=sys.stderr)


def _exit_with_parent() -> None:
    if parent := parent_process():
        wait([parent.sentinel])
        os._exit(1)
