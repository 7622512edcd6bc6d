"""Continual pre-training: one checkpoint per domain, each trained from the previous one.

A method is a subclass of `Method` that is listed in `METHODS`, or a file of the user. What it needs
to know of earlier domains is measured between two trainings and stored, so that none of their texts
is read again. The same call continues a sequence, which may have new domains at its end.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from foundation.errors import BenchError
from foundation.files import replace_entries
from foundation.records import Record
from retrievers.encoders.device import pick_device
from retrievers.models.resolve import Model, resolve_model
from retrievers.training.engine.context import Progress, TrainingContext, world_size
from retrievers.training.engine.run_folder import lock_folder
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.mlm import MLM
from retrievers.training.objectives.objective import Objective, hash_code, read_plugin
from retrievers.training.preset import Pretraining, Start
from retrievers.training.pretrain.start import hash_initial, open_start
from retrievers.training.pretrain.texts import Stream, hash_texts, training_texts

if TYPE_CHECKING:
    from retrievers.training.pretrain.pretrain import PretrainResult

PACKAGE = "retrievers.training.continual"
METHODS = {  # modules by the names of their methods
    **dict.fromkeys(("plain", "joint", "replay", "adapter", "ewc"), f"{PACKAGE}.methods"),
    "das": f"{PACKAGE}.das",
}
STATES = "states"
MADE_FROM = "made_from"  # metadata of a state file

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Domain:
    """Corpus of the sequence: the name of a collection, and at least one text.

    The card of a model trained on it names the collections ``trained_on``, or else ``name``.
    """

    name: str
    texts: Sequence[str]
    trained_on: tuple[str, ...] = ()


class Method(Record, kw_only=True, tag_field="name", tag=str.lower):
    """Method of continual learning: its settings, and the changes it makes to each training.

    Attributes:
        restarts: whether every training begins with the start model of the sequence instead of the
            previous checkpoint.
        separate_models: whether each domain is searched with the model trained on that domain
            alone.
        reads_all_domains: whether a training reads all domains so far, and takes as long as the
            sequence so far.
        adds_to_mlm: whether the method extends masked language modelling and supports no other
            objective.
    """

    restarts: ClassVar[bool] = False
    separate_models: ClassVar[bool] = False
    reads_all_domains: ClassVar[bool] = False
    adds_to_mlm: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the method, or the path of its file."""
        return str(self.__struct_config__.tag)

    def texts(self, step: "DomainStep") -> Sequence[str]:
        """Return the texts that the training of ``step`` reads."""
        return step.domains[-1].texts

    def objective(self, step: "DomainStep") -> Objective:
        """Return the objective of the training of ``step``. Measure state that it needs first."""
        return step.preset.objective

    def check(self, preset: Pretraining) -> None:
        """Raise if the method cannot use ``preset``. Reads neither texts nor a model."""
        if self.adds_to_mlm and preset.objective.name != "mlm":
            raise BenchError(
                f"{self.name} supports masked language modelling only, not {preset.objective.name}",
                "Use a preset with the objective mlm, or the method plain.",
            )


def read_method(table: Any) -> Method:
    """Read a method from ``"ewc"``, or from its table, such as ``{"name": "ewc"}``."""
    return read_plugin(table, Method, METHODS, "method of continual learning")


def adapt(
    preset: Pretraining, domains: Sequence[Domain], method: Method, context: TrainingContext
) -> "tuple[PretrainResult, ...]":
    """Pre-train on one domain after the other, each once, and return one result for each.

    The folder of the context gets one checkpoint per domain, see `domain_folder`, and the folder
    ``states`` if the method stores state.
    """
    check_sequence(preset, domains, method)
    context = context.with_folder(context.out.resolve())
    with lock_folder(context.out):
        return tuple(
            _train(preset, domains[:count], method, context) for count in range(1, len(domains) + 1)
        )


def domain_folder(out: Path, index: int, name: str) -> Path:
    """Return the checkpoint's folder in ``out`` after the domain ``name`` with number ``index``."""
    return out / f"{out.resolve().name}-{index + 1}-{name.strip('/').replace('/', '-')}"


def check_sequence(preset: Pretraining, domains: Sequence[Domain], method: Method) -> None:
    """Raise before any work if a sequence cannot be trained."""
    method.check(preset)
    if world_size() > 1:
        raise BenchError(
            "a sequence is trained by a single process", "Start it without `accelerate launch`."
        )
    names = [domain.name for domain in domains]
    for domain in domains:
        if (count := names.count(domain.name)) > 1:
            raise BenchError(f"the domain {domain.name} is listed {count} times", "List it once.")
        if not len(domain.texts):
            raise BenchError(f"the domain {domain.name} has no texts", "Leave it out.")


def _train(
    preset: Pretraining, domains: Sequence[Domain], method: Method, context: TrainingContext
) -> "PretrainResult":
    """Train on the last of ``domains``, after the others were learnt."""
    # late: those who read a method do without the Trainer, which takes seconds to import
    from retrievers.training.pretrain.pretrain import pretrain

    replace = msgspec.structs.replace
    last, used = len(domains) - 1, _find_used(preset.start)
    if last and not method.restarts:
        before = domain_folder(context.out, last - 1, domains[-2].name)
        preset = replace(preset, start=Start(model=str(before)))
    if method.reads_all_domains:  # epochs already scale with the texts
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
        trained_on=tuple(name for each in read for name in each.trained_on or (each.name,)),
        like=used,
        method=hash_code(method),
    )


def _find_used(start: Start) -> Model | None:
    """Return the model that ``start`` is used as, or None if it has no card of a plain encoder."""
    try:
        model = resolve_model(start.model)
    except BenchError:
        return None
    return None if model.card.stages or model.card.encoder else model


@dataclass(frozen=True)
class DomainStep:
    """Training on the last of ``domains``, as a method sees it. ``context`` is the sequence's."""

    preset: Pretraining
    domains: Sequence[Domain]
    context: TrainingContext

    @property
    def index(self) -> int:
        """Number of the domain, from 0."""
        return len(self.domains) - 1

    @property
    def mlm(self) -> MLM:
        """Objective of the preset, for methods that extend masked language modelling."""
        assert isinstance(self.preset.objective, MLM)  # see `Method.check`
        return self.preset.objective

    def state_file(self, index: int) -> Path:
        """Return the file with the state measured before the training on domain ``index``."""
        return self.context.out / STATES / f"{index + 1}.safetensors"

    def state(
        self, method: Method, measured: int, measure: Callable[[], Mapping[str, Tensor]]
    ) -> str:
        """Return the file with the state before this training, measured if necessary."""
        path = self.state_file(self.index)
        texts = self._learnt_domain.texts
        # Everything that decides the state except earlier states and checkpoints.
        made_from = json.dumps(
            {
                "method": method.name,
                "measured": measured,
                "texts": len(texts),
                "sha256": hash_texts(texts),
                "start": hash_initial(self.preset.start),
                "preset": msgspec.to_builtins(self.preset),
                "code": hash_code(method),
            }
        )
        if not path.exists():
            tensors = {name: value.cpu().contiguous() for name, value in measure().items()}
            with replace_entries(path.parent) as folder:
                save_file(tensors, str(folder / path.name), metadata={MADE_FROM: made_from})
        with safe_open(str(path), framework="pt") as file:
            if file.metadata()[MADE_FROM] != made_from:
                problem = f"{path} was measured for a different sequence"
                raise BenchError(problem, "Use another folder.")
        return str(path)

    def open(self) -> tuple[MaskedLM, Any]:
        """Load the encoder that this training starts from, with its head, and the tokenizer."""
        started = open_start(self.preset.start, self.preset.seed, self._learnt_domain.texts)
        started.build_module(self.mlm, self.preset.seed)
        return started.encoder.to(pick_device(self.context.device)), started.tokenizer

    def batches(self, tokenizer: Any, measured: int, size: int) -> Iterator[Batch]:
        """Yield masked batches of at most ``measured`` texts of the previous domain."""
        preset, device = self.preset, pick_device(self.context.device)
        collate = self.mlm.collator(tokenizer, preset.max_tokens)
        texts = training_texts(preset, self._learnt_domain.texts, tokenizer)
        count = min(measured, len(texts))
        stream = Stream(texts, count, preset.seed)
        learnt = domain_folder(self.context.out, self.index - 1, self._learnt_domain.name).name
        stage = f"{learnt if self.index else 'start'}: measuring"
        for first in range(0, count, size):
            examples = [stream[index] for index in range(first, min(first + size, count))]
            yield {name: value.to(device) for name, value in collate(examples).items()}
            self.context.report(Progress(stage, first + len(examples), count, "texts"))

    @property
    def _learnt_domain(self) -> Domain:
        """Previous domain, or the first domain in place of general knowledge."""
        return self.domains[max(self.index - 1, 0)]


def read_state(path: Path | str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read the tensors of a state file with the names, shapes, dtypes and devices of ``like``."""
    tensors = load_file(str(path))
    for name, expected in like.items():
        if name not in tensors or tensors[name].shape != expected.shape:
            raise BenchError(
                f"{path} does not fit this model: {name}", "Remove it to measure it again."
            )
    return {name: tensors[name].to(expected) for name, expected in like.items()}
