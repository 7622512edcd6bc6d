"""The order in which training reads texts: a function of the seed and nothing else."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from foundation.arrays import Int64Array
from retrievers.training.objectives.objective import Example

SAMPLED_TEXTS = 1_000


class Stream:
    """Places 0, 1, 2, … of a training; each pass over the texts has an order of its own.

    A place always holds the same text with the same draw, so that a training that was killed
    goes on as if it had not been, and trainings with one seed read the same texts in one order.

    Args:
        texts: at least one; read when they are asked for.
        places: length of the stream.
        seed: of the orders and the draws.
    """

    def __init__(self, texts: Sequence[str], places: int, seed: int) -> None:
        self.texts, self.places, self.seed = texts, places, seed
        # Of one pass at a time: the stream is read forwards.
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def __len__(self) -> int:
        return self.places

    def __getitem__(self, place: int) -> Example:
        if not 0 <= place < self.places:
            raise IndexError(f"place {place} of {self.places}")
        passed, position = divmod(place, len(self.texts))
        row = int(self._order(passed)[position])
        return {"text": self.texts[row], "draw": (self.seed << 40) + place}

    def _shuffled(self, passed: int) -> Int64Array:
        return np.random.default_rng([self.seed, passed]).permutation(len(self.texts))


def sample_of(texts: Sequence[str]) -> str:
    """sha256 (hex) of about 1,000 texts, evenly spaced."""
    digest = hashlib.sha256()
    for place in range(0, len(texts), max(1, len(texts) // SAMPLED_TEXTS)):
        content = texts[place].encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()
