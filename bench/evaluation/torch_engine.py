"""Candidates of exact search with PyTorch, on a GPU or, for tests, on the CPU."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from threading import Lock
from typing import Any

import numpy as np
import torch

from bench.evaluation.certificate import (
    Candidates,
    Tile,
    TileArray,
    Vectors,
    norms_of_squares,
    round_scores,
)
from foundation.arrays import Float32Array, Float64Array, IntArray
from retrievers.encoders.device import pick_device, use_full_precision

MAX_SCORES = 1 << 27  # per product: 0.5 GB
GATHERED_BYTES = 1 << 28  # vectors that are scored in float64 at a time


class TorchEngine:
    """Proposal and scoring of candidates with PyTorch, with the methods of `NumpyEngine`."""

    def __init__(self, device: str = "cpu") -> None:
        """Use ``device``: ``cpu``, ``cuda`` or ``cuda:N``.

        Raises:
            BenchError: the device is unknown or missing.
        """
        self.device = pick_device(device)
        self._on_gpu = self.device.type == "cuda"
        self._copies = torch.cuda.Stream(self.device) if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._scoring = Lock()  # shared by threads on the same device

    def tiles(self, vectors: Vectors, rows: int) -> Iterator[tuple[int, TileArray]]:
        """Yield the first row and the stored vectors of tiles of at most ``rows`` rows.

        A tile has at most a quarter of the free GPU memory.
        """
        self.release()
        if self._on_gpu:
            free = torch.cuda.mem_get_info(self.device)[0]
            rows = max(1, min(rows, free // (4 * 4 * vectors.shape[1])))
        yield from getattr(vectors, "stored_tiles", vectors.tiles)(rows)

    def stage(self, start: int, vectors: TileArray) -> Tile:
        """Copy a tile to the device and bound its norms there."""
        with torch.cuda.stream(self._copies) if self._copies else nullcontext():
            tensor = self._on_device(vectors).float()
            squares = torch.linalg.vector_norm(tensor, dim=1).square().cpu().numpy()
        # The root and its square are rounded, too: as if there were some terms more.
        bounds = norms_of_squares(squares, tensor.shape[1] + 4, "document", start)
        return Tile(start, tensor, vectors, float(bounds.max(initial=0.0)))

    def find_candidates(
        self, queries: Float32Array, tile: Tile, piece: slice, lowest: Float32Array, limit: int
    ) -> Sequence[Candidates] | None:
        """Return the rows of a piece whose proposed score is high enough, or None if too many."""
        on_device, threshold = self._on_device(queries), self._on_device(lowest)[:, None]
        step = max(1, MAX_SCORES // max(1, len(queries)))
        parts, found = [], 0
        for first in range(piece.start, piece.stop, step):
            scores = products(on_device, tile.vectors[first : min(first + step, piece.stop)])
            wanted = scores >= threshold
            found += int(wanted.sum(dtype=torch.int32))
            if found > limit:
                return None
            numbers, rows = wanted.nonzero(as_tuple=True)
            columns = numbers.to(torch.int32), (rows + first).to(torch.int32), scores[wanted]
            query_numbers, tile_rows, proposed = (column.cpu().numpy() for column in columns)
            parts.append(Candidates(query_numbers.astype(np.uint16), tile_rows, proposed))
        return parts

    def score_candidates(
        self,
        tile: Tile,
        rows: IntArray,
        queries64: Float64Array,
        queries: IntArray,
        sum_error: Float64Array,
    ) -> Float32Array:
        """Return float64 scores of pairs, rounded to float32, ``(n,)``.

        The device sums in a different order than NumPy. If that matters, the CPU decides.
        """
        sums = np.empty(len(rows))
        step = max(1, GATHERED_BYTES // (20 * queries64.shape[1]))
        with self._scoring:
            on_device = self._on_device(queries64)
            for first in range(0, len(rows), step):
                some = slice(first, first + step)
                terms = tile.vectors[self._on_device(rows[some])].double()
                terms *= on_device[self._on_device(queries[some].astype(np.int64))]
                sums[some] = terms.sum(dim=1).cpu().numpy()
        return round_scores(sums, sum_error, tile.stored, rows, queries64, queries)

    def release(self) -> None:
        """Return cached memory of PyTorch to the driver."""
        if self._on_gpu:
            torch.cuda.empty_cache()

    def _on_device(self, array: np.ndarray[tuple[int, ...], np.dtype[Any]]) -> torch.Tensor:
        """Return the array as a tensor, without a copy on the CPU if it is writable."""
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self.device)


def products(queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
    """Return inner products in full float32 precision, float32 ``(q, m)``."""
    with use_full_precision():
        return torch.matmul(queries, documents.T)
