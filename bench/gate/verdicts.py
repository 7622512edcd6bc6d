"""From figures to one outcome and its exit code. A pure function, with its truth table.

The first row that applies decides:

====================================================================  ============  ====
figures                                                               outcome       exit
====================================================================  ============  ====
an evaluation failed or there is no result                            MISSING       4
the checkpoint claims to be a known one, and a score differs          DRIFT         5
the same, and no score differs beyond the tolerance                   OK            0
a collection lost more than the floor                                 REGRESSION    1
every ranking is the same                                             OK            0
fewer than 10 queries changed                                         INCONCLUSIVE  3
rule loss: a collection lost (p of Holm <= 0.05), or the mean (p)     REGRESSION    1
rule loss: the same by the randomisation test alone, p of skew > .05  INCONCLUSIVE  3
rule loss: none of this                                               OK            0
rule margin: losses beyond the margin are ruled out                   OK            0
rule margin: not ruled out, and the mean lost (p <= 0.05)             REGRESSION    1
rule margin: neither, however large the loss observed                 INCONCLUSIVE  3
====================================================================  ============  ====

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
than one of which may be missing. The floor is for the difference that was observed: chance alone
passes a narrow floor on a small collection.
"""

from collections.abc import Iterable
from typing import Literal

from bench.comparing.statistics import ALPHA, FEW
from bench.exit_codes import ExitCode
from foundation.records import Record

Rule = Literal["loss", "margin"]
Word = Literal["OK", "INCONCLUSIVE", "MISSING", "DRIFT", "REGRESSION"]
WORST: tuple[Word, ...] = ("OK", "INCONCLUSIVE", "MISSING", "DRIFT", "REGRESSION")


class Loss(Record):
    """A difference of a collection or the mean: candidate minus baseline.

    Attributes:
        p: the larger of the randomisation test's and of the one that allows for rare gains which
            the sample missed.
        p_randomisation: of the randomisation test; at most ``p``.
    """

    name: str
    difference: float
    p: float
    p_randomisation: float

    @property
    def significant(self) -> bool:
        """True for a loss that chance does not explain."""
        return self.difference < 0 and self.p <= ALPHA

    @property
    def inconclusive(self) -> bool:
        """True for a loss that is significant only if no rare gains are missing."""
        return self.difference < 0 and self.p_randomisation <= ALPHA < self.p


class Evidence(Record, kw_only=True):
    """All that decides.

    Attributes:
        collections: both p are corrected for their number (Holm).
        mean: over the collections; None where one is missing or there is only one.
        changed: queries on which the scores differ.
        same_rankings: every ranking is the same.
        largest_loss: of the mean, that is not ruled out; None where nothing is.
        margin: loss of the mean that is allowed (rule margin).
        floor: largest loss of a collection that is allowed.
        missing: what is missing, and why.
        drifted: scores that differ beyond the tolerance; None unless it claims to be the same.
    """

    rule: Rule
    collections: tuple[Loss, ...]
    mean: Loss | None
    changed: int
    same_rankings: bool
    largest_loss: float | None
    margin: float
    floor: float
    missing: tuple[str, ...] = ()
    drifted: tuple[str, ...] | None = None


class Decision(Record):
    """An outcome, and the reasons for people."""

    outcome: Word
    reasons: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        return int(ExitCode[self.outcome])


def decide(evidence: Evidence) -> Decision:
    """Apply the truth table of this module."""
    if evidence.missing:
        return Decision("MISSING", evidence.missing)
    if evidence.drifted is not None:
        return _same_claim(evidence.drifted)
    beyond = tuple(
        f"{_lost(loss)}, more than the floor of {evidence.floor:.4f}"
        for loss in evidence.collections
        if -loss.difference > evidence.floor
    )
    if beyond:
        return Decision("REGRESSION", beyond)
    if evidence.same_rankings:
        return Decision("OK", ("every ranking is the same",))
    if evidence.changed < FEW:
        return Decision("INCONCLUSIVE", (_few(evidence.changed),))
    if evidence.rule == "margin":
        return _by_margin(evidence)
    return _by_loss(evidence)


def worse(decisions: Iterable[Decision]) -> Decision:
    """The worst of several decisions; the first of equals."""
    return max(decisions, key=lambda decision: WORST.index(decision.outcome))


def _same_claim(drifted: tuple[str, ...]) -> Decision:
    if drifted:
        return Decision("DRIFT", drifted)
    return Decision("OK", ("every score is within the tolerance",))


def _by_loss(evidence: Evidence) -> Decision:
    tested = (*evidence.collections, *([evidence.mean] if evidence.mean else []))
    if lost := [loss for loss in tested if loss.significant]:
        return Decision("REGRESSION", tuple(f"{_lost(loss)} (p {loss.p:.4f})" for loss in lost))
    if unclear := [loss for loss in tested if loss.inconclusive]:
        words = (
            "chance does not explain it, but rare gains that these queries miss could balance it"
        )
        return Decision("INCONCLUSIVE", tuple(f"{_lost(loss)}: {words}" for loss in unclear))
    return Decision("OK", ("no significant loss",))


def _lost(loss: Loss) -> str:
    return f"{loss.name} lost {-loss.difference:.4f}"


def _few(changed: int) -> str:
    queries = "query" if changed == 1 else "queries"
    return f"{changed} {queries} changed: too few to say anything (from {FEW} on)"


def _by_margin(evidence: Evidence) -> Decision:
    limit, margin = evidence.largest_loss, evidence.margin
    if limit is not None and limit <= margin:
        return Decision("OK", (f"a loss of the mean beyond {margin:.4f} is ruled out",))
    words = "no loss" if limit is None else f"only a loss beyond {limit:.4f}"
    reason = f"{words} of the mean is ruled out, not one beyond {margin:.4f}"
    alone = evidence.collections[0] if len(evidence.collections) == 1 else None
    mean = evidence.mean or alone
    if mean and mean.significant:
        return Decision("REGRESSION", (f"{_lost(mean)} (p {mean.p:.4f}); {reason}",))
    return Decision("INCONCLUSIVE", (reason + (_observed(mean, margin) if mean else ""),))


def _observed(mean: Loss, margin: float) -> str:
    explained = ", which chance can explain" if -mean.difference > margin else ""
    return f"; observed {mean.difference:+.4f}{explained}"
