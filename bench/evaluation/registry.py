"""The retriever of each kind of model, and that of BM25."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.evaluation.fusion_retriever import FusionRetriever
from bench.evaluation.index_search import check_memory, resident_bytes
from bench.evaluation.judging import drop_excluded, search_depth
from bench.evaluation.rerank_retriever import RerankRetriever
from bench.evaluation.result_record import Timings
from bench.evaluation.retriever import Resources, Retriever, SearchStatistics
from bench.evaluation.runs import Run
from bench.evaluation.system_retriever import SystemRetriever
from bench.evaluation.vector_retriever import ReadyVectorsRetriever, VectorRetriever
from bench.evaluation.vector_search import search_bm25
from datasets_cfg.dataset import Dataset
from retrievers.encoders.bm25 import BM25, index_bytes
from retrievers.encoders.objects import make_object, open_object
from retrievers.encoders.protocol import PhaseTimer
from retrievers.encoders.search_system import is_search
from retrievers.models.kinds import KindName
from retrievers.models.resolve import Model


@dataclass(frozen=True, kw_only=True)
class BM25Retriever(Retriever):
    """Ranking by words. Its search is exact, without vectors."""

    @property
    def is_cuttable(self) -> bool:
        """True: scores do not depend on the depth, and ties are ordered by id."""
        return True

    def check(self, dataset: Dataset, depth: int) -> int:
        """Estimate the peak memory of a search in bytes, and raise if it exceeds the limit."""
        documents = len(dataset.corpus)
        places = len(dataset.queries) * min(depth, documents) * 12
        needed = resident_bytes() + index_bytes(documents) + places
        return check_memory("BM25", needed, self.resources.max_memory, documents)

    def search(self, dataset: Dataset, depth: int) -> tuple[Run, SearchStatistics]:
        """Rank the best ``depth`` documents of each query of ``dataset``."""
        timer, corpus = PhaseTimer(), dataset.corpus
        k = min(depth, len(corpus))
        hits = search_bm25(dataset, BM25(self.recipe), search_depth(dataset, k), timer)
        hits = drop_excluded(dataset, hits, k)
        run = Run.from_hits(hits, dataset.queries.ids, corpus.ids, corpus.tie_rank)
        return run, SearchStatistics(Timings(search_s=timer.seconds["search_s"]))


RETRIEVERS: Mapping[KindName, type[Retriever]] = {
    "transformer": VectorRetriever,
    "hashing": VectorRetriever,
    "python": VectorRetriever,
    "endpoint": VectorRetriever,
    "vectors": ReadyVectorsRetriever,
    "bm25": BM25Retriever,
    "system": SystemRetriever,
    "fusion": FusionRetriever,
    "rerank": RerankRetriever,
}


def open_retriever(model: Model, resources: Resources) -> Retriever:
    """Open what ranks with a resolved model, by its kind. Weights are read at the first text.

    Args:
        model: resolved model.
        resources: what its searches may use.

    Raises:
        BenchError: the model cannot be used.
    """
    if model.recipe.encoder:  # code of the user, of which only the object tells what it does
        made = make_object(model.card.encoder, resources.device)
        if is_search(made):
            return SystemRetriever.of_file(model, made, resources)
        encoder = open_object(model, resources.device, made)
        return VectorRetriever.of(model, encoder, resources)
    members = tuple(open_retriever(each, resources) for each in model.members)
    retriever = RETRIEVERS[model.recipe.kind].open(model, resources)
    return replace(retriever, members=members).identify_members() if members else retriever
