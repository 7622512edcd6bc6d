"""May this checkpoint ship? The terms, the record of the decision, and the worst of its parts.

`bench.gate.verdicts` holds the truth table, `bench.gate.evidence` finds its evidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bench.compare.statistics import Paired, Resampling
from bench.gate.power import MEAN, DetectableEffect
from bench.gate.quick import Look, Quick
from bench.gate.speed_check import SpeedCheck
from bench.gate.verdicts import Decision, Rule, Word, worse
from foundation.records import Record

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


class Row(Record, kw_only=True):
    """One collection, or the mean: candidate minus baseline.

    Attributes:
        p_skew: that a loss is one though rare gains may be missing, see `bench.gate.skew`.
        p_holm: the larger p, corrected for the number of collections; None for the mean.
        detectable: loss that this gate would find 80 times in 100.
        failure: why it decides against the candidate.
        missing: why there is nothing to compare.
    """

    name: str
    measure: str
    candidate: float | None
    baseline: float | None
    paired: Paired | None
    p_skew: float | None = None
    p_holm: float | None = None
    detectable: float | None = None
    failure: str = ""
    missing: str = ""


class Against(Record, kw_only=True):
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


class Check(Record, kw_only=True):
    """The whole decision; the worse of its comparisons is its outcome.

    Attributes:
        tolerance: of a checkpoint that claims to be a known one; else None.
        quick: what was looked at instead of whole collections; None for a full check.
        looks: earlier first looks at this candidate, with their full results.
        speed: beside the baseline's; None where it was not asked for.
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
    foreseen: tuple[DetectableEffect, ...]
    warnings: tuple[str, ...]
    quick: Quick | None = None
    looks: tuple[Look, ...] = ()
    speed: SpeedCheck | None = None


def conclude(
    candidate: str,
    against: Sequence[Against],
    foreseen: Sequence[DetectableEffect],
    terms: Terms,
    *,
    quick: Quick | None = None,
    looks: Sequence[Look] = (),
    speed: SpeedCheck | None = None,
) -> Check:
    """The worst of the outcomes, with warnings."""
    decisions = [Decision(one.outcome, _named(one)) for one in against]
    if speed is not None:
        decisions.append(Decision(speed.outcome, speed.reasons))
    decision = worse(decisions)
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
        quick=quick,
        looks=tuple(looks),
        speed=speed,
    )


def first_look(one: Against) -> Against:
    """What a comparison on parts of collections can decide: never that it may ship."""
    if one.outcome in ("REGRESSION", "MISSING"):
        return one
    reason = "no clear loss at first look; whether it may ship, only a full check can say"
    return msgspec.structs.replace(one, outcome="INCONCLUSIVE", reasons=(reason,))


def gap(name: str, why: str) -> Row:
    """A collection without anything to compare."""
    return Row(name=name, measure="", candidate=None, baseline=None, paired=None, missing=why)


def blind(foreseen: Sequence[DetectableEffect], margin: float) -> str:
    """A warning where losses as large as the margin cannot be seen; "" where they can."""
    decides = [one for one in foreseen if len(foreseen) == 1 or one.name == MEAN]
    if not decides or decides[0].detectable <= margin:
        return ""
    return (
        f"these collections see a loss of {decides[0].detectable:.4f} 80 times in 100, and miss "
        f"many of {margin:.4f} (the margin): add collections"
    )


def _warnings(against: Sequence[Against], terms: Terms) -> list[str]:
    told: list[str] = []
    for one in () if terms.expect_same else against:
        last = one.mean or (one.rows[-1] if one.rows else None)
        seen = last.detectable if last else None
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
