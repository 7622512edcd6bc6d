"""``run``: every model on every collection; a table each, then the means of the suites."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from bench.cli.commands.common import load_model, workspace
from bench.cli.commands.gaps import Gaps
from bench.cli.options.evaluate import RunOptions
from bench.cli.options.shared import WorkerOptions
from bench.cli.printing import print_json
from bench.engines import Engine, Spread, ThisProcess, Work
from bench.evaluate.estimate import WORTH_AN_ESTIMATE, confirm_encoding
from bench.evaluate.judging import measure_names
from bench.evaluate.measures import parse_measure
from bench.evaluate.pipeline import Options, documents_to_encode
from bench.evaluate.run_files import write_run
from bench.evaluate.suites import SuiteMean, suite_mean, with_inner
from bench.exit_codes import ExitCode
from bench.results.choose import CHOICE
from bench.results.location import Place
from bench.results.result import TREC_FILE, Result, Stored, place, save
from bench.store.indexes import IndexFolder
from bench.workspace import LoadedModel, OpenDataset, Workspace
from datasets_cfg.catalogue import suite_for
from datasets_cfg.corpus import Corpus
from foundation.errors import BenchError
from reports.evaluation import collection_table, gaps_table, means_table, time_line
from retrievers.adapters.bases import Bases
from retrievers.encoders.protocol import Encoder
from retrievers.index.faiss_index import FLAT, FaissIndex, IndexSpec

# A collection, and its models with the result of those that have one.
Planned = tuple[OpenDataset, list[tuple[LoadedModel, Stored | None]]]


def run(options: RunOptions) -> int:
    """``run``: evaluate every model on every collection; a table each, then the suites' means.

    Of several evaluations, one that cannot be had is a gap, and the others are made.
    """
    choices = _choices(options)
    space = workspace(options.places, options.hardware, options.protocol.allow_mismatch)
    names, models = space.expand(options.names), _loaded(options, space)
    _check_models(models, options.out)
    _check_index(choices.index, models)
    gaps = Gaps(stop=options.fail_fast or len(names) * len(models) == 1)
    planned = _planned(space, names, models, choices, gaps, options)
    gaps.check_any_left([work for _, work in planned if work])
    engine = _engine(options.workers, space)
    confirm_encoding(_to_encode(planned, space, choices), options.yes, engine.machines)
    with engine.encoding(space, _to_share(planned)) as spread:
        results = _results(space, planned, models, choices, gaps, options, spread)
    gaps.check_any_left(results)
    _print_summary(results, gaps, models, options)
    return ExitCode.MISSING if gaps.missing else ExitCode.OK


def _engine(options: WorkerOptions, space: Workspace) -> Engine:
    """Connect to the workers that were asked for, if any.

    Raises:
        BenchError: options that contradict each other, or a cluster that is not there.
    """
    if options.engine == "ray":
        from bench.engines.ray import RayCluster

        return RayCluster(options.address, options.workers or 0, space.device)
    if options.address:
        raise BenchError(
            "--address is for a Ray cluster", f"--address {options.address} --engine ray"
        )
    if options.workers is None:
        return ThisProcess()
    from bench.engines.children import Children

    return Children(options.workers, space.device)


def _to_share(planned: Sequence[Planned]) -> list[Work]:
    """The corpora that have to be encoded, as other processes find them."""
    return [
        Work(opened.opened_by, model.model)
        for opened, work in planned
        for model, stored in work
        if opened.opened_by and model.encoder and not stored
    ]


def _results(
    space: Workspace,
    planned: Sequence[Planned],
    models: Sequence[LoadedModel],
    choices: Options,
    gaps: Gaps,
    options: RunOptions,
    spread: Spread,
) -> list[Result]:
    """The results that are stored or can be had; a table for each collection."""
    results: list[Result] = []
    for opened, work in planned:
        of_dataset = []
        for model, stored in work:
            with gaps.kept(opened.name, model.name):
                if stored:
                    _say_stored(stored)
                else:
                    stored = _evaluate(space, opened, spread(model), choices, options.out)
                if options.run_file:
                    write_run(stored.run(), stored.folder / TREC_FILE, stored.result.model)
                of_dataset.append(stored.result)
        if of_dataset and not options.output.json:
            print(collection_table(of_dataset, _published(models)), end="\n\n", flush=True)
        results += of_dataset
    return results


def _planned(
    space: Workspace,
    names: Sequence[str],
    models: Sequence[LoadedModel],
    choices: Options,
    gaps: Gaps,
    options: RunOptions,
) -> list[Planned]:
    """Each collection that can be had, with the models that can be evaluated on it.

    What would fail when the result is written fails now, before hours of encoding.
    """
    planned = []
    for name in names:
        with gaps.kept(name):
            split, limit = options.protocol.split, options.limit
            opened = space.open_first(name, limit, split) if limit else space.open(name, split)
            measure_names(opened.dataset, options.measure, options.protocol.depth)
            place(options.out, opened.name, "model")
            work = []
            for model in models:
                with gaps.kept(opened.name, model.name):
                    stored = None
                    if options.from_index:
                        space.check_index(opened, model, choices)
                    elif not options.recompute:
                        stored = space.stored(opened, model, choices, options.out)
                    if not stored:
                        space.check_memory(opened, model, choices)
                    work.append((model, stored))
            planned.append((opened, work))
    return planned


def _evaluate(
    space: Workspace, opened: OpenDataset, model: LoadedModel, choices: Options, out: Place
) -> Stored:
    done = space.evaluate(opened, model, choices)
    stored = save(done.result, done.scores, done.run, out)
    _say_done(stored)
    return stored


def _print_summary(
    results: Sequence[Result],
    gaps: Gaps,
    models: Sequence[LoadedModel],
    options: RunOptions,
) -> None:
    """Means of the suites, then what is missing; with ``--json`` all there is."""
    means = _means(options.names, results)
    if options.output.json:
        rows = [{"model": model, **msgspec.structs.asdict(mean)} for model, mean in means]
        print_json({"results": results, "means": rows, "gaps": gaps.missing})
        return
    if means:
        print(means_table(means, _published(models)))
    if gaps.missing:
        print(("\n" if means else "") + gaps_table(gaps.missing))


def _loaded(options: RunOptions, space: Workspace) -> list[LoadedModel]:
    """The models, under the names that their results will have."""
    if options.name and len(options.model) > 1:
        raise BenchError(
            f"--name gives one name to {len(options.model)} models",
            "run one after the other",
        )
    if options.name and CHOICE in options.name:
        raise BenchError(
            f"--name {options.name}: what follows a {CHOICE} chooses among results of one name",
            f"--name {options.name.replace(CHOICE, '-')}",
        )
    bases = Bases()
    models = [load_model(space, name, options.use, bases) for name in options.model]
    return [model.renamed(options.name) for model in models] if options.name else models


def _check_models(models: Sequence[LoadedModel], out: Place) -> None:
    """Refuse names that cannot stand in results, or two that tables would not tell apart."""
    for model in models:
        place(out, "collection", model.name)
    for name, count in Counter(loaded.name for loaded in models).items():
        if count > 1:
            raise BenchError(
                f"{count} of the models are called {name}",
                "run one after the other, one of them with --name",
            )


def _check_index(spec: IndexSpec, models: Sequence[LoadedModel]) -> None:
    """FAISS reads the factory string when an index is made: do that before hours of encoding."""
    for encoder in (loaded.encoder for loaded in models if loaded.encoder and spec.needs_faiss):
        FaissIndex(spec, encoder.dim)


def _choices(options: RunOptions) -> Options:
    for name in options.measure or ():
        parse_measure(name)
    spec = options.index or FLAT
    if options.from_index:
        if options.index:
            raise BenchError("--index and --from-index both say what is searched", "leave one out")
        spec = IndexFolder(options.from_index).manifest().spec
    return Options(
        index=IndexSpec.parse(spec),
        depth=options.protocol.depth,
        measures=options.measure,
        recall_queries=options.recall_queries,
        from_index=options.from_index,
    )


def _to_encode(
    planned: Sequence[Planned], space: Workspace, choices: Options
) -> Iterator[tuple[Encoder, Corpus, int]]:
    """Encoder, corpus, and how many of its documents are to be encoded, of large collections."""
    here = space.here(choices)
    for opened, work in planned:
        dataset = opened.dataset
        if len(dataset.corpus) >= WORTH_AN_ESTIMATE:  # others need no look into the store
            for model in (model.on(opened.name) for model, stored in work if not stored):
                if model.encoder:
                    missing = documents_to_encode(dataset, model.encoder, space.store, here)
                    yield model.encoder, dataset.corpus, missing


def _published(models: Iterable[LoadedModel]) -> dict[tuple[str, str, str], float]:
    return {
        (loaded.name, expected.dataset, expected.measure): expected.value
        for loaded in models
        for expected in loaded.model.card.expected
    }


def _means(typed: Sequence[str], results: Sequence[Result]) -> list[tuple[str, SuiteMean]]:
    """Means of the suites that were asked for and of those inside them, by model and measure."""
    means = []
    for suite in (name for name in with_inner(typed) if suite_for(name).mean):
        for model in dict.fromkeys(result.model for result in results):
            own = [result for result in results if result.model == model]
            seen = {result.protocol.collection for result in own if result.in_domain}
            for measure in dict.fromkeys(name for result in own for name in result.measures):
                values = {
                    result.protocol.collection: result.measures[measure]
                    for result in own
                    if measure in result.measures and result.protocol.official
                }
                means.append((model, suite_mean(suite, measure, values, seen)))
    return means


def _say_stored(stored: Stored) -> None:
    result = stored.result
    _say_warnings(result)
    print(
        f"{result.protocol.collection}, {result.model}: stored in {stored.folder} since "
        f"{result.conditions.time}; --recompute evaluates again",
        file=sys.stderr,
    )


def _say_warnings(result: Result) -> None:
    for warning in result.preflight.get("warnings", ()):
        print(f"warning: {result.model}: {warning}", file=sys.stderr)


def _say_done(stored: Stored) -> None:
    result, spent = stored.result, stored.result.timings
    _say_warnings(result)
    encode_s = spent.encode_queries_s + spent.encode_documents_s
    rate = f", {spent.encoded_tokens / encode_s:,.0f} tokens/s" if spent.encoded_tokens else ""
    print(
        f"{result.protocol.collection}, {result.model}: "
        f"{spent.encoded_documents:,} documents encoded in {spent.encode_documents_s:.1f} s{rate}; "
        f"searched in {spent.search_s:.1f} s; kept in {stored.folder}",
        file=sys.stderr,
    )
    if busy := time_line(spent):
        print(f"  where the time went, added up over threads: {busy}", file=sys.stderr)
