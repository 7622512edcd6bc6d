"""CUDA graphs for single texts: their kernels are launched together, not one after the other.

A query of a few tokens takes a hundred kernels, and the GPU waits for each to be launched. A graph
is what was launched once, to be launched again as a whole: the same kernels on the same memory. So
a text is copied to where the first one of its size was, and texts have few sizes, because each is
filled up to a power of two by a second text that nobody reads.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from foundation.errors import first_line
from retrievers.encoders.packed import PackedBatch
from retrievers.encoders.tokens import Tokens
from retrievers.models.recipe import StoredPooling

SIZES = tuple(1 << power for power in range(4, 10))  # tokens of a text and of what fills it up

Pool = Callable[[StoredPooling, PackedBatch], Tensor]
Replay = Callable[[], Tensor]  # what it gives stays until the next call

UNFINISHED: list[torch.cuda.CUDAGraph] = []  # kept as long as the process

logger = logging.getLogger(__name__)


def filled(tokens: Tokens) -> Tokens:
    """A single short text and one after it, together as many tokens as one of ``SIZES``.

    Other batches as they are.
    """
    size = next((size for size in SIZES if size > len(tokens.ids)), 0)
    if len(tokens) != 1 or not len(tokens.ids) or not size:
        return tokens
    missing = size - len(tokens.ids)
    types = None if tokens.types is None else np.zeros(missing, np.int32)
    filler = Tokens(np.repeat(tokens.ids[:1], missing), np.array([missing]), types)
    return Tokens.concatenate([tokens, filler])


class CudaGraphs:
    """The vectors of batches, those of ``filled`` from graphs; the same bytes as without.

    Args:
        pool: computes the vectors of a batch.
        record: runs what it is given on the GPU, and returns what does so again; None where there
            are no graphs.
    """

    def __init__(self, pool: Pool, record: Callable[[Replay], Replay] | None) -> None:
        self.record, self._pool = record, pool
        self._graphs: dict[tuple[StoredPooling, int, int], tuple[PackedBatch, Replay]] = {}
        self._lock = Lock()  # all texts of a size share its memory

    def __len__(self) -> int:
        return len(self._graphs)

    def __call__(self, mode: StoredPooling, batch: PackedBatch) -> Tensor:
        """Vectors of a batch that lies on the device; see ``pool_packed``."""
        if self.record is None or not _replayable(batch):
            return self._pool(mode, batch)
        key = mode, len(batch.input_ids), batch.max_length
        with self._lock, torch.inference_mode():
            if key not in self._graphs:
                graph = self._recorded(mode, batch)
                if graph is None:
                    return self._pool(mode, batch)
                self._graphs[key] = batch, graph
            own, replay = self._graphs[key]
            for place, tensor in zip(_tensors(own), _tensors(batch), strict=True):
                place.copy_(tensor)
            return replay().clone()

    def _recorded(self, mode: StoredPooling, batch: PackedBatch) -> Replay | None:
        """A graph for batches of this size; None, now and for good, where it cannot be recorded."""
        if self.record is None:
            return None
        try:
            return self.record(lambda: self._pool(mode, batch))
        except RuntimeError as error:
            logger.warning(
                "single texts are encoded without CUDA graphs, more slowly: %s", first_line(error)
            )
        self.record = None
        return None


class CudaRecorder:
    """Records the kernels of one device as CUDA graphs, which share the memory between them."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, run: Replay) -> Replay:
        """Record what ``run`` launches.

        Raises:
            RuntimeError: it does something that cannot be part of a graph, or memory ran out.
        """
        run()  # loads and compiles what it needs, which cannot be recorded
        graph = torch.cuda.CUDAGraph()
        try:
            with (
                torch.cuda.stream(torch.cuda.current_stream(self._stream.device)),  # if it fails
                torch.cuda.graph(
                    graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"
                ),
            ):
                result = run()
        except RuntimeError:
            self._end(graph)
            raise

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        """End what PyTorch leaves open where the driver has broken off: emptying its cache fails.

        The allocators go on asking the graph whether memory is for it.
        """
        UNFINISHED.append(graph)
        with suppress(RuntimeError):  # it has ended in order
            torch._C._cuda_endAllocateToPool(self._stream.device.index, self._memory)


def recorder(device: torch.device) -> CudaRecorder | None:
    """Recorder of graphs on a device; None on the CPU, which has none."""
    return CudaRecorder(device) if device.type == "cuda" else None


def _replayable(batch: PackedBatch) -> bool:
    """True for what ``filled`` makes, where a GPU works in order: on its default stream."""
    if len(batch.cu_seqlens) != 3 or len(batch.input_ids) not in SIZES:
        return False
    device = batch.input_ids.device
    if device.type == "cpu":
        return True
    return torch.cuda.current_stream(device) == torch.cuda.default_stream(device)


def _tensors(batch: PackedBatch) -> tuple[Tensor, ...]:
    return batch.input_ids, batch.positions, batch.types, batch.cu_seqlens
