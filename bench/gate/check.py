"""May this checkpoint ship? The terms, the record of the decision, and the worst of its parts.

`bench.gate.verdicts` holds the truth table, `bench.gate.evidence` finds its evidence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bench.comparing.statistics import Paired, Resampling
from bench.gate.power import MEAN, DetectableEffect
from bench.gate.verdicts import Decision, Rule, Word, worse
from bench.results.result import Stored
from datasets_cfg.records import Queries
from foundation.records import Record

CANDIDATE, BASELINE, ANCHOR = "candidate", "baseline", "anchor"
SUSPICIOUS_GAIN = 0.1  # of a mean over a collection: more than most new models bring


@dataclass(frozen=True)
class Terms:
    """Terms of the decision; see `Evidence`.

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


@dataclass(frozen=True)
class StoredModel:
    """A model that the candidate is compared with.

    Attributes:
        role: ``baseline`` or ``anchor``.
        name: as it was typed.
        results: by collection; empty for published scores.
    """

    role: str
    name: str
    results: Mapping[str, Stored]


class CheckRow(Record, kw_only=True):
    """One collection, or the mean: candidate minus baseline.

    Attributes:
        p_skew: that a loss is one though rare gains may be missing, see `bench.gate.skew`.
        p_holm: the larger p, corrected for the number of collections; None for the mean.
        detectable: loss that this gate would find about 3 times in 4.
        failure: why it decides against the candidate.
        missing: why there is nothing to compare.
        candidate_in_domain, baseline_in_domain: it was trained on the collection.
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
    candidate_in_domain: bool = False
    baseline_in_domain: bool = False

    @property
    def difference(self) -> float | None:
        """Candidate minus baseline; None where one is a gap."""
        if self.candidate is None or self.baseline is None:
            return None
        return self.candidate - self.baseline


class LostQuery(Record, kw_only=True):
    """A query on which the candidate is worse.

    Attributes:
        text: "" where the collection is not at hand.
    """

    collection: str
    query_id: str
    text: str
    candidate: float
    baseline: float


class PairVerdict(Record, kw_only=True):
    """The candidate beside one other model.

    Attributes:
        role: ``baseline`` or ``anchor``.
        mean: None where a collection is missing, there is one only, or measures differ.
        largest_loss: of the mean, that is not ruled out at 95 %.
        worst: the queries that lost most, the largest loss first.
    """

    role: str
    name: str
    outcome: Word
    reasons: tuple[str, ...]
    rows: tuple[CheckRow, ...]
    mean: CheckRow | None
    largest_loss: float | None
    worst: tuple[LostQuery, ...] = ()

    @property
    def all_rows(self) -> tuple[CheckRow, ...]:
        """The collections, then the mean where there is one."""
        return (*self.rows, self.mean) if self.mean else self.rows


class Check(Record, kw_only=True, rename={"effects": "foreseen"}):
    """The whole decision; the worst of its comparisons is its outcome.

    Attributes:
        tolerance: of a checkpoint that claims to be a known one; else None.
        effects: what was stated before anything was encoded; ``foreseen`` in JSON.
        left_out: collections with results that ``--on`` does not name.
    """

    candidate: str
    outcome: Word
    exit_code: int
    reasons: tuple[str, ...]
    rule: Rule
    margin: float
    floor: float
    tolerance: float | None
    against: tuple[PairVerdict, ...]
    effects: tuple[DetectableEffect, ...]
    warnings: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def conclude(
    candidate: str,
    against: Sequence[PairVerdict],
    effects: Sequence[DetectableEffect],
    terms: Terms,
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
        rule=terms.rule,
        margin=terms.margin,
        floor=terms.floor,
        tolerance=terms.tolerance if terms.expect_same else None,
        against=tuple(against),
        effects=tuple(effects),
        warnings=(*hints, *_warnings(candidate, against, terms)),
        left_out=tuple(left_out),
    )


def with_texts(verdict: PairVerdict, queries: Mapping[str, Queries]) -> PairVerdict:
    """Add the texts of the queries that lost most, of collections that are open."""
    texts = {
        name: dict(zip(queries[name].ids, queries[name].texts, strict=True))
        for name in {query.collection for query in verdict.worst} & queries.keys()
    }
    worst = [
        msgspec.structs.replace(query, text=texts.get(query.collection, {}).get(query.query_id, ""))
        for query in verdict.worst
    ]
    return msgspec.structs.replace(verdict, worst=tuple(worst))


def gap(name: str, why: str) -> CheckRow:
    """A collection without anything to compare."""
    return CheckRow(name=name, measure="", candidate=None, baseline=None, paired=None, missing=why)


def blind(effects: Sequence[DetectableEffect], margin: float) -> str:
    """A warning where losses as large as the margin cannot be seen; "" where they can."""
    decides = [effect for effect in effects if len(effects) == 1 or effect.name == MEAN]
    if not decides or decides[0].detectable <= margin:
        return ""
    return (
        f"these collections show a loss of {decides[0].detectable:.4f} about 3 times in 4, and "
        f"one of {margin:.4f} (the margin) less often: add collections"
    )


def _warnings(candidate: str, against: Sequence[PairVerdict], terms: Terms) -> list[str]:
    """Warnings about the evidence; none where the same scores are expected."""
    if terms.expect_same:
        return []
    warnings = [warning for verdict in against[:1] for warning in _trained_on(candidate, verdict)]
    for verdict in against:
        seen = verdict.all_rows[-1].detectable if verdict.rows else None
        if seen is not None and seen > terms.margin:
            warnings.append(
                f"{verdict.role}: a loss of {seen:.4f} would be found about 3 times in 4, one of "
                f"{terms.margin:.4f} (the margin) less often"
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
