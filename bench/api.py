"""The public Python API: evaluate a model, score a run, read results, compare, and decide.

`bench.train` has the functions that train.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast, get_args

import msgspec
import pandas as pd

from bench.boards.build import BoardFilter, build_leaderboard
from bench.boards.rows import find_distinct_results
from bench.comparing.compare import ComparedModel, Comparison, ComparisonSettings
from bench.comparing.compare import compare as compare_entrants
from bench.comparing.statistics import Resampling
from bench.evaluation.collection_search import EvaluationOptions, LoadedModel
from bench.evaluation.judging import mean_weights, suites_inner_first
from bench.evaluation.pipeline import evaluate as evaluate_job
from bench.evaluation.pipeline import evaluate_run
from bench.evaluation.result_record import Evaluation
from bench.evaluation.runs import Run, read_run_file
from bench.gate.check_record import BASELINE, Check, StoredModel
from bench.gate.paired_tests import check_against
from bench.gate.scope import Candidate, Scope
from bench.gate.settings import GateSettings, Rule
from bench.gate.verdicts import conclude_check
from bench.result_store.find import expand_collections, find_results
from bench.result_store.result import load, save
from bench.workspace import Workspace, cache_folder
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError, did_you_mean
from foundation.locations import parse_location
from retrievers.encoders.python_object import wrap_encoder
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.card import all_cards
from retrievers.models.recipe import ModelDtype, Similarity, StoreDtype


class ModelSettings(TypedDict, total=False):
    """Settings that override a model card's, like the options of ``bench run``.

    Attributes:
        like: name of a card whose pooling, prompts and lengths a plain checkpoint uses.
        endpoint_model: name of the model on the server, if the model is a URL.
        adapter: folder of an AdapterHub or PEFT adapter.
        dtype: precision of weights and activations; ``int8`` runs on the CPU.
        store_dtype: precision of stored vectors.
        query_prompt: text put before every query, on all collections.
        max_query_tokens, max_document_tokens: length at which texts are cut, in tokens.
        trust_code: allow a card to run an encoder class of a third party.
    """

    like: str | None
    endpoint_model: str | None
    adapter: str | None
    dtype: ModelDtype | None
    store_dtype: StoreDtype
    query_prompt: str | None
    max_query_tokens: int | None
    max_document_tokens: int | None
    trust_code: bool


Function = TypeVar("Function", bound=Callable[..., Any])


def refuse_unknown_arguments(function: Function) -> Function:
    """Make ``function`` raise a `BenchError` that suggests a name for an unknown argument."""
    known = list(_argument_names(function))

    @wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        for name in sorted(keywords.keys() - set(known)):
            raise BenchError(
                f"bench.{function.__name__} has no argument {name!r}",
                did_you_mean(name, known, f"its arguments are {', '.join(known)}"),
            )
        return function(*arguments, **keywords)

    return cast(Function, checked)


def _argument_names(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the names of a function's arguments, and the fields of its typed ``**settings``."""
    for name, parameter in signature(function).parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            (fields,) = get_args(parameter.annotation)
            yield from fields.__annotations__
        else:
            yield name


@refuse_unknown_arguments
def evaluate(
    model: Any,
    dataset: str | Path | Dataset,
    *,
    name: str = "",
    fingerprint: str | None = None,
    similarity: Similarity | None = None,
    index: str = "flat",
    measures: Sequence[str] | None = None,
    depth: int | None = None,
    split: str | None = None,
    out: str | Path | None = None,
    cache_dir: str | Path | None = None,
    data_dir: str | Path | None = None,
    offline: bool = False,
    device: str = "auto",
    allow_mismatch: bool = False,
    **settings: Unpack[ModelSettings],
) -> Evaluation:
    """Evaluate one model on one collection.

    Args:
        model: name of ``bench list models``, card file, folder, Hub id, or any object that encodes:
            a `SentenceTransformer`, an object with beir's ``encode_queries`` and ``encode_corpus``,
            an encoder of mteb 2, or a function from a list of texts to an array ``(n, dim)``.
        dataset: name of ``bench list datasets``, folder, or `Dataset.from_dicts`.
        name: name of the model in results; required for an object.
        fingerprint: identifier of an object's weights, which must change whenever its vectors do.
            Vectors are stored under it; without one, texts are encoded again each time.
        similarity: similarity of an object, ``dot`` or ``cos``; None for the similarity of a
            SentenceTransformer, else ``dot``.
        index: ``flat`` for exact search, or a FAISS factory string with search parameters.
        measures: measures besides the collection's main one; None for the collection's.
        depth: documents per query; None for the collection's.
        split: split of the judgements; None for the collection's.
        out: folder or URL to save the result in; None to keep it in memory only.
        cache_dir: folder of downloads, corpora and vectors; None for ``BENCH_CACHE``, then the
            user's cache folder.
        data_dir: folder of collections; None for ``BENCH_DATA``, then a download.
        offline: download nothing.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        allow_mismatch: evaluate a collection although it differs from the published one.
        settings: settings that override the card's, such as ``like="retromae"`` or
            ``dtype="bfloat16"``; see `ModelSettings`.

    Raises:
        BenchError: wrong input. The attribute ``hint`` has the advice that the command line prints.
    """
    workspace = new_workspace(cache_dir, data_dir, offline, allow_mismatch, device)
    loaded = _load_model(workspace, model, name, fingerprint, similarity, settings)
    opened = workspace.open(dataset, split)
    options = EvaluationOptions(
        index=IndexSpec.parse(index),
        depth=depth,
        measures=None if measures is None else tuple(measures),
    )
    if isinstance(model, str | Path) or fingerprint:
        return _save_to(evaluate_job(workspace.prepare(opened, loaded, options)), out)
    with tempfile.TemporaryDirectory() as vectors:  # for an object without a fingerprint
        apart = replace(workspace, vectors=vectors)
        return _save_to(evaluate_job(apart.prepare(opened, loaded, options)), out)


@refuse_unknown_arguments
def score(
    run: str | Path | Run | Mapping[str, Mapping[str, float]],
    dataset: str | Path | Dataset,
    *,
    name: str = "run",
    measures: Sequence[str] | None = None,
    depth: int | None = None,
    split: str | None = None,
    out: str | Path | None = None,
    cache_dir: str | Path | None = None,
    data_dir: str | Path | None = None,
    offline: bool = False,
    allow_mismatch: bool = False,
) -> Evaluation:
    """Score a ranking with the collection's own protocol, like ``bench score``.

    Args:
        run: path of a TREC run file, a `Run`, or scores by document id by query id, as in beir and
            pytrec_eval.
        dataset: name of ``bench list datasets``, folder, or `Dataset.from_dicts`.
        name: name of the run in results.
        measures: measures besides the collection's main one; None for the collection's.
        depth: documents per query; None for the collection's.
        split: split of the judgements; None for the collection's.
        out: folder or URL to save the result in; None to keep it in memory only.
        cache_dir: folder of downloads and corpora; None for ``BENCH_CACHE``, then the user's cache
            folder.
        data_dir: folder of collections; None for ``BENCH_DATA``, then a download.
        offline: download nothing.
        allow_mismatch: score on a collection although it differs from the published one.

    Raises:
        BenchError: wrong input.
    """
    workspace = new_workspace(cache_dir, data_dir, offline, allow_mismatch)
    if isinstance(dataset, Dataset):
        opened = workspace.open(dataset)
    else:
        opened = workspace.open_judgements(str(dataset), split)
    ranking, sha256 = _read_run(run)
    evaluation = evaluate_run(
        ranking, name, sha256, opened.dataset, measures, depth, official=opened.official
    )
    return _save_to(evaluation, out)


def new_workspace(
    cache_dir: str | Path | None,
    data_dir: str | Path | None,
    offline: bool,
    allow_mismatch: bool,
    device: str = "auto",
) -> Workspace:
    """Return the workspace of a call, whose arguments are described at `evaluate`."""
    return Workspace(
        cache_dir=cache_folder(cache_dir),
        data_dir=Path(data_dir) if data_dir else None,
        offline=offline,
        device=device,
        allow_mismatch=allow_mismatch,
    )


def _load_model(
    workspace: Workspace,
    model: Any,
    name: str,
    fingerprint: str | None,
    similarity: Similarity | None,
    settings: Mapping[str, Any],
) -> LoadedModel:
    """Load a model by name, or wrap a Python object."""
    if isinstance(model, str | Path):
        loaded = workspace.load(str(model), **settings)
        return loaded.with_name(name) if name else loaded
    if not name:
        raise BenchError(
            f"a {type(model).__name__} needs a name for its results",
            'use bench.evaluate(model, dataset, name="my-model")',
        )
    if settings:
        raise BenchError(
            f"{', '.join(settings)} applies to model cards, and {name} is a Python object",
            "set it on the object itself",
        )
    wrapped, encoder = wrap_encoder(model, name, fingerprint, similarity)
    return LoadedModel(wrapped, encoder)


def _read_run(run: str | Path | Run | Mapping[str, Mapping[str, float]]) -> tuple[Run, str]:
    """Return a ranking and a hash of it."""
    if isinstance(run, str | Path):
        file = read_run_file(Path(run))
        return file.run, file.sha256
    if not isinstance(run, Run):
        rows = [(q, d, float(s)) for q, documents in run.items() for d, s in documents.items()]
        queries, documents, scores = zip(*rows, strict=True) if rows else ((), (), ())
        run = Run.from_rows(queries, documents, scores)
    content = hashlib.sha256()
    for column in (run.query_ids, run.offsets.tolist(), run.doc_ids.to_pylist()):
        content.update(msgspec.json.encode(column))
    content.update(run.scores.tobytes())
    return run, content.hexdigest()


def _save_to(evaluation: Evaluation, out: str | Path | None) -> Evaluation:
    """Save an evaluation if a folder is given."""
    return evaluation if out is None else save(evaluation, parse_location(str(out)))


@refuse_unknown_arguments
def load_result(path: str | Path) -> Evaluation:
    """Load one result from ``path``: its folder, its ``result.json``, or the URL of either.

    Raises:
        BenchError: the result does not exist, is damaged, or contradicts itself.
    """
    return load(parse_location(str(path)))


@refuse_unknown_arguments
def results(folder: str | Path = "results") -> pd.DataFrame:
    """Read all results below ``folder``, which may be the URL of an object store.

    Returns:
        A row for each result and measure, sorted by collection, model and time, with the columns
        ``collection``, ``split``, ``model``, ``measure``, ``value`` (the mean, unrounded),
        ``is_main`` (whether it is the collection's main measure), ``queries``, ``unanswered``,
        ``judged_at_10``, ``in_domain``, ``official``, ``depth``, ``index`` (``flat`` is exact; ""
        for BM25 and run files), ``time``, ``key`` (equal for the same model, protocol and index)
        and ``folder``, which `load_result` accepts.

    Raises:
        BenchError: there are no results, or one is damaged or contradicts itself.
    """
    stored = find_results(parse_location(str(folder)))
    if not stored:
        raise BenchError(f"{folder} holds no results", "use the folder that `run` wrote to")
    frame = pd.DataFrame([row for each in stored for row in _result_rows(each)])
    frame["time"] = pd.to_datetime(frame["time"], utc=True)
    frame["judged_at_10"] = frame["judged_at_10"].astype(float)  # None if nothing is judged
    order = ["collection", "model", "time", "key"]
    return frame.sort_values(order, kind="stable", ignore_index=True)


def _result_rows(evaluation: Evaluation) -> list[dict[str, object]]:
    """Return a row for each measure of an evaluation."""
    record = evaluation.result
    protocol = record.protocol
    return [
        {
            "collection": protocol.collection,
            "split": protocol.split,
            "model": record.model,
            "measure": measure,
            "value": value,
            "is_main": measure == record.main_measure,
            "queries": record.queries,
            "unanswered": record.unanswered,
            "judged_at_10": record.judged_at_10,
            "in_domain": record.in_domain,
            "official": protocol.official,
            "depth": protocol.depth,
            "index": record.index,
            "time": record.conditions.time,
            "key": record.key,
            "folder": str(evaluation.folder),
        }
        for measure, value in evaluation.measures.items()
    ]


if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Evaluation | Sequence[Evaluation]


@dataclass(frozen=True)
class ComparisonResult:
    """Two models on the collections that both were evaluated on.

    Attributes:
        record: all figures, as printed by ``bench compare --json``.
        resampling: number of resamples and seed of intervals and p-values.
    """

    record: Comparison
    resampling: Resampling

    def __repr__(self) -> str:
        """Return the names and the difference on each collection, in one line."""
        rows = [(row.on, row.paired) for row in self.record.collections]
        differences = [
            f"{name} {paired.difference:+.4f}" if paired else f"{name} -" for name, paired in rows
        ]
        names = f"{self.record.a} minus {self.record.b}"
        return f"<ComparisonResult {names}: {'; '.join(differences)}>"

    @property
    def table(self) -> pd.DataFrame:
        """Means, difference (a minus b), 95 % interval and p-values, a row for each collection.

        ``better`` is the name of the better model by Holm's p at 5 %, or "" if neither is better.
        """
        from reports.comparison import comparison_data

        return comparison_data(self.record).frame()


@refuse_unknown_arguments
def compare(
    a: Results,
    b: Results,
    *,
    on: Sequence[str] = (),
    measure: str | None = None,
    force: bool = False,
    resamples: int = 9_999,
    seed: int = 0,
) -> ComparisonResult:
    """Compare two models with intervals and p-values.

    Args:
        a, b: a result, or results of one model on several collections.
        on: collections and suites to compare on; empty for all. ``record.suites`` has the means of
            the suites. A suite of your own is the path of its TOML file.
        measure: measure to compare; None for the main measure of each collection.
        force: compare results of different protocols.
        resamples: number of resamples of the bootstrap and the randomisation test.
        seed: seed of both.

    Raises:
        BenchError: different protocols, no common collection, or too few resamples.
    """
    models = [_compared_model(results) for results in (a, b)]
    if models[0].name == models[1].name:
        first, second = models
        models = [ComparedModel(f"{first.name} (a)", first.results)]
        models.append(ComparedModel(f"{second.name} (b)", second.results))
    collections = {name for model in models for name in model.results}
    comparing = ComparisonSettings(
        measure=measure,
        force=force,
        collections=expand_collections(on, collections) if on else None,
        suites=suites_inner_first(on) if on else None,
        resampling=Resampling(resamples, seed),
    )
    (record,) = compare_entrants(models, comparing)
    return ComparisonResult(record, comparing.resampling)


@refuse_unknown_arguments
def check(
    candidate: Results,
    baseline: Results,
    *,
    on: Sequence[str] = (),
    rule: Rule = "loss",
    margin: float = 0.01,
    floor: float = 0.1,
    expect_same: bool = False,
    tolerance: float = 0.0005,
    measure: str | None = None,
    resamples: int = 9_999,
    seed: int = 0,
) -> Check:
    """Decide whether a candidate may be released, like ``bench check``.

    Args:
        candidate, baseline: a result, or results of one model on several collections. A collection
            that only one of them has is MISSING.
        on: collections and suites to check on, and the weights of their mean, as for
            ``bench check --on``; empty for all collections of either model.
        rule, margin, floor, expect_same, tolerance: as for ``bench check``.
        measure: measure to check; None for the main measure of each collection.
        resamples: number of resamples.
        seed: seed of the resampling.

    Returns:
        The verdict: ``outcome`` (OK, REGRESSION, INCONCLUSIVE, MISSING or DRIFT), ``exit_code``,
        ``reasons``, and the figures in ``against``.

    Raises:
        BenchError: different protocols, or too few resamples.
    """
    new, old = _compared_model(candidate), _compared_model(baseline)
    collections = dict.fromkeys([*old.results, *new.results])
    weights = mean_weights(on or collections)
    settings = GateSettings(
        rule=rule, margin=margin, floor=floor, expect_same=expect_same, tolerance=tolerance
    )
    comparing = ComparisonSettings(measure, resampling=Resampling(resamples, seed))
    if not expect_same:
        comparing.resampling.check_enough(len(weights), sides=2)
    stored = StoredModel(BASELINE, old.name, old.results)
    model = Candidate(new.name, new.results)
    verdict = check_against(model, stored, Scope(weights=weights), settings, comparing)
    return conclude_check(new.name, [verdict], (), settings)


def _compared_model(results: Results) -> ComparedModel:
    """The one model of some results, by collection."""
    several = [results] if isinstance(results, Evaluation) else list(results)
    names = sorted({result.model for result in several})
    if len(names) != 1:
        listed = ", ".join(names) or "none"
        raise BenchError(
            f"results of one model are needed, and these are of {listed}",
            "pass a result, or a list of results of one model",
        )
    by_collection = {result.collection: result for result in several}
    if len(by_collection) < len(several):
        raise BenchError(f"{names[0]} has two results on one collection", "pass one of them")
    return ComparedModel(names[0], by_collection)


@refuse_unknown_arguments
def leaderboard(
    folder: str | Path = "results",
    *,
    suite: str = "",
    measure: str = "",
    resamples: int = 9_999,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare all stored results, the best model first.

    Args:
        folder: folder of results, or URL of an object store.
        suite: show only the collections of this suite and their mean; "" for all. A suite of your
            own is the path of its TOML file, and its column has the name of the file.
        measure: measure to show; "" for the main measure of each collection.
        resamples: number of resamples behind the groups.
        seed: seed of the resampling.

    Returns:
        A row for each model and recipe, indexed by name; a column for each collection and suite
        with the mean of its measure, NaN if it was not evaluated; and ``group``: 1 for the best
        model and all models that do not differ significantly from it at 5 %, if models are ranked.

    Raises:
        BenchError: there are no results, or one is damaged.
    """
    from reports.leaderboard import scores

    location = parse_location(str(folder))
    board_filter = BoardFilter(suite=suite, measure=measure)
    board = build_leaderboard(
        find_distinct_results(location), all_cards(), board_filter, Resampling(resamples, seed)
    )
    return scores(board, measure).frame().set_index("model")


@refuse_unknown_arguments
def plot(comparison: ComparisonResult) -> "Figure":
    """Draw the forest plot of a ``comparison``: each difference with its 95 % interval.

    Returns:
        A matplotlib figure; ``figure.savefig("comparison.pdf")`` writes it.

    Raises:
        ImportError: matplotlib is not installed. Run ``pip install 'retrieval-bench[plots]'``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from reports.plots import forest_plot_lines, plot_differences

    record = comparison.record
    tests = [*(row.paired for row in record.suites), *(row.paired for row in record.collections)]
    lines = forest_plot_lines([test for test in tests if test])
    figure = Figure(figsize=(7, 2 + 0.3 * len(lines)), layout="constrained")
    FigureCanvasAgg(figure)
    plot_differences(figure, lines, f"{record.a} − {record.b}")
    return figure
