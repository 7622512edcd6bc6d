"""What ranks: `Retriever`, of which each kind of model has one subclass.

`bench.evaluation.registry` lists the kinds. Everything else calls the methods here and never asks
which kind a model is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from bench.evaluation.result_record import Latency, Timings
from bench.evaluation.runs import Run
from bench.store.indexes import IndexFolder
from bench.store.store import VectorStore
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from retrievers.encoders.protocol import Encoder
from retrievers.encoders.views import View
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.card import Card, Recipe, replace_fields
from retrievers.models.checkpoint import Parameters
from retrievers.models.kinds import OF_SYSTEMS
from retrievers.models.resolve import Model, count_parameters

FLAT = IndexSpec.parse("flat")


@dataclass(frozen=True)
class EvaluationOptions:
    """Settings of an evaluation that neither the collection nor the model decides.

    Attributes:
        index: index to search; ``flat`` is exact search, and ``bm25`` multiplies BM25's scores by
            the similarities of the documents that BM25 finds.
        depth: documents per query; None for the collection's.
        measures: measures besides the main one; None for the collection's.
        view: how vectors are made from those of an encoder that stores every pooling.
        recall_queries: number of queries on which the recall of an index is measured; None for all.
        from_index: folder of an exported index to search; None for an index of the store.
        concurrency: number of queries that a search system is asked at once; None for 1.
        passages: separator in ids of passages, whose documents are ranked; "" for documents.
        timeout: time limit of a call of a search system, in seconds; None for the default.
    """

    index: IndexSpec = FLAT
    depth: int | None = None
    measures: tuple[str, ...] | None = None
    view: View | None = None
    recall_queries: int | None = None
    from_index: Path | None = None
    concurrency: int | None = None
    passages: str = ""
    timeout: float | None = None

    @property
    def given(self) -> list[str]:
        """Names of the options that only some kinds honour and that are not at their defaults."""
        used = {
            "index": self.index != FLAT or self.from_index,
            "view": self.view,
            **{name: getattr(self, name) for name in OF_SYSTEMS},
        }
        return [name for name, is_given in used.items() if is_given]


@dataclass(frozen=True)
class Resources:
    """What a search may use.

    Attributes:
        store: vector store.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        max_memory: memory limit of this process in bytes; None for most of the free memory.
    """

    store: VectorStore
    device: str = "auto"
    max_memory: int | None = None


@dataclass(frozen=True)
class SearchStatistics:
    """How a ranking was computed.

    Attributes:
        timings: seconds of each stage.
        device: device that searched.
        recall: see `bench.evaluation.result_record.Result.index_recall`.
        preflight: checks of the model on a sample.
        latency: time of each query of a search system.
    """

    timings: Timings
    device: str = "cpu"
    recall: dict[str, float] = field(default_factory=dict)
    preflight: dict[str, Any] = field(default_factory=dict)
    latency: Latency | None = None


@dataclass(frozen=True, kw_only=True)
class Retriever(ABC):
    """A model that ranks the documents of a collection.

    Attributes:
        model: the resolved model.
        resources: store, device and memory of its searches.
        options: settings of the evaluation.
        members: retrievers whose rankings it fuses or reranks.
        asked: fields of the request that loaded it; empty for an object of Python.
    """

    model: Model
    resources: Resources
    options: EvaluationOptions = EvaluationOptions()
    members: tuple["Retriever", ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, model: Model, resources: Resources) -> Self:
        """Return the retriever of a resolved model. Weights are read at the first text."""
        return cls(model=model, resources=resources)

    @property
    def card(self) -> Card:
        """Settings stated about the model."""
        return self.model.card

    @property
    def recipe(self) -> Recipe:
        """Everything that determines the rankings, but for the options."""
        return self.model.recipe

    @property
    def name(self) -> str:
        """Name of the model in results."""
        return self.card.name

    def with_name(self, name: str) -> Self:
        """Return this model with another ``name`` in results, such as a training's."""
        recipe = msgspec.structs.replace(self.recipe, model=name)
        card = replace_fields(self.card, {"name": name})
        asked = {**self.asked, "name": name} if self.asked else {}
        return replace(self, model=replace(self.model, card=card, recipe=recipe), asked=asked)

    def configured(self, options: EvaluationOptions, resources: Resources) -> Self:
        """Return this model with other options and resources.

        Raises:
            BenchError: the kind of the model does not honour an option.
        """
        self.recipe.traits.check_options(self.name, options.given)
        return replace(self, options=options, resources=resources)

    def for_dataset(self, collection: str) -> Self:
        """Return this model with the prompts of ``collection``. Loaded weights are shared."""
        return replace(self, model=self.model.for_dataset(collection))

    def identify_members(self) -> Self:
        """Return this model with a recipe that its members identify, too."""
        return self

    def require_encoder(self) -> Encoder:
        """Return the encoder, or raise a `BenchError` if the model makes no vectors."""
        raise self._no_vectors()

    @property
    def encoders(self) -> tuple["Retriever", ...]:
        """Retrievers of vectors in this model, each once; an encoder is its own."""
        found = [each for member in self.members for each in member.encoders]
        return tuple({each.recipe.fingerprint: each for each in found}.values())

    def with_encoders(self, change: Callable[["Retriever"], "Retriever"]) -> "Retriever":
        """Return this model with each of its retrievers of vectors changed."""
        return self

    def build_index(self, dataset: Dataset) -> IndexFolder:
        """Build and store the index of ``dataset``, or raise a `BenchError` without vectors."""
        raise self._no_vectors()

    def _no_vectors(self) -> BenchError:
        inside = ", ".join(each.name for each in self.encoders)
        hint = f"Use an encoder in it: {inside}." if inside else "Use a model that encodes texts."
        return BenchError(f"{self.name} makes no vectors", hint)

    @property
    def index(self) -> str:
        """Index in results; "" for a model that searches none."""
        return ""

    @property
    def is_cuttable(self) -> bool:
        """True if the first k documents of every deeper ranking are what a search for k finds."""
        return False

    @property
    def tokens_sha256(self) -> str:
        """Digest of the token ids of fixed texts; "" without a tokenizer."""
        return ""

    @property
    def bytes_per_document(self) -> int | None:
        """Bytes that a search reads of each document, on average; None without vectors."""
        return None

    def recall_queries(self, dataset: Dataset) -> int | None:
        """Return the number of queries on which recall is measured, or None for all or no index."""
        return None

    def parameters(self) -> Parameters | None:
        """Return the parameters of the model, or None if they are unknown."""
        return count_parameters(self.model)

    def identified(self, dataset: Dataset, depth: int) -> Self:
        """Return this model with what is known of it only once it is asked, for ``dataset``.

        Raises:
            BenchError: what ranks differs from its first use, as far as is known.
        """
        return self

    def documents(self) -> Mapping[str, Mapping[str, str]]:
        """Return ``title`` and ``text`` of documents that the model itself has, by id."""
        return {}

    def missing(self, dataset: Dataset) -> int:
        """Return the number of documents of ``dataset`` that a search encodes first."""
        return 0

    @abstractmethod
    def check(self, dataset: Dataset, depth: int) -> int:
        """Estimate the peak memory of searching ``dataset`` to ``depth``, in bytes.

        Raises:
            BenchError: the search is impossible, or needs too much memory.
        """

    @abstractmethod
    def search(self, dataset: Dataset, depth: int) -> tuple[Run, SearchStatistics]:
        """Rank at least the best ``depth`` documents of each query of ``dataset``.

        The caller drops documents that the protocol excludes, and cuts longer rankings.
        """
