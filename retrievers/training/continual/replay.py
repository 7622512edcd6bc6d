"""Experience replay, and joint training, which bounds what keeping can reach.

Replay: Rolnick et al., "Experience Replay for Continual Learning", NeurIPS 2019,
https://arxiv.org/abs/1811.11682; Chaudhry et al., "On Tiny Episodic Memories in Continual
Learning", 2019, https://arxiv.org/abs/1902.10486. With D_t the texts of domain t, M_t a buffer of m
texts of domains 1 … t − 1, as many of each, and r the share that is replayed, domain t minimises

    L_t = (1 − r) E_{x ∈ D_t} L(x) + r E_{x ∈ M_t} L(x)

Joint: after domain t stands what one training on D_1 ∪ … ∪ D_t gives, from the start of the
sequence and for as long as its t trainings were together.
"""

from collections.abc import Sequence
from typing import overload

import numpy as np


class MixedTexts(Sequence[str]):
    """Texts of several corpora by places, each read when it is asked for.

    Args:
        places: of each text, the number of its corpus and its row there.
    """

    def __init__(self, corpora: Sequence[Sequence[str]], places: Sequence[tuple[int, int]]) -> None:
        self.corpora, self.places = corpora, places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        corpus, row = self.places[place]
        return self.corpora[corpus][row]


def joined(corpora: Sequence[Sequence[str]]) -> MixedTexts:
    """All texts, one corpus after the other."""
    places = [(number, row) for number, texts in enumerate(corpora) for row in range(len(texts))]
    return MixedTexts(corpora, places)


def replayed(
    earlier: Sequence[Sequence[str]], texts: Sequence[str], buffer: int, share: float, seed: int
) -> MixedTexts:
    """The texts of a domain, and those of the buffer as often as makes up their share.

    Args:
        earlier: corpora of the domains before it; a text that is kept for a domain was kept for
            the one before it, too.
        buffer: texts that are kept of all of them.
        share: of the texts that training reads, in 0..1.
        seed: of the texts that are kept.
    """
    kept = _buffer([len(corpus) for corpus in earlier], buffer, seed)
    repeats = round(len(texts) * share / (1 - share))
    own = [(len(earlier), row) for row in range(len(texts))]
    return MixedTexts([*earlier, texts], own + [kept[n % len(kept)] for n in range(repeats)])


def _buffer(sizes: Sequence[int], count: int, seed: int) -> list[tuple[int, int]]:
    """Corpus and row of each text that is kept, the corpora in turn; one of each at least."""
    room = max(1, count // len(sizes))
    orders = [
        np.random.default_rng([seed, number]).permutation(size)[:room].tolist()
        for number, size in enumerate(sizes)
    ]
    longest = max(map(len, orders))
    return [
        (number, order[place])
        for place in range(longest)
        for number, order in enumerate(orders)
        if place < len(order)
    ]
