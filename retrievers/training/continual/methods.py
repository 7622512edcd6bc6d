"""Methods of continual pre-training, except DAS.

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

**EWC.** Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 2017,
https://arxiv.org/abs/1612.00796. Let θ_t be the weights after domain t and F_t the diagonal of the
Fisher information at θ_t:

    L = L_mlm + λ/2 Σ_t Σ_i F_t,i (θ_i − θ_t,i)²

Up to a constant, the sum over domains is again a single term of this form, with F = Σ_t F_t and
centre θ̄ = Σ_t F_t θ_t / F. The stored state therefore does not grow with the sequence. F is the
empirical Fisher information: the mean over texts of the squared gradient of the masked language
modelling loss of one text. Default: λ = 5000, which the code of Ke et al. (ICLR 2023) calls the
best value between 500 and 50,000.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from foundation.arrays import Int64Array
from foundation.errors import BenchError
from foundation.files import hash_records
from foundation.records import convert_table
from retrievers.adapters.adapter import AdapterSettings, add_adapter, make_configuration
from retrievers.models.card import Card, replace_fields
from retrievers.models.resolve import resolve_model
from retrievers.training.continual.sequence import Batch, DomainStep, Method, read_state
from retrievers.training.objectives.masked_lm import MaskedLM, sum_losses
from retrievers.training.objectives.mlm import MLM, MLMTraining
from retrievers.training.objectives.objective import Objective, Rate
from retrievers.training.preset import Above0, Pretraining
from retrievers.training.pretrain.texts import LazyTexts, hash_texts

FISHER, CENTRE = "fisher:", "centre:"  # prefixes of parameter names


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
        order = hashlib.sha256(locations.tobytes()).hexdigest()
        self.sha256 = hash_records([[hash_texts(each)] for each in corpora] + [[order]])

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
        """Write the adapter to ``folder``, with the base's usage and what ``card`` states."""
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


class ElasticWeightConsolidation(Method, kw_only=True, tag="ewc"):
    """Elastic weight consolidation.

    Attributes:
        measured: number of texts of a domain used to estimate its Fisher information.
        strength: λ.
    """

    adds_to_mlm: ClassVar[bool] = True

    measured: Annotated[int, msgspec.Meta(ge=1)] = 256
    strength: Above0 = 5_000.0

    def objective(self, step: DomainStep) -> Objective:
        """Return the preset's objective for the first ``step`` of a sequence, else `EWC`."""
        if not step.index:
            return step.preset.objective
        state = step.state(self, self.measured, lambda: self._measure(step))
        return EWC(state=state, mask=step.mlm.mask, strength=self.strength)

    def _measure(self, step: DomainStep) -> dict[str, Tensor]:
        encoder, tokenizer = step.open()
        # Without dropout, a text's gradient is deterministic.
        information = estimate_fisher(encoder.eval(), step.batches(tokenizer, self.measured, 1))
        earlier = step.state_file(step.index - 1)
        before = read_fisher(encoder, earlier) if step.index > 1 else None
        return accumulate_fisher(encoder, information, before)


class EWC(MLM, kw_only=True):
    """Settings of EWC: the file ``state`` of `accumulate_fisher`, and λ."""

    state: str
    strength: Above0 = 5_000.0

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """Build the training module around ``encoder``, to whose weights the state must fit."""
        return EWCTraining(encoder, read_fisher(encoder, self.state), self.strength)


class EWCTraining(MLMTraining):
    """Encoder with its head, and the penalty on its weights."""

    def __init__(self, encoder: MaskedLM, fisher: Mapping[str, Tensor], strength: float) -> None:
        super().__init__(encoder)
        self.strength = strength
        for number, (name, parameter) in enumerate(encoder.named_parameters()):
            # Buffer names cannot contain dots. Buffers are constant, so they are not saved.
            for part, prefix in (("fisher", FISHER), ("centre", CENTRE)):
                value = fisher[prefix + name].to(parameter)
                self.register_buffer(f"{part}_{number}", value, persistent=False)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """Return `MLMTraining`'s loss as ``mlm``, ``penalty``, and their sum as ``loss``."""
        mlm = super().forward(input_ids, attention_mask, labels)["loss"]
        return sum_losses(mlm=mlm, penalty=self.penalty())

    def penalty(self) -> Tensor:
        """Return λ/2 Σ F (θ − θ̄)² as a scalar."""
        parts = []
        for number, parameter in enumerate(self.encoder.parameters()):
            moved = parameter - getattr(self, f"centre_{number}")
            parts.append((getattr(self, f"fisher_{number}") * moved * moved).sum())
        return self.strength / 2 * torch.stack(parts).sum()


def estimate_fisher(encoder: MaskedLM, texts: Iterable[Batch]) -> dict[str, Tensor]:
    """Estimate the diagonal of the empirical Fisher information, by name of parameter.

    ``encoder`` is in evaluation mode, and ``texts`` are masked batches of one text each.
    """
    named = dict(encoder.named_parameters())
    total, count = {name: torch.zeros_like(weight) for name, weight in named.items()}, 0
    for text in texts:
        loss = MLMTraining(encoder)(**text)["loss"]
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        for name, gradient in zip(named, gradients, strict=True):
            if gradient is not None:
                total[name] += gradient.square()
        count += 1
    return {name: value / max(count, 1) for name, value in total.items()}


def accumulate_fisher(
    encoder: MaskedLM, information: Mapping[str, Tensor], before: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    """Return F and θ̄ after a domain, under `FISHER` and `CENTRE` and the parameter's name.

    ``information`` is F_t, and ``before`` F and θ̄ after the previous domain. Where F is 0, the
    centre is the current weight.
    """
    state: dict[str, Tensor] = {}
    for name, weight in encoder.named_parameters():
        total, centre = information[name], weight.detach().clone()
        if before is not None:
            earlier = before[FISHER + name]
            total = total + earlier
            share = torch.where(total > 0, earlier / total, torch.zeros_like(total))
            centre = centre + share * (before[CENTRE + name] - centre)
        state |= {FISHER + name: total, CENTRE + name: centre}
    return state


def read_fisher(encoder: MaskedLM, path: Path | str) -> dict[str, Tensor]:
    """Read the Fisher information and the centre of ``encoder`` from the state file ``path``."""
    named = dict(encoder.named_parameters())
    like = {part + name: weight for name, weight in named.items() for part in (FISHER, CENTRE)}
    return read_state(path, like)
