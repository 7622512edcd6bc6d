"""A leaderboard as text for people: Markdown."""

from collections.abc import Iterable, Sequence

from bench.leaderboard.records import Board, Claim, Column, Row, Score, SuiteColumn
from reports.markdown import plain, table

Place = Column | SuiteColumn

RECIPE = (
    "pooling",
    "max_query_tokens",
    "max_document_tokens",
    "dtype",
    "store_dtype",
    "index",
)
PROTOCOL = ("version", "split", "title_track", "exclude_self", "depth")


def places(board: Board) -> list[Place]:
    """What has a column: suites, then collections."""
    return [*board.suites, *board.columns]


def markdown(board: Board, measure: str) -> str:
    """The ranking, then recipes and protocols behind it, then published beside measured scores."""
    headline = board.headline(measure)
    ranked = board.ranked(headline, measure)
    parts = [_ranking(board, ranked, headline, measure), _notes(board, headline)]
    parts += [_recipes(ranked), _protocols(board)]
    claimed = _claimed(board, ranked, measure)
    if claimed:
        headers = ["model", "on", "measure", "measured", "published", "difference", "source"]
        parts.append("Published scores are claims.\n\n" + table(headers, claimed))
    if board.published:
        parts.append(_systems(board, measure))
    return "\n\n".join(parts)


def _ranking(board: Board, ranked: Sequence[Row], headline: Place, measure: str) -> str:
    shown = places(board)
    headers = ["group", "model", "95 % interval"]
    for place in shown:
        headers.append(heading(board, place, measure))
        if isinstance(place, SuiteColumn):
            headers.append("zero-shot")
    cells = []
    for row in ranked:
        first = row.score(headline.name, board.measure_of(headline, measure))
        line = [str(first.group or "") if first else "", row.name, _interval(first)]
        for place in shown:
            line += shown_cells(board, row, place, measure)
        cells.append(line)
    return table(headers, cells)


def _interval(score: Score | None) -> str:
    return "" if score is None or score.low is None else f"{score.low:.3f}–{number(score.high, 3)}"


def heading(board: Board, place: Place, measure: str) -> str:
    """A place and the measure that is shown there."""
    return f"{place.name} {board.measure_of(place, measure)}".rstrip()


def shown_cells(board: Board, row: Row, place: Place, measure: str) -> list[str]:
    """Cells of a place: its score and, for a suite, the mean over what is not in-domain."""
    shown = board.measure_of(place, measure)
    score = row.score(place.name, shown)
    if isinstance(place, Column):
        seen = place.name in row.cells and row.cells[place.name].in_domain
        return [number(score.value) + ("*" if seen else "") if score else ""]
    mean = row.means.get(place.name, {}).get(shown)
    if mean is None:
        return ["", ""]
    members = len(place.members)
    if mean.score is None:
        return [f"{len(mean.missing)} of {members} missing", ""]
    seen = mean.zero_shot_members < members
    zero_shot = f"{number(mean.zero_shot)} ({mean.zero_shot_members})" if seen else "the same"
    return [number(mean.score.value) + ("*" if seen else ""), zero_shot]


def number(value: float | None, digits: int = 4) -> str:
    """A score; "" where there is none."""
    return "" if value is None else f"{value:.{digits}f}"


def _notes(board: Board, headline: Place) -> str:
    return (
        f"Intervals and groups are of {plain(headline.name)}: bootstrap over queries, 95 %, and "
        f"paired sign flips, {board.resamples:,} resamples, Holm. Models of one group cannot be "
        "told apart from its best at the 5 % level. "
        "An asterisk marks scores on what the model was trained on; the zero-shot mean leaves "
        "them out and says how many members are left."
    )


def _recipes(ranked: Sequence[Row]) -> str:
    """What each row was made with; a column where any row has something to say."""
    facts = [
        {"model": row.name, **{name: row.recipe.get(name, "") for name in RECIPE}, **_extra(row)}
        for row in ranked
    ]
    headers = [name for name in facts[0] if any(one[name] for one in facts)]
    return table(headers, [[one[name] for name in headers] for one in facts])


def _protocols(board: Board) -> str:
    """What each column was measured under; scores of different protocols do not compare."""
    headers = ["collection", "queries", "documents", *PROTOCOL]
    cells = [
        [
            column.name + ("" if column.official else " (not the published one)"),
            f"{column.queries:,}",
            "" if column.documents is None else f"{column.documents:,}",
            *(column.protocol.get(name, "") for name in PROTOCOL),
        ]
        for column in board.columns
    ]
    return table(headers, cells)


def _extra(row: Row) -> dict[str, str]:
    judged = [cell.judged_at_10 for cell in row.cells.values() if cell.judged_at_10 is not None]
    known = row.parameters
    return {
        "parameters": size(known.total) if known else "unknown",
        "of the adapter": size(known.adapter) if known and known.adapter else "",
        "lowest judged@10": number(min(judged)) if judged else "",
        "tokens/s": f"{row.tokens_per_s:,.0f}" if row.tokens_per_s else "",
        "on": row.speed_device,
    }


def size(parameters: int) -> str:
    """A number of parameters: ``22.7 M``."""
    for unit, name in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if parameters >= unit:
            return f"{parameters / unit:.1f}{name}"
    return str(parameters)


def _claimed(board: Board, ranked: Sequence[Row], measure: str) -> list[list[str]]:
    found = []
    for row, place in ((row, place) for row in ranked for place in places(board)):
        shown = board.measure_of(place, measure)
        score = row.score(place.name, shown)
        if score and score.published is not None:
            difference = f"{score.value - score.published:+.4f}"
            values = [number(score.value), number(score.published), difference]
            found.append([row.name, place.name, shown, *values, score.source])
    return found


def _systems(board: Board, measure: str) -> str:
    """What was published of other systems; a mean stands under the suite that it is the mean of."""
    found = {some: own for some in board.systems() if (own := claimed_scores(board, some, measure))}
    if not found:
        return "Nothing was published of other systems on what is shown here."
    shown = [place for place in places(board) if any(place.name in own for own in found.values())]
    headers = ["published system", *(_claim_heading(board, place, measure) for place in shown)]
    cells = [
        [
            system_name(some),
            *(number(own[place.name]) if place.name in own else "" for place in shown),
            some[0].source,
        ]
        for some, own in found.items()
    ]
    return (
        "Claims of others, not measured here. A mean is over the sets that its heading counts, as "
        "it was printed, and belongs to no measured mean. (copied): read in somebody else's "
        f"publication.\n\n{table([*headers, 'source'], cells)}{_claim_notes(found)}"
    )


def _claim_notes(some: Iterable[Sequence[Claim]]) -> str:
    notes = [f"{system_name(one)}: {one[0].note}" for one in some if one[0].note]
    return "".join(f"\n\n{plain(note)}." for note in notes)


def claimed_scores(board: Board, some: Sequence[Claim], measure: str) -> dict[str, float]:
    """What a system claims by the measure that is shown in each place."""
    wanted = {place.name: board.measure_of(place, measure) for place in places(board)}
    return {one.name: one.value for one in some if one.measure == wanted[one.name]}


def system_name(some: Sequence[Claim]) -> str:
    """Name of a system, marked where its scores are copies."""
    return some[0].model + (" (copied)" if some[0].second_hand else "")


def _claim_heading(board: Board, place: Place, measure: str) -> str:
    members = f" (mean of {len(place.members)})" if isinstance(place, SuiteColumn) else ""
    return heading(board, place, measure) + members
