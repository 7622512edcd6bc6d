"""Base class of pre-training objectives, and the lookup of objectives and methods by name.

An objective is a class of this package, listed in `OBJECTIVES`, or a file of the user. The class is
a strict record with the settings of the ``[objective]`` table.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypedDict, TypeVar

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

PACKAGE = "retrievers.training.objectives"
OBJECTIVES = {  # modules by the names of their objectives
    "mlm": f"{PACKAGE}.mlm",
    "condenser": f"{PACKAGE}.condenser",
    "cocondenser": f"{PACKAGE}.condenser",
    "retromae": f"{PACKAGE}.retromae",
    "dupmae": f"{PACKAGE}.retromae",
    "cotmae": f"{PACKAGE}.retromae",
    "simcse": f"{PACKAGE}.simcse",
}
PLUGINS = (PACKAGE, "retrievers.training.continual")
HELPERS = ("objective", "masking", "masked_lm", "sequence")  # modules without a plug-in
MASK = "_mask"  # end of the names of arrays that mark tokens
DTYPES = ("int64", "bool", "float32")

T = TypeVar("T", bound=Record)


class Example(TypedDict):
    """Text of the training's stream, and the seed of its random draws.

    A collator derives all its draws from the seed, so that a resumed run repeats them.
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
    __struct_config__: ClassVar[Any]

    @property
    def name(self) -> str:
        """Name in presets."""
        return str(self.__struct_config__.tag)

    def build_module(self, encoder: "MaskedLM") -> "nn.Module":
        """Build the module that trains ``encoder``, or raise if the settings do not fit it.

        The module holds the encoder as its attribute ``encoder``. All other weights are saved
        separately and dropped from the finished checkpoint. ``forward(**batch)`` returns a
        dictionary of scalars: ``loss``, which is minimised, and its components by name. The module
        may have ``save_encoder(folder, card)`` if its result is not a complete encoder.
        """
        raise NotImplementedError

    def read(
        self, texts: Sequence[str], tokenizer: Any, max_tokens: int, rng: np.random.Generator
    ) -> TokenBatch:
        """Tokenize texts for the encoder, each up to ``max_tokens`` with special tokens."""
        return tokenize(tokenizer, texts, max_tokens)

    def batch(self, tokens: TokenBatch, vocabulary: Vocabulary, rng: np.random.Generator) -> Batch:
        """Return the arguments of the module's ``forward``, for the result of `read`.

        Each is an array of int64, bool or float32. At least one name ends in ``_mask``: that array
        is int64 or bool, and 1 or True at each token that is read, which counts the tokens of the
        training.
        """
        raise NotImplementedError

    def collator(self, tokenizer: Any, max_tokens: int) -> Collator:
        """Return a function that turns examples into the batch that ``forward`` takes."""
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


def read_objective(table: Any) -> Objective:
    """Read the objective of a preset: ``"mlm"``, or its table, such as ``{"name": "mlm"}``."""
    return read_plugin(table, Settings, OBJECTIVES, "pre-training objective")


def read_plugin(table: Any, base: type[T], modules: Mapping[str, str], kind: str) -> T:
    """Read the settings of an objective or method of the class ``base``, a ``kind`` in messages.

    ``table`` is the name, which may be the path of a file, or settings with a ``name``.
    """
    table = {"name": table} if isinstance(table, str) else table
    name = table.get("name") if isinstance(table, Mapping) else None
    if not isinstance(name, str):
        raise BenchError(f"the {kind} has no name", f"Set name to one of {', '.join(modules)}.")
    if name.endswith(SUFFIX):
        plugin = _load_file(name, base)
    elif name not in modules:
        known = f"Use one of {', '.join(modules)}, or a {SUFFIX} file."
        raise BenchError(f"no {kind} is called {name!r}", did_you_mean(name, modules, known))
    else:
        plugin = next(
            each
            for each in vars(importlib.import_module(modules[name])).values()
            if isinstance(each, type)
            and issubclass(each, base)
            and each.__struct_config__.tag == name
        )
    return convert_table(table, plugin, f"{kind} {name}")


def _load_file(path: str, base: type[T]) -> type[T]:
    kind = load_class(path, base)

    class FromFile(kind, tag=path):  # type: ignore[misc, valid-type, call-arg]
        pass

    FromFile.__name__, FromFile.__module__ = kind.__name__, kind.__module__
    return FromFile


def hash_code(plugin: object) -> dict[str, str]:
    """Return hashes of the sources that define an objective or a continual learning method.

    These are its own file, the objectives and methods that it extends, and what they import from
    the user.
    """

    def is_plugin(module: str) -> bool:
        package, _, name = module.rpartition(".")
        return package in PLUGINS and name not in HELPERS

    return hash_sources(type(plugin).__module__, is_plugin)


def check_batch(batch: Any, objective: str, forward: Callable[..., object] | None = None) -> None:
    """Raise if a batch is not what `Objective.batch` describes, or not what ``forward`` takes."""
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


def count_tokens(batch: Mapping[str, Any]) -> Any:
    """Return the number of tokens in ``batch``, a scalar tensor. Padding does not count."""
    return sum(mask.sum() for name, mask in batch.items() if name.endswith(MASK))


def _dtype(array: Any) -> str:
    return str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")
