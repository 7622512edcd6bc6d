"""An ablation as Markdown and CSV: figures with intervals, and what they cost."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from urllib.parse import quote

from bench.experiments.experiment import Cost
from bench.experiments.report_record import (
    CellResult,
    HypothesisResult,
    Interval,
    Report,
    RowOnCollection,
    RowResult,
    SequenceResult,
)
from reports import format as fmt
from reports.table import (
    Column,
    Row,
    Table,
    bullet_list,
    code_span,
    columns_for,
    escape,
    table_from_rows,
)

NOTHING = Cost()


def markdown(
    report: Report,
    pictures: Sequence[tuple[str, str]] = (),
) -> str:
    """The whole report.

    Args:
        pictures: file, relative to the report, and title of each.
    """
    parts = [f"# {escape(report.title or report.name)}", _summary(report)]
    parts += hypotheses_section(report)
    for name in reversed(report.collections):
        parts += [f"## {escape(_heading(report, name))}", score_table(report, name)]
    if gaps := _gaps(report):
        parts += ["## Gaps", gaps]
    parts += [f"![{escape(title)}]({quote(file)})" for file, title in pictures]
    parts += ["## Cost", cost_table(report)]
    parts += ["## How", _method(report)]
    parts += sequence_sections(report)
    return "\n\n".join(parts) + "\n"


def _summary(report: Report) -> str:
    cells = sum(len(row.cells) for row in report.rows)
    where = report.conditions
    seeds = f", {_seeds(report.seeds)}" if report.trains else ""
    lines = [
        f"{len(report.rows)} rows{seeds}: {cells - report.gaps} of {cells} cells finished, "
        f"{fmt.duration(report.seconds)} of work ({where.machine}, {where.threads} threads, "
        f"device {where.device}), {where.time[:10]}.",
        f"Made by {code_span(report.command)}.",
    ]
    lines += [f"**{escape(sentence)}**" for sentence in report.differing]
    if not report.trains:
        lines.append("**Nothing is trained: every difference is between two uses of one model.**")
    elif len(report.seeds) == 1:
        lines.append(
            "**One seed: every difference is between these checkpoints. Whether the recipes "
            "differ, it cannot say.**"
        )
    if len(report.commits) > 1:
        commits = " and ".join(commit[:12] or "no checkout" for commit in report.commits)
        lines.append(
            f"**The cells were made by different code, {commits}: a difference between two of them "
            "may be the code's.**"
        )
    return "\n\n".join(lines)


def _seeds(seeds: Sequence[int]) -> str:
    names = ", ".join(map(str, seeds))
    return f"seed {names}" if len(seeds) == 1 else f"seeds {names}"


def _heading(report: Report, name: str) -> str:
    if report.is_mean(name):
        nested = ", a suite within a suite counting once" if report.weights else ""
        return f"Mean of {len(report.collections) - 1} collections{nested}"
    measures = {on.measure for row in report.rows if (on := row.on_collection(name))}
    return f"{name}, {', '.join(sorted(measures))}"


def score_table(report: Report, name: str) -> str:
    """All rows on one collection."""

    def score_of(row: RowResult) -> Interval | None:
        return on.score if (on := row.on_collection(name)) else None

    columns: list[Column[RowResult]] = [
        Column("row", lambda row: row.name),
        Column("change", lambda row: row.change or _values(report, row.name)),
        Column("seeds", lambda row: _finished(row) if score_of(row) else "0", fmt.right_aligned),
        Column("mean ± 95 %", score_of, _half_width),
        Column("sd of seeds", lambda row: (own := score_of(row)) and own.seeds_sd, fmt.score),
        Column("against", lambda row: row.against if score_of(row) else ""),
        *difference_columns(lambda row: row.on_collection(name)),
        Column("verdict", lambda row: _verdict(row.on_collection(name), report.trains)),
        Column("detectable", lambda row: _detectable(row.on_collection(name)), fmt.score),
    ]
    return Table(report.rows, columns).markdown()


def _finished(row: RowResult) -> str:
    finished = sum(bool(cell.scores) for cell in row.cells)
    return f"{finished} of {len(row.cells)}" if finished < len(row.cells) else str(finished)


def _half_width(own: Interval | None) -> str:
    if own is None:
        return "gap"
    half = "" if own.high is None else f" ± {fmt.score(own.high - own.mean)}"
    return fmt.score(own.mean) + half


def _verdict(on: RowOnCollection | None, trains: bool) -> str:
    """With one seed, it is of these checkpoints and not of the recipes."""
    if on is None or on.difference is None:
        return ""
    return f"these checkpoints: {on.verdict}" if trains and len(on.seeds) < 2 else on.verdict


def _values(report: Report, name: str) -> str:
    """The values that a row has along the axes: what the reference is."""
    return ", ".join(
        f"{axis.title} {label}"
        for axis in report.axes
        for label, row in axis.points.items()
        if row == name
    )


def _detectable(on: RowOnCollection | None) -> float | None:
    return on.difference.detectable if on and on.difference else None


def _gaps(report: Report) -> str:
    gaps = [(row, cell) for row in report.rows for cell in row.cells if not cell.scores]
    columns: list[Column[tuple[RowResult, CellResult]]] = [
        Column("row", lambda gap: gap[0].name),
        Column("seed", lambda gap: gap[1].seed, str),
        Column("stage", lambda gap: gap[1].failed_at),
        Column("why", lambda gap: gap[1].error),
    ]
    return Table(gaps, columns).markdown() if gaps else ""


def cost_table(report: Report) -> str:
    """Cost of a cell of each row: means over its finished seeds, by stage."""
    trained = " trained" if report.trains else ""
    columns: list[Column[RowResult]] = [
        Column("row", lambda row: row.name),
        Column(f"parameters{trained}", parameters_of, fmt.count),
    ]
    if any(saved_bytes_of(row) for row in report.rows):
        columns.append(Column("trained %", _trained_share, fmt.right_aligned))
        columns.append(Column("bytes saved", saved_bytes_of, fmt.count))
    if report.trains:
        columns.append(Column("tokens trained on", tokens_of, fmt.count))
    columns += columns_for(report.reference, _seconds, fmt.count, "{}, s")
    return Table(report.rows, columns).markdown()


def _seconds(row: RowResult, stage: str) -> float | None:
    return _mean([cell.costs[stage].seconds for cell in row.cells if stage in cell.costs])


def parameters_of(row: RowResult) -> int | None:
    """Parameters that its last training trained; of the encoder, where nothing is trained."""
    for stage in ("finetune", "adapt", "pretrain", "base", "evaluate"):
        if counted := _most(row, stage, "parameters"):
            return counted
    return None


def total_parameters_of(row: RowResult) -> int | None:
    """All parameters of the network that its last training trained, where they were counted."""
    return _most(row, "finetune", "total_parameters")


def saved_bytes_of(row: RowResult) -> int | None:
    """Bytes of the weights that its last training wrote, where they were counted."""
    return _most(row, "finetune", "saved_bytes")


def _most(row: RowResult, stage: str, field: str) -> int | None:
    """The largest count of its cells; None if nothing was counted."""
    return max((getattr(c.costs.get(stage, NOTHING), field) for c in row.cells), default=0) or None


def _trained_share(row: RowResult) -> str:
    trained, total = parameters_of(row), total_parameters_of(row)
    return f"{100 * trained / total:.3g}" if trained and total else ""


def tokens_of(row: RowResult) -> float | None:
    """Tokens of its trainings, mean over seeds."""
    sums = [
        sum(cost.tokens for stage, cost in cell.costs.items() if stage != "evaluate")
        for cell in row.cells
    ]
    return _mean([total for total in sums if total])


def plan_table(rows: Sequence[tuple[str, str, str]], tasks: Sequence[tuple[str, int, int]]) -> str:
    """Rows and tasks of a plan.

    Args:
        rows: name, the row it is against, and what it changes.
        tasks: stage, how many in all, and how many of them are finished.
    """
    work = [[name, str(total), str(done), str(total - done)] for name, total, done in tasks]
    tables = [
        table_from_rows(["row", "against", "change"], rows),
        table_from_rows(["stage", "tasks", "finished", "to do"], work),
    ]
    return "\n\n".join(table.markdown() for table in tables)


def _intervals(report: Report) -> list[str]:
    if not report.trains:
        return ["intervals: 95 %, bootstrap over queries."]
    return [
        f"Every row is trained with {_seeds(report.seeds)}; rows of one seed read the same data "
        "in the same order.",
        "mean ± and intervals: 95 % over other seeds and other queries, resampled on both levels; "
        "with one seed, a bootstrap over queries of the two checkpoints.",
    ]


def _method(report: Report) -> str:
    lines = [
        *_intervals(report),
        "p (Holm): corrected for all rows on a collection; verdict by it at 5 %.",
        f"{fmt.DETECTABLE_LEGEND}.",
        *map(escape, report.leaks),
    ]
    axes = [f"{escape(axis.title)} is the field {code_span(axis.field)}" for axis in report.axes]
    lines += [f"The axis {text}." for text in axes]
    commits = " and ".join(commit[:12] for commit in report.commits if commit) or "no checkout"
    dirty = " with uncommitted changes" if report.conditions.dirty else ""
    versions = ", ".join(map(" ".join, report.conditions.libraries.items()))
    lines.append(f"Code: {commits}{dirty}; {versions}.")
    return bullet_list(lines)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


SequenceLine = tuple[RowResult, SequenceResult]


def difference_columns(
    of: Callable[[Row], RowOnCollection | None], header: str = "difference", gap: str = ""
) -> list[Column[Row]]:
    """A difference with its interval and p.

    Args:
        of: the figures of a row; None for a gap.
        gap: instead of the difference.
    """
    return [
        Column(header, of, lambda on: _signed(on) if on else gap),
        Column("95 % interval", lambda row: (on := of(row)) and on.difference, fmt.interval),
        Column("p (Holm)", lambda row: (on := of(row)) and on.p_holm, fmt.p_value),
    ]


def _signed(on: RowOnCollection) -> str:
    return fmt.signed(on.difference.mean if on.difference else None)


def sequence_sections(report: Report) -> list[str]:
    """A part of the report: a table of all rows, and what its words mean."""
    learnt = [(row, row.sequence) for row in report.rows if row.sequence]
    if not learnt:
        return []
    columns: list[Column[SequenceLine]] = [
        Column("row", lambda row: row[0].name),
        *difference_columns(lambda row: row[1].gained, "gained"),
        Column("verdict", lambda row: row[1].gained.verdict),
        *difference_columns(lambda row: row[1].forgotten, "forgotten", "kept apart"),
        Column("verdict", lambda row: (on := row[1].forgotten) and on.verdict),
        Column("MLM loss", lambda row: fmean(row[1].losses.values()), fmt.fixed_digits(3)),
    ]
    legend = bullet_list(_legend(learnt[0][1].start))
    return ["## What was gained and forgotten", Table(learnt, columns).markdown(), legend]


def _legend(start: str) -> Iterator[str]:
    yield f"gained: mean of the domains after the sequence minus that of {escape(start)}."
    yield (
        "forgotten: after the sequence minus just after the domain's own training, mean over all "
        "domains but the last; below 0 is forgetting (backward transfer)."
    )
    yield (
        "After the sequence a collection is searched with the last checkpoint, or with its own "
        "model or adapter where each domain has one: what is kept apart is not forgotten."
    )
    yield (
        "MLM loss: over the last tenth of each domain's steps, mean over the domains. A method "
        "that keeps what was known by learning little of what is new shows it here."
    )
    yield "p (Holm): corrected for all rows, for gained and forgotten each."


HypothesisLine = tuple[HypothesisResult, RowOnCollection]


def hypotheses_section(report: Report) -> list[str]:
    """A heading, a table of each hypothesis on each collection, and how to read it; or nothing."""
    tested = [(each, on) for each in report.hypotheses for on in each.on]
    if not report.hypotheses:
        return []
    columns: list[Column[HypothesisLine]] = [
        Column("hypothesis", lambda pair: _sentence(pair[0])),
        Column("collection", lambda pair: pair[1].collection),
        *difference_columns(lambda pair: pair[1]),
        Column("detectable", lambda pair: _detectable(pair[1]), fmt.score),
        Column("answer", lambda pair: pair[0].answer(pair[1].collection)),
    ]
    return [
        "## Hypotheses that were fixed beforehand",
        Table(tested, columns).markdown(),
        "p (Holm): corrected for all hypotheses on a collection. What is not separated is not "
        "thereby equal: a true difference as large as `detectable` would have been found 80 times "
        "in 100.",
    ]


def _sentence(hypothesis: HypothesisResult) -> str:
    relation = "is better than" if hypothesis.expected == "better" else "is equal to"
    return f"{hypothesis.row} {relation} {hypothesis.against}"
