"""Exact search with PyTorch, on a GPU or on the processor.

The same steps as on the processor, for a whole block of queries at a time: a matrix product, a
comparison with the bar, scores in float64, a merge of integer keys. Where there is no bar yet,
the k-th best product of the tile, less its error, is one.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import torch

from bench.evaluate.exact.task import (
    HasStored,
    SearchTask,
    TileArray,
    Vectors,
    as_float32,
    dot_error,
    double_distance,
    exact_scores,
    lowest_score,
    most_candidates,
    norms_of_squares,
    reached_score,
)
from bench.evaluate.search import scores_of_keys
from foundation.arrays import BoolArray, Float32Array, Float64Array, Int64Array, UInt64Array
from foundation.errors import BenchError, first_line, lacks_memory
from retrievers.encoders.device import full_precision, pick_device
from retrievers.index.faiss_index import Hits

logger = logging.getLogger(__name__)

FREE_SHARE = 0.8  # of a GPU's free memory: allocators leave gaps, and others use it too
SMALLEST_TILE_ROWS = 1 << 10
LANDING_ROWS = 1 << 12
MOST_SCORES = 2**31 - 2  # of one matrix: kernels count its places with 32 bits
SCORE_BYTES = 10  # of one query and row: two scores, two comparisons
PAIR_BYTES = 128  # of one candidate until it is merged
PLACE_BYTES = 40  # of one place while candidates are merged
NORM_ROWS = 1 << 12
RESCORED_BYTES = {"cpu": 1 << 22, "cuda": 1 << 28}  # at a time; a processor has a cache for so many
DECIDED_PAIRS = 1 << 12  # scored by the processor at a time
UNFILLED = -(2**63)  # the key of a place without a document

T = TypeVar("T")
Places = tuple[torch.Tensor, torch.Tensor]  # keys and rows, int64 (q, k)


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


class TorchEngine:
    """Candidates, float64 scores and merging on one device, with PyTorch alone.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        memory_bytes: most memory to take on the device; by default what the task allows on the
            processor, and `FREE_SHARE` of what is free on a GPU.

    Raises:
        BenchError: the device is unknown or missing.
    """

    def __init__(self, device: str = "cpu", memory_bytes: int | None = None) -> None:
        self.device = pick_device(device)
        self.memory_bytes = memory_bytes
        self.copies_tiles = self.device.type == "cuda"

    @contextmanager
    def open(self, task: SearchTask) -> Iterator["TorchSearch"]:
        """A search on the device; its memory is free again afterwards, for FAISS too.

        Raises:
            BenchError: the queries and a tile do not fit the memory.
        """
        search = TorchSearch(task, self)
        try:
            search.make_room()
            yield search
        except (RuntimeError, MemoryError) as error:
            if not lacks_memory(error):
                raise
            raise BenchError(
                f"{self.device} is out of memory: {first_line(error)}",
                "free some, or use --device cpu",
            ) from error
        finally:
            search.close()
            self.release_unused()

    def release_unused(self) -> None:
        """Give the driver back what PyTorch keeps for later."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def plan(self, task: SearchTask, tile_rows: int) -> DevicePlan:
        """The sizes into which the task is cut, with tiles of at most ``tile_rows``.

        Raises:
            BenchError: it does not fit.
        """
        if self.device.type == "cpu" and self.memory_bytes is None:
            return plan_processor(task, tile_rows)
        budget = self.memory_bytes or int(FREE_SHARE * free_bytes(self.device))
        return plan_device(task, budget, tile_rows)


@dataclass(frozen=True)
class DeviceTile:
    """Some rows of the corpus on the device.

    Attributes:
        vectors: float32 ``(m, dim)``.
        stored: the same numbers on the processor.
        tie_rank: int64 ``(m,)``.
        norm: the longest.
    """

    start: int
    vectors: torch.Tensor
    stored: TileArray
    tie_rank: torch.Tensor
    norm: float


class TorchSearch:
    """One search: queries, the best places so far and two tiles lie on the device."""

    def __init__(self, task: SearchTask, engine: TorchEngine) -> None:
        self._task, self._engine, self._device = task, engine, engine.device
        self._halved = False
        self._merging = Lock()  # held while the device has a block's scores and candidates
        self.close()

    def read(self, vectors: Vectors) -> Iterator[tuple[int, TileArray]]:
        """Tiles that the device has room for, in float16 where they are stored so."""
        tiles = vectors.stored_tiles if isinstance(vectors, HasStored) else vectors.tiles
        return tiles(self._plan.tile_rows)

    def stage(self, start: int, vectors: TileArray) -> DeviceTile:
        """Copy a tile to the device, and bound its norms there.

        Raises:
            BenchError: a vector is not finite or too long for float32.
        """
        copied = unless_memory_lacks(lambda: self._copied(start, vectors))
        if copied is None:  # the tile before it is merged at the same time, and gives its back
            with self._merging:
                self._engine.release_unused()
                copied = self._copied(start, vectors)
        tensor, vectors, on_device, squares = copied
        if self._uploads:
            self._uploads.keep()
        bounds = norms_of_squares(squares, tensor.shape[1], "document", start)
        return DeviceTile(start, tensor, vectors, on_device, float(bounds.max(initial=0.0)))

    def _copied(
        self, start: int, vectors: TileArray
    ) -> tuple[torch.Tensor, TileArray, torch.Tensor, Float32Array]:
        """A tile on the device, its copy, the ranks of its ids there, and its norms squared."""
        with self._uploads.copying() if self._uploads else nullcontext():
            if self._uploads:
                tensor, vectors = self._uploads.upload(vectors)
            else:
                tensor = tensor_of(vectors).float()
            ranks = self._task.tie_rank[start : start + len(vectors)]
            on_device = tensor_of(ranks).to(self._device)
            norms = [  # PyTorch copies what it adds up to float64 first: not all rows at once
                torch.linalg.vector_norm(part, dim=1, dtype=torch.float64)
                for part in torch.split(tensor, NORM_ROWS)
            ]
            squares = torch.cat(norms).square().float().cpu().numpy()  # waits for the copy, too
        return tensor, vectors, on_device, squares

    def merge(self, tile: DeviceTile) -> int:
        """Make the best so far the best of this tile too; fewer queries at a time if need be.

        Raises:
            BenchError: the memory is too small for a single query.
        """
        first = 0
        while first < len(self._task.queries):
            block = slice(first, first + self._plan.block_queries)
            if self._merges(tile, block):
                first = block.stop
            else:
                self._halve()
        if self._uploads:
            self._uploads.wait_for_search()  # before the place of this tile is filled again
        return len(tile.vectors)

    def hits(self) -> Hits:
        """The hits in canonical order, sorted on the device."""
        scores, rows = [], []
        for first in range(0, len(self._keys), self._plan.block_queries):
            block = slice(first, first + self._plan.block_queries)
            best = torch.sort(self._keys[block], dim=1, descending=True)
            scores.append(scores_of_keys(unsigned(best.values)))
            rows.append(self._rows[block].gather(1, best.indices).cpu().numpy())
        nothing = np.empty((0, self._task.k))
        return Hits(
            np.concatenate([nothing.astype(np.float32), *scores]),
            np.concatenate([nothing.astype(np.int64), *rows]),
        )

    def close(self) -> None:
        """Hold nothing on the device."""
        self._uploads: Uploads | None = None
        self._queries = self._keys = self._rows = torch.empty(0)

    def make_room(self) -> None:
        """Allocate what stays; with smaller tiles where the plan was too hopeful.

        Raises:
            BenchError: it does not fit.
        """
        rows = min(self._task.tile_rows, max(1, len(self._task.tie_rank)))
        while True:
            self._plan = self._engine.plan(self._task, rows)
            if rows <= SMALLEST_TILE_ROWS:
                self._allocate()
                return
            if unless_memory_lacks(self._allocate):
                return
            self.close()
            self._engine.release_unused()
            rows = self._plan.tile_rows // 2

    def _allocate(self) -> bool:
        task, device = self._task, self._device
        shape = len(task.queries), task.k
        self._queries = tensor_of(task.queries).to(device)
        self._keys = torch.full(shape, UNFILLED, dtype=torch.int64, device=device)
        self._rows = torch.full(shape, -1, dtype=torch.int64, device=device)
        if self._engine.copies_tiles:
            self._uploads = Uploads(self._plan.tile_rows, task.queries.shape[1], device)
        return True

    def _merges(self, tile: DeviceTile, block: slice) -> bool:
        """True where there was memory enough; if not, nothing has changed."""
        with self._merging:
            places = unless_memory_lacks(lambda: self._merged(tile, block))
        if places is not None:
            self._keys[block], self._rows[block] = places
        return places is not None

    def _halve(self) -> None:
        """Search fewer queries at a time from now on; said once.

        Raises:
            BenchError: it is one at a time already.
        """
        self._engine.release_unused()
        block = min(self._plan.block_queries, len(self._task.queries))
        if block == 1:
            raise BenchError(
                f"{self._device} is out of memory with one query at a time",
                "free some, or use --device cpu",
            )
        if not self._halved:
            logger.warning(
                "%s is out of memory with %d queries at a time: the search goes on with fewer",
                self._device,
                block,
            )
        self._halved = True
        self._plan = replace(
            self._plan,
            block_queries=block // 2,
            workspace_bytes=self._plan.workspace_bytes // 2,
        )

    def _merged(self, tile: DeviceTile, block: slice) -> Places:
        """The best of some queries of all tiles so far and of this one."""
        best = self._keys[block], self._rows[block]
        with self._task.clock.phase("search"):
            wanted, count = self._reaching(tile, block, best[0])
            self._check_room(count)
            places = wanted.flatten().nonzero().squeeze(1)
            queries, rows = places // wanted.shape[1], places % wanted.shape[1]
            del wanted, places
        with self._task.clock.phase("rescore"):
            if not len(queries):
                return best
            scores = self._exact_scores(tile, block, queries, rows)
            keys = order_keys(scores, tile.tie_rank[rows])
            return merge_candidates(best, queries, (keys, rows + tile.start), count)

    def _check_room(self, count: Int64Array) -> None:
        """Raise where so many candidates of several queries would not fit the workspace."""
        places = len(count) * (self._task.k + int(count.max()))
        needed = int(count.sum()) * PAIR_BYTES + places * PLACE_BYTES
        if len(count) > 1 and needed > self._plan.workspace_bytes:
            raise MemoryError("too many candidates at a time")

    def _reaching(
        self, tile: DeviceTile, block: slice, keys: torch.Tensor
    ) -> tuple[torch.Tensor, Int64Array]:
        """The rows that may reach the k-th score, bool ``(q, m)``, and their number, ``(q,)``."""
        k, rows = self._task.k, len(tile.vectors)
        error = dot_error(self._task.queries.shape[1], self._task.norms[block], tile.norm)
        bar = scores_of_keys(unsigned(keys.amin(dim=1)))
        scores = products(self._queries[block], tile.vectors)
        crowded = np.isneginf(bar)
        if not crowded.all() or rows <= k:
            wanted, count = self._compared(scores, lowest_score(bar, error))
            crowded |= count > most_candidates(k)
        if crowded.any() and rows > k:
            bar[crowded] = np.maximum(bar[crowded], self._tile_bar(scores, crowded, error))
            wanted, count = self._compared(scores, lowest_score(bar, error))
        return wanted, count

    def _tile_bar(
        self, scores: torch.Tensor, crowded: BoolArray, error: Float64Array
    ) -> Float32Array:
        """A score that k rows of the tile reach, for some queries: the k-th less its error."""
        some = tensor_of(np.flatnonzero(crowded)).to(self._queries.device)
        scores = scores if crowded.all() else scores[some]
        kth = torch.topk(scores, self._task.k, dim=1, sorted=False).values.amin(dim=1)
        return reached_score(kth.cpu().numpy(), error[crowded])

    def _compared(
        self, scores: torch.Tensor, lowest: Float32Array
    ) -> tuple[torch.Tensor, Int64Array]:
        wanted = scores >= torch.from_numpy(lowest).to(self._queries.device)[:, None]
        # In int64, PyTorch would first copy the matrix to eight bytes a place.
        return wanted, wanted.sum(dim=1, dtype=torch.int32).long().cpu().numpy()

    def _exact_scores(
        self, tile: DeviceTile, block: slice, queries: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """Float64 scores rounded to float32 as the processor's code rounds them, ``(n,)``.

        The device sums in another order than NumPy. Where the two sums may differ enough to be
        rounded to different float32 numbers, the processor decides.
        """
        dim = self._task.queries.shape[1]
        doubles = self._queries[block].double()
        norms = self._task.norms[block]
        distance = tensor_of(double_distance(dim, norms, tile.norm)).to(self._queries.device)
        scores = torch.empty(len(rows), dtype=torch.float32, device=self._queries.device)
        sure = torch.empty(len(rows), dtype=torch.bool, device=self._queries.device)
        at_once = min(RESCORED_BYTES[self._queries.device.type], self._plan.workspace_bytes // 4)
        step = max(1, at_once // (20 * dim))
        for first in range(0, len(rows), step):
            some = slice(first, first + step)
            terms = tile.vectors[rows[some]].double()
            terms *= doubles[queries[some]]
            sums, off = terms.sum(dim=1), distance[queries[some]]
            scores[some] = (sums - off).float()
            sure[some] = scores[some] == (sums + off).float()
        doubtful = (~sure).nonzero().squeeze(1)
        for first in range(0, len(doubtful), DECIDED_PAIRS):
            unsure = doubtful[first : first + DECIDED_PAIRS]
            asked = self._task.queries[block][queries[unsure].cpu().numpy()].astype(np.float64)
            vectors = as_float32(tile.stored[rows[unsure].cpu().numpy()])
            pairs = np.arange(len(unsure))
            decided = exact_scores(vectors, pairs, asked, pairs)
            scores[unsure] = torch.from_numpy(decided).to(self._queries.device)
        return scores


def products(queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
    """Inner products, float32 ``(q, m)``, in float32 whatever else is switched on."""
    with full_precision():
        return torch.matmul(queries, documents.T)


def order_keys(scores: torch.Tensor, tie_rank: torch.Tensor) -> torch.Tensor:
    """`bench.evaluate.search.order_keys` with the highest bit flipped, int64 ``(n,)``.

    So they compare as signed integers. Every place is filled.
    """
    bits = (scores + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0
    monotone = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (monotone.long() << 32) | tie_rank


def unsigned(keys: torch.Tensor) -> UInt64Array:
    """The keys as `bench.evaluate.search` has them, on the processor."""
    return keys.cpu().numpy().view(np.uint64) ^ np.uint64(1 << 63)


def merge_candidates(
    best: tuple[torch.Tensor, torch.Tensor],
    queries: torch.Tensor,
    candidates: tuple[torch.Tensor, torch.Tensor],
    count: Int64Array,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best k of these and of candidates, unsorted.

    Args:
        best: keys and rows so far, int64 ``(q, k)``.
        queries: query of each candidate, int64 ``(n,)``, rising.
        candidates: their keys and rows, int64 ``(n,)``.
        count: candidates of each query, int64 ``(q,)``.
    """
    k, width = best[0].shape[1], int(count.max())
    first = torch.from_numpy(np.cumsum(count) - count).to(queries.device)
    column = k + torch.arange(len(queries), device=queries.device) - first[queries]
    padded = []
    for places, more, unfilled in zip(best, candidates, (UNFILLED, -1), strict=True):
        all_places = places.new_full((len(places), k + width), unfilled)
        all_places[:, :k] = places
        all_places[queries, column] = more
        padded.append(all_places)
    top = torch.topk(padded[0], k, dim=1, sorted=False)
    return top.values, padded[1].gather(1, top.indices)


def unless_memory_lacks(compute: Callable[[], T]) -> T | None:
    """What is computed, or None where there is not memory enough."""
    try:
        return compute()
    except (RuntimeError, MemoryError) as error:
        if not lacks_memory(error):
            raise
    return None
