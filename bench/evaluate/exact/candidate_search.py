"""What proposes candidates to exact search: FAISS on the CPU or a GPU, or PyTorch on a GPU.

Proposals are float32 and need not be right: exact search bounds their error, and scores again.
"""

from collections.abc import Callable
from typing import Any

from foundation.arrays import Float32Array, Int64Array
from retrievers.index.faiss_index import GPU_MAX_K
from retrievers.index.library import import_faiss, resolve_device

Knn = Callable[[Float32Array, Float32Array, int], tuple[Float32Array, Int64Array]]


def engine(device: str) -> Knn:
    """The k nearest of a tile by inner product, best first, for ``cpu``, ``cuda`` or ``cuda:N``.

    On a GPU it is FAISS where this FAISS has one, else PyTorch.

    Raises:
        BenchError: FAISS is not installed, or the device is unknown or missing.
    """
    if device.startswith("cuda") and not _faiss_sees_gpus() and _torch_sees(device):
        return with_torch(device)
    gpu = resolve_device(device)
    return _faiss_on_cpu if gpu is None else _faiss_on_gpu(gpu)


def with_torch(device: str) -> Knn:
    """The k nearest of a tile with PyTorch; float32 throughout, also where TF32 is switched on."""
    import torch

    def knn(queries: Float32Array, tile: Float32Array, k: int) -> tuple[Float32Array, Int64Array]:
        wanted, documents = (torch.from_numpy(each).to(device) for each in (queries, tile))
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            best = torch.topk(wanted @ documents.T, k)
        finally:
            torch.set_float32_matmul_precision(precision)
        return best.values.cpu().numpy(), best.indices.cpu().numpy()

    return knn


def _faiss_on_cpu(
    queries: Float32Array, tile: Float32Array, k: int
) -> tuple[Float32Array, Int64Array]:
    faiss = import_faiss()
    scores, rows = faiss.knn(queries, tile, k, metric=faiss.METRIC_INNER_PRODUCT)
    return scores, rows


def _faiss_on_gpu(gpu: int) -> Knn:
    faiss = import_faiss()
    resources: Any = faiss.StandardGpuResources()

    def knn(queries: Float32Array, tile: Float32Array, k: int) -> tuple[Float32Array, Int64Array]:
        if k > GPU_MAX_K:
            return _faiss_on_cpu(queries, tile, k)
        scores, rows = faiss.knn_gpu(
            resources, queries, tile, k, metric=faiss.METRIC_INNER_PRODUCT, device=gpu
        )
        return scores, rows

    return knn


def _faiss_sees_gpus() -> bool:
    return bool(getattr(import_faiss(), "get_num_gpus", lambda: 0)())


def _torch_sees(device: str) -> bool:
    try:
        import torch
    except ImportError:
        return False
    number = device.partition(":")[2]
    return number.isdecimal() * int(number or 0) < torch.cuda.device_count()
