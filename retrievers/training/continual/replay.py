"""Experience replay: texts of earlier domains are read again.

Rolnick et al., "Experience Replay for Continual Learning", NeurIPS 2019,
https://arxiv.org/abs/1811.11682; Chaudhry et al., "On Tiny Episodic Memories in Continual
Learning", 2019, https://arxiv.org/abs/1902.10486. With D_t the texts of domain t, M_t a buffer of m
texts of domains 1 … t − 1, as many of each, and r the share that is replayed, domain t minimises

    L_t = (1 − r) E_{x ∈ D_t} L(x) + r E_{x ∈ M_t} L(x)
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from foundation.arrays import Int64Array
from retrievers.training.continual.sequence import DomainStep, Method
from retrievers.training.objectives.objective import Rate
from retrievers.training.pretrain.texts import LazyTexts


class Replay(Method, kw_only=True):
    """Experience replay.

    Attributes:
        buffer: texts of all earlier domains that are kept.
        replayed: share of the texts of a training that are of the buffer.
    """

    buffer: Annotated[int, msgspec.Meta(ge=1)] = 1_000
    replayed: Rate = 0.5

    def texts(self, step: DomainStep) -> Sequence[str]:
        """See `Method`."""
        *earlier, own = [domain.texts for domain in step.domains]
        if not earlier:
            return own
        return mix_replay(earlier, own, self.buffer, self.replayed, step.preset.seed)


class MixedTexts(LazyTexts):
    """Texts of several corpora by places, each read when it is asked for.

    Args:
        places: of each text, the number of its corpus and its row there, int64 ``(texts, 2)``.
    """

    def __init__(self, corpora: Sequence[Sequence[str]], locations: Int64Array) -> None:
        self.corpora, self.locations = corpora, locations

    def __len__(self) -> int:
        return len(self.locations)

    def text_at(self, index: int) -> str:
        """See `LazyTexts`."""
        corpus, row = map(int, self.locations[index])
        return self.corpora[corpus][row]


def mix_replay(
    earlier: Sequence[Sequence[str]], texts: Sequence[str], buffer: int, share: float, seed: int
) -> MixedTexts:
    """The texts of a domain, and those of the buffer as often as makes up their share.

    Args:
        earlier: corpora of the domains before it; a text that is kept for a domain was kept for
            the one before it, too.
        buffer: texts that are kept of all of them, one of each at least.
        share: of the texts that training reads, in 0..1.
        seed: of the texts that are kept.
    """
    room = max(1, buffer // len(earlier))
    kept = np.concatenate(
        [
            corpus_locations(
                number, np.random.default_rng([seed, number]).permutation(len(corpus))[:room]
            )
            for number, corpus in enumerate(earlier)
        ]
    )
    repeats = round(len(texts) * share / (1 - share))
    own = corpus_locations(len(earlier), np.arange(len(texts)))
    # Evenly over the buffer: each as often as the others, but for one, and of every domain.
    again = kept[np.arange(repeats) * len(kept) // max(repeats, 1)]
    return MixedTexts([*earlier, texts], np.concatenate([own, again]))


def corpus_locations(number: int, rows: Int64Array) -> Int64Array:
    """Places of rows of a corpus."""
    return np.stack([np.full_like(rows, number), rows], axis=1)
