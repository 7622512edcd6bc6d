"""BM25 as a retriever."""

from dataclasses import dataclass
from typing import Self

from bench.evaluation.index_search import check_memory, progress_bar, resident_bytes
from bench.evaluation.judging import drop_excluded, search_depth
from bench.evaluation.result_record import Timings
from bench.evaluation.retriever import Resources, Retriever, SearchFacts
from bench.evaluation.runs import Run
from datasets_cfg.dataset import Dataset
from retrievers.encoders.bm25 import BM25, index_bytes
from retrievers.encoders.protocol import PhaseTimer
from retrievers.encoders.transformer import SharedNetworks
from retrievers.index.hits import Hits, sort_canonically
from retrievers.models.resolve import Model


@dataclass(frozen=True, kw_only=True)
class BM25Retriever(Retriever):
    """Ranking by words. Its search is exact, without vectors."""

    @classmethod
    def open(
        cls, model: Model, resources: Resources, networks: SharedNetworks | None = None
    ) -> Self:
        """Return the retriever of a resolved model."""
        return cls(model=model, resources=resources)

    def check(self, dataset: Dataset, depth: int) -> int:
        """Estimate the peak memory of a search in bytes, and raise if it exceeds the limit."""
        documents = len(dataset.corpus)
        places = len(dataset.queries) * min(depth, documents) * 12
        needed = resident_bytes() + index_bytes(documents) + places
        return check_memory("BM25", needed, self.resources.max_memory, documents)

    def search(self, dataset: Dataset, depth: int) -> tuple[Run, SearchFacts]:
        """Rank the best ``depth`` documents of each query of ``dataset``."""
        timer, corpus = PhaseTimer(), dataset.corpus
        k = min(depth, len(corpus))
        hits = search_bm25(dataset, BM25(self.recipe), search_depth(dataset, k), timer)
        hits = drop_excluded(dataset, hits, k)
        run = Run.from_hits(hits, dataset.queries.ids, corpus.ids, corpus.tie_rank)
        return run, SearchFacts(Timings(search_s=timer.seconds["search_s"]))


def search_bm25(dataset: Dataset, bm25: BM25, depth: int, timer: PhaseTimer | None = None) -> Hits:
    """Return the best ``depth`` documents of each query by ``bm25``, self-matches included.

    A ``timer`` gets the seconds of the search, without those of the index, as ``search_s``.
    """
    corpus = dataset.corpus
    batches = ((titles, texts) for _, titles, texts in corpus.iter_batches(10_000))
    with progress_bar(f"{dataset.name}: bm25 indexes", len(corpus)) as bar:
        bm25.index(batches, bar.update, dataset.cache_dir)
    hits = Hits.empty(len(dataset.queries), depth)
    with (timer or PhaseTimer()).phase("search_s"):
        for row, query in enumerate(dataset.queries.texts):  # hits may tie beyond the depth
            ranked = sort_canonically(bm25.search([query], depth), corpus.tie_rank, depth)
            hits.scores[row], hits.rows[row] = ranked.scores[0], ranked.rows[0]
    return hits
