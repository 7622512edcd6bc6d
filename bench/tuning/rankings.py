"""Rankings that take part in a tuning, of models and run files, and what a query costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bench.comparing.comparison import find_run_file, score_run_file
from bench.evaluation.pipeline import Job, OpenDataset, evaluate
from bench.evaluation.rerank_retriever import Pairs, RerankRetriever
from bench.evaluation.result_record import Evaluation
from bench.evaluation.retriever import Retriever
from bench.evaluation.runs import Run
from bench.requests.deciding import TuneRequest
from bench.result_store.result import save
from bench.runner.run import run_file_name
from bench.runner.workspace import Workspace, load_models, refuse_duplicates
from bench.speed.race import time_call
from bench.tuning.tuning_record import Cost
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from retrievers.models.card import Card, make_card
from retrievers.models.names import anchor_path
from retrievers.models.resolve import resolve_kind

CARD = "tuned"  # name of a card that is not written
ENCODED_QUERIES = 20  # whose encoding is timed
REPEATS = 3


@dataclass(frozen=True)
class Member:
    """A ranking of the queries.

    Attributes:
        typed: as the user named it.
        name: name in results.
        run: ranking, by the protocol of the collection.
        cost: cost of a query; None for a run file.
    """

    typed: str
    name: str
    run: Run
    cost: Cost | None


def open_collection(request: TuneRequest, workspace: Workspace) -> OpenDataset:
    """Open the collection, with its documents if a model searches them."""
    names = workspace.expand_names((request.on,))
    if len(names) > 1:
        problem = f"{request.on} is a suite, and a pipeline is chosen on one collection"
        raise BenchError(problem, f"Use --on {names[0]}.")
    files = [find_run_file(model, []) for model in request.models]
    needs_texts = request.reranker is not None or not all(files)
    return workspace.open(names[0], request.split, with_corpus=needs_texts)


def collect_rankings(
    request: TuneRequest, workspace: Workspace, opened: OpenDataset
) -> list[Member]:
    """Read run files and evaluate models as `run` does, unless their results are stored."""
    files = {model: find_run_file(model, []) for model in request.models}
    models = [model for model in request.models if files[model] is None]
    if not models and request.reranker is None:
        for model in request.models:
            find_run_file(model, request.typed_settings())  # which would have no effect
    retrievers = load_models(workspace, models, request)
    names = {model: one.name for model, one in zip(models, retrievers, strict=True)}
    names |= {model: run_file_name(path) for model, path in files.items() if path}
    refuse_duplicates(names[model] for model in request.models)
    jobs = {
        model: workspace.prepare(opened, one, out=request.results)
        for model, one in zip(models, retrievers, strict=True)
    }
    members, known = list[Member](), dict[str, Cost]()
    for model in request.models:
        path, cost = files[model], None
        if path:
            run = score_run_file(path, opened, request.measure, None).run
        else:
            done = _evaluate(jobs[model], request.results)
            run, cost = done.run, measure_cost(jobs[model].retriever, done, opened.dataset, known)
        members.append(Member(model, names[model], run, cost))
    return members


def _evaluate(job: Job, results: Path | None) -> Evaluation:
    """Return the stored evaluation, or a new one, which is stored."""
    if job.stored:
        return job.stored
    done = evaluate(job)
    return done if results is None else save(done, results)


def measure_cost(
    retriever: Retriever, done: Evaluation, dataset: Dataset, known: dict[str, Cost]
) -> Cost:
    """Return the cost of a query: its search in the evaluation, and encoding it alone.

    The evaluation ``done`` searched all queries together, so the mean stands for each; a search
    system was timed by query, and a reranker by pair. Costs of encoders are ``known`` once they are
    measured, by fingerprint.
    """
    if latency := done.record.latency:
        return Cost(latency.median_ms, latency.p95_ms)
    timings = done.record.timings
    searching = timings.search_s - timings.busy_s.get("rerank", 0.0)  # of pairs without a score
    mean_ms = 1000 * searching / len(dataset.queries)
    return Cost(mean_ms, mean_ms) + _models_cost(retriever, dataset, known)


def _models_cost(retriever: Retriever, dataset: Dataset, known: dict[str, Cost]) -> Cost:
    """Return the cost of encoding a query alone, of its vectors, and of scoring its pairs."""
    total = Cost()
    for each in retriever.encoders:
        total += _encoding_cost(each, dataset.queries.texts[:ENCODED_QUERIES], known)
    return total + _pairs_cost(retriever, dataset)


def _pairs_cost(retriever: Retriever, dataset: Dataset) -> Cost:
    """Return the cost of scoring the pairs of a query in all rerankers of a model."""
    total = Cost()
    for member in retriever.members:
        total += _pairs_cost(member, dataset)
    if isinstance(retriever, RerankRetriever):
        pairs = retriever.score_pairs(dataset, Run.from_rows([], [], []))
        total += reranking_cost(pairs, retriever.card.depth)
    return total


def _encoding_cost(encoder: Retriever, texts: Sequence[str], known: dict[str, Cost]) -> Cost:
    """Return the cost of encoding a text alone, the fastest of several times, and of vectors."""
    name, size = encoder.recipe.fingerprint, Cost(vector_bytes=encoder.bytes_per_document or 0)
    if encoder.recipe.traits.reads_ids:
        return size
    if name not in known:
        encode = encoder.require_encoder().encode_queries
        timed = [[time_call(partial(encode, [text]))[0] for text in texts] for _ in range(REPEATS)]
        known[name] = cost_of([1000 * min(each) for each in zip(*timed, strict=True)])
    return known[name] + size


def open_reranking(
    request: TuneRequest, workspace: Workspace, dataset: Dataset, depth: int
) -> RerankRetriever | None:
    """Return what scores the first ``depth`` documents of rankings, if there is a reranker."""
    if request.reranker is None:
        return None
    if not dataset.has_documents:
        problem = f"{dataset.name} has no documents, and --reranker reads their texts"
        raise BenchError(problem, "Leave it out, or add the file of documents.")
    card = reranking_card(request, request.models[0], depth)
    model = resolve_kind(card, Path.cwd(), request.trust_code)
    return RerankRetriever.open(model, workspace.resources)


def reranking_card(request: TuneRequest, model: str, depth: int) -> Card:
    """Return the card of ``model`` with the reranker of ``request``."""
    fields = {
        "name": request.out.stem if request.out else CARD,
        "title": f"{model}, first {depth} reranked",
        "kind": "rerank",
        "model": model,
        "reranker": anchor_path(request.reranker or "", Path.cwd()),
        "depth": depth,
    }
    return make_card(fields)


def cost_of(samples_ms: Sequence[float]) -> Cost:
    """Return the cost of queries that took ``samples_ms`` milliseconds."""
    median, p95 = np.percentile(samples_ms, [50, 95]).tolist()
    return Cost(median, p95)


def reranking_cost(pairs: Pairs, depth: int) -> Cost:
    """Return the cost of reranking ``depth`` documents: the time of scored ``pairs`` for as many.

    The median is by the mean time of a pair, the 95th percentile by the mean of each query.
    """
    scored = [one for one in pairs.values() if one.k]
    if not scored:
        return Cost()
    mean = sum(one.seconds for one in scored) / sum(one.k for one in scored)
    slow = np.percentile([one.seconds / one.k for one in scored], 95)
    return Cost(1000 * depth * mean, 1000 * depth * float(slow))
