"""Evaluation of models on collections, which ``bench run`` and ``bench.evaluate`` share."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from bench.evaluation.collection_search import EvaluationOptions, LoadedModel
from bench.evaluation.cost import EncodingCost, estimate_costs
from bench.evaluation.judging import SuiteMean, suite_mean, suites_inner_first
from bench.evaluation.pipeline import Job
from bench.evaluation.pipeline import evaluate as evaluate_job
from bench.evaluation.result_record import Evaluation, Result
from bench.evaluation.scoring import parse_measure
from bench.outcomes import MissingEvaluation, MissingEvaluations
from bench.requests.evaluating import EvaluateRequest, EvaluationFields, RunRequest
from bench.requests.fields import WorkerFields
from bench.result_store.find import SELECTOR
from bench.result_store.result import result_folder, save
from bench.runner.worker_processes import Distribute, EncodingTask, WorkerProcesses
from bench.runner.workspace import Workspace, load_models, open_workspace, refuse_duplicates
from bench.store.indexes import MANIFEST_FILE, IndexFolder
from datasets_cfg.catalogue import suite_for
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from retrievers.index.faiss_index import IndexSpec

if TYPE_CHECKING:
    from bench.runner.ray_cluster import RayCluster

Claims = Mapping[tuple[str, str, str], float]  # by model, collection and measure
Means = tuple[tuple[str, SuiteMean], ...]


@dataclass(frozen=True)
class RunReport:
    """Evaluations of several models and collections.

    Attributes:
        evaluations: in the order of collections, then models.
        means: name of a model and its mean over a suite, inner suites first.
        gaps: evaluations that failed.
        published: published scores of the models' cards.
    """

    evaluations: tuple[Evaluation, ...]
    means: Means
    gaps: tuple[MissingEvaluation, ...]
    published: Claims


class RunProgress:
    """Receiver of what happens during a run. This one ignores it."""

    def start(self, jobs: Sequence[Job], machines: int) -> None:
        """Begin to evaluate ``jobs``, whose documents so many machines encode."""

    def finish(self, evaluation: Evaluation, reused: bool) -> None:
        """Finish one evaluation, or find its stored result."""

    def finish_collection(self, results: Sequence[Result], published: Claims) -> None:
        """Finish all evaluations of one collection."""


@dataclass(frozen=True)
class _Plan:
    """Evaluations of a request, checked and grouped by collection."""

    jobs: tuple[tuple[Job, ...], ...]
    published: Claims
    gaps: MissingEvaluations

    @property
    def all_jobs(self) -> list[Job]:
        return list(chain(*self.jobs))


def run(request: RunRequest, progress: RunProgress | None = None) -> RunReport:
    """Evaluate every model on every collection.

    An evaluation that fails becomes a gap with its reason, unless it is the only one.

    Args:
        request: what to evaluate.
        progress: receiver of intermediate results.

    Raises:
        BenchError: wrong input, or nothing could be evaluated.
    """
    progress = progress or RunProgress()
    workspace = open_workspace(request)
    with ExitStack() as stack:
        plan = _prepare(request, workspace, stack)
        engine = _make_engine(request, workspace)
        progress.start(plan.all_jobs, engine.machines)
        work = [
            EncodingTask(job.dataset.name, job.dataset.corpus.folder, job.model.model)
            for job in plan.all_jobs
            if job.model.encoder and not job.stored
        ]
        distribute = stack.enter_context(engine.encoding(workspace, work))
        evaluations = _evaluate_all(plan, distribute, request, progress)
    means = _compute_means(request.names, [each.record for each in evaluations])
    return RunReport(tuple(evaluations), means, tuple(plan.gaps.missing), plan.published)


def evaluate(request: EvaluateRequest) -> Evaluation:
    """Evaluate one model on one collection, as `run` does.

    Raises:
        BenchError: wrong input.
    """
    shared = {field.name: getattr(request, field.name) for field in attrs.fields(EvaluationFields)}
    names, model = (request.dataset,), (request.model,)
    report = run(RunRequest(names=names, model=model, results=request.results, **shared))
    return report.evaluations[0]


def estimate(request: RunRequest) -> tuple[list[EncodingCost], list[MissingEvaluation]]:
    """Estimate the cost of each evaluation, and return the gaps.

    Raises:
        BenchError: wrong input, or nothing can be evaluated.
    """
    with ExitStack() as stack:
        plan = _prepare(request, open_workspace(request), stack)
        return list(estimate_costs(plan.all_jobs)), plan.gaps.missing


def _prepare(request: RunRequest, workspace: Workspace, stack: ExitStack) -> _Plan:
    """Prepare all evaluations, and find errors before anything is encoded.

    Vectors of objects without a fingerprint are stored until the ``stack`` closes.
    """
    options = _read_options(request)
    models = _load_named_models(workspace, request)
    names = _expand(workspace, request.names)
    gaps = MissingEvaluations(stop=len(names) * len(models) == 1)
    jobs: list[tuple[Job, ...]] = []
    for name in names:
        of_collection: list[Job] = []
        with gaps.catch(str(name)):
            split, limit = request.split, request.limit
            opened = (
                workspace.open_first(name, limit, split) if limit else workspace.open(name, split)
            )
            for model, is_stored in models:
                with gaps.catch(opened.name, model.name):
                    out = request.results if is_stored else None
                    if request.results is not None:  # names may lead out of the folder
                        result_folder(request.results, opened.name, model.name)
                    if request.recompute or options.from_index:
                        out = None
                    place = workspace if is_stored else _use_scratch_store(workspace, stack)
                    of_collection.append(place.prepare(opened, model, options, out))
        if of_collection:
            jobs.append(tuple(of_collection))
    gaps.require_any(bool(jobs))
    published = {
        (model.name, expected.dataset, expected.measure): expected.value
        for model, _ in models
        for expected in model.model.card.expected
    }
    return _Plan(tuple(jobs), published, gaps)


def _use_scratch_store(workspace: Workspace, stack: ExitStack) -> Workspace:
    """Return a workspace whose vectors are deleted when the ``stack`` closes."""
    return replace(workspace, vectors=stack.enter_context(tempfile.TemporaryDirectory()))


def _expand(workspace: Workspace, names: Sequence[Any]) -> list[Any]:
    """Return collections in the order given, each once: names of suites' members, or datasets."""
    parts = [
        [each] if isinstance(each, Dataset) else workspace.expand_names([str(each)])
        for each in names
    ]
    unique: dict[Any, Any] = {}
    for each in chain(*parts):
        unique.setdefault(id(each) if isinstance(each, Dataset) else each, each)
    return list(unique.values())


def _load_named_models(workspace: Workspace, request: RunRequest) -> list[tuple[LoadedModel, bool]]:
    """Load the models under their names in results, and say whether their vectors are stored."""
    name, count = request.name, len(request.model)
    if name and count > 1:
        raise BenchError(f"--name is for one model, not {count}", "run one by one")
    if SELECTOR in name:
        raise BenchError(
            f"--name {name} contains {SELECTOR}, which selects one of several results",
            f"use --name {name.replace(SELECTOR, '-')}",
        )
    models = load_models(workspace, request.model, request)
    if name:
        models = [model.with_name(name) for model in models]
    refuse_duplicates((model.name for model in models), "run one of them alone, with --name")
    stored = [isinstance(each, str | Path) or bool(request.fingerprint) for each in request.model]
    return list(zip(models, stored, strict=True))


def _read_options(request: RunRequest) -> EvaluationOptions:
    """Return the settings of the evaluation, with the measures and the index checked."""
    for name in request.measure:
        parse_measure(name)
    path = Path(request.index)  # of an exported index, unless it is a factory string
    is_folder = path.is_dir() and (len(path.parts) > 1 or (path / MANIFEST_FILE).exists())
    folder = path if is_folder else None
    spec = IndexFolder(folder).manifest().spec if folder else request.index
    return EvaluationOptions(
        index=IndexSpec.parse(spec),
        depth=request.depth,
        measures=request.measure or None,
        recall_queries=request.recall_queries,
        from_index=folder,
    )


def _make_engine(fields: WorkerFields, workspace: Workspace) -> "WorkerProcesses | RayCluster":
    """Return the worker processes or the Ray cluster that encodes."""
    if fields.engine == "ray":
        from bench.runner.ray_cluster import RayCluster

        return RayCluster(fields.address, fields.workers or 0, workspace.device)
    return WorkerProcesses(1 if fields.workers is None else fields.workers, workspace.device)


def _evaluate_all(
    plan: _Plan, distribute: Distribute, request: RunRequest, progress: RunProgress
) -> list[Evaluation]:
    """Load or compute each result, and save new ones if there is a folder for them."""
    evaluations: list[Evaluation] = []
    for jobs in plan.jobs:
        made = []
        for job in jobs:
            with plan.gaps.catch(job.dataset.name, job.name):
                done = job.stored or evaluate_job(replace(job, model=distribute(job.model)))
                if job.stored is None and request.results is not None:
                    done = save(done, request.results)
                progress.finish(done, reused=job.stored is not None)
                made.append(done)
        if made:
            progress.finish_collection([each.record for each in made], plan.published)
        evaluations += made
    plan.gaps.require_any(bool(evaluations))
    return evaluations


def _compute_means(names: Sequence[Any], results: Sequence[Result]) -> Means:
    """Compute the means of the named suites and of the suites inside them, by model and measure."""
    means = []
    typed = [str(name) for name in names if not isinstance(name, Dataset)]
    for suite in (name for name in suites_inner_first(typed) if suite_for(name).mean):
        for model in dict.fromkeys(result.model for result in results):
            evaluated = [result for result in results if result.model == model]
            in_domain = {result.protocol.collection for result in evaluated if result.in_domain}
            for measure in dict.fromkeys(name for result in evaluated for name in result.measures):
                values = {
                    result.protocol.collection: result.measures[measure]
                    for result in evaluated
                    if measure in result.measures and result.protocol.official
                }
                means.append((model, suite_mean(suite, measure, values, in_domain)))
    return tuple(means)
