"""Reports of experiments as Markdown and JSON: scores, effects of factors, costs and gaps."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

import msgspec

from bench.experiments.report_record import (
    Effect,
    Report,
    RowOnCollection,
    RowResult,
    SequenceResult,
)
from bench.experiments.seed_statistics import SeedEstimate
from foundation.errors import format_count
from foundation.files import replace_file
from reports import format as fmt
from reports.plots import can_plot, draw_axes
from reports.table import Column, Row, Table, bullets, code, columns_for, escape, make_table

P_OF_SEEDS = (
    "p: t test over seeds and queries. It is not printed below the level (.001, .01 or .05) that a "
    "t test over the seeds alone reaches, with one degree of freedom fewer than seeds."
)
P_LEVELS = (0.001, 0.01, 0.05)


def report_markdown(report: Report, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """Return the complete report with ``pictures``: file, relative to the report, and title."""
    parts = [f"# {escape(report.title or report.name)}", _summary(report)]
    for name in reversed(report.collections):
        parts += [f"## {escape(_heading(report, name))}", score_table(report, name)]
        parts += [effect_table(report, name)] if report.effects else []
    parts += ["## Effects", bullets(_effects_legend(report))] if report.effects else []
    if gaps := _gaps(report):
        parts += ["## Gaps", gaps]
    parts += [f"![{escape(title)}]({quote(file)})" for file, title in pictures]
    parts += ["## Training and cost" if report.trains else "## Cost", cost_table(report)]
    parts += ["## How", _method(report)]
    parts += sequence_sections(report)
    return "\n\n".join(parts) + "\n"


def write_report(report: Report, folder: Path) -> None:
    """Write a report with its pictures, as Markdown and JSON."""
    if not can_plot():
        print("no pictures: pip install 'retrieval-bench[plots]'", file=sys.stderr)
    text = report_markdown(report, draw_axes(report, folder) if can_plot() else [])
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=1)
    for name, content in (("md", text.encode()), ("json", encoded)):
        with replace_file(folder / f"report.{name}") as file:
            file.write(content)


def _summary(report: Report) -> str:
    cells = sum(len(row.cells) for row in report.rows)
    where = report.conditions
    seeds = f", {_seeds(report.seeds)}" if report.trains else ""
    lines = [
        f"{len(report.rows)} rows{seeds}: {cells - report.gaps} of {cells} cells finished, "
        f"{fmt.duration(report.seconds)} of work ({where.machine}, {where.shown_threads}, "
        f"device {where.device}), {where.time[:10]}.",
        f"Made by {code(report.command)}.",
    ]
    lines += [f"**{escape(sentence)}**" for sentence in report.differing]
    if not report.trains:
        lines.append("**Nothing is trained. Differences are between settings of one model.**")
    elif len(report.seeds) == 1:
        lines.append(
            "**One seed: every difference is between these checkpoints. It does not show whether "
            "the recipes differ.**"
        )
    if len(report.commits) > 1:
        commits = " and ".join(map(describe_commit, report.commits))
        lines.append(
            f"**The cells were made by different code, {commits}. A difference between two of them "
            "may be due to the code.**"
        )
    if report.conditions.dirty or any(" modified" in code for code in report.commits):
        lines.append(
            "**Modified code: there were uncommitted changes when cells were made or this report "
            "was written.**"
        )
    if report.conditions.own_code:
        lines.append(f"Own code: {', '.join(map(code, report.conditions.own_code))}.")
    return "\n\n".join(lines)


def _seeds(seeds: Sequence[int]) -> str:
    names = ", ".join(map(str, seeds))
    return f"seed {names}" if len(seeds) == 1 else f"seeds {names}"


def _heading(report: Report, name: str) -> str:
    if report.is_mean(name):
        nested = ", a nested suite counting once" if report.weights else ""
        return f"Mean of {len(report.collections) - 1} collections{nested}"
    measures = {on.measure for row in report.rows if (on := row.on_collection(name))}
    return f"{name}, {', '.join(sorted(measures))}"


def score_table(report: Report, name: str) -> str:
    """Return a table of all rows of ``report`` on the collection ``name``, or in its mean."""

    def score_of(row: RowResult) -> SeedEstimate | None:
        return on.score if (on := row.on_collection(name)) else None

    columns: list[Column[RowResult]] = [
        Column("row", lambda row: row.name),
        Column("change", lambda row: row.change or _values(report, row.name), fmt.short_text),
        Column("seeds", lambda row: _finished(row) if score_of(row) else "0", fmt.numeric),
        Column("mean ± 95 %", lambda row: _half_width(score_of(row)), fmt.numeric),
        Column("sd of seeds", lambda row: (score := score_of(row)) and score.seeds_sd, fmt.score),
        Column("against", lambda row: row.against if score_of(row) else ""),
        *difference_columns(lambda row: row.on_collection(name)),
        Column("verdict", lambda row: _verdict(row.on_collection(name), report.trains)),
        Column("detectable", lambda row: _detectable(row.on_collection(name)), fmt.score),
    ]
    return Table(report.rows, columns).markdown()


def effect_table(report: Report, name: str) -> str:
    """Return the effects of the factors on the collection ``name``, or in the mean."""

    def verdict(effect: Effect) -> str:
        found = _verdict(effect.on_collection(name), report.trains)
        if effect.is_interaction:
            found = found.replace("better", "more than the sum")
            found = found.replace("worse", "less than the sum")
        return found

    columns: list[Column[Effect]] = [
        Column("effect", lambda effect: "interaction" if effect.is_interaction else "main"),
        Column("change", lambda effect: effect.change),
        *difference_columns(lambda effect: effect.on_collection(name), gap="gap"),
        Column("verdict", verdict),
        Column("detectable", lambda effect: _detectable(effect.on_collection(name)), fmt.score),
    ]
    return Table(report.effects, columns).markdown()


def _effects_legend(report: Report) -> Iterator[str]:
    yield (
        "main effect: mean of all cells with the second level minus the mean of those with the "
        "first. Where the factors interact, it is an average of different effects."
    )
    yield (
        "interaction: the effect of the first factor at the second level of the other minus that "
        "at its first level. It is the difference of two differences: with two factors of two "
        "levels, its standard error is twice that of a main effect, so that it needs four times "
        "the data."
    )
    if report.has_three_factors:
        yield (
            "Interactions of three or more factors are not shown: an effect is a mean over the "
            "levels of all other factors, on which it may depend. The rows have each combination."
        )
    yield "Effects use the seeds that all cells have, on the same queries."
    yield "p (Holm): corrected for all effects on a collection."
    yield "An interaction that is not significant does not show that effects add up."
    seeds = len(report.seeds)
    if not report.trains:
        return
    if seeds == 1:
        yield "One seed: these effects are of these checkpoints. Other seeds may give others."
        return
    yield (
        f"{seeds} seeds leave {format_count(seeds - 1, 'degree', 'degrees')} of freedom: for the "
        "seeds alone to show an effect at the 5 % level, it must be "
        f"{report.critical_t:.1f} of their standard errors from 0."
    )
    if seeds == 2:
        yield (
            "**Two seeds cannot show how much trainings vary:** their standard deviation may be "
            "many times too small by chance, and 95 % intervals hold the true effect in as few as "
            "88 of 100 simulations. An effect that matters, above all an interaction, needs more."
        )


def _finished(row: RowResult) -> str:
    finished = sum(bool(cell.scores) for cell in row.cells)
    return f"{finished} of {len(row.cells)}" if finished < len(row.cells) else str(finished)


def _half_width(score: SeedEstimate | None) -> str:
    if score is None:
        return "gap"
    return fmt.score(score.value) + fmt.half_width(score)


def _verdict(on: RowOnCollection | None, trains: bool) -> str:
    """Return the verdict, limited to these checkpoints if there is only one seed."""
    if on is None or on.difference is None:
        return ""
    return f"these checkpoints: {on.verdict}" if trains and len(on.seeds) < 2 else on.verdict


def _values(report: Report, name: str) -> str:
    """Return the level of a row on each axis, for the reference row."""
    levels = [
        (axis.title, label)
        for axis in report.axes
        for label, row in axis.points.items()
        if row == name != label and not axis.factors
    ]
    levels += [
        (each.title, next(iter(each.points))) for axis in report.axes for each in axis.factors
    ]
    return ", ".join(f"{title} {label}" for title, label in levels)


def _detectable(on: RowOnCollection | None) -> float | None:
    return on.difference.detectable if on and on.difference else None


def _gaps(report: Report) -> str:
    """Return a list of the cells without a score, with their errors."""
    return bullets(
        escape(f"{row.name}, seed {cell.seed}, {cell.failed_at}: {cell.error}")
        for row in report.rows
        for cell in row.cells
        if not cell.scores
    )


COSTS = {
    "steps": "steps",
    "tokens": "tokens",
    "wall-clock, s": "seconds",
    "CPU, s": "cpu_seconds",
    "parameters": "parameters",
    "bytes saved": "saved_bytes",
}

StageLine = tuple[str, RowResult, str]


def cost_table(report: Report) -> str:
    """Return a table of settings and costs of each row and stage, costs as means over its seeds.

    A stage that is the same for all rows of ``report`` has one line.
    """
    columns: list[Column[StageLine]] = [
        Column("row", lambda line: line[0]),
        Column("stage", lambda line: line[2]),
        *columns_for(SETTINGS, lambda line, name: _setting(line[1], line[2], name), fmt.numeric),
        *columns_for(COSTS, lambda line, name: _mean_cost(line[1], line[2], name), fmt.count),
    ]
    lines: list[StageLine] = []
    for stage in report.reference:
        by_row = [(row.name, row, stage) for row in report.rows]
        texts = {tuple(column.cell(line) for column in columns[1:]) for line in by_row}
        lines += [("all rows", report.rows[0], stage)] if len(texts) == 1 < len(by_row) else by_row
    return Table(lines, columns).drop_empty().markdown()


SETTINGS = ("learning rate", "batch", "length")
LENGTHS = ("max_tokens", "max_query_tokens", "max_document_tokens")


def _setting(row: RowResult, stage: str, name: str) -> str:
    """Return one of `SETTINGS` of a stage as text, or "" if the stage does not have it."""
    settings = row.settings.get(stage, {})
    if name == "length":
        return " / ".join(str(settings[each]) for each in LENGTHS if settings.get(each))
    if name == "batch":
        batch, parts = settings.get("batch_size", ""), settings.get("accumulate", 1)
        return str(batch * parts) if isinstance(batch, int) else str(batch)
    trained = settings.get("adapter") or settings.get("part")
    if isinstance(trained, Mapping) and trained.get("lr"):  # used instead of the optimizer's
        return str(trained["lr"])
    return str(settings.get("optimizer", settings).get("lr", ""))


def _mean_cost(row: RowResult, stage: str, name: str) -> float | None:
    """Return the mean of one of `COSTS` over the cells in which it was measured, or None."""
    costs = [cell.costs[stage] for cell in row.cells if stage in cell.costs]
    values = [value for cost in costs if (value := getattr(cost, COSTS[name]))]
    return fmean(values) if values else None


def describe_commit(code: str) -> str:
    """Shorten the commit in ``code`` (see `Report`), or return "unknown" for no record."""
    name, _, rest = code.partition(" ")
    return f"{name[:12]} {rest}".strip() or "unknown"


def plan_table(rows: Sequence[tuple[str, str, str]], tasks: Sequence[tuple[str, int, int]]) -> str:
    """Return tables of the rows and tasks of a plan."""
    work = [(name, total, done, total - done) for name, total, done in tasks]
    cells = make_table(["row", "against", "change"], rows)
    stages = make_table(["stage", "tasks", "finished", "to do"], work)
    return f"{cells.markdown()}\n\n{stages.markdown()}"


def _intervals(report: Report) -> list[str]:
    if not report.trains:
        return ["intervals: 95 %, bootstrap over queries."]
    shared = "base" in report.reference and not report.base_per_seed
    seeds = {stage: len(report.seeds) for stage in report.reference if stage != "evaluate"}
    seeds |= {"base": 1} if shared else {}
    stages = ", ".join(f"{stage} {count}" for stage, count in seeds.items())
    return [
        f"Every row is trained with {_seeds(report.seeds)}; rows of one seed read the same data "
        f"in the same order. Number of seeds by stage: {stages}.",
        *(["All seeds continue from one base. Intervals do not cover other bases."] * shared),
        "mean ± and intervals: 95 %, seeds and queries resampled; with one seed, only the queries "
        "of the two checkpoints.",
        *([f"{fmt.NOTHING_VARIES}."] if len(report.seeds) > 1 else []),
    ]


def _method(report: Report) -> str:
    lines = [
        *_intervals(report),
        "p (Holm): corrected for all rows on a collection; the verdict uses it at the 5 % level.",
        *([P_OF_SEEDS] if len(report.seeds) > 1 and report.trains else []),
        f"{fmt.DETECTABLE_LEGEND}.",
        *map(escape, report.leaks),
    ]
    lines += [
        f"The {'factor' if axis.factors else 'axis'} {escape(one.title)} is the field "
        f"{code(one.field)}."
        for axis in report.axes
        for one in axis.factors or [axis]
        if one.title != one.field
    ]
    commits = " and ".join(map(describe_commit, report.commits))
    versions = ", ".join(map(" ".join, report.conditions.libraries.items()))
    lines.append(f"Code: {commits}; {versions}.")
    return bullets(lines)


SequenceLine = tuple[RowResult, SequenceResult]


def difference_columns(
    of: Callable[[Row], RowOnCollection | None], header: str = "difference", gap: str = ""
) -> list[Column[Row]]:
    """Return columns for a difference, its interval and p; ``of`` returns None for a gap."""

    def change(row: Row) -> str:
        on = of(row)
        return fmt.signed(on.difference.value if on.difference else None) if on else gap

    return [
        Column(header, change, fmt.numeric),
        Column("95 % interval", lambda row: (on := of(row)) and on.difference, fmt.interval),
        Column("p (Holm)", of, _supported_p),
    ]


def _supported_p(on: RowOnCollection) -> str:
    """Return p, or the smallest of `P_LEVELS` that the seeds support if p is below it."""
    if on.p_holm is None or on.difference is None:
        return ""
    of_seeds = on.difference.p_seeds
    if of_seeds is None:
        return fmt.p_value(on.p_holm)
    level = next((level for level in P_LEVELS if of_seeds <= level), P_LEVELS[-1])
    return fmt.p_value(on.p_holm) if on.p_holm >= level else f"< {level:g}".replace("0.", ".")


def sequence_sections(report: Report) -> list[str]:
    """Return the section of ``report`` on gains and forgetting, or nothing without sequences."""
    learnt = [(row, row.sequence) for row in report.rows if row.sequence]
    if not learnt:
        return []
    columns: list[Column[SequenceLine]] = [
        Column("row", lambda row: row[0].name),
        *difference_columns(lambda row: row[1].gained, "gained"),
        Column("verdict", lambda row: row[1].gained.verdict),
        *difference_columns(lambda row: row[1].forgotten, "forgotten", "separate models"),
        Column("verdict", lambda row: (on := row[1].forgotten) and on.verdict),
        Column("MLM loss", lambda row: fmean(row[1].losses.values()), fmt.fixed_digits(3)),
    ]
    legend = bullets(_sequence_legend(learnt[0][1].start))
    return ["## Gains and forgetting", Table(learnt, columns).markdown(), legend]


def _sequence_legend(start: str) -> Iterator[str]:
    yield f"gained: mean of the domains after the sequence minus the mean of {escape(start)}."
    yield (
        "forgotten: after the sequence minus just after training on the domain, mean over all "
        "domains but the last; below 0 is forgetting (backward transfer)."
    )
    yield (
        "After the sequence a collection is searched with the last checkpoint, or with the "
        "domain's own model or adapter, which cannot forget."
    )
    yield (
        "MLM loss: over the last tenth of each domain's steps, mean over the domains. It shows "
        "methods that forget little because they learn little."
    )
    yield "p (Holm): corrected for all rows, for gained and forgotten each."
