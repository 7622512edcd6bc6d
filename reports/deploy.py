"""Text of a deployment: the answer in a sentence, how it was found, and the best settings."""

from collections.abc import Iterator
from functools import partial
from statistics import fmean

from bench.deploying.deployment import Deployment, TestedSetting
from foundation.errors import format_names
from reports import format as fmt
from reports.table import Column, Table, escape


def deployment_text(done: Deployment) -> str:
    """Return the answer, how it was found, and a table of the settings that are not beaten."""
    return "\n\n".join(_parts(done))


def _parts(done: Deployment) -> Iterator[str]:
    yield escape(_answer(done))
    queries = ", ".join(f"{count:,} on {name}" for name, count in done.queries.items())
    least = f"Queries: {queries}. No margin below {done.provable:.4f} can be proved with them"
    if done.baseline is None:
        needed = f"A margin of {done.margin:.4f} needs {done.queries_for_margin:,} queries"
        yield escape(f"{least}, even if no score changes. {needed}.")
        return
    yield escape(f"{least}. {' '.join(_course(done))}")
    others = [one for one in done.frontier if one != done.baseline]
    yield _table(done.baseline, [*others, *(one for one in done.tested[-1:] if one.failed)])
    if done.recipe.traits.has_members:
        yield escape(
            f"Bytes and times are those of searching the vectors of {' and '.join(done.encoders)}; "
            f"recall, score and bound are those of the whole ranking of {done.model}."
        )
    one = done.baseline.latency[0]
    yield escape(
        "Settings: dimensions, precision, candidates scored again, index with its parameter. "
        f"Times: milliseconds of one query at a time over {one.rows:,} vectors, median / 95th "
        f"percentile of {len(one.samples_ms):,} after a warm-up; measured, and no part of the "
        "proof. Recall: of the top documents of exact search, as many as the measure reads. "
        "Bound: of the loss, at 95 %."
    )


def _answer(done: Deployment) -> str:
    """Return the answer in a sentence or two."""
    if done.chosen is None or done.baseline is None:
        return f"No cheaper setting of {done.model} is proved to lose at most {done.margin:.4f}."
    (bytes_, ms), (whole_bytes, whole_ms) = done.chosen.costs, done.baseline.costs
    measures = [f"{measure} on {name}" for name, measure in done.measures.items()]
    return (
        f"{_words(done.chosen)}: {bytes_:,} bytes per document and {ms:.2f} ms a query instead of "
        f"{whole_bytes:,} and {whole_ms:.2f}. A mean loss of more than {done.margin:.4f} "
        f"in {format_names(measures)} is ruled out (95 %)."
    )


def _words(setting: TestedSetting) -> str:
    """Return a setting in words."""
    how, is_coded = setting.compression, "PQ" not in setting.index
    again = "the stored vectors" if how.rescore_by == "stored" else how.rescore_by
    parts = [
        f"{how.dimensions or 'all'} dimensions" + is_coded * f" in {how.precision}",
        f"{how.rescore} candidates scored again by {again}" if how.rescore else "",
        "exact search" if setting.index == "Flat" else setting.index,
    ]
    return ", ".join(filter(None, parts))


def _course(done: Deployment) -> Iterator[str]:
    """Yield what was tested, and what the next setting would need."""
    yield f"Tested, from mild to strong: {len(done.tested)} of {done.grid} settings."
    if done.over_bytes:
        yield f"{done.over_bytes} exceed --limit-bytes."
    if slow := sum(not one.tests for one in done.tested):
        yield f"{slow} of the tested exceed --limit-ms."
    last = done.tested[-1]
    if last.failed and last.worst:
        name, test = last.worst
        queries = f"about {test.needed:,} queries or " if test.needed else ""
        proof = f"{queries}a margin of {test.bound + 0.00005:.4f} would prove it"
        loss = f"may lose {test.bound:.4f} on {name}"
        yield f"The first that is not proved, {last.name}, {loss}; {proof}."


def _table(baseline: TestedSetting, rows: list[TestedSetting]) -> str:
    """Return a table of settings, at most 100 characters wide."""
    times = baseline.latency
    columns: list[Column[TestedSetting]] = [
        Column("setting", lambda row: row.name),
        Column("bytes", lambda row: row.bytes_per_document, fmt.count),
        *(Column(one.what, partial(_time, place), fmt.numeric) for place, one in enumerate(times)),
        Column("recall", lambda row: _mean(row, "recall"), fmt.score),
        Column("score", lambda row: _mean(row, "score"), fmt.score),
        Column("bound", lambda row: row.worst and row.worst[1].bound, fmt.score),
    ]
    return Table([baseline, *rows], columns).markdown()


def _time(place: int, row: TestedSetting) -> str:
    return f"{row.latency[place].p50_ms:.2f} / {row.latency[place].p95_ms:.1f}"


def _mean(row: TestedSetting, name: str) -> float:
    return fmean(getattr(test, name) for test in row.tests.values())
