"""Text of a tuning: the answer in a sentence, what selection explains, and the best settings."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from bench.tuning.tuning_record import Reranking, TunedSetting, Tuning
from foundation.errors import format_count
from reports import format as fmt
from reports.table import Column, Table, code, escape


def tuning_text(done: Tuning, out: Path | None = None) -> str:
    """Return the answer, a table of settings, and how to run the answer.

    ``out`` is the file of its card, if it was written.
    """
    return "\n\n".join(_parts(done, out))


def _parts(done: Tuning, out: Path | None) -> Iterator[str]:
    yield escape(_answer(done))
    yield escape(" ".join(_remarks(done)))
    if done.rerankings:
        yield _rerankings(done)
    yield _table(done)
    yield escape(" ".join(_legend(done)))
    if done.chosen and len(done.settings) > 1:
        yield _how_to_run(done, done.chosen, out)


def _answer(done: Tuning) -> str:
    """Return the answer in a sentence."""
    where, one = f"in {done.measure} on {done.on}", done.chosen
    if one is None:
        return f"No setting is proved better than {done.baseline} {where}. Keep {done.baseline}."
    cost = format_count(len(one.models), "ranking", "rankings")
    if one.costs and done.baseline_costs:
        cost = f"{fmt.signed(one.costs.ms - done.baseline_costs.ms, 2)} ms a query"
    gain = f"by {one.low:.4f} or more (95 %)"
    return f"{one.name}: better than {done.baseline} {gain} {where}, {cost}."


def _remarks(done: Tuning) -> Iterator[str]:
    """Yield what the best setting only seems to gain, and what none can."""
    best, count = done.settings[0], len(done.settings)
    if count > 1:
        yield f"The best of {count} settings on these {done.queries:,} queries, {best.name}, shows"
        yield f"{best.gain:+.4f}; choosing it on them accounts for about {done.selection:.4f}."
    if done.over_ms:
        yield f"{format_count(done.over_ms, 'setting exceeds', 'settings exceed')} --limit-ms."
    if done.ceilings:
        listed = ", ".join(f"{one.score:.4f} within the first {one.depth}" for one in done.ceilings)
        yield f"No order of the documents of all rankings exceeds {listed}."


def _rerankings(done: Tuning) -> str:
    """Return a table of what reranking adds to a setting."""
    columns: list[Column[Reranking]] = [
        Column(f"reranked of {done.reranked}", lambda row: f"first {row.depth}"),
        Column("ms more", lambda row: row.ms, fmt.milliseconds),
        Column("gain", lambda row: row.gain, fmt.signed),
        Column("95 % interval", lambda row: row, fmt.interval),
        Column("verdict", lambda row: "better" if row.low >= 0 else "not proved"),
    ]
    return Table(done.rerankings, columns).markdown()


def _kind(setting: TunedSetting) -> tuple[object, ...]:
    """Return what the settings of one row have in common."""
    return setting.models, setting.fusion and setting.fusion.method, bool(setting.reranked)


def _table(done: Tuning) -> str:
    """Return a table of the baseline and the best setting of each kind."""
    best: dict[object, TunedSetting] = {}
    for one in done.settings:
        best.setdefault(_kind(one), one)
    if done.chosen:
        best[_kind(done.chosen)] = done.chosen
    baseline = TunedSetting(
        name=done.baseline,
        models=(done.baseline,),
        fusion=None,
        costs=done.baseline_costs,
        score=done.baseline_score,
        gain=0.0,
        low=0.0,
        high=0.0,
    )
    rows = [baseline, *sorted(best.values(), key=lambda one: (one.cost, -one.gain))]
    columns: list[Column[TunedSetting]] = [
        Column("setting", lambda row: row.name),
        Column("ms", lambda row: row.costs and row.costs.ms, fmt.milliseconds),
        Column("95th", lambda row: row.costs and row.costs.p95_ms, fmt.milliseconds),
        Column("bytes", lambda row: row.costs and row.costs.vector_bytes, fmt.count),
        Column("score", lambda row: row.score, fmt.score),
        Column("gain", lambda row: None if row is baseline else row.gain, fmt.signed),
        Column("95 % interval", lambda row: None if row is baseline else row, fmt.interval),
    ]
    return Table(rows, columns).drop_empty().markdown()


def _legend(done: Tuning) -> Iterator[str]:
    if len(done.settings) > 1:
        yield "The table has the best setting of each kind, and the answer; --json has all."
    yield "Intervals: of the gain, for all settings together (joint sign flips)."
    if done.baseline_costs is None:
        yield "Run files have no times: the cheapest setting is the one with the fewest rankings."
    else:
        yield "ms, 95th: milliseconds of a query, median and 95th percentile, on this machine;"
        yield "measured, and no part of the proof. bytes: of the vectors of a document."


def _how_to_run(done: Tuning, chosen: TunedSetting, out: Path | None) -> str:
    """Return the card of the answer and a command that tests it."""
    if not done.card:
        note = f"{out} is not written: " if out else ""
        return escape(f"{note}{chosen.name} is one ranking alone, which needs no card.")
    shown = f"Card of the answer: {out}"
    if out is None:
        shown = f"Card of the answer (--out FILE writes it):\n\n```toml\n{done.card}```"
    if done.first_card and out is None:
        shown += f"\n\nCard of its model:\n\n```toml\n{done.first_card}```"
    words = ["tune", *chosen.models, "--on", "OTHER", "--only", str(out or "FILE")]
    if chosen.reranked:
        words = ["check", str(out or "FILE"), "--baseline", done.baseline, "--on", "OTHER"]
    test = shlex.join(["python", "-m", "bench", *words])
    return f"{shown}\n\nTest it alone on other queries: {code(test)}"
