"""Is this the checkpoint whose scores were published? By tolerance: such scores have no queries."""

from collections.abc import Collection, Mapping, Sequence

from bench.gate.check import BASELINE, CheckRow, PairVerdict, gap
from bench.gate.verdicts import Word
from retrievers.models.card import Expected


def check_published(
    candidate: Mapping[str, Mapping[str, float]],
    expected: Sequence[Expected],
    failed: Mapping[str, str],
    names: Sequence[str],
    in_domain: Collection[str] = (),
) -> PairVerdict:
    """Hold measured scores to the published ones.

    Args:
        candidate: by collection, the mean of each measure.
        expected: by the card.
        failed: why a collection has no mean.
        names: of the collections.
        in_domain: collections that the model was trained on.
    """
    rows: list[CheckRow] = []
    missing: list[str] = []
    drifted: list[str] = []
    for name in names:
        claims = [claim for claim in expected if claim.dataset == name]
        why = failed.get(name, "") or ("" if claims else "no published score on the card")
        if why:
            rows.append(gap(name, why))
            missing.append(f"{name}: {why}")
        for claim in claims if not why else ():
            value = candidate[name].get(claim.measure)
            problem = _problem(claim, value)
            rows.append(_row(claim, value, problem, name in in_domain))
            (missing if value is None else drifted).extend([problem] if problem else [])
    same = "every score is within the tolerance"
    outcome: Word = "MISSING" if missing else "DRIFT" if drifted else "OK"
    return PairVerdict(
        role=BASELINE,
        name="published scores",
        outcome=outcome,
        reasons=tuple(missing or drifted or [same]),
        rows=tuple(rows),
        mean=None,
        largest_loss=None,
    )


def _problem(claim: Expected, value: float | None) -> str:
    """The difference of a measured value from the published one; "" within the tolerance."""
    if value is not None and abs(value - claim.value) <= claim.tolerance:  # false for nan, too
        return ""
    measured = "not measured" if value is None else f"{value - claim.value:+.4f}"
    return f"{claim.dataset}: {claim.measure} {measured}, tolerance {claim.tolerance:.4f}"


def _row(claim: Expected, value: float | None, problem: str, in_domain: bool) -> CheckRow:
    return CheckRow(
        name=claim.dataset,
        measure=claim.measure,
        candidate=value,
        baseline=claim.value,
        paired=None,
        failure="" if value is None else problem,
        missing=problem if value is None else "",
        candidate_in_domain=in_domain,
        baseline_in_domain=in_domain,
    )
