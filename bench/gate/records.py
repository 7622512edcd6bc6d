"""Records of a check: its settings, the rows of its tables, the verdict on each comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.comparing.statistics import Difference
from bench.gate.power import DetectableEffect
from bench.gate.settings import Rule
from bench.results.result import Evaluation
from foundation.records import Record

Outcome = Literal["OK", "INCONCLUSIVE", "MISSING", "DRIFT", "REGRESSION"]

CANDIDATE, BASELINE, ANCHOR = "candidate", "baseline", "anchor"


@dataclass(frozen=True)
class StoredModel:
    """A model that the candidate is compared with.

    Attributes:
        role: ``baseline`` or ``anchor``.
        name: as it was typed.
        results: by collection, those that are compared; empty for published scores.
        known: all that are stored under its name.
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
        p_skew: that a loss is one though rare gains may be missing, see `bench.gate.skew`.
        p_holm: the larger p, corrected for the number of collections; None for the mean.
        failure: why it decides against the candidate.
        missing: why there is nothing to compare.
        candidate_in_domain, baseline_in_domain: it was trained on the collection.
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
        """Candidate minus baseline; None if one is a gap."""
        if self.candidate is None or self.baseline is None:
            return None
        return self.candidate - self.baseline


class LostQuery(Record, kw_only=True):
    """A query on which the candidate is worse.

    Attributes:
        text: "" if the collection is not at hand.
    """

    collection: str
    query_id: str
    text: str = ""
    candidate: float
    baseline: float


class PairVerdict(Record, kw_only=True):
    """The candidate beside one other model.

    Attributes:
        role: ``baseline`` or ``anchor``.
        mean: None if a collection is missing, there is one only, or measures differ.
        largest_loss: of the mean, that is not ruled out at 95 %.
        worst: the queries that lost most, the largest loss first.
        same_model: the candidate is the model that it is compared with.
        elsewhere: collections that ``--on`` leaves out, and that lost by the stored results.
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
    def all_rows(self) -> tuple[CheckRow, ...]:
        """The collections, then the mean if there is one."""
        return (*self.rows, self.mean) if self.mean else self.rows


class Check(Record, kw_only=True, rename={"effects": "foreseen"}):
    """The whole decision; the worst of its comparisons is its outcome.

    Attributes:
        tolerance: of a checkpoint that claims to be a known one; else None.
        effects: what was stated before anything was encoded; ``foreseen`` in JSON.
        left_out: collections with results that ``--on`` does not name.
        renamed: why the candidate has a name that nobody gave it.
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

    def __repr__(self) -> str:
        """Return the outcome and its reasons, in a line."""
        return f"<Check {self.candidate}: {self.outcome}; {'; '.join(self.reasons)}>"
