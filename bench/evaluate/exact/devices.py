"""Memory of the device on which PyTorch searches: what is free, how it is used, how it is fed."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bench.evaluate.exact.search import SearchTask, TileArray, most_candidates
from foundation.errors import BenchError

FREE_SHARE = 0.8  # of a GPU's free memory: allocators leave gaps, and others use it too
SMALLEST_TILE_ROWS = 1 << 10
LANDING_ROWS = 1 << 12
MOST_SCORES = 2**31 - 2  # of one matrix: kernels count its places with 32 bits
SCORE_BYTES = 10  # of one query and row: two scores, two comparisons
PAIR_BYTES = 128  # of one candidate until it is merged
PLACE_BYTES = 40  # of one place while candidates are merged


@dataclass(frozen=True)
class DevicePlan:
    """Sizes with which a search keeps to the memory of its device.

    Attributes:
        tile_rows: most rows of a tile.
        block_queries: queries whose scores are there at a time.
        workspace_bytes: for scores, candidates and merging of a block.
    """

    tile_rows: int
    block_queries: int
    workspace_bytes: int


def free_bytes(device: torch.device) -> int:
    """Bytes that a GPU has free, and those that PyTorch keeps of it unused."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + unused)


def plan_processor(task: SearchTask, tile_rows: int) -> DevicePlan:
    """The blocks that the task allows; the tiles are in memory already."""
    block = task.block_bytes // _query_bytes(task, tile_rows)
    return DevicePlan(tile_rows, max(1, block), task.block_bytes)


def plan_device(task: SearchTask, budget_bytes: int, tile_rows: int) -> DevicePlan:
    """The largest blocks within a budget, of which tiles take a third at most.

    Raises:
        BenchError: not even one query and the smallest tile fit.
    """
    queries, dim = task.queries.shape
    left = budget_bytes - queries * (dim * 6 + task.k * 16)  # the best places, too
    row_bytes = 12 * dim + 16  # two float32 tiles, one as it was stored or is multiplied
    rows = min(tile_rows, left // 3 // row_bytes)
    left -= rows * row_bytes
    block = min(queries, left // _query_bytes(task, rows), MOST_SCORES // max(1, rows))
    if rows < min(SMALLEST_TILE_ROWS, tile_rows) or (queries and block < 1):
        raise BenchError(
            f"{queries:,} queries at depth {task.k:,} do not fit the {budget_bytes:,} bytes of "
            "memory that the device has for search",
            "use --device cpu, or a smaller --depth",
        )
    return DevicePlan(rows, max(1, block), left)


def _query_bytes(task: SearchTask, tile_rows: int) -> int:
    candidates = most_candidates(task.k)
    merged = candidates * PAIR_BYTES + (task.k + candidates) * PLACE_BYTES
    return tile_rows * SCORE_BYTES + merged + 8 * int(task.queries.shape[1])


def tensor_of(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
    """The array as a tensor on the processor, without a copy where it may be written."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class Uploads:
    """Two tiles on a GPU, filled in turn from two page-locked buffers on a stream of their own.

    A tile is copied while the one before it is searched, and goes up once for all queries. On
    the processor it does the same without a stream.
    """

    def __init__(self, rows: int, dim: int, device: torch.device) -> None:
        self._dim, self._device, self._turn = dim, device, 0
        on_gpu = device.type == "cuda"
        self._tiles = torch.empty((2, rows, dim), dtype=torch.float32, device=device)
        self._buffers = torch.empty((2, 4 * rows * dim), dtype=torch.uint8, pin_memory=on_gpu)
        self._stream: Any = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self.wait_for_search()  # what had this memory before may still be read

    def upload(self, vectors: TileArray) -> tuple[torch.Tensor, TileArray]:
        """The tile as float32 on the device, and its copy in the buffer.

        The copy is under way on the stream of `copying`. Before `keep` another upload takes the
        same place, after it both are good until the next but one is kept.
        """
        tile = self._tiles[self._turn][: len(vectors)]
        raw = self._buffers[self._turn][: vectors.nbytes]
        kind = torch.float16 if vectors.dtype == np.float16 else torch.float32
        buffer = raw.view(kind).view(len(vectors), self._dim)
        kept: TileArray = buffer.numpy()
        if vectors.flags.writeable:
            buffer.copy_(torch.from_numpy(vectors))  # on several threads
        else:
            np.copyto(kept, vectors)
        # A copy that also converts would convert on the processor: float16 lands first, in parts.
        rows = LANDING_ROWS if kind == torch.float16 else max(1, len(vectors))
        for place, part in zip(torch.split(tile, rows), torch.split(buffer, rows), strict=True):
            landed = part.to(self._device, non_blocking=True) if kind == torch.float16 else part
            place.copy_(landed, non_blocking=True)
        return tile, kept

    def keep(self) -> None:
        """Leave the last upload where it is: the next one takes the other place."""
        self._turn = 1 - self._turn

    def copying(self) -> AbstractContextManager[Any]:
        """Let the work asked of the device inside wait for copies, and not for the search."""
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()

    def wait_for_search(self) -> None:
        """Return when the device has done what was asked outside of `copying`."""
        if self._stream:
            torch.cuda.current_stream(self._device).synchronize()
