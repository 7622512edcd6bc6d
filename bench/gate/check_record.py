"""Records of a check: rows of its tables, and the decision."""

from typing import TYPE_CHECKING, Literal

import msgspec

from bench.comparing.pairs import FieldDifference, PairedRow
from bench.explain.setup import Answer
from bench.requests.outcomes import ExitCode
from foundation.records import Record

if TYPE_CHECKING:
    import pandas as pd

Outcome = Literal["OK", "INCONCLUSIVE", "MISSING", "DRIFT", "REGRESSION"]

BASELINE = "baseline"
MEAN = "mean"  # name of its row
CHECKPOINT = "checkpoint"  # role of the model that a server should serve
STACK = "environment"  # role of the same model in another interpreter
PUBLISHED_SCORES = "published scores"  # name of a baseline


class CheckRow(PairedRow, kw_only=True):
    """One collection or slice, or the mean: the candidate is ``a``, the other model ``b``.

    The p of ``paired`` is twice the one-sided p of a loss, so that a gain has a p near 1, and
    ``p_adjusted`` is corrected for the number of collections (Holm), or over all slices and
    collections (maxT).

    Attributes:
        bound: largest mean loss that is not ruled out at 95 %; None without `paired`.
        failure: reason why this row decides against the candidate.
        shows_from: smallest mean loss of a slice that could be a regression; None if none could.
        unexamined: reason why no loss of the slice could be shown; "" if one could.
    """

    bound: float | None = None
    failure: str = ""
    shows_from: float | None = None
    unexamined: str = ""


class LostQuery(Record):
    """Query on which the candidate scores less; ``text`` is "" without the collection."""

    collection: str
    query_id: str
    candidate: float
    baseline: float
    text: str = ""


class Reason(Record):
    """Reason of an outcome.

    Attributes:
        what: sentence.
        where: collection, "mean", or what else it is about; "" for all.
        value: value that the queries of a slice share; "" otherwise.
        loss: mean loss that was observed, if the reason is a loss.
        p: its p, corrected as the row's.
    """

    what: str
    where: str = ""
    value: str = ""
    loss: float | None = None
    p: float | None = None

    def __str__(self) -> str:
        return self.what


class Decision(Record, kw_only=True):
    """Outcome with its reasons and figures.

    Attributes:
        reasons: reasons for the outcome.
        rows: a row for each collection, or for each published score.
        mean: None if a collection is missing, there is only one, or measures differ.
        needed: for INCONCLUSIVE, the number of queries with differences like these that would be
            enough to decide; None if no number is, or it is unknown.
        slice_rows: a row for each slice, the largest loss first; ``slices`` in JSON.
    """

    outcome: Outcome
    reasons: tuple[Reason, ...]
    rows: tuple[CheckRow, ...] = ()
    mean: CheckRow | None = None
    needed: int | None = None
    slice_rows: tuple[CheckRow, ...] = msgspec.field(default=(), name="slices")


class Check(Decision, kw_only=True):
    """Decision about a candidate compared with one other model, which are named, and its evidence.

    Attributes:
        candidate: name of the candidate.
        baseline: name of the other model.
        role: ``baseline``, ``checkpoint`` of a server, or ``environment``.
        margin: largest mean loss that passes; None if equal scores or vectors are expected.
        floor: largest significant loss on a collection that passes; None like ``margin``.
        tolerance: largest difference of a query accepted by --expect-same; None without it.
        worst: queries with the largest losses, the largest first.
        recipes: settings and files that differ, ``a`` for the other model and ``b`` for the
            candidate.
        same_model: whether settings and files of both models are equal. It decides nothing.
        warnings: warnings about the evidence.
        left_out: collections of the baseline that ``--on`` does not name.
        renamed: reason why the candidate has a name that nobody gave it; "" otherwise.
        explain: command that looks for the cause of the difference; "" if there is none.
        answer: difference of settings that explains the vectors of a server; None for scores.
        holes: what unjudged documents can change about the verdict of ``compare``, by collection.
        by: field whose slices were tested; "" without any.
    """

    candidate: str
    baseline: str
    role: str = BASELINE
    margin: float | None = None
    floor: float | None = None
    tolerance: float | None = None
    worst: tuple[LostQuery, ...] = ()
    recipes: tuple[FieldDifference, ...] = ()
    same_model: bool = False
    warnings: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    renamed: str = ""
    explain: str = ""
    answer: Answer | None = None
    holes: tuple[str, ...] = ()
    by: str = ""

    @property
    def slices(self) -> "pd.DataFrame":
        """Slices as a data frame, the largest loss first, with the names of the JSON document."""
        import pandas as pd

        table = pd.json_normalize(msgspec.to_builtins(self.slice_rows))
        return table.rename(columns={"value": self.by})

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the command."""
        return ExitCode[self.outcome]

    @property
    def compares_published(self) -> bool:
        """True if the candidate is compared with published scores."""
        return self.baseline == PUBLISHED_SCORES

    @property
    def compares_vectors(self) -> bool:
        """True if a server is compared with its checkpoint."""
        return self.role == CHECKPOINT

    @property
    def compares_environments(self) -> bool:
        """True if the model is compared with itself in another Python."""
        return self.role == STACK

    @property
    def all_rows(self) -> tuple[CheckRow, ...]:
        """Rows of the collections, then of the mean if there is one."""
        return (*self.rows, self.mean) if self.mean else self.rows

    @property
    def bound(self) -> float | None:
        """Largest loss of the mean, or on the only collection, that is not ruled out at 95 %."""
        row = self.mean or (self.rows[0] if len(self.rows) == 1 else None)
        return row.bound if row else None

    def __repr__(self) -> str:
        return f"<Check {self.candidate}: {self.outcome}; {'; '.join(map(str, self.reasons))}>"
