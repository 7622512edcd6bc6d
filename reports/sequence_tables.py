"""Ways to learn a sequence of collections, as Markdown and CSV."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from urllib.parse import quote

from bench.compare.statistics import Paired
from bench.experiments.sequence.comparing import Compared
from bench.monitor.quality_curve import Level
from reports.csv_table import csv_table
from reports.forgetting_tables import markdown as matrix
from reports.markdown import code, plain, table

FIELDS = ("method", "kind", "collection", "value", "low", "high", "p", "p_holm")


def markdown(found: Compared, pictures: Sequence[str] = ()) -> str:
    """The whole report.

    Args:
        pictures: methods whose heat map lies beside the report as ``METHOD.svg``.
    """
    parts = [
        f"# {plain(found.title)}",
        f"Learnt in this order: {plain(', '.join(found.domains))}. "
        f"Every training: {plain(found.trained)}.",
        f"Made by {code(found.command)} ({found.conditions.machine}, {found.conditions.threads} "
        f"threads, {found.conditions.time[:10]}).",
        "**One training of each: every difference is between these checkpoints. Whether the "
        "methods differ, it cannot say.**",
        *(f"**This is not the published {plain(name)}.**" for name in found.unofficial),
        f"## {found.measure} after the sequence",
        _after(found),
        "## What was gained and forgotten",
        _gained(found),
        "\n".join(f"- {line}" for line in _said(found)),
    ]
    for row in found.rows:
        parts.append(f"# {plain(row.method)}: {plain(row.settings)}")
        parts += (
            [f"![{plain(row.method)}]({quote(row.method)}.svg)"] if row.method in pictures else []
        )
        parts.append(matrix(row.forgetting).rstrip("\n"))
    return "\n\n".join(parts) + "\n"


def comma_separated(found: Compared) -> str:
    """A line for each figure, nothing rounded."""
    return csv_table(FIELDS, _records(found))


def _records(found: Compared) -> Iterator[tuple[object, ...]]:
    yield from (_level_line(found.base, name, one) for name, one in found.before.items())
    yield _level_line(found.base, "mean", found.before_average)
    for row in found.rows:
        yield from (_level_line(row.method, name, one) for name, one in row.after.items())
        yield _level_line(row.method, "mean", row.average)
        losses = row.losses.items()
        yield from ((row.method, "mlm loss", name, one, *[None] * 4) for name, one in losses)
        kinds = {"gained": row.gained, "forgotten": row.forgotten, "against": row.against}
        for kind, one in kinds.items():
            if one is not None:
                holm = row.p_holm if kind == "against" else None
                yield row.method, kind, "mean", one.difference, one.low, one.high, one.p, holm


def plan(
    methods: Mapping[str, str], documents: Mapping[str, int], trained: str, domains: int
) -> str:
    """What would be done."""
    rows = [(name, settings) for name, settings in methods.items()]
    checkpoints = len(methods) * domains
    total = sum(documents.values()) * (checkpoints + 1)
    names = ", ".join(f"{name} ({count:,})" for name, count in documents.items())
    lines = [
        f"learnt in this order, then evaluated on (documents): {names}",
        f"every training: {trained}",
        f"{checkpoints} trainings; {total:,} documents to encode",
    ]
    return "\n\n".join([table(["method", "settings"], rows), "\n".join(lines)])


def _after(found: Compared) -> str:
    """Levels by method and collection."""
    base = [_level(one) for one in found.before.values()]
    rows = [[found.base, *base, _level(found.before_average)]]
    for row in found.rows:
        levels = [_level(one) for one in row.after.values()]
        rows.append([row.method, *levels, _level(row.average)])
    return table([found.measure, *found.domains, "mean"], rows, "lr")


def _gained(found: Compared) -> str:
    """Differences by method."""
    first = found.rows[0].method
    headers = ["method", f"mean against {found.base}", "forgotten", f"mean against {first}"]
    rows = [
        [
            row.method,
            _difference(row.gained),
            _difference(row.forgotten) if row.forgotten else "kept apart",
            _difference(row.against) if row.against else "",
            "" if row.p_holm is None else f"{row.p_holm:.4f}",
            f"{fmean(row.losses.values()):.3f}",
            f"{row.seconds:,.0f}",
        ]
        for row in found.rows
    ]
    return table([*headers, "p (Holm)", "MLM loss", "training, s"], rows, "lr")


def _said(found: Compared) -> Iterator[str]:
    first = found.rows[0].method
    apart = [row.method for row in found.rows[1:] if row.separated]
    together = [row.method for row in found.rows[1:] if not row.separated]
    if apart:
        yield f"Separated from {plain(first)} at 5 %: {plain(', '.join(apart))}."
    if together:
        yield f"Could not be separated from {plain(first)}: {plain(', '.join(together))}."
    yield (
        "After the sequence, a collection is searched with the last checkpoint, or with its own "
        "adapter where each domain has one: what is kept apart is not forgotten."
    )
    yield (
        "forgotten: after the sequence minus just after the domain's own training, over all "
        "domains but the last; below 0 is forgetting (backward transfer)."
    )
    yield (
        "MLM loss: over the last tenth of each domain's steps, mean over the domains. A method "
        "that keeps what was known by learning little of what is new shows it here."
    )
    told = ", ".join(f"{count:,} of {name}" for name, count in found.queries.items())
    count, seed = found.resampling.resamples, found.resampling.seed
    drawn = f"{count:,} resamples, seed {seed}"
    yield f"95 % intervals: bootstrap over queries ({plain(told)}), {drawn}."
    yield "p: paired sign flips; Holm: over the methods."
    conditions = found.conditions
    libraries = ", ".join(f"{name} {version}" for name, version in conditions.libraries.items())
    yield f"Code: {conditions.commit[:12]}{'+' if conditions.dirty else ''}; {libraries}."


def _level_line(method: str, collection: str, one: Level) -> tuple[object, ...]:
    return (method, "after", collection, one.value, one.low, one.high, None, None)


def _level(one: Level) -> str:
    if one.low is None or one.high is None:
        return f"{one.value:.4f}"
    return f"{one.value:.4f} ({one.low:.4f} to {one.high:.4f})"


def _difference(one: Paired) -> str:
    interval = "" if one.low is None else f" ({one.low:+.4f} to {one.high:+.4f})"
    return f"{one.difference:+.4f}{interval}"
