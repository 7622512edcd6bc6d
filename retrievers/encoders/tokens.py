"""Token ids of texts as arrays: one row of all ids, and the length of each text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from foundation.arrays import Int32Array, Int64Array


@dataclass(frozen=True, eq=False)
class Tokens:
    """Token ids of ``n`` texts, text after text.

    Attributes:
        ids: int32 ``(T,)``, of all texts.
        lengths: int64 ``(n,)``, tokens of each text.
        types: token types int32 ``(T,)``, where the model reads them.
    """

    ids: Int32Array
    lengths: Int64Array
    types: Int32Array | None = None

    @classmethod
    def of(
        cls, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> "Tokens":
        """From the ids of each text."""
        lengths = np.array([len(text) for text in ids], dtype=np.int64)
        return cls(_joined(ids), lengths, None if types is None else _joined(types))

    @classmethod
    def concatenate(cls, parts: Sequence["Tokens"]) -> "Tokens":
        """The texts of some, one after the other; all have types, or none."""
        types = [part.types for part in parts if part.types is not None]
        return cls(
            np.concatenate([np.empty(0, np.int32), *(part.ids for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *(part.lengths for part in parts)]),
            np.concatenate(types) if types else None,
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def starts(self) -> Int64Array:
        """Where each text begins in ``ids``; int64 ``(n,)``."""
        starts: Int64Array = self.lengths.cumsum() - self.lengths
        return starts

    def take(self, rows: Int64Array) -> "Tokens":
        """Some of the texts, in the order asked."""
        lengths = self.lengths[rows]
        places = runs(self.starts[rows], lengths)
        return Tokens(self.ids[places], lengths, None if self.types is None else self.types[places])


def runs(starts: Int64Array, lengths: Int64Array) -> Int64Array:
    """Whole numbers from each start on, as many as its length says; int64 ``(sum(lengths),)``."""
    ends = lengths.cumsum()
    shifts: Int64Array = np.repeat(starts - (ends - lengths), lengths)
    shifts += np.arange(len(shifts))
    return shifts


def _joined(values: Sequence[Sequence[int]]) -> Int32Array:
    arrays = (np.asarray(value, dtype=np.int32) for value in values)
    return np.concatenate([np.empty(0, np.int32), *arrays])
