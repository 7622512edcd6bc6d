"""The curve of a training as a table: Markdown for people, CSV for everything else."""

from collections.abc import Iterator, Sequence

from bench.monitor.quality_curve import Curve, CurvePoint, Level
from bench.monitor.selection import Selection
from reports.csv_table import csv_table
from reports.markdown import plain, table

NAMED = 6  # checkpoints that a sentence lists
ON_TEST_DATA = {
    "all": "the best by these queries is partly the luckiest; choose with --split dev, and report "
    "another collection or split",
    "half": "the score on the other half is not too high for that reason, but it is of half of the "
    "queries, and no longer honest once it was used to choose",
}
FIELDS = ("checkpoint", "step", "collection", "measure", "value", "low", "high")


def markdown(curve: Curve) -> str:
    """A row for each checkpoint; then the best one, and how far that can be trusted."""
    parts = [f"## {plain(curve.training)}: {curve.measure}", _table(curve)]
    if curve.selection is not None:
        parts.append("\n".join(f"- {line}" for line in _verdict(curve, curve.selection)))
    if notes := list(_notes(curve)):
        parts.append("\n".join(f"- {plain(note)}" for note in notes))
    return "\n\n".join([*parts, _legend(curve)]) + "\n"


def comma_separated(curve: Curve) -> str:
    """A line for each checkpoint and collection, nothing rounded."""
    return csv_table(
        FIELDS,
        (
            (point.checkpoint, point.step, name, curve.measure, level.value, level.low, level.high)
            for point in curve.points
            for name, level in point.levels.items()
        ),
    )


def _table(curve: Curve) -> str:
    others = [name for name in curve.collections if name != curve.headline]
    headers = ["step", "checkpoint", curve.headline, *others]
    headers += ["best - this", "p (adjusted)", ""] if curve.selection else []
    points = [*curve.points, *([curve.baseline] if curve.baseline else [])]
    return table(headers, [_row(curve, point, others) for point in points], "rlr")


def _row(curve: Curve, point: CurvePoint, others: Sequence[str]) -> list[str]:
    levels = [_level(point.levels[curve.headline], full=True)]
    levels += [_level(point.levels[name], full=False) for name in others]
    step = "" if point is curve.baseline else f"{point.step:,}"
    return [step, point.checkpoint, *levels, *_beside(point, curve.selection)]


def _beside(point: CurvePoint, chosen: Selection | None) -> list[str]:
    """The best one minus this one; no cells where nothing was chosen."""
    if chosen is None:
        return []
    if point.checkpoint == chosen.best:
        return ["", "", "best"]
    rival = next(one for one in chosen.rivals if one.name == point.checkpoint)
    found = rival.paired
    interval = "" if found.low is None else f" ({found.low:+.4f} to {found.high:+.4f})"
    return [f"{found.difference:+.4f}{interval}", f"{rival.p:.4f}", rival.verdict]


def _level(level: Level, full: bool) -> str:
    if level.low is None or level.high is None or not full:
        return f"{level.value:.4f}"
    return f"{level.value:.4f} ({level.low:.4f} to {level.high:.4f})"


def _verdict(curve: Curve, chosen: Selection) -> Iterator[str]:
    best = next(point for point in curve.points if point.checkpoint == chosen.best)
    where = "the mean" if curve.headline not in curve.collections else curve.headline
    yield f"best on {plain(where)}: {plain(best.checkpoint)}, step {best.step:,}"
    yield from _trust(chosen)
    if chosen.inseparable:
        more = [] if len(chosen.inseparable) <= NAMED else ["…"]
        named = ", ".join([*chosen.inseparable[:NAMED], *more])
        yield f"cannot be told apart from it: {plain(named)}"
    elif all(one.verdict == "worse" for one in chosen.rivals):
        yield "it is better than every other one"
    for one in chosen.rivals:
        if one.verdict == "better":
            yield f"{plain(one.name)} is better"
    if chosen.on_test_data:
        yield f"**test data were used to select**: {ON_TEST_DATA[chosen.method]}"


def _trust(chosen: Selection) -> Iterator[str]:
    score = _level(Level(chosen.score, chosen.low, chosen.high), full=True)
    if chosen.method == "half":
        yield (
            f"chosen on {chosen.chosen_on:,} queries; on the other {chosen.reported_on:,}, which "
            f"did not choose it, it has {score}; differences and p are of these"
        )
        return
    if chosen.candidates > 1:
        yield (
            f"its score is the highest of {chosen.candidates:,} on {chosen.reported_on:,} queries, "
            "and too high for that reason: --select half reports one that is not"
        )
    flips = "all flips of signs" if chosen.exact else "flips of signs"
    yield f"p is adjusted for all {chosen.pairs:,} pairs (largest statistic over {flips})"


def _notes(curve: Curve) -> Iterator[str]:
    for name, why in curve.broken.items():
        yield f"{name} could not be evaluated: {why}"
    yield from (f"not shown: {text}" for text in curve.left_out)


def _legend(curve: Curve) -> str:
    count, seed = curve.resampling.resamples, curve.resampling.seed
    return (
        f"Intervals: 95 %, bootstrap over queries, {count:,} resamples, seed {seed}. Those of two "
        "checkpoints may overlap though they can be told apart: they answer the same queries. "
        "The interval of a difference is of that pair alone; p counts all pairs, and this look at "
        "the curve, not the looks before it."
    )
