"""Comparison of a candidate with one other model: the evidence for `bench.gate.verdicts`."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from bench.comparing.pairs import ComparedModel, ComparisonSettings, differing_fields, read_scores
from bench.comparing.statistics import (
    SAME_SCORE,
    Difference,
    PairedScores,
    Resampling,
    ScoreMatrix,
    adjust_p_values,
    paired_difference,
)
from bench.evaluation.runs import Run
from bench.gate.check_record import (
    BASELINE,
    CANDIDATE,
    PUBLISHED_SCORES,
    CheckRow,
    LostQuery,
    Outcome,
    PairVerdict,
    StoredModel,
)
from bench.gate.power import MEAN, DetectableEffect
from bench.gate.scope import Candidate, Scope
from bench.gate.settings import GateSettings
from bench.gate.skew import StudentisedMean, combine_means, largest_loss, loss_p_value, studentise
from bench.gate.verdicts import THE_MEAN, Decision, Evidence, decide, describe_drift
from bench.result_store.find import recipe_key
from bench.result_store.result import Evaluation
from foundation.errors import BenchError
from retrievers.models.card import ExpectedScore

logger = logging.getLogger(__name__)

WORST_SHOWN = 3  # queries that lost most


def check_against(
    candidate: Candidate,
    other: StoredModel,
    scope: Scope,
    settings: GateSettings,
    comparing: ComparisonSettings,
    effects: Sequence[DetectableEffect] = (),
) -> PairVerdict:
    """Compare the candidate with stored results and decide.

    Args:
        candidate: checkpoint with its results.
        other: baseline or anchor.
        scope: collections and their weights.
        settings: rule and limits.
        comparing: measure and resampling.
        effects: minimum detectable effects stated beforehand for this pair.

    Raises:
        BenchError: the results have different protocols.
    """
    weights, ours, baseline = scope.weights, candidate.results, other.results
    matrices, gaps = _score_matrices(candidate, other, scope, comparing)
    parts = {key: matrix.minus(CANDIDATE, BASELINE) for key, matrix in matrices.items()}
    tests = loss_tests(parts, {} if gaps else weights, comparing.resampling)
    evidence = Evidence(
        plain=tests.plain,
        cautious=tests.cautious,
        same_rankings=not gaps and _same_rankings(tests.plain, ours, baseline),
        same_model=all(_same_model(ours[n], baseline[n], tests.plain[n]) for n in matrices),
        losses={name: largest_loss(one) for name, one in tests.skew.items()},
        stated={THE_MEAN if e.name == MEAN else e.name: e.detectable for e in effects},
        missing={collection: gaps[collection] for collection in weights if collection in gaps},
    )
    decision = decide(evidence, settings)
    rows = [
        _tested_row(
            collection,
            tests,
            decision,
            candidate=matrices[collection].mean(CANDIDATE),
            baseline=matrices[collection].mean(BASELINE),
            candidate_in_domain=candidate.is_in_domain(collection),
            baseline_in_domain=baseline[collection].result.in_domain,
        )
        if collection in matrices
        else CheckRow(name=collection, missing=gaps[collection])
        for collection in weights
    ]
    return PairVerdict(
        role=other.role,
        name=other.name,
        outcome=decision.outcome,
        reasons=decision.reasons,
        rows=tuple(rows),
        mean=_mean_row(rows, weights, tests, decision),
        largest_loss=None if gaps else evidence.largest_loss,
        worst=_worst_queries(matrices.values(), candidate),
        same_model=evidence.same_model,
    )


def _score_matrices(
    candidate: Candidate, other: StoredModel, scope: Scope, comparing: ComparisonSettings
) -> tuple[dict[str, ScoreMatrix], dict[str, str]]:
    """Return the scores of both models by collection, and the reason for each gap.

    Raises:
        BenchError: the results have different protocols.
    """
    weights, ours, baseline = scope.weights, candidate.results, other.results
    gaps = {name: "no result" for name in weights if name not in ours}
    gaps |= {name: f"{other.name} has no result" for name in weights if name not in baseline}
    known = {**candidate.failures, **scope.gaps(other)}
    gaps |= {name: known[name] for name in weights if name in known}
    models = [ComparedModel(CANDIDATE, ours), ComparedModel(BASELINE, baseline)]
    matrices: dict[str, ScoreMatrix] = {}
    for name in (name for name in weights if name not in gaps):
        matrix = read_scores(name, models, comparing)
        if matrix.gaps:
            gaps[name] = ", ".join(f"{who}: {why}" for who, why in matrix.gaps.items())
        else:
            matrices[name] = matrix
    return matrices, gaps


@dataclass(frozen=True)
class LossTests:
    """Tests of the differences by collection and, for several, of `THE_MEAN`.

    Attributes:
        plain: randomisation test.
        cautious: larger p of both tests, see `Evidence`.
        skew: resampled means for the bootstrap-t.
    """

    plain: Mapping[str, Difference]
    cautious: Mapping[str, Difference]
    skew: Mapping[str, StudentisedMean]


def loss_tests(
    parts: Mapping[str, PairedScores], weights: Mapping[str, float], resampling: Resampling
) -> LossTests:
    """Test each collection twice, with Holm's correction, and then the mean.

    Args:
        parts: paired scores by collection.
        weights: weight of each collection in the mean; empty for no mean.
        resampling: number of resamples, and seed.
    """
    skew = {name: studentise(part.scores, resampling) for name, part in parts.items()}
    tests = {name: paired_difference([part]) for name, part in parts.items()}
    plain = adjust_p_values(tests)
    cautious = adjust_p_values({name: _larger_p(test, skew[name]) for name, test in tests.items()})
    if len(weights) > 1 and len({part.measure for part in parts.values()}) == 1:
        shares = list(weights.values())
        of_mean = combine_means([skew[name] for name in weights], shares)
        mean = paired_difference([parts[name] for name in weights], shares, THE_MEAN)
        plain[THE_MEAN], cautious[THE_MEAN] = mean, _larger_p(mean, of_mean)
        skew[THE_MEAN] = of_mean
    return LossTests(plain, cautious, skew)


def _larger_p(test: Difference, skew: StudentisedMean) -> Difference:
    """Return the test with the larger p of two, allowing for gains that the sample lacks."""
    return msgspec.structs.replace(test, p=max(test.p, loss_p_value(skew)))


def _tested_row(name: str, tests: LossTests, decision: Decision, **scores: Any) -> CheckRow:
    """Return the row of a collection, or of `THE_MEAN`, with its scores."""
    cautious = tests.cautious[name]
    return CheckRow(
        name=MEAN if name == THE_MEAN else name,
        measure=cautious.measure,
        paired=tests.plain[name],
        p_skew=loss_p_value(tests.skew[name]),
        p_holm=cautious.p_adjusted,
        failure=decision.failures.get(name, ""),
        **scores,
    )


def _mean_row(
    rows: Sequence[CheckRow], weights: Mapping[str, float], tests: LossTests, decision: Decision
) -> CheckRow | None:
    """Return the row of the weighted mean, or None if the mean was not tested."""
    if THE_MEAN not in tests.plain:
        return None
    shares = list(weights.values())
    candidate = float(np.dot(shares, [row.candidate or 0.0 for row in rows]))
    baseline = float(np.dot(shares, [row.baseline or 0.0 for row in rows]))
    return _tested_row(THE_MEAN, tests, decision, candidate=candidate, baseline=baseline)


def _worst_queries(matrices: Iterable[ScoreMatrix], model: Candidate) -> tuple[LostQuery, ...]:
    """Return the queries that lost most over all collections, ties sorted by name."""
    lost = [
        LostQuery(
            collection=matrix.collection,
            query_id=matrix.queries[row],
            candidate=float(matrix.scores[row, matrix.columns[CANDIDATE]]),
            baseline=float(matrix.scores[row, matrix.columns[BASELINE]]),
        )
        for matrix in matrices
        for row in np.argsort(matrix.minus(CANDIDATE, BASELINE).scores, kind="stable")[:WORST_SHOWN]
    ]
    lost = [query for query in lost if query.baseline - query.candidate > SAME_SCORE]
    worst = sorted(lost, key=lambda query: query.candidate - query.baseline)[:WORST_SHOWN]
    return tuple(
        msgspec.structs.replace(query, text=model.text(query.collection, query.query_id))
        for query in worst
    )


def _same_rankings(
    tests: Mapping[str, Difference], a: Mapping[str, Evaluation], b: Mapping[str, Evaluation]
) -> bool:
    """Return True if all rankings are equal. Runs are only read if no score differs."""
    if any(test.changed for test in tests.values()):
        return False
    return all(_same_run(a[name].run, b[name].run) for name in tests if name != THE_MEAN)


def _same_model(a: Evaluation, b: Evaluation, test: Difference) -> bool:
    """Return True for one recipe, or for the same weights in another file format.

    Python objects without files can share a recipe, so their scores decide. Weights in different
    files are the same if recipes are otherwise equal and every score in the rankings is identical.
    """
    recipes = [one.result.recipe for one in (a, b)]
    if a.result.fingerprint == b.result.fingerprint and a.result.index == b.result.index:
        return bool((recipes[0] and recipes[0].files) or not test.changed)
    fingerprints = {recipe.without_files.fingerprint if recipe else "" for recipe in recipes}
    return (
        not test.changed
        and (a.result.index, len(fingerprints)) == (b.result.index, 1)
        and _same_run(a.run, b.run)
        and np.array_equal(a.run.scores, b.run.scores)
    )


def _same_run(a: Run, b: Run) -> bool:
    return (
        a.query_ids == b.query_ids
        and np.array_equal(a.offsets, b.offsets)
        and bool(a.doc_ids.equals(b.doc_ids))
    )


def find_losses_elsewhere(
    results: Iterable[Evaluation],
    other: StoredModel,
    names: Iterable[str],
    settings: GateSettings,
    comparing: ComparisonSettings,
) -> tuple[CheckRow, ...]:
    """Find regressions in stored results of both models on collections that a check leaves out.

    Each collection is tested separately.

    Args:
        results: stored results of the candidate; the last one counts if a collection has several.
        other: baseline or anchor.
        names: collections that the check leaves out.
        settings: rule and limits.
        comparing: measure and resampling.
    """
    recipes = {recipe_key(one.result) for one in other.results.values()}
    ours = {one.collection: one for one in results}
    theirs = {one.collection: one for one in other.known if recipe_key(one.result) in recipes}
    rows: list[CheckRow] = []
    for name in names:
        pair = [side[name] for side in (ours, theirs) if name in side]
        if len(pair) < 2 or differing_fields(*(one.result.protocol for one in pair)):
            continue
        single = StoredModel(other.role, other.name, {name: pair[1]})
        candidate, scope = Candidate("", {name: pair[0]}), Scope(weights={name: 1.0})
        try:
            verdict = check_against(candidate, single, scope, settings, comparing)
        except BenchError as error:
            logger.warning("%s, which --on leaves out, cannot be compared: %s", name, error)
        else:
            rows += verdict.rows if verdict.outcome in ("REGRESSION", "DRIFT") else ()
    return tuple(rows)


def check_published(
    candidate: Candidate, expected: Sequence[ExpectedScore], names: Iterable[str]
) -> PairVerdict:
    """Compare measured scores with published ones, by tolerance instead of per-query tests.

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
    value = candidate.results[claim.dataset].result.measures.get(claim.measure)
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
    return describe_drift(claim.dataset, claim.measure, value - claim.value, claim.tolerance)
