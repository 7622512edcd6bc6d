"""Records of a check: rows of its tables, the verdict of each comparison, the decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.comparing.statistics import Difference
from bench.evaluation.result_record import Evaluation
from bench.explain.answer import Answer
from bench.gate.power import DetectableEffect
from bench.gate.settings import Rule
from foundation.records import Record

Outcome = Literal["OK", "INCONCLUSIVE", "MISSING", "DRIFT", "REGRESSION"]

CANDIDATE, BASELINE, ANCHOR = "candidate", "baseline", "anchor"
PUBLISHED_SCORES = "published scores"  # name of a baseline


@dataclass(frozen=True)
class StoredModel:
    """Model that the candidate is compared with.

    Attributes:
        role: ``baseline`` or ``anchor``.
        name: as typed.
        results: stored results to compare with, by collection; empty for published scores.
        known: all results stored under its name.
    """

    role: str
    name: str
    results: Mapping[str, Evaluation]
    known: Sequence[Evaluation] = ()

    @property
    def collections(self) -> set[str]:
        """All collections that it has results on."""
        return {one.collection for one in self.known}


class CheckRow(Record, kw_only=True):
    """One collection, or the mean: candidate minus baseline.

    Attributes:
        name: name of the collection, or "mean".
        measure: measure of the scores.
        candidate, baseline: mean scores; None for a gap.
        paired: difference with its interval and p; None for a gap or a published score.
        p_skew: p of the loss allowing for rare gains missing from the sample, see
            `bench.gate.skew`.
        p_holm: larger of both p-values, corrected for the number of collections; None for the mean.
        failure: reason why this row decides against the candidate.
        missing: reason why there is nothing to compare.
        candidate_in_domain, baseline_in_domain: whether the model was trained on the collection.
    """

    name: str
    measure: str = ""
    candidate: float | None = None
    baseline: float | None = None
    paired: Difference | None = None
    p_skew: float | None = None
    p_holm: float | None = None
    failure: str = ""
    missing: str = ""
    candidate_in_domain: bool = False
    baseline_in_domain: bool = False

    @property
    def difference(self) -> float | None:
        """Candidate minus baseline, or None for a gap."""
        if self.candidate is None or self.baseline is None:
            return None
        return self.candidate - self.baseline


class LostQuery(Record, kw_only=True):
    """Query on which the candidate is worse.

    Attributes:
        collection: name of the collection.
        query_id: id of the query.
        text: its text; "" if the collection is not available.
        candidate, baseline: scores of the query.
    """

    collection: str
    query_id: str
    text: str = ""
    candidate: float
    baseline: float


class PairVerdict(Record, kw_only=True):
    """Verdict on the candidate compared with one other model.

    Attributes:
        role: ``baseline``, ``anchor``, or ``checkpoint`` of a server.
        name: name of the other model.
        outcome: OK, INCONCLUSIVE, MISSING, DRIFT or REGRESSION.
        reasons: sentences that explain the outcome.
        rows: a row for each collection, or for each published score.
        mean: row of the mean; None if a collection is missing, there is only one, or measures
            differ.
        largest_loss: largest loss of the mean that is not ruled out at 95 %; None if unknown.
        worst: queries with the largest losses, the largest first.
        same_model: whether the candidate is the model that it is compared with.
        elsewhere: collections left out by ``--on`` on which stored results show a loss.
    """

    role: str
    name: str
    outcome: Outcome
    reasons: tuple[str, ...]
    rows: tuple[CheckRow, ...]
    mean: CheckRow | None = None
    largest_loss: float | None = None
    worst: tuple[LostQuery, ...] = ()
    same_model: bool = False
    elsewhere: tuple[CheckRow, ...] = ()

    @property
    def compares_published(self) -> bool:
        """True if the scores compared with are published ones."""
        return self.name == PUBLISHED_SCORES

    @property
    def all_rows(self) -> tuple[CheckRow, ...]:
        """Rows of the collections, then of the mean if there is one."""
        return (*self.rows, self.mean) if self.mean else self.rows


class Check(Record, kw_only=True, rename={"effects": "foreseen"}):
    """Complete decision. Its outcome is the worst of its comparisons.

    Attributes:
        candidate: name of the candidate.
        outcome: OK, INCONCLUSIVE, MISSING, DRIFT or REGRESSION.
        exit_code: exit code of the command.
        reasons: sentences that explain the outcome.
        rule: decision rule.
        margin: largest loss of the mean that rule margin accepts.
        floor: largest loss on a collection under either rule.
        tolerance: largest difference accepted by --expect-same; None without it.
        against: verdict for the baseline, and for the anchor if there is one.
        effects: minimum detectable effects stated before encoding; ``foreseen`` in JSON.
        warnings: warnings about the evidence.
        left_out: collections with results that ``--on`` does not name.
        renamed: reason why the candidate has a name that nobody gave it; "" otherwise.
        explain: command that looks for the cause of a regression or drift; "" if there is none.
        answer: difference of settings that explains the vectors of a server; None for scores.
    """

    candidate: str
    outcome: Outcome
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
    renamed: str = ""
    explain: str = ""
    answer: Answer | None = None

    def __repr__(self) -> str:
        """Return the outcome and its reasons, in a line."""
        return f"<Check {self.candidate}: {self.outcome}; {'; '.join(self.reasons)}>"
