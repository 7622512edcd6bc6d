"""The use case ``leaderboard``: stored results, and published scores with their sources.

Cards state the published scores of their own checkpoints. Further systems are listed in a TOML file
for each publication. A published score is never mixed with measured ones or averaged. A published
mean is a claim of its own, on the suite that it averages.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mode
from typing import Annotated

import msgspec

from bench.boards.leaderboard_record import (
    Cell,
    Claim,
    CollectionColumn,
    Contrast,
    Leaderboard,
    Mean,
    ModelRow,
    Score,
    SuiteColumn,
)
from bench.boards.rows import (
    ByRow,
    RankedScores,
    find_distinct_results,
    group_by_column,
    group_by_row,
    rank_scores,
    row_settings,
)
from bench.comparing.comparison import check_scores_against_rankings, open_evaluated
from bench.comparing.pairs import ComparedModel, ComparisonSettings, compare_models
from bench.comparing.slices import SliceComparison, Slicing, compare_slices, find_slices
from bench.comparing.statistics import Resampling
from bench.evaluation.judging import mean_weights, suite_means, suite_weights
from bench.evaluation.result_record import Evaluation, Result
from bench.evaluation.vector_search import bytes_per_document
from bench.gate.candidate import Candidate
from bench.gate.check import check_against
from bench.requests.deciding import GateSettings, LeaderboardRequest
from bench.result_store.find import SELECTOR, describe_protocol
from bench.runner.workspace import Workspace, open_workspace
from datasets_cfg.catalogue import collections_of, suite_for, suite_names
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError, UnavailableError, did_you_mean
from foundation.records import Record, read_toml
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.card import Card, all_cards

MOST_BASELINES = 4  # each has its own mark
CARDS, ALL = "cards", "all"
PUBLISHED = Path(__file__).parent / "published"


def leaderboard(request: LeaderboardRequest) -> Leaderboard:
    """Build the leaderboard of stored results, whose rankings are scored again."""
    shown = _select_results(find_distinct_results(*request.results), request)
    if request.by and not request.baseline:
        raise BenchError("--by compares with a baseline on slices", "Add --baseline MODEL.")
    workspace = open_workspace(request)
    check_scores_against_rankings(shown, workspace)
    return build_leaderboard(shown, all_cards(), request, workspace)


class PublishedSystem(Record, kw_only=True):
    """One system of a publication.

    Attributes:
        scores: scores from 0 to 1, by measure and by collection or suite.
        source: used instead of the publication's source.
        second_hand: whether the scores were copied from somebody else's publication.
        note: remark that readers of these scores need.
    """

    name: str
    scores: dict[str, dict[str, Annotated[float, msgspec.Meta(ge=0, le=1)]]]
    source: str = ""
    second_hand: bool = False
    note: str = ""


class Publication(Record, kw_only=True):
    """Published table of scores at the address ``source``, or read in a ``second_hand`` copy."""

    title: str
    source: str
    systems: tuple[PublishedSystem, ...]
    second_hand: bool = False


def read_publications(folder: Path = PUBLISHED) -> dict[str, Publication]:
    """Read all publications in ``folder``, by file name."""
    return {path.stem: read_toml(path, Publication) for path in sorted(folder.glob("*.toml"))}


def collect_claims(
    cards: Mapping[str, Card], models: Collection[str], names: Sequence[str] | None
) -> list[Claim]:
    """Collect published scores of measured models, and of other systems if chosen.

    ``names`` are the publications to include, and ``cards`` for cards of models that were not
    measured; empty or ``all`` for all, None for measured models only.
    """
    wanted = names or ()
    every = not wanted or ALL in wanted
    published = read_publications() if names is not None else {}
    known = [ALL, CARDS, *published]
    for name in wanted:
        if name not in known:
            raise BenchError(
                f"no published scores are called {name!r}",
                did_you_mean(name, known, f"Choose from {', '.join(known)}."),
            )
    claims = [
        Claim(card.name, one.dataset, one.measure, one.value, one.source)
        for card in cards.values()
        for one in card.expected
        if every or CARDS in wanted or card.name in models
    ]
    shown = [one for name, one in published.items() if every or name in wanted]
    return claims + [claim for publication in shown for claim in list_claims(publication)]


def list_claims(publication: Publication) -> Iterable[Claim]:
    """Yield every score of ``publication``."""
    for system in publication.systems:
        second_hand = system.second_hand or publication.second_hand
        source = system.source or publication.source
        origin = (source, publication.title, second_hand, system.note)
        for measure, scores in system.scores.items():
            for dataset, value in scores.items():
                yield Claim(system.name, dataset, measure, value, *origin)


def build_leaderboard(
    stored: Sequence[Evaluation],
    cards: Mapping[str, Card],
    request: LeaderboardRequest,
    workspace: Workspace | None = None,
) -> Leaderboard:
    """Build a leaderboard of ``stored`` results, with the suite, measures and claims to show.

    With slices, their fields are read from the collections of the ``workspace``.
    """
    by_column, labels = group_by_column(_select_results(stored, request))
    by_row = group_by_row(by_column)
    columns = tuple(_column_of(name, labels[name], some) for name, some in by_column.items())
    measures = tuple(dict.fromkeys(name for column in columns for name in column.measures))
    if request.measure and request.measure not in measures:
        known_measures = ", ".join(measures)
        raise BenchError(f"no result has {request.measure}", f"Choose one of {known_measures}.")
    suites = _suite_columns(columns, request.suite)
    wanted = {
        one.name: one.measures if request.every_measure else [request.measure or one.main_measure]
        for one in columns
    }
    names = [suite.name for suite in suites]
    resampling = Resampling(request.resamples, request.seed)
    baselines = _find_baselines(request.baseline, by_row)
    ranked = rank_scores(by_row, wanted, names, resampling)
    results = [entry.record for entries in by_column.values() for entry in entries]
    models = {result.model for result in results}
    known = collect_claims(cards, models, request.published)
    official = {column.name for column in columns if column.official is not False}
    claims = tuple(claim for claim in known if claim.name in official.union(names))
    rows = tuple(
        _build_row(name, cells, suites, ranked, claims, cards) for name, cells in by_row.items()
    )
    settings = ComparisonSettings(request.measure or None, resampling=resampling)
    slicings = list(_find_slicings(request.by, by_column, workspace)) if workspace else []
    published = request.published is not None
    claimed = {request.suite, *(claim.name for claim in claims if published)}
    return Leaderboard(
        measures=measures,
        columns=columns,
        suites=tuple(suite for suite in suites if _has_mean(suite, rows, claimed)),
        rows=rows,
        claims=claims,
        results=len(results),
        newest=max(result.conditions.time for result in results),
        resamples=request.resamples,
        published=published,
        baselines=tuple(baselines),
        contrasts=tuple(_contrast_rows(baselines, by_row, request.suite, settings, slicings)),
    )


def _find_baselines(typed: Sequence[str], by_row: ByRow) -> list[str]:
    """Return the rows of the ``typed`` baselines: the names of rows, or of models with one row."""
    rows = []
    names = dict.fromkeys(typed)
    if len(names) > MOST_BASELINES:
        raise BenchError(f"--baseline: {len(names)} models, at most {MOST_BASELINES} are possible")
    for name in names:
        found = [row for row in by_row if name in (row, row.partition(SELECTOR)[0])]
        found = [name] if name in by_row else found
        if len(found) != 1:
            problem = f"{len(found)} rows of {name}" if found else f"no row is called {name}"
            raise BenchError(f"--baseline: {problem}", f"Choose from {', '.join(found or by_row)}.")
        rows += found
    return list(dict.fromkeys(rows))


def _find_slicings(
    fields: Sequence[str], by_column: Mapping[str, Sequence[Evaluation]], workspace: Workspace
) -> Iterator[Slicing]:
    """Yield the slices by each field of the columns whose collection is on this machine."""
    warnings, opened = list[str](), dict[str, Dataset | UnavailableError]()
    for column, stored in by_column.items() if fields else ():
        try:
            opened[column] = open_evaluated(stored[0], workspace)
        except UnavailableError as error:
            warnings.append(f"{column} has no slices: {error}")
    for field in fields:
        slicing = find_slices(field, opened)
        warnings += slicing.warnings
        yield slicing
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _contrast_rows(
    baselines: Sequence[str],
    by_row: ByRow,
    suite: str,
    settings: ComparisonSettings,
    slicings: Sequence[Slicing],
) -> Iterator[Contrast]:
    """Compare every other row with each baseline, if they share a column, and decide."""
    for baseline, (row, cells) in product(baselines, by_row.items()):
        theirs = by_row[baseline]
        if row == baseline or not cells.keys() & theirs.keys():
            continue
        models = [ComparedModel(row, cells), ComparedModel(baseline, theirs)]
        (comparison,) = compare_models(models, settings)
        weights = suite_weights(suite) if suite else mean_weights(theirs)
        verdict = check_against(Candidate(row, cells), models[1], weights, GateSettings(), settings)
        slices = list[SliceComparison]()
        for slicing in slicings:
            shared = {n: one for n, one in slicing.labels.items() if n in cells and n in theirs}
            if shared:
                slices += compare_slices(models, settings, replace(slicing, labels=shared))
        yield Contrast(comparison, verdict.outcome, verdict.reasons, tuple(slices))


def _select_results(stored: Sequence[Evaluation], request: LeaderboardRequest) -> list[Evaluation]:
    """Select the results on the collections that are shown, or raise if there are none."""
    if not request.suite:
        return list(stored)
    members = collections_of(request.suite)
    inside = [entry for entry in stored if entry.record.protocol.collection in members]
    if not inside:
        raise BenchError(
            f"there are no results on the {len(members)} collections of {request.suite}",
            f"Run `python -m bench run {request.suite} --model bm25`.",
        )
    return inside


def _column_of(name: str, label: str, entries: Sequence[Evaluation]) -> CollectionColumn:
    results = [stored.record for stored in entries]
    main = mode(result.main_measure for result in results)
    measures = dict.fromkeys([main, *(key for result in results for key in result.measures)])
    protocol = max((result.protocol for result in results), key=lambda one: one.corpus_sha256)
    shown = describe_protocol(protocol)
    if protocol.official is None:
        del shown["official"]  # nobody published it
    sizes = (result.documents for result in results if result.documents is not None)
    return CollectionColumn(
        name=name,
        label=label,
        collection=protocol.collection,
        main=name == protocol.collection,
        official=protocol.official,
        main_measure=main,
        measures=tuple(measures),
        queries=results[0].queries,
        documents=next(sizes, None),
        title_track=protocol.title_track,
        protocol=shown,
    )


def _suite_columns(columns: Iterable[CollectionColumn], only: str) -> list[SuiteColumn]:
    """Return suites with a mean: the chosen ones, or all with a measured member."""
    measured = {column.collection: column.main_measure for column in columns if column.main}
    names = suite_names()
    if only:
        within = set(collections_of(only))
        inner = [name for name in names if name != only and within.issuperset(collections_of(name))]
        names = (only, *inner)
    suites = []
    for suite in (suite_for(name) for name in names):
        collections = tuple(suite_weights(suite.name))
        mains = {measured[name] for name in collections if name in measured}
        if suite.mean and mains:
            main = mains.pop() if len(mains) == 1 else ""
            suites.append(SuiteColumn(suite.name, suite.title, main, suite.members, collections))
    return suites


def _has_mean(suite: SuiteColumn, rows: Iterable[ModelRow], wanted: Collection[str]) -> bool:
    means = (mean for row in rows for mean in row.means.get(suite.name, {}).values())
    return suite.name in wanted or any(mean.score for mean in means)


def _build_row(
    name: str,
    by_column: Mapping[str, Evaluation],
    suites: Sequence[SuiteColumn],
    ranked: RankedScores,
    claims: Sequence[Claim],
    cards: Mapping[str, Card],
) -> ModelRow:
    """Build a row with its cells and means, and the published scores of its own checkpoint."""
    results = {column: stored.record for column, stored in by_column.items()}
    first = next(iter(results.values()))
    card = cards.get(first.model)
    own = [claim for claim in claims if claim.model == first.model and not claim.publication]
    own_claims = {(claim.name, claim.measure): claim for claim in own}

    def score(column: str, measure: str, value: float) -> Score:
        found = ranked.get((name, column, measure), Score(value))
        claim = own_claims.get((column, measure))
        published, source = (claim.value, claim.source) if claim else (None, "")
        return msgspec.structs.replace(found, value=value, published=published, source=source)

    cells = {}
    for column, result in results.items():
        scores = {key: score(column, key, value) for key, value in result.measures.items()}
        cells[column] = _build_cell(result, scores)
    largest = max(results.values(), key=lambda result: result.timings.encoded_tokens)
    speed = _tokens_per_second(largest)
    sizes = (result.parameters for result in results.values() if result.parameters)
    return ModelRow(
        name=name,
        model=first.model,
        title=card.title if card else "",
        recipe=row_settings(list(by_column.values())),
        cells=cells,
        means={suite.name: _means_by_measure(suite.name, results, score) for suite in suites},
        trained_on=card.trained_on if card else (),
        tokens_per_s=speed,
        speed_device=_describe_machine(largest) if speed else "",
        parameters=next(sizes, None),
        document_bytes=_document_bytes(first),
    )


def _document_bytes(result: Result) -> int | None:
    """Return the bytes of a document's vector, or of its part of a FAISS index."""
    recipe = result.recipe
    if result.bytes_per_document or recipe is None or not recipe.dim:
        return result.bytes_per_document
    return bytes_per_document(recipe, IndexSpec.parse(result.index.partition(" (")[0]))


def _means_by_measure(
    suite: str, results: Mapping[str, Result], score: Callable[[str, str, float], Score]
) -> dict[str, Mean]:
    """Return a suite's mean by each measure of which a member has a score."""
    means = {}
    for mean in suite_means(suite, results):
        if len(mean.missing) < mean.members:
            value = None if mean.value is None else score(suite, mean.measure, mean.value)
            shown = Mean(value, mean.zero_shot, mean.zero_shot_members, mean.missing)
            means[mean.measure] = shown
    return means


def _build_cell(result: Result, scores: dict[str, Score]) -> Cell:
    spent, where = result.timings, result.conditions
    libraries = ", ".join(f"{name} {version}" for name, version in where.libraries.items())
    searched = result.recipe is not None and result.queries
    return Cell(
        scores=scores,
        in_domain=result.in_domain,
        judged_at_10=result.judged_at_10,
        tie_low=result.tie_low,
        tie_high=result.tie_high,
        index_recall=result.index_recall,
        unanswered=result.unanswered,
        tokens_per_s=_tokens_per_second(result),
        search_ms=1000 * spent.search_s / result.queries if searched else None,
        provenance={
            "time": where.time,
            "commit": where.commit[:12] + (" with changes" if where.dirty else ""),
            **({"own code": ", ".join(where.own_code)} if where.own_code else {}),
            "machine": _describe_machine(result),
            "libraries": libraries,
            "result": result.key,
        },
        warnings=tuple(result.preflight.get("warnings", ())),
    )


def _tokens_per_second(result: Result) -> float | None:
    """Return the speed of encoding, or None if all vectors were in the store."""
    spent = result.timings
    seconds = spent.encode_queries_s + spent.encode_documents_s
    return spent.encoded_tokens / seconds if spent.encoded_tokens and seconds else None


def _describe_machine(result: Result) -> str:
    where = result.conditions
    return f"{where.machine}, {where.device}, {where.shown_threads}"
