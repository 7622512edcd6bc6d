"""The verdict of a check as one plain sentence, before any table.

It names candidate and baseline, says from which score to which and on what, which loss is ruled
out, and the queries that lost most. Tests and p-values follow in the report.
"""

from collections.abc import Sequence

from bench.gate.records import Check, CheckRow, LostQuery, PairVerdict
from foundation.printable import first_names
from reports.format import score, signed

LONGEST = 70  # signs of a query's text


def verdict_sentence(check: Check, verdict: PairVerdict) -> str:
    """The outcome of one comparison, as plain text on one line."""
    clauses = [
        f"{_lead(check, verdict)}{_where(verdict)}",
        *_lost(verdict),
        *_missing(verdict),
        *_ruled_out(check, verdict),
        *(_worst(verdict.worst) if verdict.outcome != "MISSING" else []),
    ]
    return " ".join("; ".join(clauses).split()) + "."


def verdict_sentences(check: Check) -> list[str]:
    """The sentence of each comparison; of those that decide, first."""
    decisive = sorted(check.against, key=lambda verdict: verdict.outcome != check.outcome)
    return [verdict_sentence(check, verdict) for verdict in decisive]


def scores(row: CheckRow) -> str:
    """Measure, score of the baseline, of the candidate, and the difference."""
    if row.difference is None:
        return row.missing
    change = signed(row.difference)
    return f"{row.measure} {score(row.baseline)} → {score(row.candidate)} ({change})"


def _lead(check: Check, verdict: PairVerdict) -> str:
    candidate, other = check.candidate, f"the {verdict.role}, {verdict.name}"
    outcome = verdict.outcome
    if outcome == "MISSING":
        return f"{candidate} cannot be judged beside {other}"
    if check.tolerance is not None:
        has = "has" if outcome == "OK" else "does not have"
        return f"{candidate} {has} the scores of {other}"
    if outcome == "REGRESSION":
        return f"{candidate} is worse than {other}"
    if outcome == "INCONCLUSIVE":
        return f"These queries do not show if {candidate} is worse than {other}"
    if _unchanged(verdict):
        return f"{candidate} ranks as {other} does"
    if check.rule == "margin":
        return f"{candidate} is not worse than {other} by more than {score(check.margin)}"
    return f"{candidate} shows no significant loss against {other}"


def _unchanged(verdict: PairVerdict) -> bool:
    """True where no score of any query differs."""
    return all(row.paired is not None and row.paired.changed == 0 for row in verdict.rows)


def _where(verdict: PairVerdict) -> str:
    """Scores, and the collections that they are of."""
    compared = [row for row in verdict.rows if not row.missing]
    if not compared:
        return ""
    queries = sum(
        row.paired.changed + row.paired.ties for row in compared if row.paired is not None
    )
    counted = f" ({queries:,} queries)" if queries else ""
    if verdict.mean is not None:
        names = first_names([row.name for row in compared])
        return f": mean {scores(verdict.mean)} over {names}{counted}"
    each = first_names([f"{scores(row)} on {row.name}" for row in compared])
    return f": {each}{counted}"


def _lost(verdict: PairVerdict) -> list[str]:
    """Collections that decide against the candidate, where the mean was said already."""
    lost = [row for row in verdict.rows if row.failure]
    if verdict.mean is None or not lost:
        return []
    return [f"lost on {first_names([f'{row.name}, {scores(row)}' for row in lost])}"]


def _missing(verdict: PairVerdict) -> list[str]:
    missing = [f"{row.name}: {row.missing}" for row in verdict.rows if row.missing]
    return [f"missing: {first_names(missing)}"] if missing else []


def _ruled_out(check: Check, verdict: PairVerdict) -> list[str]:
    tested = any(row.paired is not None and row.paired.changed for row in verdict.rows)
    several = len(verdict.rows) > 1
    if check.tolerance is not None or not tested or verdict.outcome == "MISSING":
        return []
    if several and verdict.mean is None:
        return []  # other measures have no mean
    of_mean = " of the mean" if several else ""
    limit = verdict.largest_loss
    if limit is None:
        return [f"no loss{of_mean} is ruled out"]
    if limit < 0:
        return [f"a gain{of_mean} of at least {score(-limit)} is sure (95 %)"]
    return [f"a loss{of_mean} of more than {score(limit)} is ruled out (95 %)"]


def _worst(queries: Sequence[LostQuery]) -> list[str]:
    if not queries:
        return []
    several = len({query.collection for query in queries}) > 1
    told = [
        f"{_quoted(query)}{f' of {query.collection}' if several else ''} "
        f"{query.baseline:.2f} → {query.candidate:.2f}"
        for query in queries
    ]
    what = "the queries that lost most" if len(told) > 1 else "the only query that lost"
    return [f"{what}: {', '.join(told)}"]


def _quoted(query: LostQuery) -> str:
    text = " ".join(query.text.split())
    short = text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()}…"
    return f"{query.query_id} “{short}”" if short else query.query_id
