"""An experiment as Markdown: scores with intervals, differences, and costs."""

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
from reports.table import Column, Row, Table, bullets, code, columns_for, escape, make_table

NOTHING = Cost()


def markdown(report: Report, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """Return the complete report.

    Args:
        report: results of the experiment.
        pictures: file, relative to the report, and title of each picture.
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
        commits = " and ".join(commit[:12] or "no checkout" for commit in report.commits)
        lines.append(
            f"**The cells were made by different code, {commits}. A difference between two of them "
            "may be due to the code.**"
        )
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

    def score_of(row: RowResult) -> Interval | None:
        return on.score if (on := row.on_collection(name)) else None

    columns: list[Column[RowResult]] = [
        Column("row", lambda row: row.name),
        Column("change", lambda row: row.change or _values(report, row.name)),
        Column("seeds", lambda row: _finished(row) if score_of(row) else "0", fmt.numeric),
        Column("mean ± 95 %", score_of, _half_width),
        Column("sd of seeds", lambda row: (score := score_of(row)) and score.seeds_sd, fmt.score),
        Column("against", lambda row: row.against if score_of(row) else ""),
        *difference_columns(lambda row: row.on_collection(name)),
        Column("verdict", lambda row: _verdict(row.on_collection(name), report.trains)),
        Column("detectable", lambda row: _detectable(row.on_collection(name)), fmt.score),
    ]
    return Table(report.rows, columns).markdown()


def _finished(row: RowResult) -> str:
    finished = sum(bool(cell.scores) for cell in row.cells)
    return f"{finished} of {len(row.cells)}" if finished < len(row.cells) else str(finished)


def _half_width(score: Interval | None) -> str:
    if score is None:
        return "gap"
    half = "" if score.high is None else f" ± {fmt.score(score.high - score.mean)}"
    return fmt.score(score.mean) + half


def _verdict(on: RowOnCollection | None, trains: bool) -> str:
    """Return the verdict, limited to these checkpoints if there is only one seed."""
    if on is None or on.difference is None:
        return ""
    return f"these checkpoints: {on.verdict}" if trains and len(on.seeds) < 2 else on.verdict


def _values(report: Report, name: str) -> str:
    """Return the level of a row on each axis, for the reference row."""
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
    """Return a table of costs of each row of ``report`` by stage, means over its finished seeds."""
    trained = " trained" if report.trains else ""
    columns: list[Column[RowResult]] = [
        Column("row", lambda row: row.name),
        Column(f"parameters{trained}", parameters_of, fmt.count),
    ]
    if any(saved_bytes_of(row) for row in report.rows):
        columns.append(Column("trained %", _trained_share, fmt.numeric))
        columns.append(Column("bytes saved", saved_bytes_of, fmt.count))
    if report.trains:
        columns.append(Column("tokens trained on", tokens_of, fmt.count))
    columns += columns_for(report.reference, _seconds, fmt.count, "{}, s")
    return Table(report.rows, columns).markdown()


def _seconds(row: RowResult, stage: str) -> float | None:
    return _mean([cell.costs[stage].seconds for cell in row.cells if stage in cell.costs])


def parameters_of(row: RowResult) -> int | None:
    """Return the trained parameters of ``row``, or the encoder's if nothing was trained."""
    for stage in ("finetune", "adapt", "pretrain", "base", "evaluate"):
        if counted := _most(row, stage, "parameters"):
            return counted
    return None


def total_parameters_of(row: RowResult) -> int | None:
    """Return all parameters of the network that ``row`` trained last, if they were counted."""
    return _most(row, "finetune", "total_parameters")


def saved_bytes_of(row: RowResult) -> int | None:
    """Return the bytes of the weights that ``row`` saved last, if they were counted."""
    return _most(row, "finetune", "saved_bytes")


def _most(row: RowResult, stage: str, field: str) -> int | None:
    """Return the largest count of its cells, or None if nothing was counted."""
    return max((getattr(c.costs.get(stage, NOTHING), field) for c in row.cells), default=0) or None


def _trained_share(row: RowResult) -> str:
    trained, total = parameters_of(row), total_parameters_of(row)
    return f"{100 * trained / total:.3g}" if trained and total else ""


def tokens_of(row: RowResult) -> float | None:
    """Return the tokens of the trainings of ``row``, mean over seeds."""
    sums = [
        sum(cost.tokens for stage, cost in cell.costs.items() if stage != "evaluate")
        for cell in row.cells
    ]
    return _mean([total for total in sums if total])


def plan_table(rows: Sequence[tuple[str, str, str]], tasks: Sequence[tuple[str, int, int]]) -> str:
    """Return tables of the rows and tasks of a plan.

    Args:
        rows: name, reference row, and change.
        tasks: stage, total number of tasks, and number of finished tasks.
    """
    work = [[name, str(total), str(done), str(total - done)] for name, total, done in tasks]
    tables = [
        make_table(["row", "against", "change"], rows),
        make_table(["stage", "tasks", "finished", "to do"], work),
    ]
    return "\n\n".join(table.markdown() for table in tables)


def _intervals(report: Report) -> list[str]:
    if not report.trains:
        return ["intervals: 95 %, bootstrap over queries."]
    return [
        f"Every row is trained with {_seeds(report.seeds)}; rows of one seed read the same data "
        "in the same order.",
        "mean ± and intervals: 95 %, seeds and queries resampled; with one seed, only the queries "
        "of the two checkpoints.",
    ]


def _method(report: Report) -> str:
    lines = [
        *_intervals(report),
        "p (Holm): corrected for all rows on a collection; the verdict uses it at the 5 % level.",
        f"{fmt.DETECTABLE_LEGEND}.",
        *map(escape, report.leaks),
    ]
    axes = [f"{escape(axis.title)} is the field {code(axis.field)}" for axis in report.axes]
    lines += [f"The axis {text}." for text in axes]
    commits = " and ".join(commit[:12] for commit in report.commits if commit) or "no checkout"
    dirty = " with uncommitted changes" if report.conditions.dirty else ""
    versions = ", ".join(map(" ".join, report.conditions.libraries.items()))
    lines.append(f"Code: {commits}{dirty}; {versions}.")
    return bullets(lines)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


SequenceLine = tuple[RowResult, SequenceResult]


def difference_columns(
    of: Callable[[Row], RowOnCollection | None], header: str = "difference", gap: str = ""
) -> list[Column[Row]]:
    """Return columns for a difference, its interval and p.

    Args:
        of: function from a row to its scores; None for a gap.
        header: header of the difference.
        gap: text shown for a gap.
    """
    return [
        Column(header, of, lambda on: _signed(on) if on else gap),
        Column("95 % interval", lambda row: (on := of(row)) and on.difference, fmt.interval),
        Column("p (Holm)", lambda row: (on := of(row)) and on.p_holm, fmt.p_value),
    ]


def _signed(on: RowOnCollection) -> str:
    return fmt.signed(on.difference.mean if on.difference else None)


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
    legend = bullets(_legend(learnt[0][1].start))
    return ["## Gains and forgetting", Table(learnt, columns).markdown(), legend]


def _legend(start: str) -> Iterator[str]:
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


HypothesisLine = tuple[HypothesisResult, RowOnCollection]


def hypotheses_section(report: Report) -> list[str]:
    """Return the section of ``report`` on hypotheses, or nothing without any."""
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
        "## Hypotheses fixed beforehand",
        Table(tested, columns).markdown(),
        "p (Holm): corrected for all hypotheses on a collection. A difference that is not "
        "significant does not show equality: a true difference as large as `detectable` is found "
        "with a power of 80 %.",
    ]


def _sentence(hypothesis: HypothesisResult) -> str:
    relation = "is better than" if hypothesis.expected == "better" else "is equal to"
    return f"{hypothesis.row} {relation} {hypothesis.against}"
