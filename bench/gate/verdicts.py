"""From figures to one outcome and its exit code. A pure function, with its truth table.

The first row that applies decides:

========================================================================  ============  ====
figures                                                                   outcome       exit
========================================================================  ============  ====
an evaluation failed or there is no result                                MISSING       4
the checkpoint claims to be a known one, and a score differs              DRIFT         5
a collection lost more than the floor, significantly (p of Holm <= 0.05)  REGRESSION    1
the same, not significantly, and no row below is a REGRESSION             INCONCLUSIVE  3
it claims to be a known one, and no score differs beyond the tolerance    OK            0
the candidate is what it is compared with: one recipe, the same weights   INCONCLUSIVE  3
every ranking is the same                                                 OK            0
fewer than 10 queries changed                                             INCONCLUSIVE  3
rule loss: a collection lost (p of Holm <= 0.05), or the mean (p)         REGRESSION    1
rule loss: the same by the randomisation test alone, p of skew > .05      INCONCLUSIVE  3
rule loss: a loss of the floor, or of the stated effect, not ruled out    INCONCLUSIVE  3
rule loss: none of this                                                   OK            0
rule margin: losses beyond the margin are ruled out                       OK            0
rule margin: not ruled out, and the mean lost (p <= 0.05)                 REGRESSION    1
rule margin: neither, however large the loss observed                     INCONCLUSIVE  3
========================================================================  ============  ====

Bad input exits with 2, an internal error with 70. With an anchor, the worse of both outcomes
decides: REGRESSION, then DRIFT, MISSING, INCONCLUSIVE, OK.

p is the larger of two: the randomisation test's, which is exact where the models are exchangeable,
and the one of `bench.gate.skew`, which allows for rare large gains that balance many small
losses and that a sample may miss. Both are two-sided and only losses count: without any difference
between the models, a collection or the mean is a false alarm in at most about 2.5 % of checks each,
and 5 % together. Rule margin needs the same significance: on few queries a loss beyond the margin
is observed by chance alone. `tests/benchmarks/gate_simulation.py` measures both rules on real
differences, what the allowance costs, and where it is too small: measures that are all or nothing,
such as R@10 with one relevant document, whose rare gains are as large as the allowance and more
than one of which may be missing.

The floor is for the difference that was observed. On a small collection chance alone goes beyond
it, so that only a significant loss is a REGRESSION, by either rule; no other is a pass.

The loss that must be ruled out (one-sided, 95 %) for rule loss to pass is of the mean, or of each
collection if there is no mean. It is held to what was stated before encoding, not to the
candidate's own spread: one that changes more queries does not pass more easily.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.comparing.statistics import FEW, Difference
from bench.gate.power import DetectableEffect
from bench.gate.records import Check, Outcome, PairVerdict
from bench.gate.settings import GateSettings
from bench.outcomes import ExitCode

BY_SEVERITY: tuple[Outcome, ...] = ("OK", "INCONCLUSIVE", "MISSING", "DRIFT", "REGRESSION")
THE_MEAN = "the mean"  # instead of a collection
SAME_MODEL = "the candidate is the model that it is compared with, so that nothing was checked"


@dataclass(frozen=True)
class Evidence:
    """All that decides: candidate minus baseline, by collection and, of several, `THE_MEAN`.

    Attributes:
        plain: by the randomisation test, p of collections corrected for their number (Holm).
        cautious: the same with the larger p of two, see the module.
        same_rankings: every ranking is the same.
        same_model: it is the same model on every collection.
        losses: largest that is not ruled out, of each collection and `THE_MEAN`; None if nothing
            is.
        stated: effects that were stated as detectable, in the same way.
        missing: why a collection has nothing to compare, by name.
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
    def mean_or_collections(self) -> list[str]:
        """What a loss must be ruled out of: the mean, or each collection if there is none."""
        return [THE_MEAN] if THE_MEAN in self.cautious else list(self.cautious)

    @property
    def largest_loss(self) -> float | None:
        """Of the mean, or of the only collection, that is not ruled out; None if nothing is."""
        mean_or_collections = self.mean_or_collections
        return self.losses.get(mean_or_collections[0]) if len(mean_or_collections) == 1 else None

    @property
    def changed(self) -> int:
        """Queries on which the scores differ."""
        return sum(test.changed for test in self.collections.values())


@dataclass(frozen=True)
class Decision:
    """An outcome, and the reasons for people.

    Attributes:
        failures: why a collection or `THE_MEAN` decided against the candidate, by its name.
    """

    outcome: Outcome
    reasons: tuple[str, ...]
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        return int(ExitCode[self.outcome])


def decide(evidence: Evidence, settings: GateSettings) -> Decision:
    """Apply the truth table of this module."""
    if evidence.missing:
        reasons = (f"{name}: {why}" for name, why in evidence.missing.items())
        return Decision("MISSING", tuple(reasons))
    if settings.expect_same and (drifted := _find_drift(evidence, settings.tolerance)):
        return _decide_because("DRIFT", drifted)
    beyond = _losses_beyond_floor(evidence, settings.floor)
    sure = {name: said for name, said in beyond.items() if evidence.cautious[name].significant}
    if sure:
        return _decide_because("REGRESSION", sure)
    decided = _decide_by_rule(evidence, settings)
    if beyond and decided.outcome != "REGRESSION":
        words = ", which is not significant"
        return _decide_because(
            "INCONCLUSIVE", {name: said + words for name, said in beyond.items()}
        )
    return decided


def _decide_by_rule(evidence: Evidence, settings: GateSettings) -> Decision:
    """Decide by the rule, if no collection significantly lost more than the floor."""
    if settings.expect_same:
        return Decision("OK", ("every score is within the tolerance",))
    if evidence.same_model:
        return Decision("INCONCLUSIVE", (SAME_MODEL,))
    if evidence.same_rankings:
        return Decision("OK", ("every ranking is the same",))
    if evidence.changed < FEW:
        return Decision("INCONCLUSIVE", (_describe_few_changes(evidence.changed),))
    if settings.rule == "margin":
        return _decide_by_margin(evidence, settings.margin)
    return _decide_by_loss(evidence, settings.floor)


def worst_decision(decisions: Iterable[Decision]) -> Decision:
    """The worst of several decisions; the first of equals."""
    return max(decisions, key=lambda decision: BY_SEVERITY.index(decision.outcome))


def _decide_because(outcome: Outcome, failures: Mapping[str, str]) -> Decision:
    return Decision(outcome, tuple(failures.values()), failures)


def _find_drift(evidence: Evidence, tolerance: float) -> dict[str, str]:
    return {
        name: f"{name}: {test.measure} {test.difference:+.4f}, tolerance {tolerance:.4f}"
        for name, test in evidence.collections.items()
        if not abs(test.difference) <= tolerance  # nan drifts, too
    }


def _losses_beyond_floor(evidence: Evidence, floor: float) -> dict[str, str]:
    return {
        name: f"{_describe_loss(name, test)}, more than the floor of {floor:.4f}"
        for name, test in evidence.collections.items()
        if -test.difference > floor
    }


def _decide_by_loss(evidence: Evidence, floor: float) -> Decision:
    cautious = {name: test for name, test in evidence.cautious.items() if _is_loss(test)}
    plain = {name: test for name, test in evidence.plain.items() if _is_loss(test)}
    if cautious:
        return _decide_because(
            "REGRESSION",
            {key: _describe_significant_loss(key, test) for key, test in cautious.items()},
        )
    if plain:
        words = (
            "chance does not explain it, but rare gains that these queries miss could balance it"
        )
        unclear = {name: f"{_describe_loss(name, test)}: {words}" for name, test in plain.items()}
        return _decide_because("INCONCLUSIVE", unclear)
    possible = [
        reason
        for name in evidence.mean_or_collections
        if (reason := _loss_not_ruled_out(name, evidence, floor))
    ]
    if possible:
        return Decision("INCONCLUSIVE", tuple(possible))
    return Decision("OK", ("no significant loss",))


def _loss_not_ruled_out(name: str, evidence: Evidence, floor: float) -> str:
    """Say which loss must be ruled out and is not; "" for none."""
    left, stated = evidence.losses.get(name), evidence.stated.get(name, floor)
    limit = min(floor, stated)
    if left is not None and left <= limit:
        return ""
    what = "the floor" if limit == floor else "stated beforehand as detectable"
    known = "no loss is ruled out" if left is None else f"a loss of {left:.4f} is not ruled out"
    return f"{name}: {known}, and one of {limit:.4f} ({what}) must be"


def _is_loss(test: Difference) -> bool:
    """True for a loss that chance does not explain."""
    return test.difference < 0 and test.significant


def _describe_loss(name: str, test: Difference) -> str:
    return f"{name} lost {-test.difference:.4f}"


def _describe_significant_loss(name: str, test: Difference) -> str:
    p = test.p if test.p_adjusted is None else test.p_adjusted
    return f"{_describe_loss(name, test)} (p {p:.4f})"


def _describe_few_changes(changed: int) -> str:
    queries = "query" if changed == 1 else "queries"
    return f"{changed} {queries} changed: too few to say anything (from {FEW} on)"


def _decide_by_margin(evidence: Evidence, margin: float) -> Decision:
    limit = evidence.largest_loss
    if limit is not None and limit <= margin:
        return Decision("OK", (f"a loss of the mean beyond {margin:.4f} is ruled out",))
    reason = f"a loss of the mean beyond {margin:.4f} is not ruled out"
    if limit is not None:
        reason += f" (only one beyond {limit:.4f})"
    name = next(iter(evidence.cautious)) if len(evidence.cautious) == 1 else THE_MEAN
    mean = evidence.cautious.get(name)
    if mean and _is_loss(mean):
        return _decide_because("REGRESSION", {name: _describe_significant_loss(name, mean)})
    return Decision("INCONCLUSIVE", (reason + (_describe_observed(mean, margin) if mean else ""),))


def _describe_observed(mean: Difference, margin: float) -> str:
    explained = ", which chance can explain" if -mean.difference > margin else ""
    return f"; observed {mean.difference:+.4f}{explained}"


SUSPICIOUS_GAIN = 0.1  # of a mean over a collection: more than most new models bring


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
    """Take the worst of the outcomes, and add warnings.

    Args:
        hints: what to type where something is missing; the first warnings.
    """
    decision = worst_decision(
        Decision(verdict.outcome, _reasons_with_role(verdict)) for verdict in against
    )
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
    """Warnings about the evidence; none if the same scores are expected."""
    if settings.expect_same:
        return []
    warnings = [
        warning for verdict in against[:1] for warning in _in_domain_warnings(candidate, verdict)
    ]
    if settings.rule == "margin" and effects and effects[-1].detectable > settings.margin:
        warnings.append(
            f"these collections find a loss of {effects[-1].detectable:.4f} with a power of 80 %, "
            f"and one of {settings.margin:.4f} (the margin) less often"
        )
    for verdict in against:
        warnings += [
            f"{row.name}: a gain of {row.paired.difference:.4f} is suspiciously large: look for "
            "test queries in the training data, and try `verify`"
            for row in verdict.rows
            if row.paired and row.paired.difference > SUSPICIOUS_GAIN
        ]
    return warnings


def _in_domain_warnings(candidate: str, verdict: PairVerdict) -> list[str]:
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


def _reasons_with_role(verdict: PairVerdict) -> tuple[str, ...]:
    role = f"(against the {verdict.role}, {verdict.name})"
    return tuple(f"{reason} {role}" for reason in verdict.reasons)
