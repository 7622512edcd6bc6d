"""The rows of a tile on a device that may belong to the best, scored and merged with PyTorch."""

from dataclasses import dataclass

import numpy as np
import torch

from bench.evaluate.exact import torch_kernels as kernels
from bench.evaluate.exact.block_search import most_candidates
from bench.evaluate.exact.bounds import (
    FLOAT32,
    Arithmetic,
    dot_error,
    double_distance,
    lowest_score,
    reached_score,
)
from bench.evaluate.exact.device_memory import PAIR_BYTES, PLACE_BYTES, tensor_of
from bench.evaluate.exact.rescoring import exact_scores
from bench.evaluate.exact.task import SearchTask
from bench.evaluate.exact.vectors import TileArray, as_float32
from bench.evaluate.search import scores_of_keys
from foundation.arrays import BoolArray, Float32Array, Float64Array, Int64Array

RESCORED_BYTES = {"cpu": 1 << 22, "cuda": 1 << 28}  # at a time; a processor has a cache for so many
DECIDED_PAIRS = 1 << 12  # scored by the processor at a time

Places = tuple[torch.Tensor, torch.Tensor]  # keys and rows, int64 (q, k)


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


@dataclass(frozen=True)
class TileMerger:
    """Finds, scores and merges candidates of blocks of queries.

    Attributes:
        queries: of the task, on the device.
        arithmetic: of the products that find candidates.
    """

    task: SearchTask
    queries: torch.Tensor
    arithmetic: Arithmetic

    def merged(self, tile: DeviceTile, block: slice, best: Places, workspace_bytes: int) -> Places:
        """The best of some queries with this tile; queries are halved where they have too many.

        Args:
            block: the queries.
            best: of all tiles so far.
            workspace_bytes: for the candidates until they are merged.
        """
        task = self.task
        with task.clock.phase("search"):
            wanted, count = self._reaching(tile, block, best[0])
            if self._is_too_much(count, workspace_bytes):
                del wanted
                return self._merged_by_halves(tile, block, best, workspace_bytes)
            places = wanted.flatten().nonzero().squeeze(1)
            queries, rows = places // wanted.shape[1], places % wanted.shape[1]
            del wanted, places
        with task.clock.phase("rescore"):
            if not len(queries):
                return best
            scores = self._exact_scores(tile, block, queries, rows, workspace_bytes)
            keys = kernels.order_keys(scores, tile.tie_rank[rows])
            return kernels.merge(best, queries, (keys, rows + tile.start), count)

    def _merged_by_halves(
        self, tile: DeviceTile, block: slice, best: Places, workspace_bytes: int
    ) -> Places:
        half = len(best[0]) // 2
        middle = block.start + half
        first = self.merged(
            tile, slice(block.start, middle), (best[0][:half], best[1][:half]), workspace_bytes
        )
        second = self.merged(
            tile, slice(middle, block.stop), (best[0][half:], best[1][half:]), workspace_bytes
        )
        return torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])

    def _is_too_much(self, count: Int64Array, workspace_bytes: int) -> bool:
        """True where so many candidates of several queries would not fit the workspace."""
        places = len(count) * (self.task.k + int(count.max()))
        needed = int(count.sum()) * PAIR_BYTES + places * PLACE_BYTES
        return len(count) > 1 and needed > workspace_bytes

    def _reaching(
        self, tile: DeviceTile, block: slice, keys: torch.Tensor
    ) -> tuple[torch.Tensor, Int64Array]:
        """The rows that may reach the k-th score, bool ``(q, m)``, and their number, ``(q,)``."""
        task, rows = self.task, len(tile.vectors)
        norms = task.norms[block]
        arithmetic = self.arithmetic
        if not arithmetic.fits(float(norms.max(initial=0.0)), tile.norm):
            arithmetic = FLOAT32
        error = dot_error(task.queries.shape[1], norms, tile.norm, arithmetic)
        bar = scores_of_keys(kernels.unsigned(keys.amin(dim=1)))
        scores = kernels.products(self.queries[block], tile.vectors, arithmetic)
        crowded = np.isneginf(bar)
        if not crowded.all() or rows <= task.k:
            wanted, count = self._compared(scores, lowest_score(bar, error))
            crowded |= count > most_candidates(task.k)
        if crowded.any() and rows > task.k:
            bar[crowded] = np.maximum(bar[crowded], self._tile_bar(scores, crowded, error))
            wanted, count = self._compared(scores, lowest_score(bar, error))
        return wanted, count

    def _tile_bar(
        self, scores: torch.Tensor, crowded: BoolArray, error: Float64Array
    ) -> Float32Array:
        """A score that k rows of the tile reach, for some queries: the k-th less its error."""
        some = tensor_of(np.flatnonzero(crowded)).to(self.queries.device)
        scores = scores if crowded.all() else scores[some]
        kth = torch.topk(scores, self.task.k, dim=1, sorted=False).values.amin(dim=1)
        return reached_score(kth.cpu().numpy(), error[crowded])

    def _compared(
        self, scores: torch.Tensor, lowest: Float32Array
    ) -> tuple[torch.Tensor, Int64Array]:
        wanted = scores >= torch.from_numpy(lowest).to(self.queries.device)[:, None]
        # In int64, PyTorch would first copy the matrix to eight bytes a place.
        return wanted, wanted.sum(dim=1, dtype=torch.int32).long().cpu().numpy()

    def _exact_scores(
        self,
        tile: DeviceTile,
        block: slice,
        queries: torch.Tensor,
        rows: torch.Tensor,
        workspace_bytes: int,
    ) -> torch.Tensor:
        """Float64 scores rounded to float32 as the processor's code rounds them, ``(n,)``.

        The device sums in another order than NumPy. Where the two sums may differ enough to be
        rounded to different float32 numbers, the processor decides.
        """
        dim = self.task.queries.shape[1]
        doubles = self.queries[block].double()
        norms = self.task.norms[block]
        distance = tensor_of(double_distance(dim, norms, tile.norm)).to(self.queries.device)
        scores = torch.empty(len(rows), dtype=torch.float32, device=self.queries.device)
        sure = torch.empty(len(rows), dtype=torch.bool, device=self.queries.device)
        at_once = min(RESCORED_BYTES[self.queries.device.type], workspace_bytes // 4)
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
            asked = self.task.queries[block][queries[unsure].cpu().numpy()].astype(np.float64)
            vectors = as_float32(tile.stored[rows[unsure].cpu().numpy()])
            pairs = np.arange(len(unsure))
            decided = exact_scores(vectors, pairs, asked, pairs)
            scores[unsure] = torch.from_numpy(decided).to(self.queries.device)
        return scores
