"""``run`` evaluates models on collections, and ``score`` a TREC run file.

``work`` encodes as one of several workers. ``index`` writes a FAISS index to a folder.
"""

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.cli.commands.common import (
    load_model,
    load_models,
    make_workspace,
    refuse_duplicates,
)
from bench.cli.options.commands import IndexOptions, RunOptions, ScoreOptions, WorkOptions
from bench.cli.options.shared import WorkerOptions
from bench.cli.terminal import print_json, print_result
from bench.engines import Distribute, EncodingTask, WorkerProcesses
from bench.evaluation.collection_search import (
    EvaluationOptions,
    LoadedModel,
    encode_documents,
    run_preflight,
)
from bench.evaluation.cost import announce_encoding, estimate_costs
from bench.evaluation.judging import SuiteMean, suite_mean, suites_inner_first
from bench.evaluation.pipeline import Job, evaluate, evaluate_run
from bench.evaluation.result_record import Evaluation, Result
from bench.evaluation.runs import read_run_file
from bench.evaluation.scoring import parse_measure
from bench.outcomes import ExitCode, MissingEvaluations
from bench.result_store.find import SELECTOR
from bench.result_store.result import result_folder, save
from bench.store.indexes import MANIFEST_FILE, IndexFolder, IndexManifest, encode_manifest
from bench.workspace import Workspace
from datasets_cfg.catalogue import suite_for
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from foundation.files import replace_folder
from foundation.locations import Location
from reports.evaluation import collection_table, costs_table, gaps_table, means_table
from reports.format import size
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.recipe import Recipe

if TYPE_CHECKING:
    from bench.engines.ray import RayCluster

Claims = Mapping[tuple[str, str, str], float]  # by model, collection and measure


def run(options: RunOptions) -> int:
    """Evaluate every model on every collection, and print a table per collection and the means.

    An evaluation that fails is reported as a gap, and the others continue.

    Args:
        options: parsed options of the command.
    """
    choices = _read_settings(options)
    workspace = make_workspace(options.common, options.hardware, options.protocol.allow_mismatch)
    models, published = _load_models(options, workspace)
    count = len(workspace.expand_names(options.names)) * len(models)
    gaps = MissingEvaluations(stop=count == 1)
    jobs = _prepare_jobs(workspace, models, choices, gaps, options)
    if options.dry_run:
        _print_costs(jobs, gaps, options)
        return ExitCode.MISSING if gaps.missing else ExitCode.OK
    engine = _make_engine(options.workers, workspace)
    announce_encoding(chain(*jobs), engine.machines)
    work = [
        EncodingTask(job.dataset.name, job.dataset.corpus.folder, job.model.model)
        for job in chain(*jobs)
        if job.model.encoder and not job.stored
    ]
    with engine.encoding(workspace, work) as distribute:
        results = _collect_results(jobs, distribute, published, gaps, options)
    _print_summary(results, published, gaps, options)
    return ExitCode.MISSING if gaps.missing else ExitCode.OK


def _make_engine(options: WorkerOptions, workspace: Workspace) -> "WorkerProcesses | RayCluster":
    """Return the worker processes or the Ray cluster that encodes."""
    if options.engine == "ray":
        from bench.engines.ray import RayCluster

        return RayCluster(options.address, options.workers or 0, workspace.device)
    return WorkerProcesses(1 if options.workers is None else options.workers, workspace.device)


def _prepare_jobs(
    workspace: Workspace,
    models: Sequence[LoadedModel],
    choices: EvaluationOptions,
    gaps: MissingEvaluations,
    options: RunOptions,
) -> list[list[Job]]:
    """Prepare the evaluations by collection, and find errors before anything is encoded."""
    jobs: list[list[Job]] = []
    known = not (options.recompute or choices.from_index)
    for name in workspace.expand_names(options.names):
        collection_jobs: list[Job] = []
        with gaps.catch(name):
            split, limit = options.protocol.split, options.limit
            opened = (
                workspace.open_first(name, limit, split) if limit else workspace.open(name, split)
            )
            for model in models:
                with gaps.catch(opened.name, model.name):
                    result_folder(options.out, opened.name, model.name)  # names may lead out of it
                    out = options.out if known else None
                    collection_jobs.append(workspace.prepare(opened, model, choices, out))
        if collection_jobs:
            jobs.append(collection_jobs)
    gaps.require_any(bool(jobs))
    return jobs


def _collect_results(
    jobs: Sequence[Sequence[Job]],
    distribute: Distribute,
    published: Claims,
    gaps: MissingEvaluations,
    options: RunOptions,
) -> list[Result]:
    """Load or compute each result, and print a table per collection."""
    results: list[Result] = []
    for collection_jobs in jobs:
        made = []
        for job in collection_jobs:
            with gaps.catch(job.dataset.name, job.name):
                made.append(_load_or_evaluate(job, distribute, options.out).result)
        if made and not options.common.json:
            print(collection_table(made, published), end="\n\n", flush=True)
        results += made
    gaps.require_any(bool(results))
    return results


def _load_or_evaluate(job: Job, distribute: Distribute, out: Location) -> Evaluation:
    """Return the stored result of a job, or evaluate and store it."""
    if job.stored:
        _print_stored(job.stored)
        return job.stored
    stored = save(evaluate(replace(job, model=distribute(job.model))), out)
    _print_evaluated(stored)
    return stored


def _print_costs(
    jobs: Iterable[Sequence[Job]], gaps: MissingEvaluations, options: RunOptions
) -> None:
    """Print the table of ``--dry-run``."""
    rows = list(estimate_costs(chain(*jobs)))
    text = costs_table(rows) + ("\n\n" + gaps_table(gaps.missing) if gaps.missing else "")
    print_result(options.common.json, {"costs": rows, "gaps": gaps.missing}, text)


def _print_summary(
    results: Sequence[Result], published: Claims, gaps: MissingEvaluations, options: RunOptions
) -> None:
    """Print the means of suites and the gaps, or with ``--json``, all results."""
    means = _compute_means(options.names, results)
    if options.common.json:
        rows = [{"model": model, **msgspec.structs.asdict(mean)} for model, mean in means]
        print_json({"results": results, "means": rows, "gaps": gaps.missing})
        return
    if means:
        print(means_table(means, published))
    if gaps.missing:
        print(("\n" if means else "") + gaps_table(gaps.missing))


def _load_models(options: RunOptions, workspace: Workspace) -> tuple[list[LoadedModel], Claims]:
    """Load the models under their names in results, with the published scores of their cards."""
    if options.name and len(options.model) > 1:
        raise BenchError(f"--name is for one model, not {len(options.model)}", "run one by one")
    if options.name and SELECTOR in options.name:
        raise BenchError(
            f"--name {options.name} contains {SELECTOR}, which selects one of several results",
            f"use --name {options.name.replace(SELECTOR, '-')}",
        )
    models = load_models(workspace, options.model, options.model_options)
    if options.name:
        models = [model.with_name(options.name) for model in models]
    refuse_duplicates((model.name for model in models), "run one of them alone, with --name")
    return models, {
        (model.name, expected.dataset, expected.measure): expected.value
        for model in models
        for expected in model.model.card.expected
    }


def _read_settings(options: RunOptions) -> EvaluationOptions:
    """Return the settings of the evaluation, with the measures and the index checked."""
    for name in options.measure or ():
        parse_measure(name)
    path = Path(options.index)  # of an exported index, unless it is a factory string
    is_folder = path.is_dir() and (len(path.parts) > 1 or (path / MANIFEST_FILE).exists())
    folder = path if is_folder else None
    spec = IndexFolder(folder).manifest().spec if folder else options.index
    return EvaluationOptions(
        index=IndexSpec.parse(spec),
        depth=options.protocol.depth,
        measures=options.measure,
        recall_queries=options.recall_queries,
        from_index=folder,
    )


def _compute_means(typed: Sequence[str], results: Sequence[Result]) -> list[tuple[str, SuiteMean]]:
    """Compute the means of the named suites and of the suites inside them, by model and measure."""
    means = []
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
    return means


def _print_stored(stored: Evaluation) -> None:
    """Report that a stored result is returned."""
    result = stored.result
    _print_warnings(result)
    print(
        f"{result.protocol.collection}, {result.model}: stored in {stored.folder} since "
        f"{result.conditions.time}; use --recompute to evaluate again",
        file=sys.stderr,
    )


def _print_warnings(result: Result) -> None:
    """Print the warnings of a result."""
    for warning in result.preflight.get("warnings", ()):
        print(f"warning: {result.model}: {warning}", file=sys.stderr)


def _print_evaluated(stored: Evaluation) -> None:
    """Report the times of a new result and its folder."""
    result, spent = stored.result, stored.result.timings
    _print_warnings(result)
    encode_s = spent.encode_queries_s + spent.encode_documents_s
    rate = f", {spent.encoded_tokens / encode_s:,.0f} tokens/s" if spent.encoded_tokens else ""
    print(
        f"{result.protocol.collection}, {result.model}: "
        f"{spent.encoded_documents:,} documents encoded in {spent.encode_documents_s:.1f} s{rate}; "
        f"searched in {spent.search_s:.1f} s; saved to {stored.folder}",
        file=sys.stderr,
    )


def score(options: ScoreOptions) -> int:
    """Score a TREC run file by the collection's own protocol, and store the result.

    Args:
        options: parsed options of the command.
    """
    if options.run_file.is_dir():
        raise BenchError(
            f"{options.run_file} is a folder, not a run file",
            f"python -m bench score RUN_FILE --dataset {options.run_file}",
        )
    workspace = make_workspace(options.common, allow_mismatch=options.protocol.allow_mismatch)
    opened = workspace.open_judgements(options.dataset, options.protocol.split)
    file = read_run_file(options.run_file)
    name = options.name or "_".join(options.run_file.name.split(".trec")[0].split())
    done = evaluate_run(
        *(file.run, name, file.sha256, opened.dataset),
        *(options.measure, options.protocol.depth, opened.official),
    )
    stored = save(done, options.out)
    print(f"saved to {stored.folder}", file=sys.stderr)
    result = stored.result
    document = {"results": [result], "means": [], "gaps": []}
    return print_result(options.common.json, document, collection_table([result], {}))


IDS_FILE, PROGRAM_FILE = "ids.json", "search.py"

PROGRAM = '''\
"""python search.py QUERIES.npy [K]: vectors of queries (q, dim), as manifest.json's recipe says."""
import json, pathlib, sys
import faiss, numpy
folder = pathlib.Path(__file__).parent
index = faiss.read_index(str(folder / "index.faiss"))
ids = json.loads((folder / "ids.json").read_text(encoding="utf-8"))
queries = numpy.load(sys.argv[1]).astype("float32")
for query, (scores, rows) in enumerate(zip(*index.search(queries, int((*sys.argv, 10)[2])))):
    for score, row in zip(scores, rows):
        if row >= 0:  # FAISS fills up with -1 where it found fewer than K
            print(json.dumps([query, ids[row], float(score)]))
'''


def index(options: IndexOptions) -> int:
    """Build an index and copy it to a standalone folder, which is complete or absent.

    Args:
        options: parsed options of the command.
    """
    spec = IndexSpec.parse(options.index)
    if not spec.needs_faiss:
        raise BenchError(
            f"--index {spec} searches the vectors without an index, so there is nothing to write",
            "use --index Flat, which writes the vectors as a FAISS index",
        )
    if options.out.exists():
        raise BenchError(f"{options.out} exists already", "choose another --out, or remove it")
    workspace = make_workspace(options.common, options.hardware, options.allow_mismatch)
    model = load_model(workspace, options.model, options.model_options)
    job = workspace.prepare(workspace.open(options.dataset), model, EvaluationOptions(index=spec))
    announce_encoding([job])
    index_folder = job.retriever.build_index(job.dataset)
    job.dataset.corpus.check()
    manifest = export_index(index_folder, options.out, job.dataset, job.recipe)
    print(
        f"{manifest.documents:,} documents, {size(manifest.bytes)}: {options.out}", file=sys.stderr
    )
    command = f"python {options.out / PROGRAM_FILE} QUERIES.npy 10"
    return print_result(options.common.json, manifest, command)


def export_index(index: IndexFolder, out: Path, dataset: Dataset, recipe: Recipe) -> IndexManifest:
    """Copy an index to a standalone folder, with ids and a search program.

    Args:
        index: index in the cache.
        out: folder to write.
        dataset: collection of the index, with the ids of its documents.
        recipe: recipe of the vectors, stored in the manifest.

    Raises:
        BenchError: the index is damaged, or the folder cannot be written.
    """
    manifest = msgspec.structs.replace(index.checked(), recipe=recipe)
    with replace_folder(out) as unfinished:
        for path in index.folder.iterdir():
            shutil.copyfile(path, unfinished / path.name)
        ids = dataset.corpus.ids.to_pylist()
        (unfinished / IDS_FILE).write_bytes(msgspec.json.encode(ids))
        (unfinished / PROGRAM_FILE).write_text(PROGRAM, encoding="utf-8")
        (unfinished / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    return IndexFolder(out).checked()


class EncodedCount(msgspec.Struct, frozen=True):
    """Number of texts of a collection that this worker encoded.

    Attributes:
        collection: name of the collection.
        model: name of the model.
        encoded: number of texts.
    """

    collection: str
    model: str
    encoded: int


def work(options: WorkOptions) -> int:
    """Encode until the vectors of all collections are cached, together with other workers.

    Args:
        options: parsed options of the command.
    """
    workspace = make_workspace(options.common, options.hardware)
    models = load_models(workspace, options.model, options.model_options)
    done = []
    for name in workspace.expand_names(options.names):
        dataset = workspace.dataset(name)
        for model in models:
            encoder = model.for_dataset(dataset.name).require_encoder()
            run_preflight(dataset, encoder, workspace.store)
            stored = encode_documents(dataset, encoder, workspace.store)
            dataset.corpus.check()
            done.append(EncodedCount(dataset.name, model.name, stored.encoded))
            print(
                f"{dataset.name}, {model.name}: {stored.encoded:,} texts encoded by this worker; "
                f"the vectors of all {len(dataset.corpus):,} documents are in "
                f"{workspace.vectors_dir}",
                file=sys.stderr,
            )
    if options.common.json:
        print_json(done)
    return ExitCode.OK
