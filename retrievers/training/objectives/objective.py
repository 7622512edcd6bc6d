"""Base class of pre-training objectives, and the lookup of objectives by name.

An objective is a module of this package, or a file of the user. Its name in presets is the module's
name and, in lower case, the name of the module's class, or the path of the file. The class is a
strict, frozen record with the settings of the ``[objective]`` table, which makes the batches and
the training module. Modules are found by their names, not listed anywhere.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypedDict

import msgspec
import numpy as np

from foundation.arrays import BoolArray, Int64Array
from foundation.errors import BenchError, did_you_mean
from foundation.records import Record, convert_table
from foundation.sources import SUFFIX, hash_sources, load_class
from retrievers.training.objectives.masking import TokenBatch, Vocabulary, tokenize

if TYPE_CHECKING:
    from torch import Tensor, nn

    from retrievers.training.objectives.masked_lm import MaskedLM

Rate = Annotated[float, msgspec.Meta(gt=0, lt=1)]  # a share of the tokens

HELPERS = {"objective", "masking", "masked_lm"}  # modules that are not objectives
PLUGINS = ("retrievers.training.objectives", "retrievers.training.continual")
MASK = "_mask"  # end of the names of arrays that mark tokens
DTYPES = ("int64", "bool", "float32")


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

        Each is an array of int64, bool or float32. At least one name ends in ``_mask``: that array
        is int64 or bool, and 1 or True at each token that is read, which counts the tokens of the
        training.

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
            check_batch(batch, self.name)
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
    if name.endswith(SUFFIX):
        return _load_objective(name)
    if name not in objective_names():
        known = f"use one of {', '.join(objective_names())}, or a {SUFFIX} file"
        hint = did_you_mean(name, objective_names(), known)
        raise BenchError(f"no pre-training objective is called {name!r}", hint)
    module = importlib.import_module(f"{__name__.rpartition('.')[0]}.{name}")
    return next(
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Objective) and kind.__name__.lower() == name
    )


def _load_objective(path: str) -> type[Objective]:
    """Return the class of a file, which ``path`` names in presets and in records."""
    kind = load_class(path, Settings)

    class FromFile(kind, tag=path):  # type: ignore[misc, valid-type, call-arg]
        @property
        def name(self) -> str:
            return path

    FromFile.__name__, FromFile.__module__ = kind.__name__, kind.__module__
    return FromFile


def hash_code(plugin: object) -> dict[str, str]:
    """Return hashes of the sources that define an objective or a continual learning method.

    These are its own file, the objectives and methods that it extends, and what they import from
    the user, see `hash_sources`.
    """

    def is_plugin(module: str) -> bool:
        package, _, name = module.rpartition(".")
        return package in PLUGINS and name not in {*HELPERS, "sequence"}

    return hash_sources(type(plugin).__module__, is_plugin)


def check_batch(batch: Any, objective: str, forward: Callable[..., object] | None = None) -> None:
    """Raise if a batch is not what `Objective.batch` describes.

    Args:
        batch: arrays or tensors by name.
        objective: name of the objective, for messages.
        forward: function that takes the batch, whose arguments are compared.

    Raises:
        BenchError: If it is not. The message names the array.
    """
    problem = ""
    if not isinstance(batch, Mapping):
        problem = f"is {type(batch).__name__}, not a dictionary of arrays"
    elif wrong := [name for name, array in batch.items() if _dtype(array) not in DTYPES]:
        problem = f"has {wrong[0]} as {_dtype(batch[wrong[0]])}, not {', '.join(DTYPES)}"
    elif not any(name.endswith(MASK) and _dtype(batch[name]) != "float32" for name in batch):
        problem = f"has no int64 or bool array whose name ends in {MASK}: {', '.join(batch)}"
    elif forward is not None:
        try:
            inspect.signature(forward).bind(**batch)
        except TypeError as error:
            problem = f"has {', '.join(batch)}, which does not fit forward: {error}"
    if problem:
        raise BenchError(
            f"the batch of the objective {objective} {problem}",
            "Return what forward takes, with attention_mask: 1 at each token, 0 at padding.",
        )


def _dtype(array: Any) -> str:
    """Return the dtype of an array or tensor, or the type of another object."""
    return str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")


def read_objective(table: Any) -> Objective:
    """Read the objective of a preset: ``"mlm"``, or its table, such as ``{"name": "mlm"}``.

    Args:
        table: name and settings of the objective, or only its name, which may be a path.

    Raises:
        BenchError: If the name or a setting is missing, unknown or of the wrong type.
    """
    table = {"name": table} if isinstance(table, str) else table
    name = table.get("name") if isinstance(table, Mapping) else None
    if not isinstance(name, str):
        raise BenchError(
            "[objective] has no name", f"Set name to one of {', '.join(objective_names())}."
        )
    return convert_table(table, objective_type(name), f"objective {name}")
