"""Comparison with published scores: means within a tolerance, since their queries are unknown."""

from collections.abc import Iterable, Sequence

from bench.gate.candidate import Candidate
from bench.gate.check_record import BASELINE, PUBLISHED_SCORES, CheckRow, Outcome, PairVerdict
from foundation.errors import BenchError
from retrievers.models.card import ExpectedScore

PUBLISHED = "published"  # as typed


def check_published_use(baseline: object, anchor: object, expect_same: bool) -> None:
    """Raise if published scores are given where per-query scores are needed."""
    if baseline == PUBLISHED and not expect_same:
        raise BenchError(
            "published scores have no per-query scores, so they cannot be tested",
            "add --expect-same to check that this is the published checkpoint",
        )
    if anchor == PUBLISHED:
        raise BenchError(
            "published scores have no per-query scores, so they cannot be an anchor",
            "give --anchor the name of stored results, or use --baseline published",
        )


def check_published(
    candidate: Candidate, expected: Sequence[ExpectedScore], names: Iterable[str]
) -> PairVerdict:
    """Compare measured scores with published ones.

    Args:
        candidate: checkpoint with its results.
        expected: published scores on the card.
        names: collections to compare on.
    """
    rows: list[CheckRow] = []
    for name in names:
        claims = [claim for claim in expected if claim.dataset == name]
        why = candidate.failures.get(name, "" if claims else "no published score on the card")
        if why:
            rows.append(CheckRow(name=name, missing=why))
        else:
            rows += [_claim_row(claim, candidate) for claim in claims]
    missing = [
        row.missing if row.measure else f"{row.name}: {row.missing}" for row in rows if row.missing
    ]
    drifted = [row.failure for row in rows if row.failure]
    outcome: Outcome = "MISSING" if missing else "DRIFT" if drifted else "OK"
    return PairVerdict(
        role=BASELINE,
        name=PUBLISHED_SCORES,
        outcome=outcome,
        reasons=tuple(missing or drifted or ["every score is within the tolerance"]),
        rows=tuple(rows),
    )


def _claim_row(claim: ExpectedScore, candidate: Candidate) -> CheckRow:
    value = candidate.results[claim.dataset].record.measures.get(claim.measure)
    in_domain = candidate.is_in_domain(claim.dataset)
    problem = _describe_mismatch(claim, value)
    return CheckRow(
        name=claim.dataset,
        measure=claim.measure,
        candidate=value,
        baseline=claim.value,
        failure="" if value is None else problem,
        missing=problem if value is None else "",
        candidate_in_domain=in_domain,
        baseline_in_domain=in_domain,
    )


def _describe_mismatch(claim: ExpectedScore, value: float | None) -> str:
    """Describe how far a score is from the published one, or return "" within the tolerance."""
    if value is not None and abs(value - claim.value) <= claim.tolerance:  # false for nan, too
        return ""
    if value is None:
        return f"{claim.dataset}: {claim.measure} was not measured"
    return (
        f"{claim.dataset}: {claim.measure} differs by {value - claim.value:+.4f} "
        f"(tolerance {claim.tolerance:.4f})"
    )
