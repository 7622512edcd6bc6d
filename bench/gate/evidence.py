"""A candidate beside one other model: the evidence of `bench.gate.verdicts`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from bench.comparing.panels import Choices, Entrant, Entry, Panel, panel_of, protocol_differences
from bench.comparing.statistics import SAME_SCORE, Paired, holm, paired
from bench.evaluate.runs import Run
from bench.gate.check import (
    BASELINE,
    CANDIDATE,
    CheckRow,
    LostQuery,
    PairVerdict,
    Terms,
    gap,
)
from bench.gate.noninferiority import largest_loss
from bench.gate.skew import Studentised, mean_of, p_of_loss, studentise
from bench.gate.verdicts import Decision, Evidence, Loss, decide
from bench.results.result import Protocol
from foundation.errors import BenchError

WORST_SHOWN = 3  # queries that lost most


@dataclass(frozen=True)
class _Tested:
    """Tests of the differences on one collection, both p corrected for the number of tests."""

    panel: Panel
    paired: Paired
    skew: Studentised
    p_randomisation: float
    p_holm: float


def check_against(
    role: str,
    name: str,
    candidate: Mapping[str, Entry],
    baseline: Mapping[str, Entry],
    known_gaps: Mapping[str, str],
    weights: Mapping[str, float],
    terms: Terms,
) -> PairVerdict:
    """Compare with stored results and decide.

    Args:
        candidate, baseline: results by collection.
        known_gaps: why there is nothing to compare on a collection, where more is known than that
            a result is missing.
        weights: of the collections in the mean.

    Raises:
        BenchError: results of different protocols.
    """
    gaps = {collection: "no result" for collection in weights if collection not in candidate}
    gaps |= {
        collection: f"{name} has no result" for collection in weights if collection not in baseline
    }
    gaps |= {name: why for name, why in known_gaps.items() if name in weights}
    panels, unlike = _panels(
        name, candidate, baseline, [w for w in weights if w not in gaps], terms
    )
    gaps |= unlike
    tested = _test(panels, terms)
    rows = [
        _row(tested[collection], candidate[collection].in_domain, baseline[collection].in_domain)
        if collection in tested
        else gap(collection, gaps[collection])
        for collection in weights
    ]
    mean = None if gaps else _mean(rows, tested, weights)
    same = not gaps and _same_rankings(tested, candidate, baseline)
    evidence = _evidence(rows, mean, tested, same, terms, gaps)
    decision = decide(evidence)
    shown = mean.row if mean and len(weights) > 1 else None
    return PairVerdict(
        role=role,
        name=name,
        outcome=decision.outcome,
        reasons=decision.reasons,
        rows=tuple(_marked(row, decision) for row in rows),
        mean=_marked(shown, decision) if shown else None,
        largest_loss=evidence.largest_loss,
        worst=_worst(panels.values()),
    )


def _panels(
    name: str,
    candidate: Mapping[str, Entry],
    baseline: Mapping[str, Entry],
    collections: Sequence[str],
    terms: Terms,
) -> tuple[dict[str, Panel], dict[str, str]]:
    """Scores on the same queries by collection; and why there are none."""
    entrants = [Entrant(CANDIDATE, candidate), Entrant(BASELINE, baseline)]
    panels: dict[str, Panel] = {}
    gaps: dict[str, str] = {}
    for collection in collections:
        check_protocol(
            collection, name, candidate[collection].protocol, baseline[collection].protocol
        )
        panel = panel_of(collection, entrants, Choices(terms.measure, resampling=terms.resampling))
        if panel.gaps:
            gaps[collection] = ", ".join(f"{who}: {why}" for who, why in panel.gaps.items())
        else:
            panels[collection] = panel
    return panels, gaps


def _test(panels: Mapping[str, Panel], terms: Terms) -> dict[str, _Tested]:
    """Both tests on each collection, and Holm over them."""
    parts = {name: panel.differences(CANDIDATE, BASELINE) for name, panel in panels.items()}
    pairs = {name: paired([part]) for name, part in parts.items()}
    skew = {name: studentise(part.scores, terms.resampling) for name, part in parts.items()}
    randomisation = holm([pair.p for pair in pairs.values()])
    larger = holm([max(pairs[name].p, p_of_loss(skew[name])) for name in pairs])
    return {
        name: _Tested(panels[name], pairs[name], skew[name], *p)
        for name, p in zip(pairs, zip(randomisation, larger, strict=True), strict=True)
    }


@dataclass(frozen=True)
class _Mean:
    """The mean of the collections: its row, and what decides."""

    row: CheckRow
    skew: Studentised


def _mean(
    rows: Sequence[CheckRow], tested: Mapping[str, _Tested], weights: Mapping[str, float]
) -> _Mean | None:
    """None where the measures differ, which have no mean."""
    measures = {row.measure for row in rows}
    if len(measures) > 1:
        return None
    shares = list(weights.values())
    parts = [tested[collection].panel.differences(CANDIDATE, BASELINE) for collection in weights]
    skew = mean_of([tested[collection].skew for collection in weights], shares)
    pair = paired(parts, shares)
    return _Mean(
        CheckRow(
            name="mean",
            measure=measures.pop(),
            candidate=float(np.dot(shares, [row.candidate or 0.0 for row in rows])),
            baseline=float(np.dot(shares, [row.baseline or 0.0 for row in rows])),
            paired=pair,
            p_skew=p_of_loss(skew),
            detectable=_detectable(pair, skew),
        ),
        skew,
    )


def _evidence(
    rows: Sequence[CheckRow],
    mean: _Mean | None,
    tested: Mapping[str, _Tested],
    same_rankings: bool,
    terms: Terms,
    gaps: Mapping[str, str],
) -> Evidence:
    several = mean if mean and len(rows) > 1 else None
    return Evidence(
        rule=terms.rule,
        collections=tuple(
            Loss(name, test.paired.difference, test.p_holm, test.p_randomisation)
            for name, test in tested.items()
        ),
        mean=_loss_of_mean(several.row) if several else None,
        changed=sum(test.paired.changed for test in tested.values()),
        same_rankings=same_rankings,
        largest_loss=largest_loss(mean.skew) if mean else None,
        margin=terms.margin,
        floor=terms.floor,
        missing=tuple(f"{row.name}: {gaps[row.name]}" for row in rows if row.name in gaps),
        drifted=_drifted(rows, terms) if terms.expect_same else None,
    )


def _loss_of_mean(row: CheckRow) -> Loss | None:
    if row.paired is None or row.p_skew is None:
        return None
    p = row.paired.p
    return Loss("the mean", row.paired.difference, max(p, row.p_skew), p)


def check_protocol(collection: str, name: str, a: Protocol, b: Protocol) -> None:
    """Refuse to compare the candidate (a) with results of another protocol.

    Raises:
        BenchError: what differs.
    """
    if differences := protocol_differences(a, b):
        raise BenchError(
            f"the candidate and {name} were evaluated under different protocols on "
            f"{collection}: {', '.join(map(str, differences))}",
            "evaluate the other one again: python -m bench run --help",
        )


def _worst(panels: Iterable[Panel]) -> tuple[LostQuery, ...]:
    """The queries that lost most on all collections; of equals, the first by name."""
    parts = [(panel, panel.differences(CANDIDATE, BASELINE)) for panel in panels]
    lost = [
        LostQuery(
            collection=panel.collection,
            query_id=panel.queries[row],
            text="",
            candidate=float(panel.scores[row, panel.columns[CANDIDATE]]),
            baseline=float(panel.scores[row, panel.columns[BASELINE]]),
        )
        for panel, part in parts
        for row in np.argsort(part.scores, kind="stable")[:WORST_SHOWN].tolist()
    ]
    lost = [query for query in lost if query.baseline - query.candidate > SAME_SCORE]
    return tuple(sorted(lost, key=lambda query: query.candidate - query.baseline)[:WORST_SHOWN])


def _row(tested: _Tested, candidate_in_domain: bool, baseline_in_domain: bool) -> CheckRow:
    panel = tested.panel
    return CheckRow(
        name=panel.collection,
        measure=panel.measure,
        candidate=panel.mean(CANDIDATE),
        baseline=panel.mean(BASELINE),
        paired=tested.paired,
        p_skew=p_of_loss(tested.skew),
        p_holm=tested.p_holm,
        detectable=_detectable(tested.paired, tested.skew),
        candidate_in_domain=candidate_in_domain,
        baseline_in_domain=baseline_in_domain,
    )


def _detectable(pair: Paired, skew: Studentised) -> float | None:
    """Effect that the gate detects: it allows for gains that the sample missed."""
    return None if pair.detectable is None else pair.detectable + skew.unseen


def _same_rankings(
    tested: Mapping[str, _Tested], a: Mapping[str, Entry], b: Mapping[str, Entry]
) -> bool:
    """Runs are only read where no score differs."""
    if any(test.paired.changed for test in tested.values()):
        return False
    return all(_same_run(a[name].run, b[name].run) for name in tested)


def _same_run(read_a: Callable[[], Run], read_b: Callable[[], Run]) -> bool:
    a, b = read_a(), read_b()
    return (
        a.query_ids == b.query_ids
        and np.array_equal(a.offsets, b.offsets)
        and bool(a.doc_ids.equals(b.doc_ids))
    )


def _drifted(rows: Sequence[CheckRow], terms: Terms) -> tuple[str, ...]:
    return tuple(
        f"{row.name}: {row.measure} {row.paired.difference:+.4f}, tolerance {terms.tolerance:.4f}"
        for row in rows
        if row.paired and not abs(row.paired.difference) <= terms.tolerance  # nan drifts, too
    )


def _marked(row: CheckRow, decision: Decision) -> CheckRow:
    """The row with the reasons of a failure that are its own."""
    if decision.outcome in ("OK", "MISSING"):
        return row
    label = "the mean" if row.name == "mean" and row.p_holm is None else row.name
    own = [
        reason for reason in decision.reasons if reason.startswith((f"{label} lost", f"{label}:"))
    ]
    return msgspec.structs.replace(row, failure="; ".join(own))
