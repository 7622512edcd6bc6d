"""Workers: each opens what a job names, once, and works on it by an engine of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.cache_folders import cache_folder
from bench.evaluate.pipeline import search_device
from bench.execution.local import LocalEngine
from bench.execution.protocol import Advance, Encoded
from bench.workspace import CollectionName, LoadedModel, Workspace
from foundation.arrays import Float32Array
from foundation.errors import BenchError
from retrievers.encoders.opening import open_encoder
from retrievers.index.faiss_index import Hits
from retrievers.models.model import Model


@dataclass(frozen=True)
class CorpusJob:
    """A corpus and a model, as another process finds them; picklable.

    Attributes:
        model: resolved, with the prompts of no collection.
        corpus_sha256: content of the corpus that the worker must have, too.
        budget: bytes that a worker may hold while it searches; None for most of what is free.
    """

    space: Workspace
    collection: CollectionName
    model: Model
    corpus_sha256: str
    budget: int | None = None


class Worker:
    """Does jobs. Models stay loaded, so that each is loaded once for all collections."""

    def __init__(self) -> None:
        self._models: list[LoadedModel] = []
        self._opened: tuple[CorpusJob, LocalEngine] | None = None

    def encode(self, job: CorpusJob, shards: Sequence[str], advance: Advance) -> Encoded:
        """Write shards of a job into its store; see `ExecutionEngine.encode`."""
        return self._engine(job).encode(shards, advance)

    def search(
        self,
        job: CorpusJob,
        tiles: Sequence[range],
        queries: Float32Array,
        k: int,
        advance: Advance,
    ) -> Hits:
        """The best documents of some tiles; see `ExecutionEngine.search`."""
        return self._engine(job).search(tiles, queries, k, advance)

    def _engine(self, job: CorpusJob) -> LocalEngine:
        if self._opened is None or self._opened[0] != job:
            self._opened = job, self._open(job)
        return self._opened[1]

    def _open(self, job: CorpusJob) -> LocalEngine:
        """The engine of a job. Where vectors are shared, all else lies in this machine's own cache.

        Raises:
            BenchError: the collection is another one here, or something cannot be had.
        """
        space = replace(job.space, cache_dir=cache_folder()) if job.space.shared else job.space
        dataset = space.collection(job.collection)
        if dataset.corpus.sha256 != job.corpus_sha256:
            raise BenchError(
                f"{dataset.name} has another content for this worker than for who sent the work",
                "name the same --data-dir or --cache-dir on all machines",
            )
        encoder = self._loaded(job).on(dataset.name).encoder
        if encoder is None:
            raise ValueError(f"{job.model.card.name} makes no vectors")
        device = search_device(space.device)
        return LocalEngine(dataset.corpus, encoder, space.store, device, job.budget)

    def _loaded(self, job: CorpusJob) -> LoadedModel:
        for loaded in self._models:
            if loaded.model == job.model:
                return loaded
        loaded = LoadedModel(job.model, open_encoder(job.model, job.space.device))
        self._models.append(loaded)
        return loaded
