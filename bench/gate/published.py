"""Is this the checkpoint whose scores were published? By tolerance: such scores have no queries."""

from collections.abc import Mapping, Sequence

from bench.gate.check import Against, Row, gap
from bench.gate.verdicts import Word
from retrievers.models.card import Expected


def check_published(
    candidate: Mapping[str, Mapping[str, float]],
    expected: Sequence[Expected],
    failed: Mapping[str, str],
    names: Sequence[str],
) -> Against:
    """Hold measured scores to the published ones.

    Args:
        candidate: by collection, the mean of each measure.
        expected: by the card.
    """
    rows: list[Row] = []
    missing: list[str] = []
    drifted: list[str] = []
    for name in names:
        claims = [one for one in expected if one.dataset == name]
        why = failed.get(name, "") or ("" if claims else "no published score on the card")
        if why:
            rows.append(gap(name, why))
            missing.append(f"{name}: {why}")
        for one in claims if not why else ():
            value = candidate[name].get(one.measure)
            off = value is None or abs(value - one.value) > one.tolerance
            said = "not measured" if value is None else f"{value - one.value:+.4f}"
            text = f"{name}: {one.measure} {said}, tolerance {one.tolerance:.4f}" if off else ""
            rows.append(_claim(one, value, text))
            (missing if value is None else drifted).extend([text] if off else [])
    same = "every score is within the tolerance"
    outcome: Word = "MISSING" if missing else "DRIFT" if drifted else "OK"
    reasons = tuple(missing or drifted or [same])
    return Against(
        role="baseline",
        name="published scores",
        outcome=outcome,
        reasons=reasons,
        rows=tuple(rows),
        mean=None,
        largest_loss=None,
    )


def _claim(one: Expected, value: float | None, failure: str) -> Row:
    return Row(
        name=one.dataset,
        measure=one.measure,
        candidate=value,
        baseline=one.value,
        paired=None,
        failure="" if value is None else failure,
        missing=failure if value is None else "",
    )
