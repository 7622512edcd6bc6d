"""The use case ``deploy``: find the cheapest setting that loses no more than the margin.

Everything is searched in one stored set of vectors. The baseline is exact search of all dimensions
in float32. With several collections, the bound must be within the margin on each.

The vectors may be those of the encoders in a fusion or reranking. Then all its encoders have the
same setting, and the ranking of the whole pipeline is compared with its ranking by exact search.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import cast

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
from bench.evaluation.judging import apply_protocol, resolve_measures, score_run
from bench.evaluation.pipeline import OpenDataset
from bench.evaluation.retriever import FLAT, EvaluationOptions, Retriever
from bench.evaluation.runs import Run
from bench.evaluation.scoring import parse_measure
from bench.evaluation.vector_retriever import VectorRetriever
from bench.evaluation.vector_search import VectorSearch, bytes_per_document, search_in_memory
from bench.gate.decision import LEVEL, draw_means, queries_needed, upper_bound
from bench.requests.deciding import DeployRequest
from bench.runner.run import write_index
from bench.runner.workspace import Workspace, load_models, open_workspace
from bench.speed.race import time_call
from bench.speed.speed_report import QueryLatency
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float64Array, Int64Array
from foundation.errors import BenchError, format_count, format_names
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
    _check_encoders(request, model)
    model = apply_setting(model, BASELINE)
    trials = [Trial(workspace, workspace.open(name), model) for name in names]
    unchanged = [draw_means(np.zeros(trial.queries)) for trial in trials]
    report = Deployment(
        model=model.name,
        encoders=tuple(encoder.name for encoder in model.encoders),
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


def _check_encoders(request: DeployRequest, model: Retriever) -> None:
    """Raise if ``model`` has no encoder, or if its encoders cannot have the same setting."""
    encoders = model.encoders
    if not encoders:
        hint = "Use a model that encodes texts, or a pipeline with one, such as minilm+bm25."
        raise BenchError(f"{model.name} makes no vectors", hint)
    if len({one.recipe.dim for one in encoders}) > 1:
        widths = format_names([f"{one.name} {one.recipe.dim}" for one in encoders])
        problem = f"one setting cannot fit the encoders of {model.name}, whose dimensions differ"
        raise BenchError(f"{problem}: {widths}", "Deploy them one by one.")
    if request.write and len(encoders) > 1:
        names = format_names([one.name for one in encoders])
        problem = f"--write writes one index, and {model.name} has the encoders {names}"
        raise BenchError(problem, "Leave it out, and write each with `bench index`.")


def _search(request: DeployRequest, trials: list["Trial"], report: Deployment) -> Deployment:
    """Return the report with the tested settings and the answer."""
    timed = max(trials, key=lambda trial: len(trial.dataset.corpus))
    encoders = timed.model.encoders
    dim, sizes = encoders[0].recipe.dim, [len(trial.dataset.corpus) for trial in trials]
    grid = make_grid(dim, min(sizes), max(trial.searched_depth for trial in trials))
    costs = {}
    for one in (Setting(), *grid):
        searched = [compress(encoder.recipe, one.compression) for encoder in encoders]
        size = sum(bytes_per_document(recipe, one.index) for recipe in searched)
        costs[one] = size, one.bytes_read(max(sizes), dim) * len(encoders)
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
        trials[0].write_index(sequence[best], request.write)
    return msgspec.structs.replace(
        report,
        grid=len(grid),
        over_bytes=len(grid) - len(allowed),
        sequence=len(sequence),
        baseline=baseline,
        tested=tuple(tested),
        chosen=tested[best] if best >= 0 else None,
    )


def apply_setting(model: Retriever, setting: Setting) -> Retriever:
    """Return ``model`` with a setting of the vectors of its encoders."""

    def change(encoder: Retriever) -> Retriever:
        recipe = compress(encoder.recipe, setting.compression)
        options = replace(encoder.options, index=setting.index, recall_queries=0)
        return replace(encoder, model=replace(encoder.model, recipe=recipe), options=options)

    return model.with_encoders(change)


@dataclass(frozen=True)
class Trial:
    """One collection, on which settings of a model are searched."""

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
        return min(parse_measure(self.measure).cutoff, self.dataset.metadata.depth)

    @property
    def queries(self) -> int:
        """Number of queries in the mean."""
        dataset = self.dataset
        return len(dataset.qrels.queries() if dataset.answers is None else dataset.queries.ids)

    @cached_property
    def pipeline(self) -> Retriever:
        """The model as it ranks this collection, with exact search."""
        options = EvaluationOptions(depth=self.depth, measures=(self.measure,))
        return self.workspace.prepare(self.opened, self.model, options).retriever

    @cached_property
    def searches(self) -> list["VectorTrial"]:
        """Searches of the vectors of each encoder of the model."""
        return [
            VectorTrial(self.workspace, self.dataset, cast(VectorRetriever, each))
            for each in self.pipeline.encoders
        ]

    @property
    def searched_depth(self) -> int:
        """Largest number of documents per query that an encoder ranks."""
        return max(one.depth for one in self.searches)

    def rank(self, setting: Setting) -> Run:
        """Return the ranking of a setting as the protocol of the collection prescribes."""
        retriever = apply_setting(self.pipeline, setting)
        retriever.check(self.dataset, self.depth)
        run, _ = retriever.search(self.dataset, self.depth)
        return apply_protocol(run, self.dataset, self.depth)

    def losses(self, run: Run) -> Float64Array:
        """Return the baseline's score of each query minus that of ``run``."""
        return self._baseline - self._score(run)

    def test(self, setting: Setting, margin: float) -> CollectionTest:
        """Compare a setting with the baseline."""
        run = self.rank(setting)
        losses = self.losses(run)
        drawn = [draw_means(losses)]
        bound = upper_bound(drawn)
        return CollectionTest(
            score=float((self._baseline - losses).mean()),
            recall=mean_recall(run, self._exact),
            bound=bound,
            needed=queries_needed(drawn, [1.0], margin) if bound > margin else self.queries,
        )

    def missed(self, grid: list[Setting]) -> dict[Setting, float]:
        """Return the share of the true neighbours of documents that each setting misses.

        It is the largest of any encoder.
        """
        shares = [one.missed(grid) for one in self.searches]
        return {setting: max(share[setting] for share in shares) for setting in grid}

    def time_queries(self, setting: Setting) -> tuple[QueryLatency, ...]:
        """Time the search of single queries in memory, with one thread and with all.

        With several encoders, a query is searched in the vectors of one after the other.
        """
        queries = list(zip(*(one.calls(setting) for one in self.searches), strict=True))

        def search_all(calls: Sequence[Callable[[], object]]) -> None:
            for call in calls:
                call()

        timed = []
        for threads in dict.fromkeys((1, len(os.sched_getaffinity(0)))):
            with threadpool_limits(threads):
                for query in queries[:WARM_UP_QUERIES]:
                    search_all(query)
                work = [partial(search_all, query) for query in queries] * REPEATS
                samples = [1000 * time_call(one)[0] for one in work]
            name, rows = format_count(threads, "thread", "threads"), len(self.dataset.corpus)
            timed.append(QueryLatency.of(name, rows, self.searched_depth, samples))
        return tuple(timed)

    def write_index(self, setting: Setting, out: Path) -> None:
        """Write the index of a setting, without the vectors for rescoring."""
        write_index(self.searches[0].without_rescoring(setting), self.dataset, out)

    def _score(self, run: Run) -> Float64Array:
        """Return the score of each query, float64 ``(queries,)``."""
        return score_run(self.dataset, run, [self.measure], self.depth)[0].values[self.measure]

    @cached_property
    def _exact(self) -> Run:
        return self.rank(BASELINE)

    @cached_property
    def _baseline(self) -> Float64Array:
        return self._score(self._exact)


def mean_recall(run: Run, truth: Run) -> float:
    """Return the share of the documents of ``truth`` that ``run`` has, on average of the queries.

    It is 1 for a query without documents.
    """
    found = {query: {*ids} for query, ids, _ in run.rankings()}
    return fmean(
        len(found[query].intersection(ids)) / len(ids) if ids else 1.0
        for query, ids, _ in truth.rankings()
    )


@dataclass(frozen=True)
class VectorTrial:
    """The vectors of one encoder on one collection, in which settings are searched."""

    workspace: Workspace
    dataset: Dataset
    encoder: VectorRetriever

    @property
    def depth(self) -> int:
        """Number of documents per query that the encoder ranks."""
        return min(
            self.encoder.options.depth or self.dataset.metadata.depth, len(self.dataset.corpus)
        )

    def missed(self, grid: list[Setting]) -> dict[Setting, float]:
        """Return the share of the true neighbours of documents that each setting misses.

        The share of a setting is estimated from those of its parts: its codes in exact search, and
        its index over the whole vectors.
        """
        rows = np.random.default_rng(0).permutation(len(self.dataset.corpus))[:SAMPLED_DOCUMENTS]
        shown = min(self.depth, len(self.dataset.corpus) - 1)  # without the document itself
        widest = max(one.compression.rescore or shown for one in grid)

        @cache
        def nearest(setting: Setting) -> Hits:
            return exclude_documents(self._neighbours(setting, rows, widest + 1), rows, widest)

        exact = nearest(Setting())
        truth = Hits(exact.scores[:, :shown], exact.rows[:, :shown])

        def found(setting: Setting, depth: int) -> float:
            return float(recall_at_k(nearest(setting), truth, depth).mean())

        missed = {}
        for one in grid:
            how, depth = one.compression, one.compression.rescore or shown
            codes = Compression(dimensions=how.dimensions, precision=how.precision)
            share = found(Setting(codes), depth) * found(Setting(index=one.index), depth)
            if how.rescore and how.rescore_by == "int8":
                share *= found(Setting(Compression(precision="int8")), shown)
            missed[one] = 1 - share
        return missed

    def calls(self, setting: Setting) -> list[Callable[[], Hits]]:
        """Return functions that each search one query in memory."""
        search = self._in_memory(setting).search
        vectors = encode_queries(self.dataset, self.encoder.encoder, self.workspace.store)
        return [partial(search, query[None], self.depth) for query in vectors[:TIMED_QUERIES]]

    def without_rescoring(self, setting: Setting) -> VectorRetriever:
        """Return the encoder with the index and the codes of a setting."""
        how = setting.compression
        codes = Compression(dimensions=how.dimensions, precision=how.precision)
        changed = apply_setting(self.encoder, Setting(codes, setting.index))
        return cast(VectorRetriever, changed)

    @cached_property
    def _vectors(self) -> ArrayVectors:
        stored = encode_documents(self.dataset, self.encoder.encoder, self.workspace.store)
        return ArrayVectors(stored.rows(np.arange(len(self.dataset.corpus))))

    def _neighbours(self, setting: Setting, rows: Int64Array, depth: int) -> Hits:
        """Return the documents nearest to the documents ``rows``, without rescoring."""
        chosen = self._vectors.rows(rows)
        if setting.index != EXACT:
            return self._in_memory(setting).search(chosen, depth)
        recipe, device = self.without_rescoring(setting).recipe, self.workspace.device
        searching = search_in_memory(
            self._vectors, recipe, search_device(device), None, self.dataset.corpus.tie_rank
        )
        return searching.search(chosen, depth)

    def _in_memory(self, setting: Setting) -> VectorSearch:
        """Return the search of a setting in an index of FAISS, on the CPU."""
        index = self.without_rescoring(setting).build_index(self.dataset).load()
        recipe = compress(self.encoder.recipe, setting.compression)
        return search_in_memory(self._vectors, recipe, "cpu", index)
