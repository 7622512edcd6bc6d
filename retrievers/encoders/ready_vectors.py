"""Ready vectors as an encoder, which looks them up by the ids of documents and queries."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from foundation.arrays import Float32Array
from foundation.errors import BenchError
from retrievers.encoders.preflight import UNIT_TOLERANCE
from retrievers.encoders.protocol import Callback, Encoder, scale_to_unit
from retrievers.models.card import Recipe
from retrievers.models.read_vectors import IdVectors, read_vectors


class ReadyVectors(Encoder):
    """Vectors of a folder as an encoder, whose texts are ids: see `Encoder` for its methods.

    Args:
        recipe: recipe with the similarity. Vectors are scaled to length 1 if it says so. If it says
            cosine alone, they must have that length.
        files: files of the vectors, which are read at once: they tell the dimension.
        typed: the model as the user named it, for messages.
    """

    def __init__(self, recipe: Recipe, files: Sequence[Path], typed: str) -> None:
        self.typed = typed
        self.vectors = read_vectors(files)
        self.recipe = msgspec.structs.replace(recipe, dim=self.vectors["query"].dim)

    def for_dataset(self, name: str) -> "ReadyVectors":
        """Return these vectors, which are the same for every dataset."""
        return self

    def encode_queries(self, texts: Sequence[str], advance: Callback | None = None) -> Float32Array:
        """Return the vectors of the queries with the ids ``texts``."""
        return self._look_up(self.vectors["query"], texts, advance)

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Callback | None = None
    ) -> Float32Array:
        """Return the vectors of the documents with the ids ``texts``."""
        return self._look_up(self.vectors["document"], texts, advance)

    def _look_up(
        self, vectors: IdVectors, ids: Sequence[str], advance: Callback | None
    ) -> Float32Array:
        found = vectors.rows(ids)
        is_finite, is_zero = np.isfinite(found).all(axis=1), ~found.any(axis=1)
        for unusable, what in ((~is_finite, "not finite"), (is_zero, "zero")):
            if unusable.any():
                name = ids[int(np.flatnonzero(unusable)[0])]
                problem = f"{self.typed}: the vector of {vectors.role} {name} is {what}"
                raise BenchError(problem, "Encode its text again.")
        if self.recipe.normalize:
            scale_to_unit(found)
        elif self.recipe.similarity == "cos":
            self._require_unit_length(found, ids)
        if advance:
            advance(len(ids))
        return found

    def _require_unit_length(self, found: Float32Array, ids: Sequence[str]) -> None:
        lengths = np.linalg.norm(found, axis=1)
        if len(ids) and np.abs(lengths - 1).max() > UNIT_TOLERANCE:
            name = ids[int(np.abs(lengths - 1).argmax())]
            span = f"from {lengths.min():.3g} to {lengths.max():.3g}"
            raise BenchError(
                f"{self.typed}: vectors are {span} long (see {name}), so inner product and "
                "cosine rank differently, and nothing says which one the model was trained for",
                f"State it: --model {self.typed}:dot, or {self.typed}:cos.",
            )
