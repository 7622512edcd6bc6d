"""Continual pre-training: one checkpoint per domain, each going on from the one before.

What a method must know of earlier domains is measured between two trainings and kept in a file, so
that no text of an earlier domain is read again. A sequence that was killed goes on where it was
when the same call is made again; domains can be added at its end.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from foundation.errors import BenchError
from foundation.files import replacing_in
from foundation.records import Record
from retrievers.adapters.methods import check_method
from retrievers.adapters.settings import Adapter
from retrievers.models.model import resolve_model
from retrievers.training.continual.das import DAS, Soften
from retrievers.training.continual.distill import Distill
from retrievers.training.continual.domain_adapter import DomainAdapter
from retrievers.training.continual.ewc import EWC
from retrievers.training.continual.measuring import Measurement
from retrievers.training.continual.replay import joined, replayed
from retrievers.training.engine.arguments import Progress, TrainingContext, world_size
from retrievers.training.engine.run_folder import lock_folder
from retrievers.training.objectives.mlm import MLM
from retrievers.training.objectives.objective import Objective, Rate
from retrievers.training.pretrain.preset import Pretraining, Start, to_table
from retrievers.training.pretrain.pretrain import Trained, check_length, pretrain
from retrievers.training.pretrain.start import open_start
from retrievers.training.pretrain.texts import sample_of

logger = logging.getLogger(__name__)

STATES = "states"
MADE_FROM = "made_from"  # metadata of a state file
Method = Literal["plain", "ewc", "das", "adapter", "replay", "joint", "distill"]
OF_MASKED_WORDS = ("ewc", "das", "adapter", "distill")
KEPT_APART = ("adapter",)  # each domain is searched with what was trained on it alone
FROM_THE_START = (*KEPT_APART, "joint")  # every training begins where the sequence does


class Adaptation(Record, kw_only=True):
    """Settings by which a sequence of domains is learnt.

    Attributes:
        method: ``plain`` goes on with the preset's objective and nothing else; ``ewc`` and ``das``
            add to masked language modelling, and ``adapter`` trains an adapter per domain, each
            on the encoder that the sequence starts from; ``replay`` reads earlier domains again,
            and ``joint`` reads all domains so far at once; ``distill`` keeps the answers of the
            model before a domain; see their modules.
        measured: texts of a domain that its importance or Fisher information is measured on; the
            authors of DAS read 10,000.
        strength: of EWC's penalty.
        soften: see `das`.
        adapter: AdapterHub's method for ``adapter``, with its own defaults.
        buffer: texts of all earlier domains that ``replay`` keeps.
        replayed: share of the texts of a training that are of the buffer.
        weight: of what ``distill`` adds to the loss.
        temperature: of the predictions that it compares.
    """

    method: Method = "plain"
    measured: Annotated[int, msgspec.Meta(ge=1)] = 256
    strength: Annotated[float, msgspec.Meta(gt=0)] = 5_000.0
    soften: Soften = "gradient"
    adapter: str = "double_seq_bn"
    buffer: Annotated[int, msgspec.Meta(ge=1)] = 1_000
    replayed: Rate = 0.5
    weight: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 2.0


@dataclass(frozen=True)
class Domain:
    """A corpus of the sequence.

    Attributes:
        name: of the collection, for folders.
        texts: at least one.
        seen: what the card of a model that read them states as trained on; empty for the name.
    """

    name: str
    texts: Sequence[str]
    seen: tuple[str, ...] = ()


def adapt(
    preset: Pretraining,
    domains: Sequence[Domain],
    adaptation: Adaptation,
    context: TrainingContext,
) -> tuple[Trained, ...]:
    """Pre-train on one domain after the other.

    Args:
        preset: of each training; its objective must be ``mlm`` for `OF_MASKED_WORDS`.
        domains: in the order that they are learnt, each once.
        context: whose folder gets the checkpoints, see `folder_of`, with ``states``
            where the method keeps any.

    Returns:
        A checkpoint for each domain.

    Raises:
        BenchError: a preset or a model that the method cannot use, a folder with another
            sequence or another process, or what `pretrain` raises.
    """
    check(preset, domains, adaptation)
    context = context.inside(context.out.resolve())
    sequence = _Sequence(preset, domains, adaptation, context)
    with lock_folder(context.out):
        return tuple(sequence.train(place) for place in range(len(domains)))


def folder_of(out: Path, place: int, name: str) -> Path:
    """Of the checkpoint after a domain: a name of its own wherever results are collected."""
    return out / f"{out.resolve().name}-{place + 1}-{name.strip('/').replace('/', '-')}"


def check(preset: Pretraining, domains: Sequence[Domain], adaptation: Adaptation) -> None:
    """Refuse what cannot work before any work.

    Raises:
        BenchError: see `adapt`.
    """
    check_settings(preset, adaptation)
    if world_size() > 1:
        raise BenchError(
            "a sequence is trained by one process", "start it without `accelerate launch`"
        )
    names = [domain.name for domain in domains]
    for name in names:
        if names.count(name) > 1:
            raise BenchError(f"the domain {name} comes {names.count(name)} times", "once each")
    for domain in domains:
        if not len(domain.texts):
            raise BenchError(f"the domain {domain.name} has no texts", "leave it out")
    if adaptation.method == "adapter":
        resolve_model(preset.start.model)
    check_length(preset, open_start(preset.start, preset.seed, domains[0].texts))


def check_settings(preset: Pretraining, adaptation: Adaptation) -> None:
    """Refuse a method that the preset does not allow; reads neither texts nor a model.

    Raises:
        BenchError: the objective, gradient checkpointing or the start of the preset is not for
            the method, or its adapter is not known.
    """
    if adaptation.method in OF_MASKED_WORDS and preset.objective.name != "mlm":
        raise BenchError(
            f"{adaptation.method} is for masked language modelling, not {preset.objective.name}",
            "use a preset with the objective mlm, or the method plain",
        )
    if adaptation.method == "das" and preset.gradient_checkpointing:
        raise BenchError(
            "das reads with gated units, and gradient checkpointing would read again without",
            "leave --gradient-checkpointing out, and use a smaller batch and --accumulate",
        )
    if adaptation.method == "adapter":
        if not preset.start.model:
            raise BenchError("an adapter needs a model that it is for", "name one with --start")
        check_method(_adapter(adaptation))


def _adapter(adaptation: Adaptation) -> Adapter:
    """The adapter of each domain.

    Raises:
        BenchError: its method needs more than a name.
    """
    try:
        return Adapter(method=adaptation.adapter)
    except ValueError as error:
        raise BenchError(
            f"{adaptation.adapter} is no adapter for a domain: {error}", "name another method"
        ) from error


@dataclass(frozen=True)
class _Sequence:
    """A sequence, and where it goes."""

    preset: Pretraining
    domains: Sequence[Domain]
    adaptation: Adaptation
    context: TrainingContext

    def train(self, place: int) -> Trained:
        """The checkpoint after a domain."""
        joint = self.adaptation.method == "joint"
        read = self.domains[0 if joint else place : place + 1]
        objective = self.objective(place)
        return pretrain(
            msgspec.structs.replace(self._preset(place), objective=objective),
            self.texts(place),
            self.context.inside(self.folder(place)),
            trained_on=tuple(name for each in read for name in each.seen or (each.name,)),
        )

    def texts(self, place: int) -> Sequence[str]:
        """Texts that the training on a domain reads."""
        *earlier, own = [domain.texts for domain in self.domains[: place + 1]]
        adaptation = self.adaptation
        if adaptation.method == "joint":
            return joined([*earlier, own])
        if adaptation.method == "replay" and earlier:
            return replayed(earlier, own, adaptation.buffer, adaptation.replayed, self.preset.seed)
        return own

    def folder(self, place: int) -> Path:
        return folder_of(self.context.out, place, self.domains[place].name)

    def start(self, place: int) -> Start:
        """Where the training on a domain starts."""
        if not place or self.adaptation.method in FROM_THE_START:
            return self.preset.start
        return Start(model=str(self.folder(place - 1)))

    def objective(self, place: int) -> Objective:
        """The objective on a domain, with what the method must know before it."""
        adaptation = self.adaptation
        first = adaptation.method in ("ewc", "distill") and not place
        if first or adaptation.method not in OF_MASKED_WORDS:
            return self.preset.objective  # before the first domain there is nothing to hold
        mask = self._mlm().mask
        if adaptation.method == "adapter":
            adapter = _adapter(adaptation)
            base, seed = self.preset.start.model, self.preset.seed
            return DomainAdapter(base=base, adapter=adapter, seed=seed, mask=mask)
        if adaptation.method == "distill":
            return Distill(
                teacher=str(self.folder(place - 1)),
                mask=mask,
                weight=adaptation.weight,
                temperature=adaptation.temperature,
            )
        state = str(self.state(place))
        if adaptation.method == "ewc":
            return EWC(state=state, mask=mask, strength=adaptation.strength)
        return DAS(state=state, mask=mask, soften=adaptation.soften)

    def state(self, place: int) -> Path:
        """The file with what is known before the training on a domain; measured where missing."""
        path = self._state_file(place)
        made_from = json.dumps(self._made_from(place))
        if (held := _made_from_of(path)) is not None:
            if held != made_from:
                raise BenchError(f"{path} was measured for another sequence", "name another folder")
            return path
        measured = self._measure(place)
        tensors = {name: value.cpu().contiguous() for name, value in measured.items()}
        with replacing_in(path.parent) as folder:
            save_file(tensors, str(folder / path.name), metadata={MADE_FROM: made_from})
        return path

    def _made_from(self, place: int) -> Mapping[str, Any]:
        """All that decides a state, but for earlier states and checkpoints, which have records."""
        texts = self._measured_domain(place).texts
        return {
            "method": self.adaptation.method,
            "measured": self.adaptation.measured,
            "texts": len(texts),
            "sample": sample_of(texts),
            "preset": to_table(self._preset(place)),
        }

    def _measured_domain(self, place: int) -> Domain:
        """The domain just learnt; before all, the first stands for what the model knows."""
        return self.domains[max(place - 1, 0)]

    def _measure(self, place: int) -> dict[str, Tensor]:
        texts = self._measured_domain(place).texts
        measured = self.folder(place - 1).name if place else "start"
        stage = f"{measured}: what it depends on"
        measurement = Measurement(
            self._preset(place),
            self._mlm(),
            texts,
            self.adaptation.measured,
            self.context.device,
            lambda read, count: self.context.report(Progress(stage, read, count, "texts")),
        )
        before = self._state_file(place - 1)
        if self.adaptation.method == "ewc":
            return measurement.held(before if place > 1 else None)
        return measurement.importance(before if place else None)

    def _preset(self, place: int) -> Pretraining:
        """The preset of the training on a domain, with the start of that training."""
        preset = msgspec.structs.replace(self.preset, start=self.start(place))
        if self.adaptation.method == "joint":  # as long as the sequence so far; epochs read it all
            times = place + 1
            steps, tokens = (length and length * times for length in (preset.steps, preset.tokens))
            return msgspec.structs.replace(preset, steps=steps, tokens=tokens)
        if self.adaptation.method != "adapter" or _adapter(self.adaptation).allows_weight_decay:
            return preset
        optimizer = msgspec.structs.replace(preset.optimizer, weight_decay=0.0)
        return msgspec.structs.replace(preset, optimizer=optimizer)

    def _state_file(self, place: int) -> Path:
        return self.context.out / STATES / f"{place + 1}.safetensors"

    def _mlm(self) -> MLM:
        if not isinstance(self.preset.objective, MLM):
            raise TypeError("checked before")
        return self.preset.objective


def _made_from_of(path: Path) -> str | None:
    """Training that a state file says it was made from; None where it is missing or damaged."""
    if not path.exists():
        return None
    try:
        with safe_open(str(path), framework="pt") as held:
            return str((held.metadata() or {}).get(MADE_FROM))
    except (OSError, SafetensorError) as error:
        logger.warning("%s is damaged, and is measured again: %s", path, error)
        return None
