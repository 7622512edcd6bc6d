"""Builds a `Leaderboard` from stored results, and from published scores with their sources.

Cards state the published scores of their own checkpoints. Further systems are listed in a TOML file
for each publication. A published score is never mixed with measured ones or averaged. A published
mean is a claim of its own, on the suite that it averages.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from bench.boards.leaderboard_record import (
    Cell,
    Claim,
    CollectionColumn,
    Leaderboard,
    Mean,
    Row,
    Score,
    SuiteColumn,
)
from bench.boards.rank_groups import RankGroups, compute_rank_groups
from bench.boards.rows import group_by_column, group_by_row, row_facts
from bench.comparing.statistics import Resampling
from bench.evaluation.judging import suite_mean, suite_weights
from bench.evaluation.result_record import Evaluation, Result, Timings
from bench.requests.deciding import LeaderboardRequest
from bench.result_store.find import describe_protocol
from datasets_cfg.catalogue import collections_of, dataset_names, facts_for, suite_for, suite_names
from foundation.errors import BenchError, did_you_mean
from foundation.records import Record, read_toml
from retrievers.models.card import Card

CARDS, ALL = "cards", "all"
PUBLISHED = Path(__file__).parent / "published"


class PublishedSystem(Record, kw_only=True):
    """One system of a publication.

    Attributes:
        name: name in the publication.
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
    """Published table of scores.

    Attributes:
        title: title of the publication.
        source: its address.
        systems: systems with scores.
        second_hand: whether all scores were read in a copy.
    """

    title: str
    source: str
    systems: tuple[PublishedSystem, ...]
    second_hand: bool = False


def read_publications(folder: Path = PUBLISHED) -> dict[str, Publication]:
    """Read all publications in ``folder``, by file name.

    Raises:
        BenchError: a file is not TOML, or has an unknown key or a value of the wrong type.
    """
    return {path.stem: read_toml(path, Publication) for path in sorted(folder.glob("*.toml"))}


def collect_claims(
    cards: Mapping[str, Card], models: Collection[str], names: Sequence[str] | None
) -> list[Claim]:
    """Collect published scores of measured models, and of other systems if chosen.

    Args:
        cards: model cards by name.
        models: names of measured models.
        names: publications to include, and ``cards`` for cards of models that were not measured;
            empty or ``all`` for all, None for measured models only.

    Raises:
        BenchError: a publication is unknown.
    """
    wanted = names or ()
    every = not wanted or ALL in wanted
    claims = [one for one in _of_cards(cards) if every or CARDS in wanted or one.model in models]
    published = read_publications() if names is not None else {}
    _check_names(wanted, published)
    shown = [one for name, one in published.items() if every or name in wanted]
    return claims + [claim for publication in shown for claim in list_claims(publication)]


def _check_names(names: Sequence[str], publications: Mapping[str, Publication]) -> None:
    known = [ALL, CARDS, *publications]
    for name in names:
        if name not in known:
            raise BenchError(
                f"no published scores are called {name!r}",
                did_you_mean(name, known, f"Choose from {', '.join(known)}."),
            )


def _of_cards(cards: Mapping[str, Card]) -> Iterable[Claim]:
    """Yield published scores of cards' own checkpoints."""
    for card in cards.values():
        for expected in card.expected:
            yield Claim(
                card.name, expected.dataset, expected.measure, expected.value, expected.source
            )


def list_claims(publication: Publication) -> Iterable[Claim]:
    """Yield every score of ``publication``."""
    for system in publication.systems:
        second_hand = system.second_hand or publication.second_hand
        source = system.source or publication.source
        for measure, scores in system.scores.items():
            for dataset, value in scores.items():
                yield Claim(
                    system.name,
                    dataset,
                    measure,
                    value,
                    source,
                    publication.title,
                    second_hand,
                    system.note,
                )


def build_leaderboard(
    stored: Sequence[Evaluation],
    cards: Mapping[str, Card],
    request: LeaderboardRequest,
    resampling: Resampling,
    advance: Callable[[int], None] = lambda done: None,
) -> Leaderboard:
    """Build a leaderboard.

    Args:
        stored: results to show.
        cards: model cards by name.
        request: suite, measures and publications to show.
        resampling: number of resamples, and seed.
        advance: called with 1 after each column.

    Raises:
        BenchError: there is nothing to show, per-query scores are damaged, or a suite is unknown.
    """
    by_column = group_by_column(select_results(stored, request))
    by_row = group_by_row(by_column)
    columns = tuple(_column_of(name, entries) for name, entries in by_column.items())
    _check_measure(request.measure, columns)
    suites = _suite_columns(columns, request.suite)
    wanted = {column.name: _measures_to_resample(column, request) for column in columns}
    names = [suite.name for suite in suites]
    groups = compute_rank_groups(by_row, wanted, names, resampling, advance)
    results = [entry.record for entries in by_column.values() for entry in entries]
    models = {result.model for result in results}
    known = collect_claims(cards, models, request.published)
    official = {column.name for column in columns if column.official}
    claims = tuple(claim for claim in known if claim.name in official.union(names))
    rows = tuple(
        _build_row(name, cells, suites, groups, claims, cards) for name, cells in by_row.items()
    )
    published = request.published is not None
    claimed = {request.suite, *(claim.name for claim in claims if published)}
    return Leaderboard(
        measures=tuple(dict.fromkeys(name for column in columns for name in column.measures)),
        columns=columns,
        suites=tuple(suite for suite in suites if _has_mean(suite, rows, claimed)),
        rows=rows,
        claims=claims,
        results=len(results),
        newest=max(result.conditions.time for result in results),
        resamples=resampling.resamples,
        published=published,
    )


def select_results(stored: Sequence[Evaluation], request: LeaderboardRequest) -> list[Evaluation]:
    """Select the results in ``stored`` on the collections that ``request`` shows.

    Raises:
        BenchError: there are none, or the suite is unknown.
    """
    if not request.suite:
        return list(stored)
    members = collections_of(request.suite)
    inside = [entry for entry in stored if entry.record.protocol.collection in members]
    if not inside:
        raise BenchError(
            f"there are no results on the {len(members)} collections of {request.suite}",
            f"python -m bench run {request.suite} --model bm25",
        )
    return inside


def _measures_to_resample(column: CollectionColumn, request: LeaderboardRequest) -> Sequence[str]:
    if request.every_measure:
        return column.measures
    return [request.measure or column.main_measure]


def _check_measure(measure: str, columns: Iterable[CollectionColumn]) -> None:
    known = dict.fromkeys(name for column in columns for name in column.measures)
    if measure and measure not in known:
        raise BenchError(f"no result has {measure}", f"Choose one of {', '.join(known)}.")


def _column_of(name: str, entries: Sequence[Evaluation]) -> CollectionColumn:
    results = [stored.record for stored in entries]
    mains = [result.main_measure for result in results]
    main = max(dict.fromkeys(mains), key=mains.count)
    measures = dict.fromkeys(
        [main, *(measure for result in results for measure in result.measures)]
    )
    protocol = max(
        (result.protocol for result in results), key=lambda candidate: candidate.corpus_sha256
    )
    return CollectionColumn(
        name=name,
        collection=protocol.collection,
        main=name == protocol.collection,
        official=protocol.official,
        main_measure=main,
        measures=tuple(measures),
        queries=results[0].queries,
        documents=next(
            (result.documents for result in results if result.documents is not None), None
        ),
        title_track=protocol.title_track,
        protocol=describe_protocol(protocol),
        about=_catalogue_facts(protocol.collection),
    )


def _catalogue_facts(collection: str) -> dict[str, str]:
    if collection not in dataset_names():
        return {}
    facts = facts_for(collection)
    names = ("title", "licence", "citation", "homepage")
    return {name: text for name in names if (text := getattr(facts, name))}


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
        members = tuple(suite_weights(suite.name))
        mains = {measured[name] for name in members if name in measured}
        if suite.mean and mains:
            main = mains.pop() if len(mains) == 1 else ""
            suites.append(
                SuiteColumn(
                    name=suite.name,
                    title=suite.title,
                    main_measure=main,
                    members=suite.members,
                    collections=members,
                )
            )
    return suites


def _has_mean(suite: SuiteColumn, rows: Iterable[Row], wanted: Collection[str]) -> bool:
    means = (mean for row in rows for mean in row.means.get(suite.name, {}).values())
    return suite.name in wanted or any(mean.score for mean in means)


def _build_row(
    name: str,
    by_column: Mapping[str, Evaluation],
    suites: Sequence[SuiteColumn],
    rank_groups: RankGroups,
    claims: Sequence[Claim],
    cards: Mapping[str, Card],
) -> Row:
    """Build a row with its cells and means.

    Args:
        name: name of the row.
        by_column: results of the row, by name of column.
        suites: suites with a mean.
        rank_groups: intervals and groups.
        claims: published scores, of which the model's own are shown next to its scores.
        cards: model cards by name.
    """
    results = {column: stored.record for column, stored in by_column.items()}
    first = next(iter(results.values()))
    card = cards.get(first.model)
    own_claims = {
        (claim.name, claim.measure): claim
        for claim in claims
        if claim.model == first.model and not claim.publication
    }

    def score(column: str, measure: str, value: float) -> Score:
        low, high, group = rank_groups.get((name, column, measure), (None, None, None))
        claim = own_claims.get((column, measure))
        return Score(
            value=value,
            low=low,
            high=high,
            group=group,
            published=claim.value if claim else None,
            source=claim.source if claim else "",
        )

    speed, device = _encoding_speed(list(results.values()))
    return Row(
        name=name,
        model=first.model,
        title=card.title if card else "",
        recipe=row_facts(list(by_column.values())),
        cells={
            column: _build_cell(
                result, {key: score(column, key, value) for key, value in result.measures.items()}
            )
            for column, result in results.items()
        },
        means={suite.name: _means_by_measure(suite.name, results, score) for suite in suites},
        trained_on=card.trained_on if card else (),
        tokens_per_s=speed,
        speed_device=device,
        parameters=next(
            (result.parameters for result in results.values() if result.parameters), None
        ),
    )


def _means_by_measure(
    suite: str, results: Mapping[str, Result], score: Callable[[str, str, float], Score]
) -> dict[str, Mean]:
    """Return a suite's mean by each measure, over the published collections only."""
    official = {name: result for name, result in results.items() if result.protocol.official}
    in_domain = {name for name, result in official.items() if result.in_domain}
    means = {}
    for measure in dict.fromkeys(key for result in official.values() for key in result.measures):
        values = {
            name: result.measures[measure]
            for name, result in official.items()
            if measure in result.measures
        }
        mean = suite_mean(suite, measure, values, in_domain)
        if len(mean.missing) < mean.members:
            means[measure] = Mean(
                score=None if mean.value is None else score(suite, measure, mean.value),
                zero_shot=mean.zero_shot,
                zero_shot_members=mean.zero_shot_members,
                missing=mean.missing,
            )
    return means


def _build_cell(result: Result, scores: dict[str, Score]) -> Cell:
    spent, where = result.timings, result.conditions
    encode_s = _encoding_seconds(spent)
    searched = result.recipe is not None and result.queries
    return Cell(
        scores=scores,
        in_domain=result.in_domain,
        judged_at_10=result.judged_at_10,
        tie_low=result.tie_low,
        tie_high=result.tie_high,
        index_recall=result.index_recall,
        unanswered=result.unanswered,
        tokens_per_s=spent.encoded_tokens / encode_s if encode_s else None,
        search_ms=1000 * spent.search_s / result.queries if searched else None,
        facts={
            "time": where.time,
            "commit": where.commit[:12] + (" with changes" if where.dirty else ""),
            "machine": _describe_machine(result),
            "libraries": ", ".join(
                f"{name} {version}" for name, version in where.libraries.items()
            ),
            "result": result.key,
        },
        warnings=tuple(result.preflight.get("warnings", ())),
    )


def _encoding_seconds(spent: Timings) -> float:
    """Return seconds of encoding, or 0 if all vectors were in the store."""
    encoded = spent.encoded_tokens
    return spent.encode_queries_s + spent.encode_documents_s if encoded else 0.0


def _describe_machine(result: Result) -> str:
    where = result.conditions
    return f"{where.machine}, {where.device}, {where.threads} threads"


def _encoding_speed(results: Sequence[Result]) -> tuple[float | None, str]:
    """Return tokens per second on the machine that encoded most, and its name."""
    tokens: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for result in results:
        if _encoding_seconds(result.timings):
            where = _describe_machine(result)
            tokens[where] = tokens.get(where, 0) + result.timings.encoded_tokens
            seconds[where] = seconds.get(where, 0.0) + _encoding_seconds(result.timings)
    if not tokens:
        return None, ""
    where = max(tokens, key=lambda name: tokens[name])
    return tokens[where] / seconds[where], where
