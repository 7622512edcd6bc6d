"""Joint training, an upper bound on what methods against forgetting can reach.

The checkpoint after domain t is trained on D_1 ∪ … ∪ D_t from the start of the sequence, for as
many steps as the t trainings of the sequence take together.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from retrievers.training.continual.replay import MixedTexts, locate_rows
from retrievers.training.continual.sequence import DomainStep, Method


class Joint(Method, kw_only=True):
    """Training on all domains so far at once."""

    restarts: ClassVar[bool] = True
    reads_all_domains: ClassVar[bool] = True

    def texts(self, step: DomainStep) -> Sequence[str]:
        """Return all texts of the domains of ``step``, one corpus after the other."""
        corpora = [domain.texts for domain in step.domains]
        rows = [locate_rows(number, np.arange(len(texts))) for number, texts in enumerate(corpora)]
        return MixedTexts(corpora, np.concatenate(rows))
