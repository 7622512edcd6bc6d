"""Check of a server: does it return the vectors of a checkpoint, also under load?

A sample of a collection is sent twice. First in small requests, one after the other:
`bench.explain` looks for the setting that explains these vectors. Then text by text over many
connections at a time: each text must have the same vector again. A vector that is much closer to
the one of another text went to the wrong request.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.spatial.distance import cdist

from bench.explain.answer import Answer
from bench.explain.deviation_search import answer_question
from bench.explain.evidence import FLOOR, PRECISIONS, GivenVectors, encode_texts
from bench.explain.question import Question
from bench.explain.setup import INT8_WEIGHTS
from bench.gate.check_record import CheckRow, PairVerdict
from retrievers.encoders.protocol import Encoder
from retrievers.models.recipe import Role

DOCUMENTS, QUERIES = 48, 16  # largest sample
CONNECTIONS = 16
ROUNDS = 10
SECONDS = 15.0  # after which no other round begins
SEARCH_SECONDS = 30.0  # after which no pair of deviations is tried
CLOSER = 4.0  # a squared distance to another text that is smaller by this factor is a mix-up,
APART = 0.05  # if the relative squared distance to the text itself is larger than this
BEYOND = 30.0  # times the largest typical error of its precision that one vector may have
LEVELS = dict(PRECISIONS)  # largest typical error of each precision, as a decimal logarithm


def check_server(question: Question, encoder: Encoder, stated: str) -> tuple[PairVerdict, Answer]:
    """Decide whether a server returns the vectors of the model of ``question``.

    Returns the verdict and the difference of set-up that explains the vectors.

    Args:
        question: the model, and the collection whose texts are sent.
        encoder: encoder of the server, with the server's name and the model's prompts. Several
            threads call it at a time.
        stated: precision that the server is meant to have, such as ``bfloat16``.
    """
    server, dataset = encoder.recipe.model, question.dataset.name
    question = replace(question, sampled_documents=DOCUMENTS, sampled_queries=QUERIES)
    evidence = question.of_encoder(encoder, server)
    answer = answer_question(question, [evidence], most_seconds=SEARCH_SECONDS)
    precision = answer.precision or "int8"
    cause = _describe_cause(answer, stated)
    row = partial(CheckRow, measure="vectors that agree", baseline=1.0)
    rows = [row(name=f"{dataset}, one request at a time", candidate=answer.share, failure=cause)]
    if not cause:
        most = BEYOND * 10 ** LEVELS[precision]
        sent, changed, mixed = repeat_under_load(encoder.for_dataset(dataset), evidence.given, most)
        if changed:
            cause = (
                f"under load, {changed:,} of {sent:,} vectors changed, "
                f"{mixed:,} of them into the vector of another text"
            )
        name = f"{dataset}, {CONNECTIONS} requests at a time"
        rows.append(row(name=name, candidate=1 - changed / sent, failure=cause))
    verdict = PairVerdict(
        role="checkpoint",
        name=answer.model,
        outcome="DRIFT" if cause else "OK",
        reasons=(cause or f"the vectors agree within the precision of {precision}",),
        rows=tuple(rows),
    )
    return verdict, answer


def _describe_cause(answer: Answer, stated: str) -> str:
    """Return the difference that explains the vectors, or "" if they are as stated."""
    if answer.verdict == "none":
        seen = [each.name for each in answer.seen]
        return "; ".join(["no deviation explains the vectors", *seen])
    best = answer.explanations[0] if answer.explanations else None
    if best and not (stated == "int8" and best.deviations == (INT8_WEIGHTS,)):
        return f"the cause is: {best.name} ({'; '.join(best.apply)})"
    if not best and LEVELS[answer.precision] > LEVELS[stated]:
        return f"the vectors are as exact as {answer.precision}, and {stated} is stated"
    return ""


def repeat_under_load(
    encoder: Encoder, given: Mapping[Role, GivenVectors], most: float
) -> tuple[int, int, int]:
    """Send texts one by one over many connections, and count the vectors that change.

    Args:
        encoder: of the server.
        given: vectors of a sample that were made one request at a time, by role.
        most: largest relative squared error of a vector that did not change.

    Returns:
        Number of requests, of changed vectors, and of vectors that belong to another text.
    """
    tasks = [
        (role, each.texts, slice(row, row + 1))
        for role, each in given.items()
        for row in range(len(each.texts.ids))
    ]
    first = np.concatenate([each.vectors for each in given.values()])
    squares = np.maximum(np.einsum("ij,ij->i", first, first)[:, None], FLOOR)
    sent = changed = mixed = 0
    start = time.monotonic()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        while sent < ROUNDS * len(tasks) and time.monotonic() < start + SECONDS:
            again = list(pool.map(lambda task: encode_texts(encoder, *task), tasks))
            distances = cdist(np.concatenate(again), first, "sqeuclidean") / squares
            errors = distances.diagonal()
            is_mixed = (distances.min(axis=1) * CLOSER < errors) & (errors > APART)
            sent += len(tasks)
            changed += int((is_mixed | (errors > most)).sum())
            mixed += int(is_mixed.sum())
    return sent, changed, mixed
