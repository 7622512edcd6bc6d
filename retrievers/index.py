"""Vectors to neighbours."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Hits:
    """Neighbours of q queries, at most k each.

    Attributes:
        scores: float32 ``(q, k)``, inner products, best first; ``-inf`` where unfilled.
        rows: int64 ``(q, k)``, row numbers of the corpus; -1 where unfilled.
    """

    scores: npt.NDArray[np.float32]
    rows: npt.NDArray[np.int64]
