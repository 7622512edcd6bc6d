"""An ablation as Markdown and CSV: figures with intervals, what they cost, what others found."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from urllib.parse import quote

from bench.experiments.report_record import Report, RowFound, RowOnCollection
from reports.ablation_sequences import sequence_sections
from reports.csv_table import csv_table
from reports.markdown import code, plain, table

COLUMNS = ("row", "collection", "measure", "seeds", "mean", "low", "high", "seeds_sd", "difference",
           "difference_low", "difference_high", "p_holm", "verdict", "detectable", "parameters",
           "tokens", "seconds", "of_parameters", "saved_bytes")  # fmt: skip

EQUAL_BUDGET = 1.05  # largest number of tokens over the smallest


def markdown(
    report: Report,
    pictures: Sequence[tuple[str, str]] = (),
    heat_maps: Mapping[str, str] | None = None,
) -> str:
    """The whole report.

    Args:
        pictures: file, relative to the report, and title of each.
        heat_maps: file of the forgetting matrix by row.
    """
    parts = [f"# {plain(report.title or report.name)}", _opening(report)]
    for name in reversed(report.collections):
        parts += [f"## {plain(_heading(report, name))}", score_table(report, name)]
        parts.append("\n".join(f"- {plain(line)}" for line in _said(report, name)))
    if gaps := _gaps(report):
        parts += ["## Gaps", gaps]
    parts += [f"![{plain(title)}]({quote(file)})" for file, title in pictures]
    parts += ["## Cost", cost_table(report)]
    parts += ["## How", _method(report)]
    parts += sequence_sections(report, heat_maps or {})
    return "\n\n".join(parts) + "\n"


def _opening(report: Report) -> str:
    cells = sum(len(row.cells) for row in report.rows)
    where = report.conditions
    seeds = f", {_seeds(report.seeds)}" if report.trains else ""
    lines = [
        f"{len(report.rows)} rows{seeds}: {cells - report.gaps} of {cells} cells finished, "
        f"{_time(report.seconds)} of work ({where.machine}, {where.threads} threads, "
        f"device {where.device}), {where.time[:10]}.",
        f"Made by {code(report.command)}.",
    ]
    lines += [f"**{plain(one)}**" for one in report.differing]
    if not report.trains:
        lines.append("**Nothing is trained: every difference is between two uses of one model.**")
    elif len(report.seeds) == 1:
        lines.append(
            "**One seed: every difference is between these checkpoints. Whether the recipes "
            "differ, it cannot say.**"
        )
    if report.trains and (budget := _budget(report)):
        lines.append(budget)
    if len(report.commits) > 1:
        commits = " and ".join(one[:12] or "no checkout" for one in report.commits)
        lines.append(
            f"**The cells were made by different code, {commits}: a difference between two of them "
            "may be the code's.**"
        )
    return "\n\n".join(lines)


def _budget(report: Report) -> str:
    """How many tokens rows were pre-trained on, and whether these are equally many."""
    read = [
        c.tokens["pretrain"] for row in report.rows for c in row.cells if "pretrain" in c.tokens
    ]
    if not read:
        return ""
    if max(read) <= EQUAL_BUDGET * min(read):
        return f"Every row was pre-trained on equally many tokens, {_count(_mean(read))}."
    return (
        f"**Rows were pre-trained on {_count(min(read))} to {_count(max(read))} tokens: a "
        "difference may be the budget's. With tokens in [pretrain] all read equally many.**"
    )


def _seeds(seeds: Sequence[int]) -> str:
    names = ", ".join(map(str, seeds))
    return f"seed {names}" if len(seeds) == 1 else f"seeds {names}"


def _heading(report: Report, name: str) -> str:
    if report.is_mean(name):
        nested = ", a suite within a suite counting once" if report.weights else ""
        return f"Mean of {len(report.collections) - 1} collections{nested}"
    measures = {one.measure for row in report.rows if (one := row.at(name))}
    return f"{name}, {', '.join(sorted(measures))}"


def score_table(report: Report, name: str) -> str:
    """All rows on one collection, with the published figures beside them."""
    others = list(dict.fromkeys(key for row in report.rows for key in row.published))
    headers = ["row", "change", "seeds", "mean ± 95 %", "sd of seeds", "against", "difference",
               "95 % interval", "p (Holm)", "verdict", "detectable"]  # fmt: skip
    headers += [f"{key}, published" for key in others]
    cells = [
        [row.name, row.change or _values(report, row.name)]
        + _figures(row, row.at(name), report.trains)
        + [_score(row.published.get(key)) for key in others]
        for row in report.rows
    ]
    return table(headers, cells)


def _values(report: Report, name: str) -> str:
    """The values that a row has along the axes: what the reference is."""
    return ", ".join(
        f"{axis.title} {point.label}"
        for axis in report.axes
        for point in axis.points
        if point.row == name
    )


def _figures(row: RowFound, on: RowOnCollection | None, trains: bool) -> list[str]:
    """Cells from the seeds to what could be detected; a gap says so."""
    if on is None or on.score is None:
        return ["0", "gap", *[""] * 7]
    own = on.score
    half = "" if own.high is None else f" ± {own.high - own.mean:.4f}"
    finished = sum(bool(cell.scores) for cell in row.cells)
    done = f"{finished} of {len(row.cells)}" if finished < len(row.cells) else str(finished)
    start = [done, f"{own.mean:.4f}{half}", _score(own.seeds_sd), row.against]
    if on.recipes:
        found = on.recipes
        limits = "" if found.low is None else f"{found.low:+.4f} to {found.high:+.4f}"
        rest = [f"{found.mean:+.4f}", limits, _p(on.p_holm), on.verdict, _score(found.detectable)]
    elif on.checkpoints:
        one = on.checkpoints
        limits = "" if one.low is None else f"{one.low:+.4f} to {one.high:+.4f}"
        verdict = f"these checkpoints: {on.verdict}" if trains else on.verdict
        rest = [f"{one.difference:+.4f}", limits, _p(on.p_holm), verdict, _score(one.detectable)]
    else:
        rest = [""] * 5
    return start + rest


def _said(report: Report, name: str) -> Iterator[str]:
    """What can be concluded, and what cannot, in words."""
    compared = [(row, on) for row in report.rows if (on := row.at(name)) and on.verdict]
    for row, on in compared:
        if on.verdict != "cannot tell":
            yield f"{row.name} is {on.verdict} than {row.against}{_scope(report, on)}."
    open_rows = [(row, on) for row, on in compared if on.verdict == "cannot tell"]
    if open_rows:
        names = ", ".join(f"{row.name}{_scope(report, on)}" for row, on in open_rows)
        found = [value for _, on in open_rows if (value := _detectable(on)) is not None]
        reach = f"; found 80 times in 100 would be {_range(found)}" if found else ""
        yield f"Could not be separated from the row they are against: {names}{reach}."
    for row in report.rows:
        on = row.at(name)
        if on is None:
            yield f"{row.name}: no cell is finished."
        elif row.against and not on.verdict:
            yield f"{row.name}: shares no finished seed with {row.against}."


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.4f}", f"{max(values):.4f}"
    return f"a true difference of {low}" + (f" to {high}" if high != low else "")


def _scope(report: Report, on: RowOnCollection) -> str:
    if not report.trains or on.checkpoints is None:
        return ""
    return f" (the checkpoints of seed {on.seeds[0]}, not the recipes)"


def _detectable(on: RowOnCollection) -> float | None:
    found = on.recipes or on.checkpoints
    return found.detectable if found else None


def _gaps(report: Report) -> str:
    rows = [
        [row.name, str(cell.seed), cell.failed_at, cell.error]
        for row in report.rows
        for cell in row.cells
        if not cell.scores
    ]
    return table(["row", "seed", "stage", "why"], rows) if rows else ""


def cost_table(report: Report) -> str:
    """What a cell of each row took: means over its finished seeds, by stage."""
    stages = list(report.reference)
    sized = any(saved_bytes_of(row) for row in report.rows)
    headers = ["row", "parameters trained" if report.trains else "parameters"]
    headers += ["trained %", "bytes saved"] if sized else []
    headers += ["tokens trained on"] if report.trains else []
    headers += [f"{stage}, s" for stage in stages]
    cells = []
    for row in report.rows:
        seconds = [_mean([c.seconds[s] for c in row.cells if s in c.seconds]) for s in stages]
        cells.append(
            [row.name, _count(parameters_of(row))]
            + ([_share(row), _count(saved_bytes_of(row))] if sized else [])
            + ([_count(tokens_of(row))] if report.trains else [])
            + ["" if one is None else f"{one:,.0f}" for one in seconds]
        )
    return table(headers, cells)


def parameters_of(row: RowFound) -> int | None:
    """Parameters that its last training trained; of the encoder, where nothing is trained."""
    for stage in ("finetune", "adapt", "pretrain", "evaluate"):
        if found := [c.parameters[stage] for c in row.cells if stage in c.parameters]:
            return max(found)
    return None


def of_parameters_of(row: RowFound) -> int | None:
    """All parameters of the network that its last training trained, where they were counted."""
    return max((c.of_parameters["finetune"] for c in row.cells if c.of_parameters), default=None)


def saved_bytes_of(row: RowFound) -> int | None:
    """Bytes of the weights that its last training wrote, where they were counted."""
    return max((c.saved_bytes["finetune"] for c in row.cells if c.saved_bytes), default=None)


def _share(row: RowFound) -> str:
    trained, total = parameters_of(row), of_parameters_of(row)
    return f"{100 * trained / total:.3g}" if trained and total else ""


def tokens_of(row: RowFound) -> float | None:
    """Tokens of its trainings, mean over seeds."""
    sums = [
        sum(count for stage, count in cell.tokens.items() if stage != "evaluate")
        for cell in row.cells
        if cell.tokens
    ]
    return _mean([one for one in sums if one])


def comma_separated(report: Report) -> str:
    """A line for each row and collection, nothing rounded."""
    return csv_table(COLUMNS, (_line(row, on) for row in report.rows for on in row.on))


def _line(row: RowFound, on: RowOnCollection) -> list[object]:
    own, recipes, pair = on.score, on.recipes, on.checkpoints
    difference = recipes.mean if recipes else pair.difference if pair else None
    found = recipes or pair
    seconds = [sum(cell.seconds.values()) for cell in row.cells if cell.scores]
    return [
        row.name,
        on.collection,
        on.measure,
        sum(bool(cell.scores) for cell in row.cells),
        own.mean if own else None,
        own.low if own else None,
        own.high if own else None,
        own.seeds_sd if own else None,
        difference,
        found.low if found else None,
        found.high if found else None,
        on.p_holm,
        on.verdict,
        found.detectable if found else None,
        parameters_of(row),
        tokens_of(row),
        _mean(seconds),
        of_parameters_of(row),
        saved_bytes_of(row),
    ]


def plan_table(rows: Sequence[tuple[str, str, str]], tasks: Sequence[tuple[str, int, int]]) -> str:
    """What would be done.

    Args:
        rows: name, the row it is against, and what it changes.
        tasks: stage, how many in all, and how many of them are finished.
    """
    work = [[name, str(total), str(done), str(total - done)] for name, total, done in tasks]
    return "\n\n".join(
        [
            table(["row", "against", "change"], rows),
            table(["stage", "tasks", "finished", "to do"], work),
        ]
    )


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
        "p (Holm): corrected for all rows on a collection; verdict by it at 5 %. detectable: the "
        "true difference that would be found 80 times in 100.",
        *map(plain, report.leaks),
    ]
    if report.source:
        lines.append(
            f"published: {plain(f'{report.source}, on {report.published_on}')}: another scale "
            "and collection, so only directions compare."
        )
    axes = [f"{plain(axis.title)} is the field {code(axis.field)}" for axis in report.axes]
    lines += [f"The axis {text}." for text in axes]
    commits = " and ".join(one[:12] for one in report.commits if one) or "no checkout"
    dirty = " with uncommitted changes" if report.conditions.dirty else ""
    versions = ", ".join(f"{name} {one}" for name, one in report.conditions.libraries.items())
    lines.append(f"Code: {commits}{dirty}; {versions}.")
    return "\n".join(f"- {line}" for line in lines)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _score(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if value >= 0.00005 else f"{value:.0e}"
