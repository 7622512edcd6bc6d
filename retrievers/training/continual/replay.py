"""Experience replay: texts of earlier domains are read again.

Rolnick et al., "Experience Replay for Continual Learning", NeurIPS 2019,
https://arxiv.org/abs/1811.11682; Chaudhry et al., "On Tiny Episodic Memories in Continual
Learning", 2019, https://arxiv.org/abs/1902.10486. Let D_t be the texts of domain t, M_t a buffer
with m texts of the domains 1 … t − 1 in equal parts, and r the replayed share. The training on
domain t minimises

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
    """Experience replay with a fixed buffer size.

    Attributes:
        buffer: number of texts kept from all earlier domains together.
        replayed: share of the texts in a training that come from the buffer.
    """

    buffer: Annotated[int, msgspec.Meta(ge=1)] = 1_000
    replayed: Rate = 0.5

    def texts(self, step: DomainStep) -> Sequence[str]:
        """Return the texts of the last domain of ``step``, mixed with the replay buffer."""
        *earlier, current = [domain.texts for domain in step.domains]
        if not earlier:
            return current
        return mix_replay(earlier, current, self.buffer, self.replayed, step.preset.seed)


class MixedTexts(LazyTexts):
    """Texts of several corpora in a given order, each read when it is accessed."""

    def __init__(self, corpora: Sequence[Sequence[str]], locations: Int64Array) -> None:
        """Arrange texts of several corpora.

        Args:
            corpora: the corpora to read from.
            locations: for each text, the number of its corpus and its row in it, int64 ``(texts,
                2)``.
        """
        self.corpora, self.locations = corpora, locations

    def __len__(self) -> int:
        return len(self.locations)

    def text_at(self, index: int) -> str:
        """Return the text at ``index``."""
        corpus, row = map(int, self.locations[index])
        return self.corpora[corpus][row]


def mix_replay(
    earlier: Sequence[Sequence[str]], texts: Sequence[str], buffer: int, share: float, seed: int
) -> MixedTexts:
    """Return the texts of a domain followed by enough repetitions of the buffer to reach its share.

    Args:
        earlier: corpora of earlier domains. A text in the buffer of one domain was also in the
            buffer of the domain before.
        texts: texts of the current domain.
        buffer: number of texts kept from all earlier domains together, at least one from each.
        share: share of the buffer in the texts that training reads, between 0 and 1.
        seed: seed of the choice of texts for the buffer.
    """
    quota = max(1, buffer // len(earlier))
    kept = np.concatenate(
        [
            locate_rows(
                number, np.random.default_rng([seed, number]).permutation(len(corpus))[:quota]
            )
            for number, corpus in enumerate(earlier)
        ]
    )
    repeats = round(len(texts) * share / (1 - share))
    current = locate_rows(len(earlier), np.arange(len(texts)))
    # Spread evenly: how often two texts of the buffer are repeated differs by at most one.
    again = kept[np.arange(repeats) * len(kept) // max(repeats, 1)]
    return MixedTexts([*earlier, texts], np.concatenate([current, again]))


def locate_rows(number: int, rows: Int64Array) -> Int64Array:
    """Return the locations of ``rows`` in corpus ``number``, int64 ``(rows, 2)``."""
    return np.stack([np.full_like(rows, number), rows], axis=1)
