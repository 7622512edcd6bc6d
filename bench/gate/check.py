"""May this checkpoint ship? The worst of its comparisons, and warnings about the evidence.

`bench.gate.verdicts` holds the truth table, `bench.gate.evidence` finds its evidence.
"""

from collections.abc import Sequence

from bench.gate.power import MEAN, DetectableEffect
from bench.gate.records import Check, GateSettings, PairVerdict
from bench.gate.verdicts import Decision, worse

SUSPICIOUS_GAIN = 0.1  # of a mean over a collection: more than most new models bring


def conclude(
    candidate: str,
    against: Sequence[PairVerdict],
    effects: Sequence[DetectableEffect],
    settings: GateSettings,
    *,
    left_out: Sequence[str] = (),
    hints: Sequence[str] = (),
) -> Check:
    """Take the worst of the outcomes, and add warnings.

    Args:
        hints: what to type where something is missing; the first warnings.
    """
    decision = worse(Decision(verdict.outcome, _named(verdict)) for verdict in against)
    return Check(
        candidate=candidate,
        outcome=decision.outcome,
        exit_code=decision.exit_code,
        reasons=decision.reasons,
        rule=settings.rule,
        margin=settings.margin,
        floor=settings.floor,
        tolerance=settings.tolerance if settings.expect_same else None,
        against=tuple(against),
        effects=tuple(effects),
        warnings=(*hints, *_warnings(candidate, against, settings)),
        left_out=tuple(left_out),
    )


def blind(effects: Sequence[DetectableEffect], margin: float) -> str:
    """A warning where losses as large as the margin cannot be seen; "" where they can."""
    decides = [effect for effect in effects if len(effects) == 1 or effect.name == MEAN]
    if not decides or decides[0].detectable <= margin:
        return ""
    return (
        f"these collections show a loss of {decides[0].detectable:.4f} about 3 times in 4, and "
        f"one of {margin:.4f} (the margin) less often: add collections"
    )


def _warnings(candidate: str, against: Sequence[PairVerdict], settings: GateSettings) -> list[str]:
    """Warnings about the evidence; none where the same scores are expected."""
    if settings.expect_same:
        return []
    warnings = [warning for verdict in against[:1] for warning in _trained_on(candidate, verdict)]
    for verdict in against:
        seen = verdict.all_rows[-1].detectable if verdict.rows else None
        if seen is not None and seen > settings.margin:
            warnings.append(
                f"{verdict.role}: a loss of {seen:.4f} would be found about 3 times in 4, one of "
                f"{settings.margin:.4f} (the margin) less often"
            )
        warnings += [
            f"{row.name}: a gain of {row.paired.difference:.4f} is suspiciously large: look for "
            "test queries in the training data, and try `verify`"
            for row in verdict.rows
            if row.paired and row.paired.difference > SUSPICIOUS_GAIN
        ]
    return warnings


def _trained_on(candidate: str, verdict: PairVerdict) -> list[str]:
    """Warnings about models that were trained on collections of the check."""
    both = [r.name for r in verdict.rows if r.candidate_in_domain and r.baseline_in_domain]
    ours = [r.name for r in verdict.rows if r.candidate_in_domain and r.name not in both]
    theirs = [r.name for r in verdict.rows if r.baseline_in_domain and r.name not in both]
    other = f"the {verdict.role}, {verdict.name},"
    told = (
        (f"the candidate, {candidate}, and {other} were", both, "of other collections"),
        (f"the candidate, {candidate}, was", ours, f"of other collections; {other} was not"),
        (f"{other} was", theirs, "of other collections; the candidate was not"),
    )
    return [
        f"{who} trained on {', '.join(names)}: the difference there says little {what}"
        for who, names, what in told
        if names
    ]


def _named(verdict: PairVerdict) -> tuple[str, ...]:
    role = f"(against the {verdict.role}, {verdict.name})"
    return tuple(f"{reason} {role}" for reason in verdict.reasons)
