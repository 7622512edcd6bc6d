"""The use case ``deploy``: find the cheapest setting that loses no more than the margin.

Everything is searched in one stored set of vectors. The baseline is exact search of all dimensions
in float32. With several collections, the bound must be within the margin on each.
"""

import math
import os
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import cast

import attrs
import msgspec
import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from bench.deploying.deployment import (
    EXACT,
    TESTED_SHARE,
    CollectionTest,
    Deployment,
    Setting,
    TestedSetting,
    choose_sequence,
    make_grid,
)
from bench.evaluation.encoding import encode_documents, encode_queries
from bench.evaluation.exact import ArrayVectors, search_device
from bench.evaluation.judging import resolve_measures, score_run
from bench.evaluation.pipeline import OpenDataset
from bench.evaluation.retriever import FLAT, EvaluationOptions, Retriever
from bench.evaluation.runs import Run
from bench.evaluation.scoring import parse_measure
from bench.evaluation.vector_retriever import VectorRetriever
from bench.evaluation.vector_search import VectorSearch, bytes_per_document, search_in_memory
from bench.gate.decision import LEVEL, draw_means, queries_needed, upper_bound
from bench.requests.deciding import DeployRequest
from bench.requests.evaluating import IndexRequest
from bench.runner.run import index as write_index
from bench.runner.workspace import Workspace, load_models, open_workspace
from bench.speed.race import time_call
from bench.speed.speed_report import QueryLatency
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float64Array, Int64Array
from foundation.errors import BenchError, format_count
from retrievers.encoders.views import compress
from retrievers.index.hits import Hits, exclude_documents, recall_at_k
from retrievers.models.card import Compression

SAMPLED_DOCUMENTS = 200  # that are searched as if they were queries
TIMED_QUERIES = 100
REPEATS = 3  # of each timed query
LEAST_MARGIN = 1e-6
WARM_UP_QUERIES = 20
BASELINE = Setting(index=FLAT)  # this program's exact search


def deploy(request: DeployRequest) -> Deployment:
    """Test settings from mild to strong until the first one that is not proved.

    Raises:
        BenchError: wrong input, or a model without vectors.
    """
    if request.margin < LEAST_MARGIN:
        problem = f"no number of queries proves a margin of {request.margin:g}"
        raise BenchError(problem, "Use --margin .01.")
    workspace = open_workspace(request)
    names = workspace.expand_names(request.on)
    _check_output(request, names)
    (model,) = load_models(workspace, (request.model,), request)
    model.require_encoder()
    whole = replace(model.model, recipe=compress(model.recipe, Compression()))
    model = replace(model, model=whole)
    trials = [Trial(workspace, workspace.open(name), model) for name in names]
    unchanged = [draw_means(np.zeros(trial.queries)) for trial in trials]
    report = Deployment(
        model=model.name,
        recipe=model.recipe,
        measures={trial.dataset.name: trial.measure for trial in trials},
        queries={trial.dataset.name: trial.queries for trial in trials},
        margin=request.margin,
        provable=max(upper_bound([drawn]) for drawn in unchanged),
        queries_for_margin=math.ceil(math.log(1 - LEVEL) / math.log(1 - request.margin)),
    )
    if report.margin < report.provable:
        return report
    return _search(request, trials, report)


def _check_output(request: DeployRequest, names: list[str]) -> None:
    """Raise if the index cannot be written."""
    if request.write is None:
        return
    if names != list(request.on) or len(names) > 1:
        problem = f"--write writes the index of one collection, not of {', '.join(request.on)}"
        raise BenchError(problem, "Name one with --on, or leave out --write.")
    if request.write.exists():
        raise BenchError(f"{request.write} exists already", "Choose another --write, or remove it.")


def _search(request: DeployRequest, trials: list["Trial"], report: Deployment) -> Deployment:
    """Return the report with the tested settings and the answer."""
    timed = max(trials, key=lambda trial: len(trial.dataset.corpus))
    recipe, sizes = report.recipe, [len(trial.dataset.corpus) for trial in trials]
    grid = make_grid(recipe.dim, min(sizes), max(trial.depth for trial in trials))
    costs = {}
    for one in (Setting(), *grid):
        size = bytes_per_document(compress(recipe, one.compression), one.index)
        costs[one] = size, one.bytes_read(max(sizes), recipe.dim)
    limit = request.limit_bytes or math.inf
    allowed = [one for one in grid if costs[one][0] <= limit]
    if not allowed:
        fewest = min(costs[one][0] for one in grid)
        raise BenchError(
            f"--limit-bytes {request.limit_bytes} is below every setting",
            f"Use --limit-bytes {fewest} or more.",
        )
    shares = [trial.missed(allowed) for trial in trials]
    missed = {one: max(share[one] for share in shares) for one in allowed}
    sequence = choose_sequence(missed, costs, max(1, len(grid) // TESTED_SHARE))

    def test(setting: Setting, limit_ms: float) -> TestedSetting:
        latency, tests = timed.time_queries(setting), {}
        if latency[0].p50_ms <= limit_ms:
            tests = {one.dataset.name: one.test(setting, request.margin) for one in trials}
        return TestedSetting(
            name=setting.name,
            compression=setting.compression,
            index=str(setting.index),
            bytes_per_document=int(costs[setting][0]),
            latency=latency,
            missed=missed.get(setting, 0.0),
            tests=tests,
            proved=bool(tests) and all(one.bound <= request.margin for one in tests.values()),
        )

    limit_ms = request.limit_ms or math.inf
    baseline = test(Setting(), math.inf)
    tested: list[TestedSetting] = []
    for setting in tqdm(sequence, desc="deploy", unit=" settings"):
        tested.append(test(setting, limit_ms))
        if tested[-1].failed:  # which ends the proof
            break
    proved = [number for number, one in enumerate(tested) if one.proved]
    by_time = request.limit_bytes is not None
    best = min(proved, key=lambda number: tested[number].costs[:: -1 if by_time else 1], default=-1)
    if best >= 0 and request.write is not None:
        _write(request, sequence[best], recipe.dim, request.write)
    return msgspec.structs.replace(
        report,
        grid=len(grid),
        over_bytes=len(grid) - len(allowed),
        sequence=len(sequence),
        baseline=baseline,
        tested=tuple(tested),
        chosen=tested[best] if best >= 0 else None,
    )


def _write(request: DeployRequest, setting: Setting, dim: int, out: Path) -> None:
    """Write the index of a setting as ``index`` does, whose default may be fewer dimensions."""
    how = setting.compression
    names = {each.name for each in attrs.fields(DeployRequest)}
    names &= {each.name for each in attrs.fields(IndexRequest)}
    shared = {name: getattr(request, name) for name in names}
    shared |= {"dimensions": how.dimensions or dim, "precision": how.precision}
    write_index(IndexRequest(request.on[0], index=str(setting.index), out=out, **shared))


@dataclass(frozen=True)
class Trial:
    """One collection, on which settings of a model are searched. ``model`` is not compressed."""

    workspace: Workspace
    opened: OpenDataset
    model: Retriever

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
        recipe = compress(self.model.recipe, setting.compression)
        loaded = replace(self.model, model=replace(self.model.model, recipe=recipe))
        options = EvaluationOptions(setting.index, self.depth, (self.measure,), recall_queries=0)
        job = self.workspace.prepare(self.opened, loaded, options)
        return cast(VectorRetriever, job.retriever)

    def search(self, setting: Setting) -> Hits:
        """Return the ranking of a setting as the protocol of the collection prescribes."""
        return self.retriever(setting).find(self.dataset, self.depth)[0]

    def losses(self, hits: Hits) -> Float64Array:
        """Return the baseline's score of each query minus that of ``hits``."""
        return self._baseline - self._score(hits)

    def test(self, setting: Setting, margin: float) -> CollectionTest:
        """Compare a setting with the baseline."""
        hits = self.search(setting)
        losses = self.losses(hits)
        drawn = [draw_means(losses)]
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

        @cache
        def nearest(setting: Setting) -> Hits:
            return exclude_documents(self._neighbours(setting, rows, widest + 1), rows, widest)

        exact = nearest(Setting())
        truth = Hits(exact.scores[:, : self.depth], exact.rows[:, : self.depth])

        def found(setting: Setting, depth: int) -> float:
            return float(recall_at_k(nearest(setting), truth, depth).mean())

        missed = {}
        for one in grid:
            how, depth = one.compression, one.compression.rescore or self.depth
            codes = Compression(dimensions=how.dimensions, precision=how.precision)
            share = found(Setting(codes), depth) * found(Setting(index=one.index), depth)
            if how.rescore and how.rescore_by == "int8":
                share *= found(Setting(Compression(precision="int8")), self.depth)
            missed[one] = 1 - share
        return missed

    def time_queries(self, setting: Setting) -> tuple[QueryLatency, ...]:
        """Time the search of single queries in memory, with one thread and with all."""
        search = self._in_memory(setting).search
        vectors = encode_queries(self.dataset, self._plain.encoder, self.workspace.store)
        queries = [query[None] for query in vectors[:TIMED_QUERIES]]
        timed = []
        for threads in dict.fromkeys((1, len(os.sched_getaffinity(0)))):
            with threadpool_limits(threads):
                for query in queries[:WARM_UP_QUERIES]:
                    search(query, self.depth)
                work = [partial(search, query, self.depth) for query in queries] * REPEATS
                samples = [1000 * time_call(one)[0] for one in work]
            name = format_count(threads, "thread", "threads")
            timed.append(QueryLatency.of(name, len(self.dataset.corpus), self.depth, samples))
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
        stored = encode_documents(self.dataset, self._plain.encoder, self.workspace.store)
        return ArrayVectors(stored.rows(np.arange(len(self.dataset.corpus))))

    def _neighbours(self, setting: Setting, rows: Int64Array, depth: int) -> Hits:
        """Return the documents nearest to the documents ``rows``, without rescoring."""
        chosen = self._vectors.rows(rows)
        if setting.index != EXACT:
            return self._in_memory(setting).search(chosen, depth)
        recipe, device = self.retriever(setting).recipe, search_device(self.workspace.device)
        tie_rank = self.dataset.corpus.tie_rank
        return search_in_memory(self._vectors, recipe, device, None, tie_rank).search(chosen, depth)

    def _in_memory(self, setting: Setting) -> VectorSearch:
        """Return the search of a setting in an index of FAISS, on the CPU."""
        how = setting.compression
        without = Compression(dimensions=how.dimensions, precision=how.precision)
        index = self.retriever(Setting(without, setting.index)).build_index(self.dataset).load()
        return search_in_memory(self._vectors, compress(self.model.recipe, how), "cpu", index)
