"""Exact search with PyTorch, on a GPU or on the processor.

The same steps as on the processor, for a whole block of queries at a time: a matrix product, a
comparison with the bar, scores in float64, a merge of integer keys. Where there is no bar yet,
the k-th best product of the tile, less its error, is one.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from threading import Lock

import numpy as np
import torch

from bench.evaluate.exact import torch_kernels as kernels
from bench.evaluate.exact.bounds import (
    ARITHMETICS,
    FLOAT32,
    Arithmetic,
    norms_of_squares,
)
from bench.evaluate.exact.device_memory import (
    FREE_SHARE,
    SMALLEST_TILE_ROWS,
    DevicePlan,
    Uploads,
    free_bytes,
    plan_device,
    plan_processor,
    tensor_of,
)
from bench.evaluate.exact.task import SearchTask
from bench.evaluate.exact.torch_tiles import DeviceTile, TileMerger
from bench.evaluate.exact.vectors import HasStored, TileArray, Vectors
from bench.evaluate.search import scores_of_keys
from foundation.arrays import Float32Array
from foundation.errors import BenchError, first_line, lacks_memory
from retrievers.encoders.device import pick_device
from retrievers.index.faiss_index import Hits

logger = logging.getLogger(__name__)

NORM_ROWS = 1 << 12


class TorchEngine:
    """Candidates, float64 scores and merging on one device, with PyTorch alone.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        arithmetic: of the products that find candidates; a faster one finds more of them.
        memory_bytes: most memory to take on the device; by default what the task allows on the
            processor, and `FREE_SHARE` of what is free on a GPU.

    Raises:
        BenchError: the device is unknown or missing.
    """

    def __init__(
        self,
        device: str = "cpu",
        arithmetic: Arithmetic | str = FLOAT32,
        memory_bytes: int | None = None,
    ) -> None:
        self.device = pick_device(device)
        self.arithmetic = ARITHMETICS[arithmetic] if isinstance(arithmetic, str) else arithmetic
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
        try:
            tensor, vectors, on_device, squares = self._copied(start, vectors)
            staged = True
        except (RuntimeError, MemoryError) as error:
            if not lacks_memory(error):
                raise
            staged = False
        if not staged:  # the tile before it is merged at the same time, and gives its memory back
            with self._merging:
                self._engine.release_unused()
                tensor, vectors, on_device, squares = self._copied(start, vectors)
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
            keys = self._keys[block].to(self._device)
            best = torch.sort(keys, dim=1, descending=True)
            scores.append(scores_of_keys(kernels.unsigned(best.values)))
            places = self._rows[block].to(self._device)
            rows.append(places.gather(1, best.indices).cpu().numpy())
        nothing = np.empty((0, self._task.k))
        return Hits(
            np.concatenate([nothing.astype(np.float32), *scores]),
            np.concatenate([nothing.astype(np.int64), *rows]),
        )

    def close(self) -> None:
        """Hold nothing on the device."""
        self._uploads: Uploads | None = None
        self._keys = self._rows = torch.empty(0)
        self._merger = TileMerger(self._task, self._keys, self._engine.arithmetic)

    def make_room(self) -> None:
        """Allocate what stays; with smaller tiles where the plan was too hopeful.

        Raises:
            BenchError: it does not fit.
        """
        rows = min(self._task.tile_rows, max(1, len(self._task.tie_rank)))
        while True:
            self._plan = self._engine.plan(self._task, rows)
            try:
                self._allocate()
                return
            except (RuntimeError, MemoryError) as error:
                if not lacks_memory(error) or rows <= SMALLEST_TILE_ROWS:
                    raise
            self.close()
            self._engine.release_unused()
            rows = self._plan.tile_rows // 2

    def _allocate(self) -> None:
        task, device = self._task, self._device
        shape = len(task.queries), task.k
        queries = tensor_of(task.queries).to(device)
        self._merger = TileMerger(task, queries, self._engine.arithmetic)
        home = device if self._plan.keeps_best else torch.device("cpu")
        self._keys = torch.full(shape, kernels.UNFILLED, dtype=torch.int64, device=home)
        self._rows = torch.full(shape, -1, dtype=torch.int64, device=home)
        if self._engine.copies_tiles:
            self._uploads = Uploads(self._plan.tile_rows, task.queries.shape[1], device)

    def _merges(self, tile: DeviceTile, block: slice) -> bool:
        """True where there was memory enough; if not, nothing has changed."""
        try:
            with self._merging:
                best = self._keys[block].to(self._device), self._rows[block].to(self._device)
                keys, rows = self._merger.merged(tile, block, best, self._plan.workspace_bytes)
        except (RuntimeError, MemoryError) as error:
            if not lacks_memory(error):
                raise
            return False
        self._keys[block], self._rows[block] = keys, rows
        return True

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
