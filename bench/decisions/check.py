"""May this checkpoint ship? Its scores beside a baseline's, and the outcome.

`bench.decisions.verdicts` holds the truth table; here is where its evidence comes from.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from bench.decisions.compare import suite_weights
from bench.decisions.foresight import Foreseen
from bench.decisions.noninferiority import largest_loss
from bench.decisions.panels import Choices, Entrant, Entry, Panel, panel_of, protocol_differences
from bench.decisions.statistics import Differences, Paired, Resampling, holm, paired
from bench.decisions.verdicts import Decision, Evidence, Loss, Rule, Word, decide, worse
from bench.errors import BenchError
from bench.runs import Run
from datasets_cfg.catalogue import suite_for, suite_names
from retrievers.card import Expected

CANDIDATE, BASELINE = "candidate", "baseline"
SUSPICIOUS_GAIN = 0.1  # of a mean over a collection: more than most new models bring


@dataclass(frozen=True)
class Terms:
    """How it is decided; see `Evidence`.

    Attributes:
        tolerance: difference of a score that is none, for a checkpoint that claims to be known.
    """

    rule: Rule = "loss"
    margin: float = 0.01
    floor: float = 0.1
    expect_same: bool = False
    tolerance: float = 0.0005
    measure: str | None = None
    resampling: Resampling = Resampling()  # noqa: RUF009 - frozen


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One collection, or the mean: candidate minus baseline.

    Attributes:
        p_holm: p, corrected for the number of collections; None for the mean.
        failure: why it decides against the candidate.
        missing: why there is nothing to compare.
    """

    name: str
    measure: str
    candidate: float | None
    baseline: float | None
    paired: Paired | None
    p_holm: float | None = None
    failure: str = ""
    missing: str = ""


class Against(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The candidate and one other model.

    Attributes:
        role: ``baseline`` or ``anchor``.
        mean: None where a collection is missing, there is one only, or measures differ.
        largest_loss: of the mean, that is not ruled out at 95 %.
    """

    role: str
    name: str
    outcome: Word
    reasons: tuple[str, ...]
    rows: tuple[Row, ...]
    mean: Row | None
    largest_loss: float | None


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole decision; the worse of its comparisons is its outcome.

    Attributes:
        tolerance: of a checkpoint that claims to be a known one; else None.
    """

    candidate: str
    outcome: Word
    exit_code: int
    reasons: tuple[str, ...]
    rule: Rule
    margin: float
    floor: float
    tolerance: float | None
    against: tuple[Against, ...]
    foreseen: tuple[Foreseen, ...]
    warnings: tuple[str, ...]


def mean_weights(typed: Sequence[str]) -> dict[str, float]:
    """Weights of the collections in the mean of what was typed; a suite inside one counts once."""
    weights: dict[str, float] = {}
    for name in typed:
        if name in suite_names():
            count = len(suite_for(name).members)
            inner = {one: count * w for one, w in suite_weights(name).items()}
        else:
            inner = {name: 1.0}
        weights |= {one: w for one, w in inner.items() if one not in weights}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def check_against(
    role: str,
    name: str,
    candidate: Mapping[str, Entry],
    baseline: Mapping[str, Entry],
    failed: Mapping[str, str],
    weights: Mapping[str, float],
    terms: Terms,
) -> Against:
    """Compare with stored results and decide.

    Args:
        candidate, baseline: results by collection.
        failed: why the candidate has no result on a collection.
        weights: of the collections in the mean.

    Raises:
        BenchError: results of different protocols.
    """
    gaps = dict(failed)
    gaps |= {one: f"{name} has no result" for one in weights if one not in baseline}
    gaps |= {one: "no result" for one in weights if one not in candidate and one not in gaps}
    entrants = [Entrant(CANDIDATE, candidate), Entrant(BASELINE, baseline)]
    panels: dict[str, Panel] = {}
    for one in (one for one in weights if one not in gaps):
        _check_protocol(one, name, candidate[one], baseline[one])
        panel = panel_of(one, entrants, Choices(terms.measure, resampling=terms.resampling))
        if panel.gaps:
            gaps[one] = ", ".join(f"{who}: {why}" for who, why in panel.gaps.items())
        else:
            panels[one] = panel
    parts = {one: _differences(panel) for one, panel in panels.items()}
    found = {one: paired([part]) for one, part in parts.items()}
    adjusted = dict(zip(found, holm([one.p for one in found.values()]), strict=True))
    rows = [
        _row(panels[one], found[one], adjusted[one]) if one in found else _gap(one, gaps[one])
        for one in weights
    ]
    mean = None if gaps else _mean(rows, parts, weights)
    bound = None if mean is None else _bound(parts, weights, terms)
    shown = mean if len(weights) > 1 else None
    evidence = Evidence(
        rule=terms.rule,
        collections=tuple(
            Loss(row.name, *_loss(row.paired, row.p_holm)) for row in rows if row.paired
        ),
        mean=Loss("the mean", *_loss(shown.paired, None)) if shown and shown.paired else None,
        changed=sum(one.changed for one in found.values()),
        same_rankings=not gaps and _same_rankings(found, candidate, baseline),
        largest_loss=bound,
        margin=terms.margin,
        floor=terms.floor,
        missing=tuple(f"{one}: {gaps[one]}" for one in weights if one in gaps),
        drifted=_drifted(rows, terms) if terms.expect_same else None,
    )
    decision = decide(evidence)
    marked = tuple(_marked(row, decision) for row in rows)
    return Against(
        role=role,
        name=name,
        outcome=decision.outcome,
        reasons=decision.reasons,
        rows=marked,
        mean=_marked(shown, decision) if shown else None,
        largest_loss=bound,
    )


def check_published(
    candidate: Mapping[str, Mapping[str, float]],
    expected: Sequence[Expected],
    failed: Mapping[str, str],
    names: Sequence[str],
) -> Against:
    """Is it the checkpoint whose scores were published? By tolerance: they have no queries.

    Args:
        candidate: by collection, the mean of each measure.
        expected: by the card.
    """
    rows: list[Row] = []
    missing: list[str] = []
    drifted: list[str] = []
    for name in names:
        claims = [one for one in expected if one.dataset == name]
        why = failed.get(name, "") or ("" if claims else "no published score on the card")
        if why:
            rows.append(_gap(name, why))
            missing.append(f"{name}: {why}")
        for one in claims if not why else ():
            value = candidate[name].get(one.measure)
            off = value is None or abs(value - one.value) > one.tolerance
            said = "not measured" if value is None else f"{value - one.value:+.4f}"
            text = f"{name}: {one.measure} {said}, tolerance {one.tolerance:.4f}" if off else ""
            rows.append(_claim(one, value, text))
            (missing if value is None else drifted).extend([text] if off else [])
    same = "every score is within the tolerance"
    outcome: Word = "MISSING" if missing else "DRIFT" if drifted else "OK"
    reasons = tuple(missing or drifted or [same])
    return Against(
        role="baseline",
        name="published scores",
        outcome=outcome,
        reasons=reasons,
        rows=tuple(rows),
        mean=None,
        largest_loss=None,
    )


def conclude(
    candidate: str, against: Sequence[Against], foreseen: Sequence[Foreseen], terms: Terms
) -> Check:
    """The worse of the outcomes, with warnings."""
    decision = worse([Decision(one.outcome, _named(one)) for one in against])
    return Check(
        candidate=candidate,
        outcome=decision.outcome,
        exit_code=decision.exit_code,
        reasons=decision.reasons,
        rule=terms.rule,
        margin=terms.margin,
        floor=terms.floor,
        tolerance=terms.tolerance if terms.expect_same else None,
        against=tuple(against),
        foreseen=tuple(foreseen),
        warnings=tuple(_warnings(against, terms)),
    )


def blind(foreseen: Sequence[Foreseen], margin: float) -> str:
    """A warning where losses as large as the margin cannot be seen; "" where they can."""
    if not foreseen or foreseen[-1].detectable <= margin:
        return ""
    return (
        f"these collections see a loss of {foreseen[-1].detectable:.4f} 80 times in 100, and miss "
        f"many of {margin:.4f} (the margin): add collections"
    )


def _warnings(against: Sequence[Against], terms: Terms) -> list[str]:
    told: list[str] = []
    for one in () if terms.expect_same else against:
        last = one.mean or (one.rows[-1] if one.rows else None)
        seen = last.paired.detectable if last and last.paired else None
        if seen is not None and seen > terms.margin:
            told.append(
                f"{one.role}: a loss of {seen:.4f} would be seen 80 times in 100, one of "
                f"{terms.margin:.4f} (the margin) less often"
            )
        told += [
            f"{row.name}: a gain of {row.paired.difference:.4f} is suspiciously large: look for "
            "test queries in the training data, and try `verify`"
            for row in one.rows
            if row.paired and row.paired.difference > SUSPICIOUS_GAIN
        ]
    return told


def _named(one: Against) -> tuple[str, ...]:
    return tuple(f"{reason} (against the {one.role}, {one.name})" for reason in one.reasons)


def _check_protocol(collection: str, name: str, a: Entry, b: Entry) -> None:
    if found := protocol_differences(a.protocol, b.protocol):
        fields = ", ".join(f"{one.field} {one.a or '-'} and {one.b or '-'}" for one in found)
        raise BenchError(
            f"the candidate and {name} were evaluated under different protocols on "
            f"{collection}: {fields}",
            "evaluate the other one again: python -m bench run --help",
        )


def _differences(panel: Panel) -> Differences:
    found = panel.differences(CANDIDATE, BASELINE)
    if found is None:
        raise ValueError("a panel of two models has differences")
    return found


def _row(panel: Panel, found: Paired, p_holm: float) -> Row:
    return Row(
        name=panel.collection,
        measure=panel.measure,
        candidate=panel.mean(CANDIDATE),
        baseline=panel.mean(BASELINE),
        paired=found,
        p_holm=p_holm,
    )


def _gap(name: str, why: str) -> Row:
    return Row(name=name, measure="", candidate=None, baseline=None, paired=None, missing=why)


def _claim(one: Expected, value: float | None, failure: str) -> Row:
    return Row(
        name=one.dataset,
        measure=one.measure,
        candidate=value,
        baseline=one.value,
        paired=None,
        failure="" if value is None else failure,
        missing=failure if value is None else "",
    )


def _mean(
    rows: Sequence[Row], parts: Mapping[str, Differences], weights: Mapping[str, float]
) -> Row | None:
    """None where the measures differ, which have no mean."""
    measures = {row.measure for row in rows}
    if len(measures) > 1:
        return None
    shares = list(weights.values())
    return Row(
        name="mean",
        measure=measures.pop(),
        candidate=float(np.dot(shares, [row.candidate or 0.0 for row in rows])),
        baseline=float(np.dot(shares, [row.baseline or 0.0 for row in rows])),
        paired=paired([parts[one] for one in weights], shares),
    )


def _bound(
    parts: Mapping[str, Differences], weights: Mapping[str, float], terms: Terms
) -> float | None:
    scores = [parts[one].scores for one in weights]
    return largest_loss(scores, list(weights.values()), terms.resampling)


def _loss(found: Paired, p_holm: float | None) -> tuple[float, float]:
    return found.difference, found.p if p_holm is None else p_holm


def _same_rankings(
    found: Mapping[str, Paired], a: Mapping[str, Entry], b: Mapping[str, Entry]
) -> bool:
    """Runs are only read where no score differs."""
    if any(one.changed for one in found.values()):
        return False
    return all(_same_run(a[name].run, b[name].run) for name in found)


def _same_run(read_a: Callable[[], Run], read_b: Callable[[], Run]) -> bool:
    a, b = read_a(), read_b()
    return (
        a.query_ids == b.query_ids
        and np.array_equal(a.offsets, b.offsets)
        and bool(a.doc_ids.equals(b.doc_ids))
    )


def _drifted(rows: Sequence[Row], terms: Terms) -> tuple[str, ...]:
    return tuple(
        f"{row.name}: {row.measure} {row.paired.difference:+.4f}, tolerance {terms.tolerance:.4f}"
        for row in rows
        if row.paired and abs(row.paired.difference) > terms.tolerance
    )


def _marked(row: Row, decision: Decision) -> Row:
    """With the reasons of a failure that are its own."""
    if decision.outcome in ("OK", "MISSING"):
        return row
    label = "the mean" if row.name == "mean" and row.p_holm is None else row.name
    own = [one for one in decision.reasons if one.startswith((f"{label} lost", f"{label}:"))]
    return msgspec.structs.replace(row, failure="; ".join(own))
