"""Base class of pre-training objectives, and the lookup of objectives by name.

An objective is a module of this package. Its name in presets is the module's name and, in lower
case, the name of the module's class: a strict, frozen record with the settings of the
``[objective]`` table, which makes the batches and the training module. Modules are found by their
names, not listed anywhere.
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

HELPERS = {"objective", "masking", "masked_lm"}  # modules that are not objectives


class Example(TypedDict):
    """Text at one index of the training's stream.

    Attributes:
        text: the text.
        draw: seed of the text's random draws, unique for each index and equal in every run with the
            same seed. A collator must derive all its draws from it, so that a resumed run repeats
            them.
    """

    text: str
    draw: int


Collator = Callable[[Sequence[Example]], "dict[str, Tensor]"]
Batch = dict[str, Int64Array | BoolArray]


class Objective:
    """Objective, whose settings make the batches and the module that is trained on them.

    Attributes:
        reads_documents: whether it draws spans from complete documents.
        similarity: similarity of the trained vectors, ``dot`` or ``cos``.
    """

    __slots__ = ()
    reads_documents: ClassVar[bool] = False
    similarity: ClassVar[str] = "dot"

    @property
    def name(self) -> str:
        """Name in presets."""
        return type(self).__name__.lower()

    def build_module(self, encoder: "MaskedLM") -> "nn.Module":
        """Build the module that trains ``encoder``.

        The module holds the encoder as its attribute ``encoder``. All other weights are saved
        separately and dropped from the finished checkpoint. ``forward(**batch)`` returns a
        dictionary of scalars: ``loss``, which is minimised, and its components by name. The module
        may have ``save_encoder(folder, card)`` if its result is not a complete encoder.

        Raises:
            BenchError: If the settings do not fit the encoder.
        """
        raise NotImplementedError

    def read(
        self, texts: Sequence[str], tokenizer: Any, max_tokens: int, rng: np.random.Generator
    ) -> TokenBatch:
        """Tokenize texts for the encoder.

        Args:
            texts: texts of the batch.
            tokenizer: fast Hugging Face tokenizer.
            max_tokens: longest text in tokens, including special tokens.
            rng: random generator.
        """
        return tokenize(tokenizer, texts, max_tokens)

    def batch(self, tokens: TokenBatch, vocabulary: Vocabulary, rng: np.random.Generator) -> Batch:
        """Return the arguments of the module's ``forward``.

        Args:
            tokens: result of `read`.
            vocabulary: size and mask token of the vocabulary.
            rng: random generator.
        """
        raise NotImplementedError

    def collator(self, tokenizer: Any, max_tokens: int) -> Collator:
        """Return a function that turns examples into the batch that ``forward`` takes.

        Args:
            tokenizer: fast Hugging Face tokenizer.
            max_tokens: longest text in tokens, including special tokens.

        Raises:
            BenchError: If the tokenizer has no mask token.
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
    """Base class of the settings of objectives: strict records with a field ``name``."""


def objective_names() -> tuple[str, ...]:
    """Return the names of all objectives, sorted."""
    folders = importlib.import_module(__name__.rpartition(".")[0]).__path__
    return tuple(sorted({file.name for file in pkgutil.iter_modules(folders)} - HELPERS))


def objective_type(name: str) -> type[Objective]:
    """Return the class of the objective called ``name``. Its module is imported only then.

    Raises:
        BenchError: If no objective has this name.
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
    """Read the objective of a preset's ``[objective]`` table, such as ``{"name": "mlm"}``.

    Args:
        table: name and settings of the objective.

    Raises:
        BenchError: If the name or a setting is missing, unknown or of the wrong type.
    """
    name = table.get("name") if isinstance(table, Mapping) else None
    if not isinstance(name, str):
        raise BenchError(
            "[objective] has no name", f"Set name to one of {', '.join(objective_names())}."
        )
    return convert_table(table, objective_type(name), f"objective {name}")
