"""The outcome of a check where people read it: Markdown for pull requests and step summaries."""

from collections.abc import Iterator, Sequence

from bench.compare.statistics import Paired
from bench.gate.check import Check, CheckRow, PairVerdict
from bench.gate.power import DetectableEffect
from bench.gate.quick import Look, Quick
from bench.gate.speed_check import SpeedCheck
from reports.check_verdict import verdict_sentences
from reports.markdown import plain, table

SCORE_HEADERS = (
    "collection",
    "measure",
    "baseline",
    "candidate",
    "difference",
    "95 % interval",
    "win / tie / loss",
    "",
)
TEST_HEADERS = (
    "collection",
    "p (randomisation)",
    "p (rare gains may be missing)",
    "p (Holm)",
    "detectable",
)
SHOWN = 10  # earlier first looks


def markdown(check: Check) -> str:
    """The verdict as a sentence, a table for each comparison, then how it was decided."""
    parts = [f"## {check.outcome}: {plain(check.candidate)}"]
    parts += [plain(sentence) for sentence in verdict_sentences(check)]
    if check.speed:
        parts.append(f"Speed: {plain('; '.join(check.speed.reasons))}.")
    if check.warnings:
        parts.append(_list([f"warning: {text}" for text in check.warnings]))
    if check.left_out:
        names = plain(", ".join(check.left_out))
        parts.append(f"Left out by --on, though there are results: {names}.")
    for verdict in check.against:
        heading = f"### Beside the {verdict.role}, {plain(verdict.name)}: {verdict.outcome}"
        parts += [heading, _scores(verdict)]
    if check.speed:
        parts += [f"### Speed: {check.speed.outcome}", *_speed(check.speed)]
    if check.quick:
        parts += ["### First look", *_quick(check.quick)]
    if check.looks:
        parts += ["### First looks at this candidate before", _looks(check.looks)]
    parts += ["### How it was decided", *_decided(check)]
    return "\n\n".join(parts) + "\n"


def _decided(check: Check) -> Iterator[str]:
    """The rule, what it came to, and the tests."""
    yield _rule(check)
    yield _list(check.reasons)
    for verdict in check.against:
        if any(row.paired for row in verdict.rows):
            yield f"Tests of the differences to the {verdict.role}, {plain(verdict.name)}:"
            yield table(TEST_HEADERS, [_tests(row) for row in rows_of(verdict) if row.paired])
    if check.effects:
        yield "What the collections could show, as stated before encoding:"
        yield effects_table(check.effects)


def effects_table(effects: Sequence[DetectableEffect]) -> str:
    """Minimum detectable effects, and where their deviations come from."""
    rows = [
        [
            effect.name,
            f"{effect.queries:,}",
            "" if effect.deviation is None else f"{effect.deviation:.3f}",
            f"{effect.detectable:.4f}",
            effect.source,
        ]
        for effect in effects
    ]
    return table(("collection", "queries", "deviation", "detectable", "deviation from"), rows)


def rows_of(verdict: PairVerdict) -> Iterator[CheckRow]:
    """The collections, then the mean."""
    yield from verdict.rows
    if verdict.mean is not None:
        yield verdict.mean


def _scores(verdict: PairVerdict) -> str:
    return table(SCORE_HEADERS, [_cells(row) for row in rows_of(verdict)])


def _cells(row: CheckRow) -> list[str]:
    difference = None
    if row.candidate is not None and row.baseline is not None:
        difference = row.candidate - row.baseline
    return [
        row.name,
        row.measure,
        _score(row.baseline, row.baseline_in_domain),
        _score(row.candidate, row.candidate_in_domain),
        "" if difference is None else f"{difference:+.4f}",
        *(_differences(row.paired) if row.paired else ["", ""]),
        row.missing or row.failure,
    ]


def _score(value: float | None, in_domain: bool) -> str:
    return "" if value is None else f"{value:.4f}" + (" (in-domain)" if in_domain else "")


def _differences(pair: Paired) -> list[str]:
    limits = "" if pair.low is None else f"{pair.low:+.4f} to {pair.high:+.4f}"
    return [
        limits + (" (few)" if pair.few and limits else ""),
        f"{pair.wins:,} / {pair.ties:,} / {pair.losses:,}",
    ]


def _tests(row: CheckRow) -> list[str]:
    return [
        row.name,
        "" if row.paired is None else f"{row.paired.p:.4f}",
        "" if row.p_skew is None else f"{row.p_skew:.4f}",
        "" if row.p_holm is None else f"{row.p_holm:.4f}",
        "" if row.detectable is None else f"{row.detectable:.4f}",
    ]


def _speed(speed: SpeedCheck) -> list[str]:
    headers = ("work", "", "candidate", "baseline", "times as long", "95 % interval", "outcome")
    rows = [
        [
            slowdown.what,
            slowdown.unit,
            f"{slowdown.candidate_rate:,.4g}",
            f"{slowdown.baseline_rate:,.4g}",
            f"{slowdown.slowdown:.3f}",
            f"{slowdown.low:.3f} to {slowdown.high:.3f}",
            slowdown.outcome,
        ]
        for slowdown in speed.slowdowns
    ]
    conditions = (
        f"Beside {plain(speed.baseline)} by turns on {plain(speed.processor)}, texts of "
        f"{plain(speed.collection)}, load {speed.load:.1f} before; {speed.slower:.2f} times as "
        "long is allowed."
    )
    return [table(headers, rows), conditions]


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
            subset.collection,
            *(
                f"{n:,}"
                for n in (subset.documents, subset.of, subset.judged, subset.hard, subset.random)
            ),
            f"{subset.depth:,}",
            ", ".join(name.partition(" ")[0] for name in subset.pooled),
        ]
        for subset in quick.subsets
    ]
    favour = (
        "The differences are of these parts only, and favour the candidate: the hard documents are "
        "those of other models, its own false positives are missing. A first look never passes."
    )
    return [table(headers, rows), favour, *_past(quick)]


def _past(quick: Quick) -> list[str]:
    relation = quick.relation
    if relation is None:
        return ["No first look has a full result yet, which would show how they relate."]
    return [
        f"First looks with a full result here: {relation.looks:,}. Of them "
        f"{relation.same_sign:,} had its sign, {relation.covered:,} an interval that held it; "
        "look minus full was "
        f"{relation.bias:+.4f} on average ({relation.lowest:+.4f} to {relation.highest:+.4f}).",
        _looks(quick.past[-SHOWN:]),
    ]


def _looks(looks: Sequence[Look]) -> str:
    headers = ("candidate", "baseline", "collection", "documents", "of", "look", "95 %", "full")
    rows = [
        [
            look.candidate,
            look.baseline,
            look.collection,
            f"{look.documents:,}",
            f"{look.of:,}",
            f"{look.difference:+.4f}",
            "" if look.low is None else f"{look.low:+.4f} to {look.high:+.4f}",
            "" if look.full is None else f"{look.full:+.4f}",
        ]
        for look in looks
    ]
    return table(headers, rows)


def _rule(check: Check) -> str:
    """The rule as a rule, in words that are no finding."""
    if check.tolerance is not None:
        return f"Asked was for the scores of a known checkpoint. Exit code {check.exit_code}."
    rule = {
        "loss": "fails a candidate that lost significantly on a collection (p of Holm) or in the "
        "mean; the larger of two p counts, of which one allows for rare gains that these queries "
        "may miss",
        "margin": "passes a candidate only where a loss of the mean of more than "
        f"{check.margin:.4f} is ruled out (one-sided, 95 %, bootstrap-t), and fails one whose mean "
        "lost significantly",
    }[check.rule]
    return (
        f"Rule “{check.rule}” {rule}. Either rule fails a candidate that lost more than "
        f"{check.floor:.4f} on any collection. Exit code {check.exit_code}."
    )


def _list(texts: Sequence[str]) -> str:
    return "\n".join(f"- {plain(text)}" for text in texts)
