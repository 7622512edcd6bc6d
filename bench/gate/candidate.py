"""The candidate of a check, evaluated where needed, and comparisons without per-query scores.

A collection that cannot be evaluated becomes a gap, and the others are still evaluated. All
collections are opened before the first is encoded, so that another protocol is found at once.
Published scores are means within a tolerance, since their queries are unknown.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.comparing.pairs import ComparedModel, differing_fields
from bench.evaluation.pipeline import Job
from bench.evaluation.result_record import Evaluation, Protocol
from bench.evaluation.retriever import Retriever
from bench.gate.check_record import PUBLISHED_SCORES, Check, CheckRow, Outcome, Reason
from bench.requests.deciding import ScoreCheckRequest
from bench.requests.evaluating import RunRequest
from bench.requests.fields import FolderFields, HardwareFields, SystemFields
from bench.requests.outcomes import MissingEvaluations
from bench.result_store.find import find_results
from bench.result_store.result import UncheckedScores, check_stored_values, reuse_or_evaluate
from bench.runner.run import run
from bench.runner.workspace import Workspace
from datasets_cfg.readers.reader import Queries
from foundation.errors import BenchError
from retrievers.models.card import ExpectedScore
from retrievers.models.names import PYTHON_FILE, is_url

DIGITS = 8  # number of digits of a fingerprint in a name
PUBLISHED = "published"  # as typed


@dataclass(frozen=True)
class Candidate(ComparedModel):
    """Model under test, with its results by collection.

    Attributes:
        failures: reason for each collection without a result.
        queries: queries of each collection that was opened.
        renamed: reason why it has a name that nobody gave it; "" otherwise.
    """

    failures: Mapping[str, str] = field(default_factory=dict)
    queries: Mapping[str, Queries] = field(default_factory=dict)
    renamed: str = ""

    def is_in_domain(self, collection: str) -> bool:
        """Return True if the candidate was trained on ``collection``."""
        return collection in self.results and self.results[collection].record.in_domain

    def text(self, collection: str, query_id: str) -> str:
        """Return the text of ``query_id`` in ``collection``, or "" if it is not available."""
        known = self.queries.get(collection)
        return known.by_id.get(query_id, "") if known else ""


def candidate_name(model: Retriever, results: Path) -> str:
    """Return the name of the candidate's results.

    This is its own name, unless different weights or settings have ``results`` of that name. Then
    the fingerprint is appended, so that the name of a baseline never stands for two models.
    """
    recipe = model.recipe
    for stored in find_results(results, model.name):
        theirs, ours = stored.record.recipe, recipe.for_dataset(stored.dataset).stateless
        if theirs is None or theirs.stateless.fingerprint != ours.fingerprint:
            return f"{model.name}-{recipe.fingerprint[:DIGITS]}"
    return model.name


def evaluate_candidate(
    workspace: Workspace,
    model: Retriever,
    name: str,
    baseline: ComparedModel,
    collections: Mapping[str, str],
    out: Path,
) -> Candidate:
    """Evaluate a model, under the ``name`` of its results, where ``out`` has no result of it.

    It is evaluated with its options, at the depth of the baseline.

    A warning names the stored results of ``baseline`` whose scores cannot be computed again. For
    each of ``collections``, there is the name or folder that opens it.
    """
    named = model.with_name(name)
    known = [one for each in {name, model.name} for one in find_results(out, each)]
    gaps, jobs, unchecked = MissingEvaluations(), dict[str, Job](), UncheckedScores()
    for collection, opens in collections.items():
        with gaps.catch(collection):
            stored, protocol = baseline.results.get(collection), baseline.protocol(collection)
            split, depth = (protocol.split, protocol.depth) if protocol else ("", None)
            opened = workspace.open(opens, split or None)
            options = replace(named.options, depth=depth)
            if stored and stored.folder:
                with unchecked.collect():
                    check_stored_values(stored, opened.dataset)
            jobs[collection] = workspace.prepare(opened, named, options, known=known)
    unchecked.warn()
    for collection, job in jobs.items():
        check_protocol(collection, job.protocol, baseline, opens=collections[collection])
    done: dict[str, Evaluation] = {}
    for collection, job in jobs.items():
        with gaps.catch(collection):
            done[collection] = reuse_or_evaluate(job, out)
    why = f"because other weights or settings have results named {model.name}"
    return Candidate(
        name,
        results=done,
        failures={key: f"not evaluated: {reason}" for key, reason in gaps.reasons.items()},
        queries={key: job.dataset.queries for key, job in jobs.items()},
        renamed="" if name == model.name else f"The candidate is called {name} here, {why}",
    )


def is_unnamed(model: Any) -> bool:
    """Return whether a side of a check must be evaluated, since no stored result has its name.

    It is code or a server of the user, whose state may have changed, or a Python object.
    """
    if isinstance(model, str | Path):
        return is_url(str(model)) or bool(PYTHON_FILE.fullmatch(str(model)))
    return not isinstance(model, Evaluation | list | tuple)


def evaluate_unnamed(
    model: Any, request: ScoreCheckRequest, collections: Mapping[str, Protocol | None]
) -> list[Evaluation]:
    """Evaluate a model as ``run`` does, with the options of a check for search systems.

    The protocol of a collection, by the name or folder that opens it, decides its split and depth.
    """
    done: list[Evaluation] = []
    for opens, protocol in collections.items():
        one = RunRequest(
            names=(opens,),
            model=(model,),
            results=request.results,
            measure=(request.measure,) if request.measure else (),
            trust_code=request.trust_code,
            endpoint_model=request.endpoint_model,
            depth=protocol.depth if protocol else None,
            split=protocol.split if protocol else None,
            **request.values_of(SystemFields, HardwareFields, FolderFields),
        )
        done += run(one).evaluations
    return done


def check_protocol(
    collection: str, protocol: Protocol, baseline: ComparedModel, opens: str = ""
) -> None:
    """Raise if the baseline has another protocol on ``collection`` than the candidate's.

    ``opens`` is what to type for the collection; "" for its name.
    """
    if collection not in baseline.results:
        return
    result = baseline.results[collection].record
    if fields := differing_fields(result.protocol, protocol):
        raise BenchError(
            f"the baseline, {baseline.name}, was evaluated under another protocol on {collection}: "
            f"{', '.join(map(str, fields))}",
            f"Run `python -m bench run {opens or collection} --model {result.model}`.",
        )


def check_published(
    candidate: Candidate, expected: Sequence[ExpectedScore], names: Iterable[str]
) -> Check:
    """Compare measured scores on the collections ``names`` with the ``expected`` ones of a card."""
    rows: list[CheckRow] = []
    for name in names:
        claims = [claim for claim in expected if claim.dataset == name]
        why = candidate.failures.get(name, "" if claims else "no published score on the card")
        if why:
            rows.append(CheckRow(on=name, missing=(why,)))
        else:
            rows += [_claim_row(claim, candidate) for claim in claims]
    missing = [Reason(f"{row.on}: {why}", row.on) for row in rows for why in row.missing]
    drifted = [Reason(row.failure, row.on) for row in rows if row.failure]
    outcome: Outcome = "MISSING" if missing else "DRIFT" if drifted else "OK"
    return Check(
        candidate=candidate.name,
        baseline=PUBLISHED_SCORES,
        outcome=outcome,
        reasons=tuple(missing or drifted or [Reason("every score is within the tolerance")]),
        rows=tuple(rows),
    )


def _claim_row(claim: ExpectedScore, candidate: Candidate) -> CheckRow:
    what = f"{claim.dataset}: {claim.measure}"
    value = candidate.results[claim.dataset].record.measures.get(claim.measure)
    missing: tuple[str, ...] = ()
    failure = ""
    if value is None:
        missing = (f"{claim.measure} was not measured",)
    elif not abs(value - claim.value) <= claim.tolerance:  # true for nan, too
        failure = f"{what} differs by {value - claim.value:+.4f} (tolerance {claim.tolerance:.4f})"
    in_domain = candidate.is_in_domain(claim.dataset)
    return CheckRow(
        on=claim.dataset,
        measure=claim.measure,
        mean_a=value,
        mean_b=claim.value,
        failure=failure,
        missing=missing,
        in_domain_a=in_domain,
        in_domain_b=in_domain,
    )
