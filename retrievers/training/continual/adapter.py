"""An adapter for a domain: masked language modelling on a frozen encoder.

Houlsby et al., "Parameter-Efficient Transfer Learning for NLP", ICML 2019,
https://arxiv.org/abs/1902.00751; one adapter per domain is what Ke et al. (ICLR 2023) compare with
as "Adapter": what is kept apart forgets nothing, and hands nothing on. The loss is that of `mlm`;
the head is trained too, beside the adapter, and dropped.
"""

from pathlib import Path
from typing import ClassVar

from torch import nn

from foundation.errors import BenchError
from retrievers.adapters.folder import add_adapter, check_method
from retrievers.adapters.settings import AdapterSettings
from retrievers.models.card import Card, replace_fields
from retrievers.models.model import resolve_model
from retrievers.training.continual.sequence import DomainStep, Method
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.mlm import MLM, MLMTraining
from retrievers.training.pretrain.preset import Pretraining


class AdapterPerDomain(Method, kw_only=True):
    """An adapter for each domain, on the encoder that the sequence starts from.

    Attributes:
        adapter: AdapterHub's method, with its own defaults.
    """

    restarts: ClassVar[bool] = True
    separate_models: ClassVar[bool] = True
    adds_to_mlm: ClassVar[bool] = True

    adapter: str = "double_seq_bn"

    def check(self, preset: Pretraining) -> None:
        """See `Method`."""
        super().check(preset)
        if not preset.start.model:
            raise BenchError("an adapter needs a model that it is for", "name one with --start")
        check_method(self._settings())

    def objective(self, step: DomainStep) -> "DomainAdapter":
        """See `Method`."""
        preset = step.preset
        return DomainAdapter(
            base=preset.start.model, adapter=self._settings(), seed=preset.seed, mask=step.mlm.mask
        )

    def _settings(self) -> AdapterSettings:
        try:
            return AdapterSettings(method=self.adapter)
        except ValueError as error:
            raise BenchError(
                f"{self.adapter} is no adapter for a domain: {error}", "name another method"
            ) from error


class DomainAdapter(MLM, kw_only=True, tag_field="name", tag="domain-adapter"):
    """Settings of an adapter for a domain, beside those of `MLM`.

    Attributes:
        base: card or folder that training starts from, and whose recipe the result has.
        adapter: that is trained.
        seed: of its weights.
    """

    name: ClassVar[str] = "domain-adapter"
    base: str
    adapter: AdapterSettings
    seed: int = 0

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """See `Objective`; the encoder is changed in place.

        Raises:
            BenchError: the base says not how it is used, or the adapter does not fit.
        """
        return DomainAdapterTraining(encoder, self)


class DomainAdapterTraining(MLMTraining):
    """The frozen encoder with an adapter, and its own head."""

    def __init__(self, encoder: MaskedLM, settings: DomainAdapter) -> None:
        super().__init__(encoder)
        base = resolve_model(settings.base)
        self.adapted = add_adapter(encoder.encoder, settings.adapter, base, settings.seed)

    def save_encoder(self, folder: Path, card: Card) -> None:
        """Write the adapter, with a card that uses it as the base is used."""
        told = {
            "title": card.title,
            "trained_on": card.trained_on,
            "warning": "the adapter was trained to predict words, not to retrieve",
        }
        base = {"expected": (), "unverified": (), "citation": "", "source": ""}  # not of this one
        self.adapted.save(folder, replace_fields(self.adapted.base.card, base | told))
