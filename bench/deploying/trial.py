"""Search of one collection with the settings of a deployment, from one set of stored vectors."""

import os
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import cast

import numpy as np
from threadpoolctl import threadpool_limits

from bench.deploying.deployment import CollectionTest
from bench.deploying.settings import EXACT, Setting
from bench.evaluation.collection_search import (
    FLAT,
    EvaluationOptions,
    LoadedModel,
    VectorRetriever,
    encode_documents,
    search_device,
)
from bench.evaluation.compressed_search import CompressedSearch
from bench.evaluation.exact import ArrayVectors, exact_search
from bench.evaluation.judging import resolve_measures, score_run
from bench.evaluation.pipeline import OpenDataset
from bench.evaluation.runs import Run
from bench.evaluation.scoring import parse_measure
from bench.gate.decision import draw_means, queries_needed, upper_bound
from bench.runner.workspace import Workspace
from bench.speed.race import time_call
from bench.speed.speed_report import Latency
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float64Array, Int64Array
from foundation.errors import format_count
from retrievers.encoders.views import View, ViewedVectors, compress
from retrievers.index.hits import Hits, exclude_documents, recall_at_k
from retrievers.models.card import Compression

SAMPLED_DOCUMENTS = 200  # that are searched as if they were queries
TIMED_QUERIES = 100
REPEATS = 3  # of each timed query
WARM_UP_QUERIES = 20
BASELINE = Setting(index=FLAT)  # this program's exact search


@dataclass(frozen=True)
class Trial:
    """One collection, on which settings of a model are searched. ``model`` is not compressed."""

    workspace: Workspace
    opened: OpenDataset
    model: LoadedModel

    @property
    def dataset(self) -> Dataset:
        """The collection."""
        return self.opened.dataset

    @cached_property
    def measure(self) -> str:
        """Main measure."""
        return resolve_measures(self.dataset, (), None)[0]

    @property
    def depth(self) -> int:
        """Number of documents per query that the measure reads."""
        return min(parse_measure(self.measure).cutoff, self.dataset.facts.depth)

    @property
    def queries(self) -> int:
        """Number of queries in the mean."""
        dataset = self.dataset
        return len(dataset.qrels.queries() if dataset.answers is None else dataset.queries.ids)

    def retriever(self, setting: Setting) -> VectorRetriever:
        """Return the retriever of a setting."""
        recipe = compress(self.model.model.recipe, setting.compression)
        loaded = replace(self.model, model=replace(self.model.model, recipe=recipe))
        options = EvaluationOptions(setting.index, self.depth, (self.measure,), recall_queries=0)
        job = self.workspace.prepare(self.opened, loaded, options)
        return cast(VectorRetriever, job.retriever)

    def bound(self, losses: Float64Array) -> float:
        """Return the upper bound of the mean of ``losses``, float64 ``(queries,)``."""
        return upper_bound([draw_means(losses, self.dataset.name)])

    def search(self, setting: Setting) -> Hits:
        """Return the ranking of a setting as the protocol of the collection prescribes."""
        return self.retriever(setting).search(self.dataset, self.depth).hits

    def losses(self, hits: Hits) -> Float64Array:
        """Return the baseline's score of each query minus that of ``hits``."""
        return self._baseline - self._score(hits)

    def test(self, setting: Setting, margin: float) -> CollectionTest:
        """Compare a setting with the baseline."""
        hits = self.search(setting)
        losses = self.losses(hits)
        drawn = [draw_means(losses, self.dataset.name)]
        bound = upper_bound(drawn)
        return CollectionTest(
            score=float((self._baseline - losses).mean()),
            recall=float(recall_at_k(hits, self._exact, self.depth).mean()),
            bound=bound,
            needed=queries_needed(drawn, [1.0], margin) if bound > margin else self.queries,
        )

    def missed(self, grid: list[Setting]) -> dict[Setting, float]:
        """Return the share of the true neighbours of documents that each setting misses.

        The share of a setting is estimated from those of its parts: its codes in exact search, and
        its index over the whole vectors.
        """
        rows = np.random.default_rng(0).permutation(len(self.dataset.corpus))[:SAMPLED_DOCUMENTS]
        widest = max(one.compression.rescore or self.depth for one in grid)
        hits: dict[Setting, Hits] = {}

        def found(setting: Setting, depth: int) -> float:
            for one in (Setting(), setting):
                if one not in hits:
                    near = self._neighbours(one, rows, widest + 1)
                    hits[one] = exclude_documents(near, rows, widest)
            nearest = hits[Setting()]
            truth = Hits(nearest.scores[:, : self.depth], nearest.rows[:, : self.depth])
            return float(recall_at_k(hits[setting], truth, depth).mean())

        missed = {}
        for one in grid:
            how, depth = one.compression, one.compression.rescore or self.depth
            codes = Compression(dimensions=how.dimensions, precision=how.precision)
            share = found(Setting(codes), depth) * found(Setting(index=one.index), depth)
            if how.rescore and how.rescore_by == "int8":
                share *= found(Setting(Compression(precision="int8")), self.depth)
            missed[one] = 1 - share
        return missed

    def time_queries(self, setting: Setting) -> tuple[Latency, ...]:
        """Time the search of single queries in memory, with one thread and with all."""
        how = setting.compression
        without = Compression(dimensions=how.dimensions, precision=how.precision)
        index = self.retriever(Setting(without, setting.index)).build_index(self.dataset).load()
        recipe = compress(self.model.model.recipe, how)
        search = CompressedSearch(self._vectors, recipe, setting.index, "cpu", index).search
        texts = self.dataset.queries.texts[:TIMED_QUERIES]
        queries = [query[None] for query in self._plain.store.queries(self._plain.encoder, texts)]
        timed = []
        for threads in dict.fromkeys((1, len(os.sched_getaffinity(0)))):
            with threadpool_limits(threads):
                for query in queries[:WARM_UP_QUERIES]:
                    search(query, self.depth)
                work = [partial(search, query, self.depth) for query in queries] * REPEATS
                samples = [1000 * time_call(one)[0] for one in work]
            name = format_count(threads, "thread", "threads")
            timed.append(Latency.of(name, len(self.dataset.corpus), self.depth, samples))
        return tuple(timed)

    def _score(self, hits: Hits) -> Float64Array:
        """Return the score of each query, float64 ``(queries,)``."""
        queries, corpus = self.dataset.queries, self.dataset.corpus
        run = Run.from_hits(hits, queries.ids, corpus.ids, corpus.tie_rank)
        return score_run(self.dataset, run, [self.measure], self.depth)[0].values[self.measure]

    @cached_property
    def _exact(self) -> Hits:
        return self.search(BASELINE)

    @cached_property
    def _baseline(self) -> Float64Array:
        return self._score(self._exact)

    @cached_property
    def _plain(self) -> VectorRetriever:
        return self.retriever(BASELINE)

    @cached_property
    def _vectors(self) -> ArrayVectors:
        stored = encode_documents(self.dataset, self._plain.encoder, self._plain.store)
        return ArrayVectors(stored.rows(np.arange(len(self.dataset.corpus))))

    def _neighbours(self, setting: Setting, rows: Int64Array, depth: int) -> Hits:
        """Return the documents nearest to the documents ``rows``, without rescoring."""
        retriever, chosen = self.retriever(setting), self._vectors.rows(rows)
        view = View.of(retriever.model.recipe)
        if setting.index != EXACT:
            index = retriever.build_index(self.dataset).load()
            return index.search(view.queries(chosen, rounded=False), depth)
        vectors, queries = ViewedVectors(self._vectors, view), view.queries(chosen)
        device = search_device(self.workspace.device)
        return exact_search(vectors, queries, depth, self.dataset.corpus.tie_rank, device=device)
