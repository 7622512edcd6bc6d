"""Continual pre-training: one checkpoint per domain, each going on from the one before.

A method is one file of this package, with a class of the base `Method` in it. Its name is that of
the file, and nothing else lists it. What a method must know of earlier domains is measured between
two trainings and kept in a file, so that no text of an earlier domain is read again. A sequence
that was killed goes on where it was when the same call is made again; domains can be added at its
end.
"""

import importlib
import json
import logging
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from foundation.errors import BenchError, did_you_mean
from foundation.files import replace_entries
from foundation.records import Record, convert_table
from retrievers.encoders.device import pick_device
from retrievers.training.engine.arguments import Progress, TrainingContext, world_size
from retrievers.training.engine.run_folder import lock_folder
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.mlm import MLM
from retrievers.training.objectives.objective import Objective
from retrievers.training.pretrain.preset import Pretraining, Start, to_table
from retrievers.training.pretrain.pretrain import PretrainResult, check_length, pretrain
from retrievers.training.pretrain.start import open_start
from retrievers.training.pretrain.texts import Stream, hash_sample, training_texts

logger = logging.getLogger(__name__)

STATES = "states"
MADE_FROM = "made_from"  # metadata of a state file
NOT_METHODS = {"sequence"}  # files that are no methods

Batch = dict[str, Tensor]


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


class Method(Record, kw_only=True):
    """A way to learn a sequence of domains: its settings, and what it changes of each training.

    Attributes:
        from_start: every training begins where the sequence does, not from the model before.
        kept_apart: each domain is searched with what was trained on it alone.
        reads_all: a training reads all domains so far, as long as the sequence so far.
        adds_to_mlm: it adds to masked language modelling, and is for no other objective.
    """

    restarts: ClassVar[bool] = False
    separate_models: ClassVar[bool] = False
    reads_all_domains: ClassVar[bool] = False
    adds_to_mlm: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of its file."""
        return type(self).__module__.rpartition(".")[2]

    def texts(self, step: "DomainStep") -> Sequence[str]:
        """Return the texts that the training on a domain reads."""
        return step.domains[-1].texts

    def objective(self, step: "DomainStep") -> Objective:
        """Return the objective on a domain, with what the method must know before it."""
        return step.preset.objective

    def check(self, preset: Pretraining) -> None:
        """Refuse a preset that the method cannot use; reads neither texts nor a model.

        Raises:
            BenchError: its objective, gradient checkpointing or start is not for the method.
        """
        if self.adds_to_mlm and preset.objective.name != "mlm":
            raise BenchError(
                f"{self.name} is for masked language modelling, not {preset.objective.name}",
                "use a preset with the objective mlm, or the method plain",
            )


def method_names() -> tuple[str, ...]:
    """Return the names of all methods, sorted."""
    folders = importlib.import_module(__name__.rpartition(".")[0]).__path__
    return tuple(sorted({file.name for file in pkgutil.iter_modules(folders)} - NOT_METHODS))


def method_type(name: str) -> type[Method]:
    """Return the class of a method.

    Raises:
        BenchError: there is none of that name.
    """
    names = method_names()
    if name not in names:
        hint = did_you_mean(name, names, f"use one of {', '.join(names)}")
        raise BenchError(f"no method of continual learning is called {name!r}", hint)
    module = importlib.import_module(f"{__name__.rpartition('.')[0]}.{name}")
    return next(
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Method)
        and kind.__module__ == module.__name__
    )


def read_method(table: Any, source: str) -> Method:
    """Return the method of a table such as ``{"name": "ewc"}``, or of its name alone.

    Raises:
        BenchError: no name, an unknown one, an unknown setting, or a value of the wrong type.
    """
    settings = {"name": table} if isinstance(table, str) else dict(table)
    return convert_table(settings, method_type(str(settings.pop("name", ""))), source)


def method_table(method: Method) -> dict[str, Any]:
    """Return the table that `read_method` reads, with all settings."""
    return {"name": method.name, **msgspec.to_builtins(method)}


def adapt(
    preset: Pretraining, domains: Sequence[Domain], method: Method, context: TrainingContext
) -> tuple[PretrainResult, ...]:
    """Pre-train on one domain after the other.

    Args:
        preset: of each training.
        domains: in the order that they are learnt, each once.
        context: whose folder gets the checkpoints, see `domain_folder`, with ``states`` where the
            method keeps any.

    Returns:
        A checkpoint for each domain.

    Raises:
        BenchError: a preset or a model that the method cannot use, a folder with another
            sequence or another process, or what `pretrain` raises.
    """
    check_sequence(preset, domains, method)
    context = context.with_folder(context.out.resolve())
    with lock_folder(context.out):
        return tuple(
            _train(preset, domains[:count], method, context) for count in range(1, len(domains) + 1)
        )


def domain_folder(out: Path, index: int, name: str) -> Path:
    """Of the checkpoint after a domain: a name of its own wherever results are collected."""
    return out / f"{out.resolve().name}-{index + 1}-{name.strip('/').replace('/', '-')}"


def check_sequence(preset: Pretraining, domains: Sequence[Domain], method: Method) -> None:
    """Refuse what cannot work before any work.

    Raises:
        BenchError: see `adapt`.
    """
    method.check(preset)
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
    check_length(preset, open_start(preset.start, preset.seed, domains[0].texts))


def _train(
    preset: Pretraining, domains: Sequence[Domain], method: Method, context: TrainingContext
) -> PretrainResult:
    """Train on the last of some domains, after the others."""
    replace = msgspec.structs.replace
    last = len(domains) - 1
    if last and not method.restarts:
        before = domain_folder(context.out, last - 1, domains[-2].name)
        preset = replace(preset, start=Start(model=str(before)))
    if method.reads_all_domains:  # epochs read it all anyway
        steps, tokens = (
            length and length * len(domains) for length in (preset.steps, preset.tokens)
        )
        preset = replace(preset, steps=steps, tokens=tokens)
    step = DomainStep(preset, domains, context)
    read = domains if method.reads_all_domains else domains[-1:]
    return pretrain(
        replace(preset, objective=method.objective(step)),
        method.texts(step),
        context.with_folder(domain_folder(context.out, last, domains[-1].name)),
        trained_on=tuple(name for each in read for name in each.seen or (each.name,)),
    )


@dataclass(frozen=True)
class DomainStep:
    """The training on one domain of a sequence, as a method sees it.

    Attributes:
        preset: with the start of this training.
        domains: so far; the last is learnt now.
        context: of the sequence.
    """

    preset: Pretraining
    domains: Sequence[Domain]
    context: TrainingContext

    @property
    def index(self) -> int:
        """Number of the domain, from 0."""
        return len(self.domains) - 1

    @property
    def mlm(self) -> MLM:
        """The preset's objective of a method that adds to masked language modelling."""
        assert isinstance(self.preset.objective, MLM)  # see `Method.check`
        return self.preset.objective

    def state_file(self, index: int) -> Path:
        """Return the path of what is known before the training on a domain."""
        return self.context.out / STATES / f"{index + 1}.safetensors"

    def state(
        self, method: Method, measured: int, measure: Callable[[], Mapping[str, Tensor]]
    ) -> str:
        """Return the file with what is known before this training; measured where missing.

        Args:
            measured: texts that are read.
            measure: computes what the file holds.

        Raises:
            BenchError: the file was measured for another sequence.
        """
        path = self.state_file(self.index)
        texts = self._learnt_domain.texts
        # All that decides a state, but for earlier states and checkpoints, which have records.
        made_from = json.dumps(
            {
                "method": method.name,
                "measured": measured,
                "texts": len(texts),
                "sample": hash_sample(texts),
                "preset": to_table(self.preset),
            }
        )
        if (held := _read_made_from(path)) is not None:
            if held != made_from:
                raise BenchError(f"{path} was measured for another sequence", "name another folder")
            return str(path)
        tensors = {name: value.cpu().contiguous() for name, value in measure().items()}
        with replace_entries(path.parent) as folder:
            save_file(tensors, str(folder / path.name), metadata={MADE_FROM: made_from})
        return str(path)

    def open(self) -> tuple[MaskedLM, Any]:
        """Return the encoder that this training starts from, with its head, and the tokenizer."""
        started = open_start(self.preset.start, self.preset.seed, self._learnt_domain.texts)
        started.build_module(self.mlm, self.preset.seed)
        return started.encoder.to(pick_device(self.context.device)), started.tokenizer

    def batches(self, tokenizer: Any, measured: int, size: int) -> Iterator[Batch]:
        """Yield masked batches of what was learnt before, as training reads them.

        Args:
            measured: number of texts; all where there are fewer.
        """
        preset, device = self.preset, pick_device(self.context.device)
        collate = self.mlm.collator(tokenizer, preset.max_tokens)
        texts = training_texts(preset, self._learnt_domain.texts, tokenizer)
        count = min(measured, len(texts))
        stream = Stream(texts, count, preset.seed)
        learnt = domain_folder(self.context.out, self.index - 1, self._learnt_domain.name).name
        stage = f"{learnt if self.index else 'start'}: what it depends on"
        for first in range(0, count, size):
            examples = [stream[index] for index in range(first, min(first + size, count))]
            yield {name: value.to(device) for name, value in collate(examples).items()}
            self.context.report(Progress(stage, first + len(examples), count, "texts"))

    @property
    def _learnt_domain(self) -> Domain:
        """The domain just learnt; before all, the first stands for what the model knows."""
        return self.domains[max(self.index - 1, 0)]


def read_state(path: Path | str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a state file, of the type and on the device of others by name.

    Raises:
        BenchError: they are those of another model.
    """
    held = load_file(str(path))
    for name, expected in like.items():
        if name not in held or held[name].shape != expected.shape:
            raise BenchError(
                f"{path} does not hold {name} of this model",
                "remove the file, and it is measured again",
            )
    return {name: held[name].to(expected) for name, expected in like.items()}


def _read_made_from(path: Path) -> str | None:
    """Training that a state file says it was made from; None if it is missing or damaged."""
    if not path.exists():
        return None
    try:
        with safe_open(str(path), framework="pt") as held:
            return str((held.metadata() or {}).get(MADE_FROM))
    except (OSError, SafetensorError) as error:
        logger.warning("%s is damaged, and is measured again: %s", path, error)
        return None
