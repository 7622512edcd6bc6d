"""One adapter for each domain: masked language modelling on a frozen encoder.

Houlsby et al., "Parameter-Efficient Transfer Learning for NLP", ICML 2019,
https://arxiv.org/abs/1902.00751. Ke et al. (ICLR 2023) compare with one adapter per domain under
the name ``Adapter``. Separate adapters forget nothing and transfer nothing. The loss is masked
language modelling (`mlm`). The language-model head is trained together with the adapter and dropped
afterwards.
"""

from pathlib import Path
from typing import ClassVar

from torch import nn

from foundation.errors import BenchError
from retrievers.adapters.adapter import AdapterSettings, add_adapter, make_configuration
from retrievers.models.card import Card, replace_fields
from retrievers.models.resolve import resolve_model
from retrievers.training.continual.sequence import DomainStep, Method
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.mlm import MLM, MLMTraining
from retrievers.training.pretrain.preset import Pretraining


class AdapterPerDomain(Method, kw_only=True):
    """Separate adapters for the domains, all on the encoder that the sequence starts from.

    Attributes:
        adapter: name of AdapterHub's method, used with its own defaults.
    """

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
        try:
            return AdapterSettings(method=self.adapter)
        except ValueError as error:
            raise BenchError(
                f"{self.adapter} cannot be the adapter of a domain: {error}", "Use another method."
            ) from error


class DomainAdapter(MLM, kw_only=True, tag_field="name", tag="domain-adapter"):
    """Settings of the training of one adapter, in addition to the settings of `MLM`.

    Attributes:
        base: card or folder that training starts from. The result uses its recipe.
        adapter: adapter to train.
        seed: seed of the adapter's initial weights.
    """

    name: ClassVar[str] = "domain-adapter"
    base: str
    adapter: AdapterSettings
    seed: int = 0

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """Build the training module around ``encoder``, which is changed in place.

        Raises:
            BenchError: If the base has no usage settings, or the adapter does not fit.
        """
        return DomainAdapterTraining(encoder, self)


class DomainAdapterTraining(MLMTraining):
    """Frozen encoder with an adapter and the encoder's language-model head."""

    def __init__(self, encoder: MaskedLM, settings: DomainAdapter) -> None:
        """Add the adapter described by ``settings`` to ``encoder``."""
        super().__init__(encoder)
        base = resolve_model(settings.base)
        self.adapted = add_adapter(encoder.encoder, settings.adapter, base, settings.seed)

    def save_encoder(self, folder: Path, card: Card) -> None:
        """Write the adapter to ``folder``, with the base's usage and the facts of ``card``."""
        told = {
            "title": card.title,
            "trained_on": card.trained_on,
            "warning": "the adapter was trained to predict words, not to retrieve",
        }
        base = {
            "expected": (),
            "unverified": (),
            "citation": "",
            "source": "",
        }  # these belong to the base
        self.adapted.save(folder, replace_fields(self.adapted.base.card, base | told))
