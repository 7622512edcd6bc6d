"""The matrix products of a model's dense layers, timed alone: the least that encoding can take."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import nn

from bench.speed.machine import timed
from retrievers.encoders.onednn import OneDNNLinear, has_operators
from retrievers.encoders.transformer import CPU_TOKENS, CUDA_TOKENS
from retrievers.encoders.workers import side_by_side

REPEATS = 5
PRODUCTS = 8  # of a thread in one sample


def seconds_per_token(layers: Sequence[tuple[int, int]], dtype: str, device: str) -> float:
    """Least seconds of the dense layers' products for one token of a full batch.

    On the CPU these are seconds of the processor: every thread has a batch of its own, as in
    encoding, and the fastest of PyTorch's products counts. On a GPU they are seconds on the wall.

    Args:
        layers: width of input and output of each dense layer.
        dtype: of weights and activations.
    """
    counts = Counter(layers)
    return sum(count * _least(shape, dtype, device) for shape, count in counts.items())


@torch.inference_mode()
def _least(shape: tuple[int, int], dtype: str, device: str) -> float:
    linear = nn.Linear(*shape, device=device, dtype=getattr(torch, dtype))
    on_cpu = device == "cpu"
    inputs = torch.randn(
        CPU_TOKENS if on_cpu else CUDA_TOKENS, shape[0], device=device, dtype=linear.weight.dtype
    )
    kinds: list[nn.Module] = [linear]
    if on_cpu and dtype == "float32" and has_operators():
        kinds.append(OneDNNLinear(linear))
    threads = torch.get_num_threads() if on_cpu else 1

    def multiply(kind: nn.Module) -> None:
        for _ in range(PRODUCTS):
            kind(inputs)

    samples = [
        _seconds(lambda kind=kind: list(side_by_side(multiply, [kind] * threads)), on_cpu)  # type: ignore[misc]
        for kind in kinds
        for _ in range(REPEATS)
    ]
    return min(samples) / (threads * PRODUCTS * len(inputs))


def _seconds(work: Callable[[], object], of_processor: bool) -> float:
    processor_s = time.process_time()
    wall_s, _ = timed(work)
    return time.process_time() - processor_s if of_processor else wall_s
