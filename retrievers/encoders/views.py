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

from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from foundation.records import Record
from retrievers.index.faiss_index import import_faiss
from retrievers.models.card import EVERY_POOLING, Recipe

CALIBRATION_ROWS = 1 << 16  # documents that determine the int8 range of each dimension


class View(Record, kw_only=True):
    """How vectors are used after the forward pass.

    Attributes:
        pooling: one of those that a forward pass serves.
        normalize: scale to unit length, after dimensions are cut.
        similarity: ``dot`` is the cosine if vectors are normalised; ``euclidean`` ranks by
            ascending distance.
        dimensions: number of leading dimensions to keep (Matryoshka: Kusupati et al., NeurIPS
            2022); None for all.
        precision: precision of stored documents. ``float16`` rounds. ``int8`` has 256 steps between
            the minimum and maximum of each dimension; queries stay float32. ``binary`` keeps the
            signs, of queries too, and ranks by Hamming distance.
    """

    pooling: Literal["cls", "mean", "last"]
    normalize: bool
    similarity: Literal["dot", "euclidean"] = "dot"
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    precision: Literal["float32", "float16", "int8", "binary"] = "float32"

    def width(self, stored: int) -> int:
        """Return the dimension of this view of vectors of ``stored`` dimensions, every pooling.

        Raises:
            BenchError: fewer dimensions are stored than the view keeps.
        """
        whole = stored // len(EVERY_POOLING)
        if self.dimensions is not None and self.dimensions > whole:
            raise BenchError(
                f"{self.dimensions} dimensions of vectors that have {whole}", f"use at most {whole}"
            )
        return self.dimensions or whole

    def recipe(self, stored: Recipe) -> Recipe:
        """Return this view's recipe, from ``stored``, the recipe with every pooling."""
        options: dict[str, bool | int | float | str] = {"precision": self.precision}
        if self.similarity == "euclidean":
            options["similarity"] = self.similarity
        return msgspec.structs.replace(
            stored,
            pooling=self.pooling,
            normalize=self.normalize,
            similarity="cos" if self.normalize and self.similarity == "dot" else "dot",
            dim=self.width(stored.dim),
            options={**stored.options, **options},
        )

    def transform_documents(self, stored: Float32Array) -> Float32Array:
        """Select the pooling in ``stored``, float32 ``(n, stored)``, and cut it to ``(n, dim)``."""
        width, whole = self.width(stored.shape[1]), stored.shape[1] // len(EVERY_POOLING)
        first = EVERY_POOLING.index(self.pooling) * whole
        chosen = np.ascontiguousarray(stored[:, first : first + width])
        if self.normalize:
            lengths = np.linalg.norm(chosen, axis=1, keepdims=True)
            chosen = chosen / np.maximum(lengths, np.finfo(np.float32).tiny)
        return chosen

    def queries(self, stored: Float32Array) -> Float32Array:
        """Transform ``stored`` queries so that inner products with this view's documents rank."""
        vectors = self.transform_documents(stored)
        if self.precision == "binary":
            vectors = binarize(vectors)
        if self.similarity == "euclidean":
            vectors = np.hstack([vectors, np.ones((len(vectors), 1), np.float32)])
        return vectors


def recipe_with_every_pooling(recipe: Recipe) -> Recipe:
    """Return ``recipe`` with one forward pass for all views of its model.

    Raises:
        BenchError: the model is not a transformer, has layers after pooling, or has routed
            adapters.
    """
    if recipe.adapter is not None and recipe.adapter.kind == "routed":
        raise BenchError(f"{recipe.model} has routed adapters, which support no views")
    if recipe.kind != "transformer" or recipe.encoder:
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


class StoredViews(Protocol):
    """Vectors with every pooling, on disk or in memory; see `ViewedVectors` for its methods."""

    @property
    def shape(self) -> tuple[int, int]: ...  # noqa: D102

    def tiles(self, rows: int) -> Iterator[tuple[int, Float32Array]]: ...  # noqa: D102

    def rows(self, wanted: Int64Array) -> Float32Array: ...  # noqa: D102


@dataclass(frozen=True)
class ViewedVectors:
    """Stored documents as a view uses them, transformed tile by tile."""

    stored: StoredViews
    view: View

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

    def _transform(self, stored: Float32Array) -> Float32Array:
        vectors = self._round(self.view.transform_documents(stored))
        if self.view.similarity == "euclidean":
            # q.d - |d|^2 / 2 ranks as -|q - d|^2 does
            squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
            vectors = np.hstack([vectors, (-0.5 * squares)[:, None].astype(np.float32)])
        return vectors

    def _round(self, vectors: Float32Array) -> Float32Array:
        if self.view.precision == "float16":
            return vectors.astype(np.float16).astype(np.float32)
        if self.view.precision == "int8":
            rounded: Float32Array = self._quantizer.decode(self._quantizer.compute_codes(vectors))
            return rounded
        return binarize(vectors) if self.view.precision == "binary" else vectors

    @cached_property
    def _quantizer(self) -> Any:
        """FAISS's 8-bit quantiser, with the ranges of a sample of the documents."""
        faiss = import_faiss()
        count = self.stored.shape[0]
        rng = np.random.default_rng(0)
        sample = np.sort(rng.choice(count, min(count, CALIBRATION_ROWS), replace=False))
        vectors = self.view.transform_documents(self.stored.rows(sample))
        quantizer = faiss.ScalarQuantizer(vectors.shape[1], faiss.ScalarQuantizer.QT_8bit)
        quantizer.train(vectors)
        return quantizer


def binarize(vectors: Float32Array) -> Float32Array:
    """Return 1 for values above 0, else -1: inner products rank by Hamming distance."""
    return np.where(vectors > 0, np.float32(1), np.float32(-1))
