"""One row of a leaderboard: cells, means of suites, and what qualifies them."""

from collections.abc import Callable, Mapping, Sequence

from bench.boards.groups import Standing, Standings
from bench.boards.records import Cell, Claim, Mean, Row, Score, SuiteColumn
from bench.boards.rows import row_facts, training_step
from bench.evaluate.suites import suite_mean
from bench.results.result import Evaluation, Result, Timings
from retrievers.models.card import Card


def row_of(
    name: str,
    by_column: Mapping[str, Evaluation],
    suites: Sequence[SuiteColumn],
    stand: Standings,
    claims: Sequence[Claim],
    cards: Mapping[str, Card],
) -> Row:
    """A row with its cells and means.

    Args:
        by_column: results of the row, by name of column.
        claims: those of its own checkpoint stand beside its scores.
        cards: by name of model.
    """
    results = {column: stored.result for column, stored in by_column.items()}
    first = next(iter(results.values()))
    card = cards.get(first.model)
    own = {
        (claim.name, claim.measure): claim
        for claim in claims
        if claim.model == first.model and not claim.publication
    }

    def score(place: str, measure: str, value: float) -> Score:
        return _score(value, stand.get((place, measure), {}).get(name), own.get((place, measure)))

    speed, device = _speed(list(results.values()))
    training, step = training_step(name, first.model)
    return Row(
        name=name,
        model=first.model,
        title=card.title if card else "",
        recipe=row_facts(list(by_column.values())),
        cells={
            column: _cell(
                result, {key: score(column, key, value) for key, value in result.measures.items()}
            )
            for column, result in results.items()
        },
        means={suite.name: _means(suite.name, results, score) for suite in suites},
        trained_on=card.trained_on if card else (),
        tokens_per_s=speed,
        speed_device=device,
        training=training,
        step=step,
        parameters=next(
            (result.parameters for result in results.values() if result.parameters), None
        ),
    )


def _score(value: float, place: Standing | None, claim: Claim | None) -> Score:
    return Score(
        value=value,
        low=place.low if place else None,
        high=place.high if place else None,
        group=place.group if place else None,
        published=claim.value if claim else None,
        source=claim.source if claim else "",
    )


def _means(
    suite: str, results: Mapping[str, Result], score: Callable[[str, str, float], Score]
) -> dict[str, Mean]:
    """By measure. Only the published collections count, as their columns are named."""
    official = {name: result for name, result in results.items() if result.protocol.official}
    seen = {name for name, result in official.items() if result.in_domain}
    means = {}
    for measure in dict.fromkeys(key for result in official.values() for key in result.measures):
        values = {
            name: result.measures[measure]
            for name, result in official.items()
            if measure in result.measures
        }
        mean = suite_mean(suite, measure, values, seen)
        if len(mean.missing) < mean.members:
            means[measure] = Mean(
                score=None if mean.value is None else score(suite, measure, mean.value),
                zero_shot=mean.zero_shot,
                zero_shot_members=mean.zero_shot_members,
                missing=mean.missing,
            )
    return means


def _cell(result: Result, scores: dict[str, Score]) -> Cell:
    spent, where = result.timings, result.conditions
    encode_s = _encode_s(spent)
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
            "machine": _machine(result),
            "libraries": ", ".join(
                f"{name} {version}" for name, version in where.libraries.items()
            ),
            "result": result.key,
        },
        warnings=tuple(result.preflight.get("warnings", ())),
    )


def _encode_s(spent: Timings) -> float:
    """Seconds of encoding; 0 where no tokens were counted or all vectors were in the store."""
    encoded = spent.encoded_tokens
    return spent.encode_queries_s + spent.encode_documents_s if encoded else 0.0


def _machine(result: Result) -> str:
    where = result.conditions
    return f"{where.machine}, {where.device}, {where.threads} threads"


def _speed(results: Sequence[Result]) -> tuple[float | None, str]:
    """Tokens per second, and on what: the machine that encoded most."""
    tokens: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for result in results:
        if _encode_s(result.timings):
            where = _machine(result)
            tokens[where] = tokens.get(where, 0) + result.timings.encoded_tokens
            seconds[where] = seconds.get(where, 0.0) + _encode_s(result.timings)
    if not tokens:
        return None, ""
    where = max(tokens, key=lambda name: tokens[name])
    return tokens[where] / seconds[where], where
