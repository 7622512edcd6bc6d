"""From figures to one outcome and its exit code. A pure function, with its truth table.

The first row that applies decides:

====================================================================  ============  ====
what is found                                                         outcome       exit
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
rule margin: the loss observed is beyond the margin, or the mean's    REGRESSION    1
loss is significant
rule margin: none of this                                             INCONCLUSIVE  3
speed: slower than allowed, lower limit of the interval included      REGRESSION    1
speed: slower or not, the interval holds both                         INCONCLUSIVE  3
====================================================================  ============  ====

Bad input exits with 2, an internal error with 70. With an anchor, the worse of both outcomes
decides: REGRESSION, then DRIFT, MISSING, INCONCLUSIVE, OK.

p is the larger of two: the randomisation test's, which is exact where the models are exchangeable,
and the one of `bench.gate.skew`, which allows for rare large gains that balance many small
losses and that a sample may miss. Both are two-sided and only losses count: without any difference
between the models, a collection or the mean is a false alarm in at most about 2.5 % of checks each,
and 5 % together. The simulation in the tests folder shows how often, what the allowance costs, and
where it is too small: measures that are all or nothing, such as R@10 with one relevant document,
whose rare gains are as large as the allowance and more than one of which may be missing. The floor
is for the difference that was observed: chance alone passes a narrow floor on a small collection. A
check with ``--quick`` is REGRESSION where it says so here, MISSING where something is, and else
INCONCLUSIVE: it never passes.
"""

from collections.abc import Iterable
from typing import Literal

from bench.compare.statistics import ALPHA, FEW
from bench.exit_codes import ExitCode
from foundation.records import Record

Rule = Literal["loss", "margin"]
Word = Literal["OK", "INCONCLUSIVE", "MISSING", "DRIFT", "REGRESSION"]
WORST: tuple[Word, ...] = ("OK", "INCONCLUSIVE", "MISSING", "DRIFT", "REGRESSION")


class Loss(Record):
    """A difference of a collection or the mean: candidate minus baseline.

    Attributes:
        p: that a loss is one, though rare gains may be missing from the sample.
        p_alike: the same for exchangeable models; at most ``p``.
    """

    name: str
    difference: float
    p: float
    p_alike: float

    @property
    def significant(self) -> bool:
        """Whether it is a loss that chance does not explain."""
        return self.difference < 0 and self.p <= ALPHA

    @property
    def doubtful(self) -> bool:
        """Whether it is one only if no rare gains are missing."""
        return self.difference < 0 and self.p_alike <= ALPHA < self.p


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
        """What the command returns."""
        return int(ExitCode[self.outcome])


def decide(found: Evidence) -> Decision:
    """The truth table of this module."""
    if found.missing:
        return Decision("MISSING", found.missing)
    if found.drifted is not None:
        return _same_claim(found.drifted)
    beyond = tuple(
        f"{_lost(one)}, more than the floor of {found.floor:.4f}"
        for one in found.collections
        if -one.difference > found.floor
    )
    if beyond:
        return Decision("REGRESSION", beyond)
    if found.same_rankings:
        return Decision("OK", ("every ranking is the same",))
    if found.changed < FEW:
        return Decision("INCONCLUSIVE", (_few(found.changed),))
    if found.rule == "margin":
        return _by_margin(found)
    return _by_loss(found)


def worse(decisions: Iterable[Decision]) -> Decision:
    """The worst of several decisions; the first of equals."""
    return max(decisions, key=lambda one: WORST.index(one.outcome))


def _same_claim(drifted: tuple[str, ...]) -> Decision:
    if drifted:
        return Decision("DRIFT", drifted)
    return Decision("OK", ("every score is within the tolerance",))


def _by_loss(found: Evidence) -> Decision:
    tested = (*found.collections, *([found.mean] if found.mean else []))
    if lost := [one for one in tested if one.significant]:
        return Decision("REGRESSION", tuple(f"{_lost(one)} (p {one.p:.4f})" for one in lost))
    if doubtful := [one for one in tested if one.doubtful]:
        words = (
            "chance does not explain it, but rare gains that these queries miss could balance it"
        )
        return Decision("INCONCLUSIVE", tuple(f"{_lost(one)}: {words}" for one in doubtful))
    return Decision("OK", ("no significant loss",))


def _lost(one: Loss) -> str:
    return f"{one.name} lost {-one.difference:.4f}"


def _few(changed: int) -> str:
    queries = "query" if changed == 1 else "queries"
    return f"{changed} {queries} changed: too few to say anything (from {FEW} on)"


def _by_margin(found: Evidence) -> Decision:
    limit, margin = found.largest_loss, found.margin
    if limit is not None and limit <= margin:
        return Decision("OK", (f"a loss of the mean beyond {margin:.4f} is ruled out",))
    words = "no loss" if limit is None else f"only a loss beyond {limit:.4f}"
    reason = f"{words} of the mean is ruled out, not one beyond {margin:.4f}"
    alone = found.collections[0] if len(found.collections) == 1 else None
    mean = found.mean or alone
    if mean and (-mean.difference > margin or mean.significant):
        return Decision("REGRESSION", (f"{reason}; observed {mean.difference:+.4f}",))
    return Decision("INCONCLUSIVE", (reason,))
