"""Views of vectors after the forward pass: pooling, length, fewer dimensions, fewer bits.

Recipes that differ only in these share one forward pass. An encoder with pooling ``every`` stores
the poolings side by side, and a view reads one of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from foundation.records import Record
from retrievers.models.card import EVERY_POOLING, Compression, Option, Precision, Recipe

FloatArray = npt.NDArray[np.floating]

CALIBRATION_ROWS = 1 << 16  # documents that determine the int8 range of each dimension


class View(Record, kw_only=True):
    """How vectors are used after the forward pass.

    Attributes:
        pooling: pooling that one forward pass can give; None for the encoder's own.
        normalize: scale to unit length, after dimensions are cut.
        similarity: ``dot`` is the cosine if vectors are normalised; ``euclidean`` ranks by
            ascending distance.
        dimensions: number of leading dimensions to keep; None for all.
        precision: precision of the searched documents, see `Compression`.
    """

    pooling: Literal["cls", "mean", "last"] | None = None
    normalize: bool
    similarity: Literal["dot", "euclidean"] = "dot"
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    precision: Precision = "float32"

    @classmethod
    def of(cls, recipe: Recipe) -> "View":
        """Return the view of the vectors of an encoder that ``recipe`` searches."""
        return cls(
            normalize=recipe.normalize or recipe.similarity == "cos",
            dimensions=recipe.compression.dimensions,
            precision=recipe.compression.precision,
        )

    @property
    def is_binary(self) -> bool:
        """True if only signs are kept."""
        return self.precision in ("binary", "ubinary")

    def width(self, stored: int) -> int:
        """Return the dimension of this view of vectors of ``stored`` dimensions.

        Raises:
            BenchError: fewer dimensions are stored than the view keeps.
        """
        whole = self._whole(stored)
        if self.dimensions is not None and self.dimensions > whole:
            problem = f"{self.dimensions} dimensions of vectors that have {whole}"
            raise BenchError(problem, f"Use at most {whole}.")
        return self.dimensions or whole

    def recipe(self, stored: Recipe) -> Recipe:
        """Return this view's recipe, from ``stored``, the recipe with every pooling."""
        options: dict[str, Option] = dict(stored.options)
        if self.similarity == "euclidean":
            options["similarity"] = self.similarity
        self.width(stored.dim)
        return msgspec.structs.replace(
            stored,
            pooling=self.pooling or stored.pooling,
            normalize=self.normalize,
            similarity="cos" if self.normalize and self.similarity == "dot" else "dot",
            dim=self._whole(stored.dim),
            options=options,
            compression=Compression(dimensions=self.dimensions, precision=self.precision),
        )

    def transform_documents(self, stored: FloatArray) -> Float32Array:
        """Select the pooling in ``stored``, ``(n, stored)``, and cut it to float32 ``(n, dim)``."""
        width, whole = self.width(stored.shape[1]), self._whole(stored.shape[1])
        first = EVERY_POOLING.index(self.pooling) * whole if self.pooling else 0
        chosen = np.ascontiguousarray(stored[:, first : first + width], np.float32)
        if self.normalize and width < stored.shape[1]:
            lengths = np.linalg.norm(chosen, axis=1, keepdims=True)
            chosen = chosen / np.maximum(lengths, np.finfo(np.float32).tiny)
        return chosen

    def queries(self, stored: Float32Array, rounded: bool = True) -> Float32Array:
        """Transform ``stored`` queries so that inner products with this view's documents rank.

        ``rounded`` is that of the documents, see `ViewedVectors`.
        """
        vectors = self.transform_documents(stored)
        if self.is_binary and rounded:
            vectors = binarize(vectors)
        if self.similarity == "euclidean":
            vectors = np.hstack([vectors, np.ones((len(vectors), 1), np.float32)])
        return vectors

    def _whole(self, stored: int) -> int:
        """Return the dimension before cutting."""
        return stored // len(EVERY_POOLING) if self.pooling else stored


def recipe_with_every_pooling(recipe: Recipe) -> Recipe:
    """Return ``recipe`` with one forward pass for all views of its model.

    Raises:
        BenchError: the model is not a transformer, has layers after pooling, or has routed
            adapters.
    """
    if recipe.adapter is not None and recipe.adapter.kind == "routed":
        raise BenchError(f"{recipe.model} has routed adapters, which support no views")
    if not recipe.traits.is_network:
        raise BenchError(f"{recipe.model} is not a transformer, so its pooling cannot be chosen")
    if recipe.stages:
        raise BenchError(f"{recipe.model} has layers after pooling, which fit no other pooling")
    return msgspec.structs.replace(
        recipe,
        pooling="every",
        normalize=False,
        similarity="dot",
        dim=len(EVERY_POOLING) * recipe.dim,
    )


def compress(recipe: Recipe, compression: Compression) -> Recipe:
    """Return the ``recipe`` of an encoder with a ``compression`` of its vectors.

    Raises:
        BenchError: the model has fewer dimensions, or each of them belongs to one of its adapters,
            so that those of the others are 0 in a query.
    """
    if compression.dimensions == recipe.dim:
        compression = msgspec.structs.replace(compression, dimensions=None)
    recipe = msgspec.structs.replace(recipe, compression=compression)
    view, routed = View.of(recipe), recipe.adapter is not None and recipe.adapter.kind == "routed"
    view.width(recipe.dim)
    if routed and (view.dimensions is not None or view.is_binary):
        problem = f"{recipe.model} has routed adapters: neither fewer dimensions nor signs work"
        raise BenchError(problem, "Leave out --dimensions, or use --precision int8.")
    return recipe


class StoredViews(Protocol):
    """Vectors with every pooling, on disk or in memory; see `ViewedVectors` for its methods."""

    @property
    def shape(self) -> tuple[int, int]: ...  # noqa: D102

    def tiles(self, rows: int) -> Iterator[tuple[int, FloatArray]]: ...  # noqa: D102

    def rows(self, wanted: Int64Array) -> Float32Array: ...  # noqa: D102


@dataclass(frozen=True)
class ViewedVectors:
    """Stored documents as a view uses them, transformed tile by tile.

    ``rounded`` is False for the vectors before they get the view's precision, for an index of FAISS
    that rounds them itself.
    """

    stored: StoredViews
    view: View
    rounded: bool = True

    @property
    def dim(self) -> int:
        """Dimension of vectors as they are searched; euclidean similarity adds one."""
        return self.view.width(self.stored.shape[1]) + (self.view.similarity == "euclidean")

    @property
    def shape(self) -> tuple[int, int]:
        """Number of documents and dimension."""
        return self.stored.shape[0], self.dim

    def tiles(self, rows: int) -> Iterator[tuple[int, Float32Array]]:
        """Yield first row and float32 ``(m, dim)`` of tiles of ``rows`` rows."""
        for start, tile in self.stored.tiles(rows):
            yield start, self._transform(tile)

    def rows(self, wanted: Int64Array) -> Float32Array:
        """Return the vectors of the rows ``wanted``, float32 ``(len(wanted), dim)``."""
        return self._transform(self.stored.rows(wanted))

    @cached_property
    def ranges(self) -> Float32Array | None:
        """Least and largest value of each dimension in a sample, float32 ``(2, dim)``.

        None if the precision needs none.
        """
        if self.view.precision not in ("int8", "uint8"):
            return None
        sample = sample_rows(self.stored.shape[0], CALIBRATION_ROWS)
        vectors = self.view.transform_documents(self.stored.rows(sample))
        return np.vstack([vectors.min(axis=0), vectors.max(axis=0)])

    def _transform(self, stored: FloatArray) -> Float32Array:
        vectors = self.view.transform_documents(stored)
        if self.rounded:
            codes = encode_codes(vectors, self.view.precision, self.ranges)
            vectors = decode_codes(codes, self.view.precision, self.ranges, vectors.shape[1])
        if self.view.similarity == "euclidean":
            # q.d - |d|^2 / 2 ranks as -|q - d|^2 does
            squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
            vectors = np.hstack([vectors, (-0.5 * squares)[:, None].astype(np.float32)])
        return vectors


def sample_rows(count: int, wanted: int | None) -> Int64Array:
    """Return ascending rows of a seeded sample of ``count`` rows, int64. None is all of them."""
    if wanted is None or wanted >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, wanted, replace=False))


def encode_codes(
    vectors: Float32Array, precision: Precision, ranges: Float32Array | None = None
) -> npt.NDArray[Any]:
    """Return the codes of vectors, as ``quantize_embeddings`` of sentence-transformers makes them.

    Args:
        vectors: float32 ``(n, dim)``.
        precision: precision of the codes.
        ranges: float32 ``(2, dim)``, least and largest value of each dimension, for int8 and uint8.

    Raises:
        ValueError: int8 or uint8 without ranges.

    Returns:
        ``(n, dim)`` of the precision's type; for binary (int8) and ubinary (uint8) the signs of
        eight dimensions in a byte, ``(n, ceil(dim / 8))``.
    """
    if precision in ("binary", "ubinary"):
        packed = np.packbits(vectors > 0, axis=-1)
        return packed if precision == "ubinary" else (packed - 128).astype(np.int8)
    if precision in ("float32", "float16"):
        return vectors.astype(precision, copy=False)
    if ranges is None:
        raise ValueError(f"{precision} needs the ranges of the dimensions")
    codes: npt.NDArray[Any] = np.clip(np.floor((vectors - ranges[0]) / _steps(ranges)), 0, 255)
    return codes.astype(np.uint8) if precision == "uint8" else (codes - 128).astype(np.int8)


def decode_codes(
    codes: npt.NDArray[Any], precision: Precision, ranges: Float32Array | None, dim: int
) -> Float32Array:
    """Return the vectors that `encode_codes` made ``codes`` of, as far as they are known.

    A step is decoded to its middle, as FAISS does, and a sign to 1 or -1, whose inner products rank
    by Hamming distance.

    Args:
        codes: result of `encode_codes`.
        precision: precision of the codes.
        ranges: ranges that they were encoded with.
        dim: dimension of the vectors.

    Returns:
        float32 ``(n, dim)``.
    """
    if precision in ("binary", "ubinary"):
        packed = codes if precision == "ubinary" else (codes.astype(np.int16) + 128)
        return binarize(np.unpackbits(packed.astype(np.uint8), axis=-1, count=dim))
    if ranges is None or precision not in ("int8", "uint8"):
        return codes.astype(np.float32, copy=False)
    steps = codes.astype(np.float32) + (0.5 if precision == "uint8" else 128.5)
    vectors: Float32Array = ranges[0] + steps * _steps(ranges)
    return vectors


def _steps(ranges: Float32Array) -> Float32Array:
    """Return the width of the 255 steps of each dimension, 1 where all values are equal."""
    width = (ranges[1] - ranges[0]) / 255
    steps: Float32Array = np.where(width == 0, np.float32(1), width)
    return steps


def binarize(vectors: npt.NDArray[Any]) -> Float32Array:
    """Return 1 for values above 0, else -1: inner products rank by Hamming distance."""
    return np.where(vectors > 0, np.float32(1), np.float32(-1))
