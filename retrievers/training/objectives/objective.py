"""The base class of pre-training objectives, and how they are found.

An objective is one file of this package. Its name in a preset is that of the file and, in lower
case, that of the file's class: a strict, frozen record with the settings of the ``[objective]``
table, which makes the batches and the module that is trained on them. Nothing else lists it.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypedDict

import msgspec
import numpy as np

from foundation.arrays import BoolArray, Int64Array
from foundation.errors import BenchError, did_you_mean
from foundation.records import Record, convert_table
from retrievers.training.objectives.masking import TokenBatch, Vocabulary, tokenize

if TYPE_CHECKING:
    from torch import Tensor, nn

    from retrievers.training.objectives.masked_lm import MaskedLM

Rate = Annotated[float, msgspec.Meta(gt=0, lt=1)]  # a share of the tokens

NOT_OBJECTIVES = {"objective", "masking", "masked_lm"}  # files that are no objectives


class Example(TypedDict):
    """One place in the stream of training texts.

    Attributes:
        text: of the document.
        draw: a number of its own for every place, the same in every run with the same seed: what
            a collator draws must follow from it alone, so that a resumed run draws the same.
    """

    text: str
    draw: int


Collator = Callable[[Sequence[Example]], "dict[str, Tensor]"]
Batch = dict[str, Int64Array | BoolArray]


class Objective:
    """An objective: its settings make the batches and the module that is trained on them.

    Attributes:
        reads_documents: whether it draws its spans from whole documents.
        similarity: by which the trained vectors are compared, ``dot`` or ``cos``.
    """

    __slots__ = ()
    reads_documents: ClassVar[bool] = False
    similarity: ClassVar[str] = "dot"

    @property
    def name(self) -> str:
        """Name in presets."""
        return type(self).__name__.lower()

    def build_module(self, encoder: "MaskedLM") -> "nn.Module":
        """A module that trains the encoder.

        It holds the encoder as its attribute ``encoder``; whatever else it holds is saved apart
        and dropped from the finished checkpoint. ``forward(**batch)`` returns a dictionary of
        scalars: ``loss``, which is minimised, and the losses that it is the sum of, by name. It
        may have ``before_step()`` and ``after_step()``, called around each step of the optimizer,
        and ``save_encoder(folder, card)`` where its result is not a whole encoder.

        Raises:
            BenchError: the settings do not fit the encoder.
        """
        raise NotImplementedError

    def read(
        self, texts: Sequence[str], tokenizer: Any, max_tokens: int, rng: np.random.Generator
    ) -> TokenBatch:
        """The tokens of texts that the encoder reads."""
        return tokenize(tokenizer, texts, max_tokens)

    def batch(self, tokens: TokenBatch, vocabulary: Vocabulary, rng: np.random.Generator) -> Batch:
        """The arguments of the module's ``forward``, from the tokens of `read`."""
        raise NotImplementedError

    def collator(self, tokenizer: Any, max_tokens: int) -> Collator:
        """Collator that turns texts into the batch that ``forward`` takes.

        Raises:
            BenchError: the tokenizer has no mask token.
        """
        from torch import from_numpy

        vocabulary = Vocabulary.of(tokenizer)

        def collate(examples: Sequence[Example]) -> "dict[str, Tensor]":
            rng = np.random.default_rng([example["draw"] for example in examples])
            texts = [example["text"] for example in examples]
            batch = self.batch(self.read(texts, tokenizer, max_tokens, rng), vocabulary, rng)
            return {name: from_numpy(values) for name, values in batch.items()}

        return collate


class Settings(Objective, Record, kw_only=True, tag_field="name", tag=str.lower):
    """Base class of the settings of objectives, strict records with the name in ``name``."""


def objective_names() -> tuple[str, ...]:
    """Names of all objectives, sorted."""
    folders = importlib.import_module(__name__.rpartition(".")[0]).__path__
    return tuple(sorted({file.name for file in pkgutil.iter_modules(folders)} - NOT_OBJECTIVES))


def objective_type(name: str) -> type[Objective]:
    """The class of an objective, imported when it is asked for: it imports torch.

    Raises:
        BenchError: there is none of that name.
    """
    if name not in objective_names():
        hint = did_you_mean(name, objective_names(), f"use one of {', '.join(objective_names())}")
        raise BenchError(f"no pre-training objective is called {name!r}", hint)
    module = importlib.import_module(f"{__name__.rpartition('.')[0]}.{name}")
    return next(
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Objective) and kind.__name__.lower() == name
    )


def read_objective(table: Any) -> Objective:
    """The objective of a preset's ``[objective]`` table, such as ``{"name": "mlm"}``.

    Raises:
        BenchError: no name, an unknown one, an unknown field, or a value of the wrong type.
    """
    name = table.get("name") if isinstance(table, Mapping) else None
    if not isinstance(name, str):
        raise BenchError("[objective] has no name", f"name = one of {', '.join(objective_names())}")
    return convert_table(table, objective_type(name), f"objective {name}")
