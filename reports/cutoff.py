"""Text of a cut-off: whether scores separate, the answer in a sentence, and its figures."""

from collections.abc import Callable, Iterator
from decimal import ROUND_FLOOR, Context

from bench.cutoffs.cutoff_record import CollectionCutoff, ScoreCutoff, Share, SliceCutoff
from foundation.errors import format_count, format_names
from reports import format as fmt
from reports.table import Column, Row, Table, escape

DIGITS = 5  # of a cut-off; it is rounded down, which keeps more


def cutoff_text(done: ScoreCutoff) -> str:
    """Return the answer and a table of what it does on each collection."""
    return "\n\n".join(_parts(done))


def _parts(done: ScoreCutoff) -> Iterator[str]:
    if not done.slices and done.cutoff is None:
        yield escape(_refusal(done))
        return
    yield from map(escape, _warning(done))
    if done.cutoff is None:
        yield from map(escape, _slices_answer(done))
        yield _slice_table(done)
    else:
        yield escape(_answer(done, done.cutoff))
        yield _table(done)
    yield escape(" ".join(_legend(done)))


def _refusal(done: ScoreCutoff) -> str:
    """Return why no cut-off is proved, and what would be needed."""
    rank = f" among the first {done.at}" if done.searched else ""
    queries = ", ".join(f"{count:,} on {name}" for name, count in done.queries.items())
    needed = "more than ten million" if done.needed is None else f"{done.needed:,}"
    return (
        f"No cut-off of {done.model} is proved. Keeping {_percent(done.keep)} needs {needed} "
        f"queries with a relevant document{rank}, even if nothing is lost. Found: {queries}."
    )


def _warning(done: ScoreCutoff) -> Iterator[str]:
    """Yield what the cut-off costs on each collection where scores do not separate."""
    for one in done.all_done:
        if one.separates:
            continue
        given = "given " * (one.silent_given is not None)
        verdict = f"Scores of {done.model} hardly separate on {one.name}"
        cost = f"the rankings of {one.name} are too short to tell"
        if silent := one.unanswerable:
            share = _percent(round(1 - silent.value, 2))
            if silent.value > 1 - one.keep:  # as far as so few queries can tell
                verdict = f"It is uncertain whether scores of {done.model} separate on {one.name}"
                share += f" [{100 * (1 - silent.high):.0f}, {100 * (1 - silent.low):.0f}]"
            cost = f"{share} of the {given}queries without an answer still return something"
        yield f"{verdict}: {cost}."


def _answer(done: ScoreCutoff, cutoff: float) -> str:
    """Return the cut-off and its promise."""
    answer = f"Return documents that score {rounded_down(cutoff)} or more"
    documents = f"of the relevant documents among the first {done.at}"
    if done.like:
        old = f"{done.like.model} at {done.like.cutoff:g}"
        return f"{answer}: on these queries, as many {documents} remain as with {old}."
    names = format_names([one.name for one in done.collections])
    return (
        f"{answer}: at least {_percent(done.keep)} {documents} remain, in the mean over new "
        f"queries like those of {names} (95 % confidence)."
    )


def _slices_answer(done: ScoreCutoff) -> Iterator[str]:
    """Yield the promise on all slices, and what the others would need."""
    few = [f"{one.value} ({one.name})" for one in done.slices if one.done is None]
    if len(few) < len(done.slices):
        yield (
            f"Return documents that score as much as the cut-off of the query's slice by {done.by}:"
            f" at least {_percent(done.keep)} of the relevant documents among the first {done.at} "
            "remain on each, in the mean over new queries like those of the slice (95 % confidence "
            f"in all {len(done.slices):,} slices together)."
        )
    if few:
        needed = "more than ten million" if done.needed is None else f"{done.needed:,}"
        yield (
            f"No cut-off is proved for {format_names(few)}. A slice needs {needed} queries with a "
            "relevant document, even if nothing is lost."
        )


def _percent(share: float | None) -> str:
    """Format a share: ``97.5 %``."""
    return f"{100 * (share or 0):g} %"


def rounded_down(cutoff: float) -> str:
    """Format a cut-off with so few digits that it can be typed, and never above it."""
    context = Context(prec=DIGITS, rounding=ROUND_FLOOR)
    return str(context.create_decimal_from_float(cutoff))


def _table(done: ScoreCutoff) -> str:
    """Return a table with a row for each model and collection."""
    old = [(done.like.model, one) for one in done.like.collections] if done.like else []
    columns: list[Column[tuple[str, CollectionCutoff]]] = [
        Column("model", lambda row: row[0], fmt.short_text),
        Column("collection", lambda row: row[1].name, fmt.short_text),
        *_columns(lambda row: row[1]),
    ]
    rows = [*old, *((done.model, one) for one in done.collections)]
    return Table(rows, columns).drop_empty().markdown()


def _slice_table(done: ScoreCutoff) -> str:
    """Return a table with a row for each slice."""
    columns: list[Column[SliceCutoff]] = [
        Column(done.by, lambda row: row.value, fmt.short_text),
        Column("collection", lambda row: row.name, fmt.short_text),
        Column("cut-off", lambda row: row.cutoff, lambda value: fmt.numeric(rounded_down(value))),
        *_columns(lambda row: row.done),
    ]
    return Table(done.slices, columns).drop_empty().markdown()


def _columns(of: Callable[[Row], CollectionCutoff | None]) -> list[Column[Row]]:
    """Return the columns of what a cut-off does."""
    columns: list[Column[CollectionCutoff]] = [
        Column("queries", lambda one: one.queries, fmt.count),
        Column("kept", lambda one: one.kept, fmt.score),
        Column("at least", lambda one: one.proved, fmt.score),
        Column("silent", lambda one: one.silent, _share),
        Column("silent, given", lambda one: one.silent_given, _share),
        Column("overlap", lambda one: one.overlap, _whole_percent),
    ]
    return [column.through(of) for column in columns]


def _whole_percent(share: float) -> str:
    """Format a share for a column: ``37 %``."""
    return f"{100 * share:.0f} %"


def _share(share: Share) -> str:
    """Format a share with its interval: ``4 % [2, 7]``."""
    return f"{_whole_percent(share.value)} [{100 * share.low:.0f}, {100 * share.high:.0f}]"


def _legend(done: ScoreCutoff) -> Iterator[str]:
    """Yield what the columns mean."""
    yield (
        f"Queries: with a relevant document among the first {done.at}. Kept: mean share of these "
        "documents that remain; at least: its 95 % bound. Silent: queries without an answer that "
        "return nothing, with a 95 % interval. They are the same queries after all relevant "
        "documents were taken out of their rankings."
    )
    if any(one.silent_given for one in done.all_done):
        yield "Given: those of the file."
    yield "Overlap: queries whose best other document scores higher than the best relevant one."
    for one in done.all_done:
        if one.too_short:
            queries = format_count(one.too_short, "query", "queries")
            yield f"The run is too short to take the relevant documents of {queries} out."
