"""Joint training, which bounds what keeping can reach.

After domain t stands what one training on D_1 ∪ … ∪ D_t gives, from the start of the sequence and
for as long as its t trainings were together.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from retrievers.training.continual.replay import MixedTexts, corpus_locations
from retrievers.training.continual.sequence import DomainStep, Method


class Joint(Method, kw_only=True):
    """All domains so far at once."""

    restarts: ClassVar[bool] = True
    reads_all_domains: ClassVar[bool] = True

    def texts(self, step: DomainStep) -> Sequence[str]:
        """See `Method`: all texts, one corpus after the other."""
        corpora = [domain.texts for domain in step.domains]
        rows = [
            corpus_locations(number, np.arange(len(texts))) for number, texts in enumerate(corpora)
        ]
        return MixedTexts(corpora, np.concatenate(rows))
