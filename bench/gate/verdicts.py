"""Decision table of a check: maps its figures to one outcome and exit code.

The first row that applies decides:

========================================================================  ============  ====
figures                                                                   outcome       exit
========================================================================  ============  ====
an evaluation failed or a result is missing                               MISSING       4
--expect-same, and a score differs beyond the tolerance                   DRIFT         5
a collection lost more than the floor, significantly (p of Holm <= 0.05)  REGRESSION    1
the same, not significantly, and no row below is a REGRESSION             INCONCLUSIVE  3
--expect-same, and no score differs beyond the tolerance                  OK            0
candidate and baseline are one recipe with the same weights               INCONCLUSIVE  3
all rankings are identical                                                OK            0
fewer than 10 queries changed                                             INCONCLUSIVE  3
rule loss: a collection lost (p of Holm <= 0.05), or the mean (p)         REGRESSION    1
rule loss: the same by the randomisation test alone, p of skew > .05      INCONCLUSIVE  3
rule loss: a loss of the floor, or of the stated effect, not ruled out    INCONCLUSIVE  3
rule loss: none of this                                                   OK            0
rule margin: losses beyond the margin are ruled out                       OK            0
rule margin: not ruled out, and the mean lost (p <= 0.05)                 REGRESSION    1
rule margin: neither, however large the observed loss                     INCONCLUSIVE  3
========================================================================  ============  ====

Bad input exits with 2, an internal error with 70. With an anchor, the worse of both outcomes
decides: REGRESSION, then DRIFT, MISSING, INCONCLUSIVE, OK.

p is the larger of two: the randomisation test's, which is exact if the models are exchangeable, and
the one of `bench.gate.skew`, which allows for rare large gains that balance many small losses and
that a sample may lack. Both are two-sided and only losses count. Without any difference between the
models, a collection or the mean is a false alarm in at most about 2.5 % of checks each, and 5 % in
total. Rule margin requires the same significance, since on few queries chance alone produces losses
beyond the margin. `tests/benchmarks/gate_simulation.py` measures both rules on real differences,
the price of the allowance, and its limits: measures that are all or nothing, such as R@10 with one
relevant document, whose rare gains are as large as the allowance and of which the sample may lack
more than one.

The floor applies to the observed difference. On a small collection chance alone exceeds it, so that
only a significant loss is a REGRESSION, under either rule; without significance, the candidate
still does not pass.

For rule loss to pass, a loss of the mean (or of each collection, if there are several without a
mean) must be ruled out, one-sided at 95 %. The limit is stated before encoding and does not depend
on the candidate's own spread, so a candidate that changes more queries does not pass more easily.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.comparing.statistics import FEW, Difference
from bench.gate.check_record import Check, Outcome, PairVerdict
from bench.gate.power import DetectableEffect
from bench.gate.settings import GateSettings
from bench.outcomes import ExitCode
from foundation.printable import format_count

BY_SEVERITY: tuple[Outcome, ...] = ("OK", "INCONCLUSIVE", "MISSING", "DRIFT", "REGRESSION")
THE_MEAN = "the mean"  # key of the mean among the collections
SAME_MODEL = "the candidate is the same model, so nothing was checked"


@dataclass(frozen=True)
class Evidence:
    """Figures that decide: candidate minus baseline, by collection and, for several, `THE_MEAN`.

    Attributes:
        plain: randomisation tests, with p of collections corrected for their number (Holm).
        cautious: the same with the larger p of two, see the module.
        same_rankings: whether all rankings are identical.
        same_model: whether it is the same model on every collection.
        losses: largest loss that is not ruled out, on each collection and `THE_MEAN`; None if every
            loss is possible.
        stated: minimum detectable effects stated beforehand, by the same names.
        missing: reason for each collection that cannot be compared.
    """

    plain: Mapping[str, Difference]
    cautious: Mapping[str, Difference]
    same_rankings: bool = False
    same_model: bool = False
    losses: Mapping[str, float | None] = field(default_factory=dict)
    stated: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def collections(self) -> dict[str, Difference]:
        """Differences without the mean."""
        return {name: test for name, test in self.cautious.items() if name != THE_MEAN}

    @property
    def tested(self) -> list[str]:
        """Names for which a loss must be ruled out: the mean, or else each collection."""
        return [THE_MEAN] if THE_MEAN in self.cautious else list(self.cautious)

    @property
    def largest_loss(self) -> float | None:
        """Largest loss of the mean, or of the only collection, that is not ruled out."""
        return self.losses.get(self.tested[0]) if len(self.tested) == 1 else None

    @property
    def changed(self) -> int:
        """Number of queries on which the scores differ."""
        return sum(test.changed for test in self.collections.values())


@dataclass(frozen=True)
class Decision:
    """Outcome with its reasons.

    Attributes:
        outcome: OK, INCONCLUSIVE, MISSING, DRIFT or REGRESSION.
        reasons: sentences for people.
        failures: reason for each collection, or `THE_MEAN`, that decided against the candidate.
    """

    outcome: Outcome
    reasons: tuple[str, ...]
    failures: Mapping[str, str] = field(default_factory=dict)


def decide(evidence: Evidence, settings: GateSettings) -> Decision:
    """Apply the truth table of this module to ``evidence`` under ``settings``."""
    if evidence.missing:
        reasons = (f"{name}: {why}" for name, why in evidence.missing.items())
        return Decision("MISSING", tuple(reasons))
    if settings.expect_same and (drifted := _find_drift(evidence, settings.tolerance)):
        return _decision("DRIFT", drifted)
    beyond = _losses_beyond_floor(evidence, settings.floor)
    sure = {name: why for name, why in beyond.items() if evidence.cautious[name].significant}
    if sure:
        return _decision("REGRESSION", sure)
    decided = _decide_by_rule(evidence, settings)
    if beyond and decided.outcome != "REGRESSION":
        unclear = {name: f"{why}, but not significantly" for name, why in beyond.items()}
        return _decision("INCONCLUSIVE", unclear)
    return decided


def _decide_by_rule(evidence: Evidence, settings: GateSettings) -> Decision:
    """Decide by the rule, if no collection significantly lost more than the floor."""
    if settings.expect_same:
        return Decision("OK", ("every score is within the tolerance",))
    if evidence.same_model:
        return Decision("INCONCLUSIVE", (SAME_MODEL,))
    if evidence.same_rankings:
        return Decision("OK", ("all rankings are identical",))
    if evidence.changed < FEW:
        changed = format_count(evidence.changed, "query", "queries")
        return Decision("INCONCLUSIVE", (f"only {changed} changed, and {FEW} are needed",))
    if settings.rule == "margin":
        return _decide_by_margin(evidence, settings.margin)
    return _decide_by_loss(evidence, settings.floor)


def _decision(outcome: Outcome, failures: Mapping[str, str]) -> Decision:
    return Decision(outcome, tuple(failures.values()), failures)


def _find_drift(evidence: Evidence, tolerance: float) -> dict[str, str]:
    return {
        name: describe_drift(name, test.measure, test.difference, tolerance)
        for name, test in evidence.collections.items()
        if not abs(test.difference) <= tolerance  # nan drifts, too
    }


def describe_drift(name: str, measure: str, difference: float, tolerance: float) -> str:
    """Describe the ``difference`` in ``measure`` on ``name`` that exceeds the ``tolerance``."""
    return f"{name}: {measure} differs by {difference:+.4f} (tolerance {tolerance:.4f})"


def _losses_beyond_floor(evidence: Evidence, floor: float) -> dict[str, str]:
    return {
        name: f"{_loss(name, test)}, more than the floor of {floor:.4f}"
        for name, test in evidence.collections.items()
        if -test.difference > floor
    }


def _decide_by_loss(evidence: Evidence, floor: float) -> Decision:
    cautious = {name: test for name, test in evidence.cautious.items() if _is_loss(test)}
    plain = {name: test for name, test in evidence.plain.items() if _is_loss(test)}
    if cautious:
        return _decision("REGRESSION", {n: _loss_with_p(n, test) for n, test in cautious.items()})
    if plain:
        words = "significant, but rare gains that these queries lack could outweigh it"
        unclear = {name: f"{_loss(name, test)}: {words}" for name, test in plain.items()}
        return _decision("INCONCLUSIVE", unclear)
    possible = [why for name in evidence.tested if (why := _possible_loss(name, evidence, floor))]
    if possible:
        return Decision("INCONCLUSIVE", tuple(possible))
    return Decision("OK", ("no significant loss",))


def _possible_loss(name: str, evidence: Evidence, floor: float) -> str:
    """Describe the loss that must be ruled out and is not, or return ""."""
    left, stated = evidence.losses.get(name), evidence.stated.get(name, floor)
    limit = min(floor, stated)
    if left is not None and left <= limit:
        return ""
    origin = "the floor" if limit == floor else "the stated detectable effect"
    loss = "" if left is None else f" of {left:.4f}"
    where = "in the mean" if name == THE_MEAN else f"on {name}"
    return f"a loss{loss} {where} cannot be ruled out; the limit is {limit:.4f} ({origin})"


def _is_loss(test: Difference) -> bool:
    """Return True for a significant loss."""
    return test.difference < 0 and test.significant


def _loss(name: str, test: Difference) -> str:
    return f"{name} lost {-test.difference:.4f}"


def _loss_with_p(name: str, test: Difference) -> str:
    p = test.p if test.p_adjusted is None else test.p_adjusted
    return f"{_loss(name, test)} (p {p:.4f})"


def _decide_by_margin(evidence: Evidence, margin: float) -> Decision:
    limit = evidence.largest_loss
    if limit is not None and limit <= margin:
        return Decision("OK", (f"a mean loss of more than {margin:.4f} is ruled out",))
    reason = f"a mean loss of more than {margin:.4f} cannot be ruled out"
    if limit is not None:
        reason += f" (only one of more than {limit:.4f})"
    name = next(iter(evidence.cautious)) if len(evidence.cautious) == 1 else THE_MEAN
    mean = evidence.cautious.get(name)
    if mean and _is_loss(mean):
        return _decision("REGRESSION", {name: _loss_with_p(name, mean)})
    if mean:
        chance = ", which is not significant" if -mean.difference > margin else ""
        reason += f"; observed {mean.difference:+.4f}{chance}"
    return Decision("INCONCLUSIVE", (reason,))


SUSPICIOUS_GAIN = 0.1  # gain on a collection that hardly any new model brings


def conclude_check(
    candidate: str,
    against: Sequence[PairVerdict],
    effects: Sequence[DetectableEffect],
    settings: GateSettings,
    *,
    left_out: Sequence[str] = (),
    renamed: str = "",
    hints: Sequence[str] = (),
) -> Check:
    """Combine the verdicts into one decision, with warnings.

    Args:
        candidate: name of the candidate.
        against: verdict for the baseline, and for the anchor if there is one.
        effects: minimum detectable effects stated before encoding.
        settings: rule and limits.
        left_out: collections with results that ``--on`` does not name.
        renamed: reason why the candidate has a name that nobody gave it.
        hints: commands to type if results are missing; they become the first warnings.
    """
    worst = max(against, key=lambda verdict: BY_SEVERITY.index(verdict.outcome))
    other = f"(against the {worst.role}, {worst.name})"
    return Check(
        candidate=candidate,
        outcome=worst.outcome,
        exit_code=int(ExitCode[worst.outcome]),
        reasons=tuple(f"{reason} {other}" for reason in worst.reasons),
        rule=settings.rule,
        margin=settings.margin,
        floor=settings.floor,
        tolerance=settings.tolerance if settings.expect_same else None,
        against=tuple(against),
        effects=tuple(effects),
        warnings=(*hints, *_warnings(candidate, against, effects, settings)),
        left_out=tuple(left_out),
        renamed=renamed,
    )


def _warnings(
    candidate: str,
    against: Sequence[PairVerdict],
    effects: Sequence[DetectableEffect],
    settings: GateSettings,
) -> list[str]:
    """Return warnings about the evidence, none if the same scores are expected."""
    if settings.expect_same:
        return []
    warnings = [warning for verdict in against[:1] for warning in _in_domain(candidate, verdict)]
    if settings.rule == "margin" and effects and effects[-1].detectable > settings.margin:
        warnings.append(
            f"these collections detect a loss of {effects[-1].detectable:.4f} with 80 % power, and "
            f"the margin of {settings.margin:.4f} less often"
        )
    for verdict in against:
        warnings += [
            f"{row.name}: a gain of {row.paired.difference:.4f} is suspiciously large; look for "
            "test queries in the training data (python -m bench verify)"
            for row in verdict.rows
            if row.paired and row.paired.difference > SUSPICIOUS_GAIN
        ]
    return warnings


def _in_domain(candidate: str, verdict: PairVerdict) -> list[str]:
    """Return warnings about models that were trained on collections of the check."""
    both = [r.name for r in verdict.rows if r.candidate_in_domain and r.baseline_in_domain]
    ours = [r.name for r in verdict.rows if r.candidate_in_domain and r.name not in both]
    theirs = [r.name for r in verdict.rows if r.baseline_in_domain and r.name not in both]
    other = f"the {verdict.role}, {verdict.name},"
    cases = (
        (f"the candidate, {candidate}, and {other} were", both, "about other collections"),
        (f"the candidate, {candidate}, was", ours, f"about other collections; {other} was not"),
        (f"{other} was", theirs, "about other collections; the candidate was not"),
    )
    return [
        f"{who} trained on {', '.join(names)}, so the difference there says little {scope}"
        for who, names, scope in cases
        if names
    ]
