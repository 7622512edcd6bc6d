"""Use cases that evaluate models and rankings, or only encode: run, score, index and work."""

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from bench.evaluation.encoding import encode_documents, mean_tokens, measure_speed, run_preflight
from bench.evaluation.judging import SuiteMean, suite_means, suites_inner_first
from bench.evaluation.pipeline import Job, evaluate_run
from bench.evaluation.pipeline import evaluate as evaluate_job
from bench.evaluation.responses import count_passages
from bench.evaluation.result_record import Evaluation, Result
from bench.evaluation.retriever import EvaluationOptions, Retriever
from bench.evaluation.run_files import RunFile, read_run_file
from bench.evaluation.runs import Run, merge_passages
from bench.evaluation.scoring import parse_measure
from bench.requests.evaluating import (
    EvaluateRequest,
    EvaluationFields,
    IndexRequest,
    RunRequest,
    ScoreRequest,
    WorkRequest,
)
from bench.requests.fields import SystemFields, given_fields
from bench.requests.outcomes import MissingEvaluation, MissingEvaluations
from bench.result_store.find import SELECTOR
from bench.result_store.result import result_folder, save
from bench.runner.engines import Distribute, EncodingTask, RayCluster, WorkerProcesses
from bench.runner.workspace import Workspace, load_models, open_workspace, refuse_duplicates
from bench.store.indexes import MANIFEST_FILE, IndexFolder, IndexManifest, encode_manifest
from datasets_cfg.catalogue import suite_for
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from foundation.files import hash_records, replace_folder
from retrievers.index.faiss_index import IndexSpec

PROBE_S = 5.0
ITEM_BYTES = {"float32": 4, "float16": 2}

Claims = Mapping[tuple[str, str, str], float]  # by model, collection and measure


@dataclass(frozen=True)
class RunReport:
    """Evaluations of several models and collections.

    Attributes:
        evaluations: in the order of collections, then models.
        means: mean of each model over each suite, inner suites first.
        gaps: evaluations that failed.
        published: published scores of the models' cards.
    """

    evaluations: tuple[Evaluation, ...]
    means: tuple[SuiteMean, ...]
    gaps: tuple[MissingEvaluation, ...]
    published: Claims


class RunProgress:
    """Receiver of what happens during a run. This one ignores it."""

    def finish(self, evaluation: Evaluation, reused: bool) -> None:
        """Finish one evaluation, or find its stored result."""

    def finish_collection(self, results: Sequence[Result], published: Claims) -> None:
        """Finish all evaluations of one collection."""


@dataclass(frozen=True)
class _Plan:
    """Evaluations of a request, checked and in the order of collections."""

    jobs: tuple[Job, ...]
    published: Claims
    gaps: MissingEvaluations


def run(request: RunRequest, progress: RunProgress | None = None) -> RunReport:
    """Evaluate every model on every collection.

    An evaluation that fails becomes a gap with its reason, unless it is the only one.
    """
    progress = progress or RunProgress()
    workspace = open_workspace(request)
    with ExitStack() as stack:
        plan = _prepare(request, workspace, stack)
        engine: WorkerProcesses | RayCluster
        if request.engine == "ray":
            engine = RayCluster(request.address, request.workers or 0, workspace.device)
        else:
            workers = 1 if request.workers is None else request.workers
            engine = WorkerProcesses(workers, workspace.device)
        tasks = [
            EncodingTask(job.dataset.name, job.dataset.corpus.folder, encoder.model)
            for job in plan.jobs
            for encoder in job.model.encoders
            if not job.stored
        ]
        distribute = stack.enter_context(engine.encoding(workspace, tasks))
        evaluations = _evaluate_all(plan, distribute, request, progress)
    means = _compute_means(request.names, [each.record for each in evaluations])
    return RunReport(tuple(evaluations), means, tuple(plan.gaps.missing), plan.published)


def evaluate(request: EvaluateRequest) -> Evaluation:
    """Evaluate one model on one collection, as `run` does."""
    names, model, shared = (request.dataset,), (request.model,), request.values_of(EvaluationFields)
    report = run(RunRequest(names=names, model=model, results=request.results, **shared))
    return report.evaluations[0]


class EncodingCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one model on one collection, on this machine.

    Attributes:
        model: name of the model.
        collection: name of the collection.
        documents: number of documents in the collection.
        to_encode: distinct texts without stored vectors. Texts that several evaluations share count
            for the first.
        tokens: tokens to encode, after truncation, with special tokens.
        encode_s: wall-clock time of the encoding, in seconds.
        memory_bytes: peak memory of this process.
        disk_bytes: size of the new vectors.
    """

    model: str
    collection: str
    documents: int
    to_encode: int = 0
    tokens: int = 0
    encode_s: float = 0.0
    memory_bytes: int = 0
    disk_bytes: int = 0


def estimate(request: RunRequest) -> tuple[list[EncodingCost], list[MissingEvaluation]]:
    """Estimate the cost of each evaluation, and return the gaps.

    Token counts come from a sample and the real tokenizer, the encoding speed from a probe of the
    real encoder on this machine.
    """
    with ExitStack() as stack:
        plan = _prepare(request, open_workspace(request), stack)
        return list(_estimate_costs(plan.jobs)), plan.gaps.missing


def _estimate_costs(jobs: Iterable[Job]) -> Iterator[EncodingCost]:
    speeds: dict[str, float] = {}  # tokens a second, by the model's name
    seen = set()
    for job in jobs:
        corpus = job.dataset.corpus
        cost = EncodingCost(
            model=job.name,
            collection=job.dataset.name,
            documents=len(corpus),
            memory_bytes=job.memory_bytes,
        )
        for one in () if job.stored else job.retriever.encoders:
            texts = one.recipe.side("document").fingerprint, corpus.sha256
            missing = 0 if texts in seen else one.missing(job.dataset)
            seen.add(texts)
            if not missing:
                continue
            encoder, item_bytes = one.require_encoder(), ITEM_BYTES[one.recipe.store_dtype]
            if one.name not in speeds:
                speeds[one.name] = measure_speed(encoder, corpus, PROBE_S)
            tokens = round(missing * mean_tokens(encoder, corpus))
            cost = msgspec.structs.replace(
                cost,
                to_encode=cost.to_encode + missing,
                tokens=cost.tokens + tokens,
                encode_s=cost.encode_s + tokens / speeds[one.name],
                disk_bytes=cost.disk_bytes + missing * (encoder.dim * item_bytes + 16),
            )
        yield cost


def _prepare(request: RunRequest, workspace: Workspace, stack: ExitStack) -> _Plan:
    """Prepare all evaluations, and find errors before anything is encoded.

    Vectors of objects without a fingerprint are stored until the ``stack`` closes.
    """
    options = _read_options(request)
    models = _load_named_models(workspace, request)
    names = _expand(workspace, request.names)
    gaps = MissingEvaluations(stop=len(names) * len(models) == 1, listed=True)
    jobs: list[Job] = []
    for name in names:
        with gaps.catch(str(name)):
            opened = workspace.open(name, request.split, request.limit)
            texts = {} if opened.dataset.has_documents else _documents_of(models)
            if texts:
                opened = replace(opened, dataset=opened.dataset.with_documents(texts))
            for model in models:
                is_stored = model.recipe.is_identified
                with gaps.catch(opened.name, model.name):
                    if request.results is not None:  # names may lead out of the folder
                        result_folder(request.results, opened.name, model.name)
                    may_reuse = is_stored and not (request.recompute or options.from_index)
                    home = workspace
                    if not is_stored:  # its vectors are deleted when the stack closes
                        scratch = stack.enter_context(tempfile.TemporaryDirectory())
                        home = replace(workspace, vectors=scratch)
                    out = request.results if may_reuse else None
                    jobs.append(home.prepare(opened, model, options, out))
    gaps.require_any(bool(jobs))
    if unopened := sum(not gap.model for gap in gaps.missing):
        about = f"{unopened} of {len(names)} collections cannot be opened"
        print(f"warning: {about}; the reasons are listed after the scores", file=sys.stderr)
    published = {
        (model.name, expected.dataset, expected.measure): expected.value
        for model in models
        for expected in model.card.expected
    }
    return _Plan(tuple(jobs), published, gaps)


def _documents_of(models: Sequence[Retriever]) -> Mapping[str, Mapping[str, str]]:
    """Return the documents of the first model that has some of its own."""
    return next(filter(None, (model.documents() for model in models)), {})


def _expand(workspace: Workspace, names: Sequence[Any]) -> list[Any]:
    """Return collections in the order given, each once: names of suites' members, or datasets."""
    unique: dict[Any, Any] = {}
    for each in names:
        if isinstance(each, Dataset):
            unique[id(each)] = each
        else:
            unique |= {name: name for name in workspace.expand_names([str(each)])}
    return list(unique.values())


def _load_named_models(workspace: Workspace, request: RunRequest) -> list[Retriever]:
    """Load the models under their names in results."""
    name, count = request.name, len(request.model)
    if name and count > 1:
        raise BenchError(f"--name is for one model, not {count}", "Run one by one.")
    if SELECTOR in name:
        problem = f"--name {name} contains {SELECTOR}, which selects one of several results"
        raise BenchError(problem, f"Use --name {name.replace(SELECTOR, '-')}")
    models = load_models(workspace, request.model, request)
    models = [model.with_name(name) for model in models] if name else models
    refuse_duplicates((model.name for model in models), "Run one of them alone, with --name.")
    return models


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
        **request.values_of(SystemFields),
    )


def _evaluate_all(
    plan: _Plan, distribute: Distribute, request: RunRequest, progress: RunProgress
) -> list[Evaluation]:
    """Load or compute each result, and save new ones if there is a folder for them."""
    evaluations: list[Evaluation] = []
    for _, jobs in groupby(plan.jobs, key=lambda job: job.dataset.name):
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


def _compute_means(names: Sequence[Any], results: Sequence[Result]) -> tuple[SuiteMean, ...]:
    """Compute the means of the named suites and of the suites inside them, by model and measure."""
    means = list[SuiteMean]()
    typed = [str(name) for name in names if not isinstance(name, Dataset)]
    for suite in (name for name in suites_inner_first(typed) if suite_for(name).mean):
        for model in dict.fromkeys(result.model for result in results):
            of_model = [result for result in results if result.model == model]
            by_collection = {result.protocol.collection: result for result in of_model}
            means += suite_means(suite, by_collection, model)
    return tuple(means)


def score(request: ScoreRequest) -> Evaluation:
    """Score a ranking by the collection's own protocol, and save the result if wanted."""
    if isinstance(request.run, str | Path) and Path(request.run).is_dir():
        hint = f"Run `python -m bench score RUN_FILE --dataset {request.run}`."
        raise BenchError(f"{request.run} is a folder, not a run file", hint)
    workspace = open_workspace(request)
    with_corpus = isinstance(request.dataset, Dataset)
    opened = workspace.open(request.dataset, request.split, with_corpus=with_corpus)
    file, name = _read_run(request.run, opened.dataset.metadata.split)
    file = _read_passages(file, request.passages) if request.passages else file
    measures = request.measure or None
    repeats = request if opened.asked and isinstance(request.run, str | Path) else None
    evaluation = evaluate_run(file, request.name or name, opened, measures, request.depth, repeats)
    return evaluation if request.results is None else save(evaluation, request.results)


def run_file_name(path: Path) -> str:
    """Return the name in results of the ranking in a file."""
    return "_".join(path.name.split(".trec")[0].split())


def _read_run(run: Any, split: str) -> tuple[RunFile, str]:
    """Return a ranking with a hash of it, and its default name."""
    if isinstance(run, str | Path):
        path = Path(run)
        return read_run_file(path, split=split), run_file_name(path)
    if not isinstance(run, Run):
        run = Run.from_scores(run)
    content = hashlib.sha256()
    for column in (run.query_ids, run.offsets.tolist(), run.doc_ids.to_pylist()):
        content.update(msgspec.json.encode(column))
    content.update(run.scores.tobytes())
    return RunFile(run, content.hexdigest()), "run"


def _read_passages(file: RunFile, separator: str) -> RunFile:
    """Return a run of documents, each with the score of its best passage, and say how many."""
    run = merge_passages(file.run, separator)
    about = count_passages(len(file.run), run, separator)
    print(f"note: {about}", file=sys.stderr)
    known = hash_records([[file.sha256, separator]])
    return RunFile(run, known, "; ".join(filter(None, (file.assumption, about))))


IDS_FILE, PROGRAM_FILE = "ids.json", "search.py"

PROGRAM = '''\
"""python search.py QUERIES.npy [K]: vectors of queries (q, dim), as manifest.json's recipe says."""
import json, pathlib, sys
import faiss, numpy
folder = pathlib.Path(__file__).parent
ids = json.loads((folder / "ids.json").read_text(encoding="utf-8"))
about = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
queries = numpy.load(sys.argv[1]).astype("float32")
if "dimensions" in about["recipe"].get("compression", {}):
    queries = queries[:, : about["dim"]].copy()
    if about["recipe"]["normalize"] or about["recipe"]["similarity"] == "cos":
        faiss.normalize_L2(queries)
if about["spec"].startswith("B"):  # signs, whose Hamming distances are printed below 0
    index = faiss.read_index_binary(str(folder / "index.faiss"))
    queries, sign = numpy.packbits(queries > 0, axis=1), -1
else:
    index, sign = faiss.read_index(str(folder / "index.faiss")), 1
for query, (scores, rows) in enumerate(zip(*index.search(queries, int((*sys.argv, 10)[2])))):
    for score, row in zip(scores, rows):
        if row >= 0:  # FAISS fills up with -1 where it found fewer than K
            print(json.dumps([query, ids[row], sign * float(score)]))
'''


def index(request: IndexRequest) -> IndexManifest:
    """Write a FAISS index, its ids and a search program to a folder that needs nothing else."""
    spec = IndexSpec.parse(request.index)
    if not spec.needs_faiss:
        problem = f"--index {spec} searches without an index, so there is nothing to write"
        raise BenchError(problem, "Use --index Flat, which writes the vectors as a FAISS index.")
    if request.out.exists():
        raise BenchError(f"{request.out} exists already", "Choose another --out, or remove it.")
    workspace = open_workspace(request)
    (model,) = load_models(workspace, (request.model,), request)
    model.require_encoder()
    options = EvaluationOptions(index=spec)
    job = workspace.prepare(workspace.open(request.dataset), model, options)
    return write_index(job.retriever, job.dataset, request.out, given_fields(request))


def write_index(
    encoder: Retriever, dataset: Dataset, out: Path, asked: Mapping[str, Any] = MappingProxyType({})
) -> IndexManifest:
    """Write the index that ``encoder`` searches on ``dataset`` to the new folder ``out``.

    ``asked`` are the fields of the `index` that asks for it.
    """
    built = encoder.build_index(dataset)
    manifest = msgspec.structs.replace(built.checked(), recipe=encoder.recipe, request=dict(asked))
    with replace_folder(out) as unfinished:
        for path in built.folder.iterdir():
            shutil.copyfile(path, unfinished / path.name)
        (unfinished / IDS_FILE).write_bytes(msgspec.json.encode(dataset.corpus.ids.to_pylist()))
        (unfinished / PROGRAM_FILE).write_text(PROGRAM, encoding="utf-8")
        (unfinished / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    return IndexFolder(out).checked()


class EncodedCount(msgspec.Struct, frozen=True):
    """Number of texts of a collection that this worker encoded.

    Attributes:
        collection: name of the collection.
        model: name of the model.
        encoded: number of texts.
        documents: number of documents of the collection, whose vectors are all stored now.
    """

    collection: str
    model: str
    encoded: int
    documents: int


def work(request: WorkRequest) -> Iterator[EncodedCount]:
    """Encode as one of several workers that share a cache, and yield each collection's count."""
    workspace = open_workspace(request)
    models = load_models(workspace, request.model, request)
    encoders = [each for model in models for each in model.encoders or (model,)]
    for name in workspace.expand_names(request.names):
        dataset = workspace.dataset(name)
        for model in encoders:
            encoder = model.for_dataset(dataset.name).require_encoder()
            run_preflight(dataset, encoder, workspace.store)
            stored = encode_documents(dataset, encoder, workspace.store)
            yield EncodedCount(dataset.name, model.name, stored.encoded, len(dataset.corpus))
