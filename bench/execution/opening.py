"""From what a user asks for to the workers of one command, and their engine for an evaluation."""

from dataclasses import replace
from typing import Literal

from bench.evaluate.exact.tile_search import thread_count
from bench.evaluate.memory import default_budget
from bench.execution.corpus_worker import CorpusJob
from bench.execution.pool import PooledEngine, WorkerPool
from bench.workspace import LoadedModel, OpenDataset, Workspace

EngineName = Literal["processes", "ray"]


def open_pool(
    engine: EngineName,
    workers: int | None,
    device: str,
    address: str | None = None,
    gpus_per_worker: float | None = None,
) -> WorkerPool:
    """Workers, which are started when there is work for them.

    Args:
        workers: how many; None for one for each GPU, or for every eight processors.
        device: of the workspace.
        address: of a Ray cluster; None for one on this machine.
        gpus_per_worker: on a Ray cluster; None for one where it has any.

    Raises:
        BenchError: there is no such cluster or device.
    """
    if engine == "ray":
        from bench.execution.actors import actor_pool

        return actor_pool(address, workers, 0.0 if device == "cpu" else gpus_per_worker)
    from bench.execution.processes import ProcessPool, environments, gpu_count, worker_count

    gpus = gpu_count(device)
    count = worker_count(workers, thread_count(), gpus)
    return ProcessPool(environments(count, thread_count(), gpus), spreads_search=gpus > 1)


def engine_for(
    pool: WorkerPool, space: Workspace, dataset: OpenDataset, model: LoadedModel
) -> PooledEngine | None:
    """The engine of an evaluation; None where there is nothing that workers could do."""
    if model.encoder is None or dataset.opened_by is None:
        return None
    corpus = dataset.dataset.corpus
    seen = "cpu" if space.device == "cpu" else "auto"  # a worker sees the GPUs that it may use
    job = CorpusJob(
        space=replace(space, device=seen),
        collection=dataset.opened_by,
        model=model.model,
        corpus_sha256=corpus.sha256,
        budget=(space.max_memory or default_budget()) // pool.size,
    )
    return PooledEngine(pool, job, corpus.tie_rank)
