"""The outcome of a check where people read it: Markdown for pull requests and step summaries."""

from collections.abc import Iterator, Sequence

from bench.compare.statistics import Paired
from bench.gate.check import Against, Check, Row
from bench.gate.power import DetectableEffect
from bench.gate.quick import Look, Quick
from bench.gate.speed_check import SpeedCheck
from reports.markdown import plain, table

HEADERS = (
    "collection",
    "measure",
    "candidate",
    "difference",
    "95 % interval",
    "p",
    "p of a loss",
    "p (Holm)",
    "win / tie / loss",
    "detectable",
    "",
)
SHOWN = 10  # earlier first looks


def markdown(check: Check) -> str:
    """The outcome first, then a table for each comparison."""
    parts = [f"## {check.outcome}: {plain(check.candidate)}", _list(check.reasons)]
    if check.warnings:
        parts.append(_list([f"warning: {text}" for text in check.warnings]))
    for one in check.against:
        parts += [f"### Against the {one.role}, {plain(one.name)}: {one.outcome}", _scores(one)]
        if check.rule == "margin":
            parts.append(_ruled_out(one, check.margin))
    if check.speed:
        parts += [f"### Speed: {check.speed.outcome}", *_speed(check.speed)]
    if check.quick:
        parts += ["### First look", *_quick(check.quick)]
    if check.looks:
        parts += ["### First looks at this candidate before", _looks(check.looks)]
    if check.foreseen:
        parts += ["What could be seen, as said before encoding:", foreseen_table(check.foreseen)]
    parts.append(_terms(check))
    return "\n\n".join(parts) + "\n"


def foreseen_table(foreseen: Sequence[DetectableEffect]) -> str:
    """What a check could see, and where the guess comes from."""
    rows = [
        [
            one.name,
            f"{one.queries:,}",
            "" if one.deviation is None else f"{one.deviation:.3f}",
            f"{one.detectable:.4f}",
            one.source,
        ]
        for one in foreseen
    ]
    return table(("collection", "queries", "deviation", "detectable", "deviation from"), rows)


def rows_of(one: Against) -> Iterator[Row]:
    """The collections, then the mean."""
    yield from one.rows
    if one.mean is not None:
        yield one.mean


def _cells(row: Row) -> list[str]:
    found, remark = row.paired, row.missing or row.failure
    difference = None
    if row.candidate is not None and row.baseline is not None:
        difference = row.candidate - row.baseline
    return [
        row.name,
        row.measure,
        "" if row.candidate is None else f"{row.candidate:.4f}",
        "" if difference is None else f"{difference:+.4f}",
        *(_tested(found, row) if found else [""] * 6),
        remark,
    ]


def _tested(found: Paired, row: Row) -> list[str]:
    limits = "" if found.low is None else f"{found.low:+.4f} to {found.high:+.4f}"
    return [
        limits + (" (few)" if found.few and limits else ""),
        f"{found.p:.4f}",
        "" if row.p_skew is None else f"{row.p_skew:.4f}",
        "" if row.p_holm is None else f"{row.p_holm:.4f}",
        f"{found.wins:,} / {found.ties:,} / {found.losses:,}",
        "" if row.detectable is None else f"{row.detectable:.4f}",
    ]


def _scores(one: Against) -> str:
    return table(HEADERS, [_cells(row) for row in rows_of(one)])


def _speed(speed: SpeedCheck) -> list[str]:
    headers = ("work", "", "candidate", "baseline", "times as long", "95 % interval", "outcome")
    rows = [
        [
            one.what,
            one.unit,
            f"{one.candidate_rate:,.4g}",
            f"{one.baseline_rate:,.4g}",
            f"{one.slowdown:.3f}",
            f"{one.low:.3f} to {one.high:.3f}",
            one.outcome,
        ]
        for one in speed.paces
    ]
    said = (
        f"Beside {plain(speed.baseline)} by turns on {plain(speed.processor)}, texts of "
        f"{plain(speed.collection)}, load {speed.load:.1f} before; {speed.slower:.2f} times as "
        "long is allowed."
    )
    return [table(headers, rows), said]


def _quick(quick: Quick) -> list[str]:
    headers = (
        "collection",
        "documents",
        "of",
        "judged",
        "hard",
        "random",
        "pooled to rank",
        "from",
    )
    rows = [
        [
            one.collection,
            *(f"{n:,}" for n in (one.documents, one.of, one.judged, one.hard, one.random)),
            f"{one.depth:,}",
            ", ".join(name.partition(" ")[0] for name in one.pooled),
        ]
        for one in quick.subsets
    ]
    favour = (
        "The differences are of these parts only, and favour the candidate: the hard documents are "
        "those of other models, its own false positives are missing. A first look never passes."
    )
    return [table(headers, rows), favour, *_past(quick)]


def _past(quick: Quick) -> list[str]:
    found = quick.relation
    if found is None:
        return ["No first look has a full result yet, which would show how they relate."]
    return [
        f"First looks with a full result here: {found.looks:,}. Of them {found.same_sign:,} had "
        f"its sign, {found.covered:,} an interval that held it; look minus full was "
        f"{found.bias:+.4f} on average ({found.lowest:+.4f} to {found.highest:+.4f}).",
        _looks(quick.past[-SHOWN:]),
    ]


def _looks(looks: Sequence[Look]) -> str:
    headers = ("candidate", "baseline", "collection", "documents", "of", "look", "95 %", "full")
    rows = [
        [
            one.candidate,
            one.baseline,
            one.collection,
            f"{one.documents:,}",
            f"{one.of:,}",
            f"{one.difference:+.4f}",
            "" if one.low is None else f"{one.low:+.4f} to {one.high:+.4f}",
            "" if one.full is None else f"{one.full:+.4f}",
        ]
        for one in looks
    ]
    return table(headers, rows)


def _ruled_out(one: Against, margin: float) -> str:
    if one.largest_loss is None:
        return "No loss of the mean is ruled out."
    return (
        f"Losses of the mean beyond {one.largest_loss:.4f} are ruled out at 95 % (bootstrap-t); "
        f"the margin is {margin:.4f}."
    )


def _terms(check: Check) -> str:
    if check.tolerance is not None:
        return f"Rule: the same scores as a known checkpoint's. Exit {check.exit_code}."
    rule = {
        "loss": "no significant loss on a collection (Holm) or of the mean, rare gains allowed for",
        "margin": f"a loss of the mean beyond {check.margin:.4f} is ruled out",
    }[check.rule]
    return f"Rule: {rule}; no collection loses more than {check.floor:.4f}. Exit {check.exit_code}."


def _list(texts: Sequence[str]) -> str:
    return "\n".join(f"- {plain(text)}" for text in texts)
