"""Baselines of continual pre-training: plain and joint training, replay, one adapter per domain.

**Plain** training uses the preset's objective on one domain after the other. **Joint** training is
an upper bound on what methods against forgetting can reach: the checkpoint after domain t is
trained on D_1 ∪ … ∪ D_t from the start of the sequence, for as many steps as the t trainings of the
sequence take together.

**Replay** reads texts of earlier domains again. Rolnick et al., "Experience Replay for Continual
Learning", NeurIPS 2019, https://arxiv.org/abs/1811.11682; Chaudhry et al., "On Tiny Episodic
Memories in Continual Learning", 2019, https://arxiv.org/abs/1902.10486. Let D_t be the texts of
domain t, M_t a buffer with m texts of the domains 1 … t − 1 in equal parts, and r the replayed
share. The training on domain t minimises

    L_t = (1 − r) E_{x ∈ D_t} L(x) + r E_{x ∈ M_t} L(x)

**One adapter per domain** forgets nothing and transfers nothing: masked language modelling on a
frozen encoder with an adapter. Houlsby et al., "Parameter-Efficient Transfer Learning for NLP",
ICML 2019, https://arxiv.org/abs/1902.00751. Ke et al. (ICLR 2023) compare with it under the name
``Adapter``. The language-model head is trained together with the adapter and dropped afterwards.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from torch import nn

from foundation.arrays import Int64Array
from foundation.errors import BenchError
from foundation.records import convert_table
from retrievers.adapters.adapter import AdapterSettings, add_adapter, make_configuration
from retrievers.models.card import Card, replace_fields
from retrievers.models.resolve import resolve_model
from retrievers.training.continual.sequence import DomainStep, Method
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.mlm import MLM, MLMTraining
from retrievers.training.objectives.objective import Rate
from retrievers.training.preset import Pretraining
from retrievers.training.pretrain.texts import LazyTexts


class Plain(Method, kw_only=True):
    """Sequential training without any measure against forgetting."""


class Joint(Method, kw_only=True):
    """Training on all domains so far at once."""

    restarts: ClassVar[bool] = True
    reads_all_domains: ClassVar[bool] = True

    def texts(self, step: DomainStep) -> Sequence[str]:
        """Return all texts of the domains of ``step``, one corpus after the other."""
        corpora = [domain.texts for domain in step.domains]
        rows = [locate_rows(number, np.arange(len(texts))) for number, texts in enumerate(corpora)]
        return MixedTexts(corpora, np.concatenate(rows))


class Replay(Method, kw_only=True):
    """Experience replay: a share ``replayed`` of the texts comes from a buffer of earlier ones."""

    buffer: Annotated[int, msgspec.Meta(ge=1)] = 1_000
    replayed: Rate = 0.5

    def texts(self, step: DomainStep) -> Sequence[str]:
        """Return the texts of the last domain of ``step``, mixed with the replay buffer."""
        *earlier, current = [domain.texts for domain in step.domains]
        if not earlier:
            return current
        return mix_replay(earlier, current, self.buffer, self.replayed, step.preset.seed)


class MixedTexts(LazyTexts):
    """Texts of several corpora in a given order.

    ``locations`` has the corpus and the row in it of each text, int64 ``(texts, 2)``.
    """

    def __init__(self, corpora: Sequence[Sequence[str]], locations: Int64Array) -> None:
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

    The buffer has equally many texts of each corpus of ``earlier``, at least one, and ``buffer`` in
    all. ``share`` is that of the buffer in the texts that training reads.
    """
    quota = max(1, buffer // len(earlier))
    parts = []
    for number, corpus in enumerate(earlier):
        drawn = np.random.default_rng([seed, number]).permutation(len(corpus))[:quota]
        parts.append(locate_rows(number, drawn))
    kept = np.concatenate(parts)
    repeats = round(len(texts) * share / (1 - share))
    current = locate_rows(len(earlier), np.arange(len(texts)))
    # Spread evenly: how often two texts of the buffer are repeated differs by at most one.
    again = kept[np.arange(repeats) * len(kept) // max(repeats, 1)]
    return MixedTexts([*earlier, texts], np.concatenate([current, again]))


def locate_rows(number: int, rows: Int64Array) -> Int64Array:
    """Return the locations of ``rows`` in corpus ``number``, int64 ``(rows, 2)``."""
    return np.stack([np.full_like(rows, number), rows], axis=1)


class AdapterPerDomain(Method, kw_only=True, tag="adapter"):
    """Separate adapters, of a method of AdapterHub, on the model that the sequence starts from."""

    restarts: ClassVar[bool] = True
    separate_models: ClassVar[bool] = True
    adds_to_mlm: ClassVar[bool] = True

    adapter: str = "double_seq_bn"

    def check(self, preset: Pretraining) -> None:
        """Raise if ``preset`` has no start model or the adapter method cannot be used."""
        super().check(preset)
        if not preset.start.model:
            raise BenchError("an adapter needs a start model", "Name one with --start.")
        make_configuration(self._settings())  # raises if the method is unknown

    def objective(self, step: DomainStep) -> "DomainAdapter":
        """Return the settings that train the adapter of ``step``."""
        preset = step.preset
        return DomainAdapter(
            base=preset.start.model, adapter=self._settings(), seed=preset.seed, mask=step.mlm.mask
        )

    def _settings(self) -> AdapterSettings:
        return convert_table({"method": self.adapter}, AdapterSettings, "the adapter of a domain")


class DomainAdapter(MLM, kw_only=True, tag="domain-adapter"):
    """Settings of the training of one adapter on ``base``, in addition to those of `MLM`."""

    base: str
    adapter: AdapterSettings
    seed: int = 0

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """Build the training module around ``encoder``, which is changed in place."""
        return DomainAdapterTraining(encoder, self)


class DomainAdapterTraining(MLMTraining):
    """Frozen encoder with an adapter and the encoder's language-model head."""

    def __init__(self, encoder: MaskedLM, settings: DomainAdapter) -> None:
        super().__init__(encoder)
        base = resolve_model(settings.base)
        self.adapted = add_adapter(encoder.encoder, settings.adapter, base, settings.seed)

    def save_encoder(self, folder: Path, card: Card) -> None:
        """Write the adapter to ``folder``, with the base's usage and the facts of ``card``."""
        changes = {
            "title": card.title,
            "trained_on": card.trained_on,
            "warning": "the adapter was trained to predict words, not to retrieve",
            # Of the base:
            "expected": (),
            "unverified": (),
            "citation": "",
            "source": "",
        }
        self.adapted.save(folder, replace_fields(self.adapted.base.card, changes))
