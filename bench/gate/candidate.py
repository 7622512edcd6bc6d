"""The candidate of a check, evaluated where needed, and comparisons without per-query scores.

A collection that cannot be evaluated becomes a gap, and the others are still evaluated. All
collections are opened before the first is encoded, so that another protocol is found at once.
Published scores are means within a tolerance, since their queries are unknown. A server is compared
with its checkpoint by vectors.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from bench.comparing.pairs import ComparedModel, differing_fields
from bench.evaluation.collection_search import EvaluationOptions, LoadedModel
from bench.evaluation.pipeline import Job
from bench.evaluation.result_record import Evaluation, Protocol
from bench.explain.evidence import FLOOR, PRECISIONS, GivenVectors, encode_texts
from bench.explain.explain import answer_question
from bench.explain.length import ServedLength, find_length
from bench.explain.question import Question
from bench.explain.setup import STORED, Answer
from bench.gate.check_record import PUBLISHED_SCORES, Check, CheckRow, Outcome
from bench.requests.outcomes import MissingEvaluations
from bench.result_store.find import find_results
from bench.result_store.result import check_stored_values, reuse_or_evaluate, warn_unchecked
from bench.runner.workspace import Workspace
from datasets_cfg.dataset import Dataset
from datasets_cfg.readers.reader import Queries
from foundation.errors import BenchError
from retrievers.encoders.external import EndpointEncoder
from retrievers.encoders.preflight import find_mixed_up
from retrievers.models.card import ExpectedScore, Role

SERVED_DOCUMENTS, SERVED_QUERIES = 48, 16  # largest sample of a server
CONNECTIONS = 16
ROUNDS = 10
SECONDS = 15.0  # after which no other round begins
SEARCH_SECONDS = 30.0  # after which no pair of deviations is tried
BEYOND = 30.0  # times the largest typical error of its precision that one vector may have
LEVELS = dict(PRECISIONS)  # largest typical error of each precision, as a decimal logarithm
DIGITS = 8  # number of digits of a fingerprint in a name
PUBLISHED = "published"  # as typed


@dataclass(frozen=True)
class Candidate:
    """Model under test, with its results by collection.

    Attributes:
        failures: reason for each collection without a result.
        queries: queries of each collection that was opened.
        renamed: reason why it has a name that nobody gave it; "" otherwise.
    """

    name: str
    results: Mapping[str, Evaluation]
    failures: Mapping[str, str] = field(default_factory=dict)
    queries: Mapping[str, Queries] = field(default_factory=dict)
    renamed: str = ""

    def is_in_domain(self, collection: str) -> bool:
        """Return True if the candidate was trained on ``collection``."""
        return collection in self.results and self.results[collection].record.in_domain

    def text(self, collection: str, query_id: str) -> str:
        """Return the text of ``query_id`` in ``collection``, or "" if it is not available."""
        if collection not in self.queries:
            return ""
        queries = self.queries[collection]
        return dict(zip(queries.ids, queries.texts, strict=True)).get(query_id, "")


def candidate_name(model: LoadedModel, results: Path) -> str:
    """Return the name of the candidate's results.

    This is its own name, unless different weights or settings have ``results`` of that name. Then
    the fingerprint is appended, so that the name of a baseline never stands for two models.
    """
    recipe = model.model.recipe
    for stored in find_results(results, model.name):
        if stored.record.fingerprint != recipe.for_dataset(stored.dataset).fingerprint:
            return f"{model.name}-{recipe.fingerprint[:DIGITS]}"
    return model.name


def evaluate_candidate(
    workspace: Workspace,
    model: LoadedModel,
    collections: Mapping[str, tuple[str, Protocol | None]],
    baseline: ComparedModel,
    known: Iterable[Evaluation],
    out: Path,
    measure: str | None,
) -> Candidate:
    """Evaluate the candidate on each collection without a ``known`` result.

    A warning names the stored results of ``baseline`` whose scores cannot be computed again. For
    each of ``collections``, there is the name or folder that opens it, and the protocol of the
    result to compare with, which determines split and depth.
    """
    gaps, jobs, unchecked = MissingEvaluations(), dict[str, Job](), list[str]()
    for collection, (opens, protocol) in collections.items():
        with gaps.catch(collection):
            opened = workspace.open(opens, (protocol.split or None) if protocol else None)
            depth = protocol.depth if protocol else None
            options = EvaluationOptions(depth=depth, measures=(measure,) if measure else None)
            stored = baseline.results.get(collection)
            if stored and stored.folder:
                unchecked.append(check_stored_values(stored, opened.dataset))
            jobs[collection] = workspace.prepare(opened, model, options, known=known)
    warn_unchecked(unchecked)
    for collection, job in jobs.items():
        check_protocol(collection, job.protocol, baseline, opens=collections[collection][0])
    done: dict[str, Evaluation] = {}
    for collection, job in jobs.items():
        with gaps.catch(collection):
            done[collection] = reuse_or_evaluate(job, out)
    return Candidate(
        model.name,
        results=done,
        failures={key: f"not evaluated: {reason}" for key, reason in gaps.reasons.items()},
        queries={name: job.dataset.queries for name, job in jobs.items()},
    )


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
            f"python -m bench run {opens or collection} --model {result.model}",
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
            rows.append(CheckRow(name=name, missing=why))
        else:
            rows += [_claim_row(claim, candidate) for claim in claims]
    missing = [
        row.missing if row.measure else f"{row.name}: {row.missing}" for row in rows if row.missing
    ]
    drifted = [row.failure for row in rows if row.failure]
    outcome: Outcome = "MISSING" if missing else "DRIFT" if drifted else "OK"
    return Check(
        candidate=candidate.name,
        baseline=PUBLISHED_SCORES,
        outcome=outcome,
        reasons=tuple(missing or drifted or ["every score is within the tolerance"]),
        rows=tuple(rows),
    )


def _claim_row(claim: ExpectedScore, candidate: Candidate) -> CheckRow:
    what = f"{claim.dataset}: {claim.measure}"
    value = candidate.results[claim.dataset].record.measures.get(claim.measure)
    missing = failure = ""
    if value is None:
        missing = f"{what} was not measured"
    elif not abs(value - claim.value) <= claim.tolerance:  # true for nan, too
        failure = f"{what} differs by {value - claim.value:+.4f} (tolerance {claim.tolerance:.4f})"
    in_domain = candidate.is_in_domain(claim.dataset)
    return CheckRow(
        name=claim.dataset,
        measure=claim.measure,
        candidate=value,
        baseline=claim.value,
        failure=failure,
        missing=missing,
        candidate_in_domain=in_domain,
        baseline_in_domain=in_domain,
    )


def check_server(
    workspace: Workspace,
    model: LoadedModel,
    dataset: Dataset,
    encoder: EndpointEncoder,
    stated: str,
) -> Check:
    """Decide whether a server returns the vectors of its checkpoint, also under load.

    First it gets a sample of texts in small requests, one after the other, and `explain` looks for
    the setting that explains the vectors. If they are as stated, it gets the texts one by one over
    many connections at a time: each must have the same vector again.

    ``encoder`` is the server's, with the model's prompts; several threads call it at a time.
    ``stated`` is the precision that the server is meant to have, such as ``bfloat16``.
    """
    question = Question(
        model,
        [dataset],
        workspace.dataset,
        workspace.device,
        sampled_documents=SERVED_DOCUMENTS,
        sampled_queries=SERVED_QUERIES,
        length=find_length(encoder, model.model),
    )
    evidence = question.of_encoder(encoder, encoder.recipe.model)
    answer = answer_question(question, [evidence], most_seconds=SEARCH_SECONDS)
    errors = evidence.fit(question.setup, False).errors
    share = float((errors <= BEYOND * 10 ** LEVELS[stated]).mean())
    row = partial(CheckRow, measure="vectors that agree", baseline=1.0)
    cause = _describe_cause(answer, stated, question.length)
    name = f"{dataset.name}, one request at a time"
    rows = [row(name=name, candidate=share, failure=cause)]
    precision = answer.precision or "int8"
    if not cause:
        most = BEYOND * 10 ** LEVELS[precision]
        encoder = encoder.for_dataset(dataset.name)
        sent, changed, mixed = _repeat_under_load(encoder, evidence.given, most)
        if changed:
            cause = (
                f"under load, {changed:,} of {sent:,} vectors changed, {mixed:,} of them into the "
                "vector of another text"
            )
        name = f"{dataset.name}, {CONNECTIONS} requests at a time"
        rows.append(row(name=name, candidate=1 - changed / sent, failure=cause))
    return Check(
        candidate=encoder.recipe.model,
        baseline=answer.model,
        role="checkpoint",
        outcome="DRIFT" if cause else "OK",
        reasons=(
            cause or f"the vectors agree within the precision of {precision}",
            *(one.name for one in answer.seen if one.name not in cause),
        ),
        rows=tuple(rows),
        answer=answer,
    )


def _describe_cause(answer: Answer, stated: str, length: ServedLength | None) -> str:
    """Return the difference that explains the vectors, or "" if they are as stated."""
    if answer.verdict == "none":
        return "; ".join(["no deviation explains the vectors", *(one.name for one in answer.seen)])
    best = answer.explanations[0] if answer.explanations else None
    if best and best.deviations != (STORED.get(stated),):
        return f"the cause is: {best.name} ({'; '.join(best.apply)})"
    if not best and LEVELS[answer.precision] > LEVELS[stated]:
        return f"the vectors are as exact as {answer.precision}, and {stated} is stated"
    return "" if length is None or length.agrees else length.note.name


def _repeat_under_load(
    encoder: EndpointEncoder, given: Mapping[Role, GivenVectors], most: float
) -> tuple[int, int, int]:
    """Send texts one by one over many connections, and count requests, changes and mix-ups.

    A vector changed if its relative squared distance to the one of ``given`` is above ``most``. One
    that is much closer to the vector of another text went to the wrong request.
    """
    tasks = [
        (role, each.texts, slice(row, row + 1))
        for role, each in given.items()
        for row in range(len(each.texts.ids))
    ]
    from scipy.spatial.distance import cdist  # late: other commands do without it

    first = np.concatenate([each.vectors for each in given.values()])
    squares = np.maximum(np.einsum("ij,ij->i", first, first)[:, None], FLOOR)
    sent = changed = mixed = 0
    start = time.monotonic()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        while sent < ROUNDS * len(tasks) and time.monotonic() < start + SECONDS:
            again = list(pool.map(lambda task: encode_texts(encoder, *task), tasks))
            distances = cdist(np.concatenate(again), first, "sqeuclidean") / squares
            errors = distances.diagonal()
            is_mixed = find_mixed_up(distances, errors)
            sent += len(tasks)
            changed += int((is_mixed | (errors > most)).sum())
            mixed += int(is_mixed.sum())
    return sent, changed, mixed
