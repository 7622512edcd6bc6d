"""Kinds of model: what a card may state about each, and which options it honours.

A card and a recipe name their kind. Code that depends on the kind asks the properties here, and
never compares names. To add a kind, see *Extension points* in the documentation.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from foundation.errors import BenchError

KindName = Literal[
    "transformer", "hashing", "bm25", "python", "endpoint", "vectors", "system", "fusion", "rerank"
]
# Options of whatever has vectors, as fields of requests.
OF_VECTORS = frozenset({"store_dtype", "dimensions", "precision", "rescore", "index", "view"})
OF_TEXTS = frozenset({"max_query_tokens", "max_document_tokens", "query_prompt"})
SET_BY_NAME = OF_TEXTS | {"store_dtype"}  # on the command line by --set NAME=VALUE
OF_SYSTEMS = ("concurrency", "passages", "timeout")
SIMILARITY = frozenset({"normalize", "similarity"})
TEXTS = SIMILARITY | {"prompts", "title_join"}
LENGTHS = frozenset({"max_query_tokens", "max_document_tokens"})
NETWORK = frozenset({"pooling", "segment_ids", "truncation_side", "lower_case", "dtype"})
LAYERS = frozenset({"checkpoint", "query_checkpoint", "stages", "adapter"})


@dataclass(frozen=True)
class Kind:
    """A kind of model.

    Attributes:
        title: how messages describe it, after the name of a model.
        fields: fields of a card that not all kinds have, and this one has.
        honours: options that change the rankings of such a model. `check_options` refuses others.
        makes_vectors: whether texts become vectors.
        is_network: whether it is a transformer of this program.
        is_stated: whether its recipe determines its vectors. Otherwise an object does, of which the
            fields of `Usage` are descriptions.
        is_opaque: whether its parameters are not in files that can be counted.
        is_remote: whether texts are sent to a server.
        reads_ids: whether it looks vectors up by the ids of documents and queries, instead of
            encoding their texts.
        has_members: whether it makes one ranking of those of other models, which its card names.
        fewest_dimensions: smallest allowed value of its option ``dim``.
    """

    title: str
    fields: frozenset[str]
    honours: frozenset[str] = OF_VECTORS
    makes_vectors: bool = True
    is_network: bool = False
    is_stated: bool = True
    is_opaque: bool = False
    is_remote: bool = False
    reads_ids: bool = False
    has_members: bool = False
    fewest_dimensions: int = 0

    def check_options(self, model: str, given: Iterable[str]) -> None:
        """Raise a `BenchError` if options would change nothing.

        Args:
            model: name of the model.
            given: names of the options with another value than their default.
        """
        if ignored := sorted({*given} - self.honours):
            options = ", ".join(name if name in SET_BY_NAME else f"--{name}" for name in ignored)
            problem = f"{options} cannot be set for {model}, which {self.title}"
            raise BenchError(problem, "Leave it out, or run the model in a command of its own.")


KINDS: dict[KindName, Kind] = {
    "transformer": Kind(
        "is a transformer",
        TEXTS | LENGTHS | NETWORK | LAYERS,
        honours=OF_VECTORS | OF_TEXTS | {"dtype", "adapter"},
        is_network=True,
    ),
    "hashing": Kind(
        "hashes words", TEXTS | LENGTHS, honours=OF_VECTORS | OF_TEXTS, fewest_dimensions=1
    ),
    "bm25": Kind(
        "ranks by words and has no vectors",
        frozenset(),
        honours=frozenset(),
        makes_vectors=False,
    ),
    "python": Kind(
        "is encoded by code of its own",
        SIMILARITY | {"prompts", "dtype", "checkpoint", "encoder"},
        honours=OF_VECTORS | {"dtype", "query_prompt"},
        is_stated=False,
        is_opaque=True,
    ),
    "endpoint": Kind(
        "is encoded by a server",
        TEXTS | {"url", "endpoint_model"},
        honours=OF_VECTORS | {"query_prompt"},
        is_opaque=True,
        is_remote=True,
    ),
    "vectors": Kind(
        "is a folder of ready vectors",
        SIMILARITY | {"checkpoint"},
        is_opaque=True,
        reads_ids=True,
    ),
    "fusion": Kind(
        "fuses the rankings of other models",
        frozenset({"models", "method", "k", "normalization", "weights", "depth"}),
        honours=frozenset(),
        makes_vectors=False,
        has_members=True,
    ),
    "rerank": Kind(
        "reranks the documents of another model",
        frozenset({"model", "reranker", "depth", "title_join", "dtype"}),
        honours=frozenset(),
        makes_vectors=False,
        has_members=True,
    ),
    "system": Kind(
        "is a search system",
        frozenset({"encoder"}),
        honours=frozenset(OF_SYSTEMS),
        makes_vectors=False,
        is_opaque=True,
    ),
}
