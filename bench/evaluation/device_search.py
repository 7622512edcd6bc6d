"""Exact search on a device: the host only reads tiles, and the device does everything else.

Proposals are products of vectors in half precision with sums in float32, which tensor cores compute
many times as fast as products in float32. The distance of a proposal from the exact score is
bounded. The threshold is a score that at least k documents reach. Documents whose proposals may
reach it are candidates. Before their tile is removed from the device, those that may still reach
the threshold are scored in float64, and the top k of each query are kept as integer keys.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from packaging.version import Version
from torch import Tensor

from bench.evaluation.certificate import (
    TileArray,
    Vectors,
    exact_scores,
    float64_error,
    max_candidates,
    norm_bounds,
    norms_of_squares,
    proposal_error,
)
from foundation.arrays import Float32Array, Float64Array, Int64Array, UInt64Array
from retrievers.encoders.device import pick_device, use_full_precision
from retrievers.encoders.protocol import PhaseTimer

MAX_SCORES = 1 << 29  # proposals at a time: 2 GB
MIN_SCORES = 1 << 20
SCORED_VALUES = 1 << 27  # components that are multiplied in float64 at a time: 1 GB
MOST_PENDING = 8  # times the candidates of a piece
RESIDENT_SHARE = 0.5  # of the free memory of the device, for tiles with candidates
TILE_BYTES = 16  # per component of a tile: as stored, in half precision, and while it is converted
COPYING_THREADS = 8  # one thread fills a third of the bus
HALF_EXPONENT = 15  # 2 ** 15 is below the largest number in half precision
MAX_EXPONENT = 100  # of the factor of a tile, which is a number in float32
UNFILLED, SIGN, LOW_BITS = -(1 << 63), 1 << 31, (1 << 32) - 1
HAS_FLOAT32_SUMS = Version(torch.__version__) >= Version("2.8")  # of products in half precision
OutOfMemory = torch.OutOfMemoryError


class Pairs(NamedTuple):
    """Candidates of one tile: query and row in the tile, int64, and a bound of the score."""

    queries: Tensor
    rows: Tensor
    most: Tensor  # float32, at least the exact score


@dataclass
class DeviceTile:
    """A tile on the device.

    Attributes:
        start: its first row in the corpus.
        stored: vectors as they are stored, float32 or float16 ``(m, dim)``.
        halves: the same in half precision, multiplied by ``2 ** exponent``.
        exponent: of the factor.
        norm: upper bound of the Euclidean norms.
        lost: upper bound of the norms of what half precision loses.
        pending: candidates that are not scored.
    """

    start: int
    stored: Tensor
    halves: Tensor
    exponent: int
    norm: float
    lost: float
    pending: list[Pairs] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Memory on the device."""
        return self.stored.numel() * self.stored.itemsize + 2 * self.halves.numel()


def products(queries: Tensor, documents: Tensor) -> Tensor:
    """Return inner products of vectors in half precision with sums in float32, ``(q, m)``."""
    with use_full_precision():
        if queries.is_cuda and torch.version.cuda and HAS_FLOAT32_SUMS:
            return torch.mm(queries, documents.T, out_dtype=torch.float32)
        return torch.mm(queries.float(), documents.T.float())


class DeviceSearch:
    """The top k of each query in the rows so far, as unsorted keys on the device."""

    def __init__(
        self,
        queries: Float32Array,
        k: int,
        tie_rank: Int64Array,
        device: str,
        pool: ThreadPoolExecutor,
        timer: PhaseTimer,
    ) -> None:
        norm_bounds(queries, "query")  # refuses bad ones
        self.k, self.tie_rank, self.pool, self.timer = k, tie_rank, pool, timer
        self.device = pick_device(device)
        self.count, self.dim = queries.shape
        self.limit: int = len(queries) * max_candidates(k)  # candidates of a piece
        self.queries64 = queries.astype(np.float64)
        largest = np.abs(self.queries64).max(axis=1, initial=0.0)
        self.exponents = HALF_EXPONENT - np.frexp(largest)[1]
        factors = np.ldexp(1.0, self.exponents)[:, None]
        halves = (self.queries64 * factors).astype(np.float16)
        rounded = halves / factors
        self.norms, self.half_norms, self.lost = (
            np.linalg.norm(each, axis=1)
            for each in (self.queries64, rounded, self.queries64 - rounded)
        )
        self.halves, self.exact = self._put(halves), self._put(self.queries64)
        self.ranks = self._put(tie_rank)
        self.best = torch.full((self.count, k), UNFILLED, device=self.device)
        self.reached = torch.full((self.count, k), -torch.inf, device=self.device)
        self.unmerged: list[tuple[Tensor, Tensor]] = []  # query and lower bound of the score
        self.resident: list[DeviceTile] = []
        self.scores, self.resident_bytes = MAX_SCORES, 0
        self.copies = None
        if self.device.type == "cuda":
            self.copies = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
            self.resident_bytes = int(torch.cuda.mem_get_info(self.device)[0] * RESIDENT_SHARE)

    def tiles(self, vectors: Vectors, rows: int) -> Iterator[tuple[Any, int]]:
        """Yield tiles on the device, or their first row and array if it is full, and their rows."""
        if self.copies:  # the host holds a tile twice, once in page-locked memory
            rows = max(1, min(rows // 2, self.resident_bytes // (TILE_BYTES * self.dim)))
        for start, array in getattr(vectors, "stored_tiles", vectors.tiles)(rows):
            tile: Any = start, array
            with suppress(OutOfMemory):
                tile = self.stage(start, array)
            yield tile, len(array)
            del tile, array

    def stage(self, start: int, array: TileArray) -> DeviceTile:
        """Copy a tile to the device, while it may search another one, and wait for the copy.

        Raises:
            BenchError: a vector is not finite, or too long for float32.
        """
        with torch.cuda.stream(self.copies) if self.copies else nullcontext():
            stored = self._copy(array)
            lengths = torch.linalg.vector_norm(stored, dim=1, dtype=torch.float64)
            norms_of_squares(lengths.square().float().cpu().numpy(), self.dim, "document", start)
            norm = float(lengths.max()) if len(array) else 0.0
            if stored.dtype == torch.float16:
                return DeviceTile(start, stored, stored, 0, norm, 0.0)
            largest = float(stored.abs().max()) if len(array) else 0.0
            exponent = min(HALF_EXPONENT - int(np.frexp(largest)[1]), MAX_EXPONENT)
            scaled = stored * 2.0**exponent
            halves = scaled.half()
            lost = torch.linalg.vector_norm(scaled.sub_(halves), dim=1, dtype=torch.float64)
            most = float(lost.max()) if len(array) else 0.0
        return DeviceTile(start, stored, halves, exponent, norm, most * 2.0**-exponent)

    def add(self, tile: DeviceTile | tuple[int, TileArray]) -> None:
        """Search a tile, or the first row and array of one for which the device had no memory."""
        if isinstance(tile, DeviceTile):
            self._search_tile(tile)
            return
        start, array = tile
        half = len(array) // 2
        self.score_pending()
        try:
            staged = self.stage(start, array)
        except OutOfMemory:
            if not half:
                raise
            self.add((start, array[:half]))
            self.add((start + half, array[half:]))
        else:
            self._search_tile(staged)

    def _search_tile(self, tile: DeviceTile) -> None:
        """Search a tile in pieces, each at most as large as everything before it.

        A piece for which the device has no memory leaves no trace, and is searched again.
        """
        if self.copies:  # their memory must not be used for a copy before this search has ended
            for each in (tile.stored, tile.halves):
                each.record_stream(torch.cuda.current_stream(self.device))
        if sum(each.bytes for each in (*self.resident, tile)) > self.resident_bytes:
            self.score_pending()
        self.resident.append(tile)
        rows, least = len(tile.halves), max_candidates(self.k)  # so many rows always fit
        done, size = 0, rows
        while done < rows:
            size = min(size, max(least, tile.start + done))
            piece = slice(done, min(done + size, rows))
            try:
                with self.timer.phase("search"):
                    if sum(len(each) for each, _ in self.unmerged) > self.reached.numel() // 2:
                        self._raise_threshold()
                    found = self._find_candidates(tile, piece)
            except OutOfMemory:
                if not self._make_room(tile):
                    raise
                continue
            if found is None:
                size = max(least, (piece.stop - done) // 2)
                continue
            pairs, least_scores = found
            tile.pending.append(pairs)
            self.unmerged.append((pairs.queries, least_scores))
            done, size = piece.stop, 2 * size
            waiting = sum(len(each.rows) for other in self.resident for each in other.pending)
            if waiting > MOST_PENDING * self.limit:
                self.score_pending(keep=tile)

    def score_pending(self, keep: DeviceTile | None = None) -> None:
        """Score the candidates that may still be among the top k, and drop all tiles but one."""
        with self.timer.phase("rescore"):
            self._raise_threshold()
            threshold = self.reached.amin(dim=1)
            queries, keys = [], []
            for tile in self.resident:
                for pairs in tile.pending:
                    kept = (pairs.most >= threshold[pairs.queries]).nonzero().ravel()
                    asked, rows = pairs.queries[kept], pairs.rows[kept]
                    scores = to_integers(self._exact_scores(tile, asked, rows))
                    queries.append(asked)
                    keys.append(((scores - SIGN) << 32) + self.ranks[tile.start + rows])
            if queries:
                self.best = self._largest(self.best, torch.cat(queries), torch.cat(keys))
                scores = to_scores((self.best >> 32) + SIGN)
                self.reached = torch.where(self.best == UNFILLED, -torch.inf, scores)
            for tile in self.resident:
                tile.pending.clear()
            self.resident = [keep] if keep else []

    def keys(self) -> UInt64Array:
        """Return the keys of the top k, as `order_keys` makes them, uint64 ``(q, k)``."""
        self.score_pending()
        keys: UInt64Array = self.best.cpu().numpy().view(np.uint64)
        return keys ^ np.uint64(1 << 63)

    def propose(self, tile: DeviceTile, piece: slice, queries: slice) -> Tensor:
        """Return proposals, times the factors of queries and tile, float32 ``(q, m)``."""
        return products(self.halves[queries], tile.halves[piece])

    def error(self, tile: DeviceTile) -> Float64Array:
        """Return the bound of `proposal_error` of each query, float64 ``(q,)``."""
        lost = self.lost, tile.lost
        return proposal_error(self.dim, self.norms, self.half_norms, tile.norm, *lost)

    def _find_candidates(self, tile: DeviceTile, piece: slice) -> tuple[Pairs, Tensor] | None:
        """Return the rows of a piece that may reach the threshold, or None if too many.

        The second value has lower bounds of their scores, float32.
        """
        error = self._put(self.error(tile))
        factor = self._put(np.ldexp(1.0, self.exponents + tile.exponent))
        lowest = below((self.reached.amin(dim=1).double() - error) * factor)[:, None]
        step, found = max(1, self.scores // (piece.stop - piece.start)), 0
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for first in range(0, self.count, step):
            some = slice(first, first + step)
            proposed = self.propose(tile, piece, some)
            wanted = proposed >= lowest[some]
            found += int(wanted.sum())
            if found > self.limit:
                return None
            asked, rows = wanted.nonzero(as_tuple=True)
            parts.append((asked + first, rows + piece.start, proposed[asked, rows]))
        queries, rows, proposed = map(torch.cat, zip(*parts, strict=True))
        scores, off = proposed.double() / factor[queries], error[queries]
        return Pairs(queries, rows, -below(-scores - off)), below(scores - off)

    def _raise_threshold(self) -> None:
        """Raise the lower bounds of the top k by those of new candidates."""
        if self.unmerged:
            queries, least = map(torch.cat, zip(*self.unmerged, strict=True))
            reached = self._largest(to_integers(self.reached), queries, to_integers(least))
            self.reached = to_scores(reached)
            self.unmerged.clear()

    def _largest(self, best: Tensor, queries: Tensor, values: Tensor) -> Tensor:
        """Return the k largest of ``best`` ``(q, k)`` and of further ``values`` of ``queries``."""
        numbers = torch.arange(self.count, device=self.device).repeat_interleave(self.k)
        queries, values = torch.cat([numbers, queries]), torch.cat([best.ravel(), values])
        order = values.argsort()
        order = order[queries[order].argsort(stable=True)]
        ends = torch.bincount(queries, minlength=self.count).cumsum(0)
        last = torch.arange(-self.k, 0, device=self.device)
        return values[order[ends[:, None] + last]]

    def _exact_scores(self, tile: DeviceTile, queries: Tensor, rows: Tensor) -> Tensor:
        """Return float64 scores of pairs, rounded to float32 as by `exact_scores`, ``(n,)``."""
        step = max(1, min(SCORED_VALUES, self.scores) // self.dim)
        sums = torch.cat(
            [
                (tile.stored[some].double() * self.exact[asked]).sum(dim=1)
                for some, asked in zip(
                    torch.split(rows, step), torch.split(queries, step), strict=True
                )
            ]
        )
        off = self._put(float64_error(self.dim, self.norms, tile.norm))[queries]
        scores = (sums - off).float()
        unsure = (scores != (sums + off).float()).nonzero().ravel()
        if len(unsure):  # the order of summation matters: the processor's decides
            vectors = tile.stored[rows[unsure]].cpu().numpy()
            asked = queries[unsure].cpu().numpy()
            decided = exact_scores(vectors, np.arange(len(asked)), self.queries64, asked)
            scores[unsure] = self._put(decided)
        return scores

    def _make_room(self, tile: DeviceTile) -> bool:
        """Free memory of the device after it was full. Return False if there is none to free."""
        if len(self.resident) > 1 or tile.pending:
            self.score_pending(keep=tile)
        elif self.scores > MIN_SCORES:
            self.scores //= 2
        else:
            return False
        if self.copies:
            torch.cuda.empty_cache()
        return True

    def _put(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _copy(self, array: TileArray) -> Tensor:
        """Copy an array to the device, through page-locked memory that several threads fill."""
        if self.copies is None:
            return torch.from_numpy(array if array.flags.writeable else array.copy())
        dtype = torch.float16 if array.dtype == np.float16 else torch.float32
        locked = torch.empty(array.shape, dtype=dtype, pin_memory=True)
        host, step = locked.numpy(), -(-max(1, len(array)) // COPYING_THREADS)
        parts = [slice(first, first + step) for first in range(0, len(array), step)]
        list(self.pool.map(lambda part: np.copyto(host[part], array[part]), parts))
        return locked.to(self.device, non_blocking=True)


def below(values: Tensor) -> Tensor:
    """Return float32 numbers that are smaller than ``values``, float64 of the same shape."""
    return torch.nextafter(values.float(), torch.full((), -torch.inf, device=values.device))


def to_integers(scores: Tensor) -> Tensor:
    """Return integers from 0 to 2^32 - 1, int64, that sort like ``scores``, float32."""
    bits = (scores + 0.0).view(torch.int32).long() & LOW_BITS  # -0.0 + 0.0 is 0.0
    return torch.where(bits >= SIGN, LOW_BITS - bits, bits + SIGN)


def to_scores(integers: Tensor) -> Tensor:
    """Return the scores of which `to_integers` made ``integers``, float32 of the same shape."""
    bits = torch.where(integers >= SIGN, integers - SIGN, LOW_BITS - integers)
    return (bits - ((bits >> 31) << 32)).int().view(torch.float32)
