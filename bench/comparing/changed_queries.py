"""The queries on which two models differ most, with relevant documents and both rankings."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa

from bench.comparing.statistics import SAME_SCORE
from bench.evaluation.result_record import Evaluation, Protocol
from bench.evaluation.runs import Run
from bench.result_store.reuse import check_stored_values, warn_unchecked
from bench.runner.workspace import Workspace
from datasets_cfg.dataset import Dataset, open_remembered
from foundation.arrays import Float64Array
from foundation.errors import BenchError
from foundation.files import hash_records
from foundation.locations import RemotePath
from foundation.records import Record

TOP = 5  # documents shown from each ranking
JUDGED = 10  # relevant documents shown for a query


class ShownDocument(Record, kw_only=True):
    """Document shown for a query: relevant, or among the first of a ranking.

    Attributes:
        doc_id: id in the corpus.
        grade: relevance grade; None if unjudged or unknown.
        rank_a, rank_b: rank from 1; None if it was not retrieved.
        text: title and text; "" if the corpus does not contain it.
    """

    doc_id: str
    grade: int | None
    rank_a: int | None
    rank_b: int | None
    text: str


class ChangedQuery(Record, kw_only=True):
    """Query on which two models differ.

    Attributes:
        query_id: id of the query.
        text: its text; None if the collection is not available.
        score_a, score_b: score of each model.
        answers: accepted answers, for collections judged by answer strings.
        documents: relevant documents, the highest grade first, then the best rank; then the first
            documents of both rankings.
        more_judged: number of further relevant documents.
    """

    query_id: str
    text: str | None
    score_a: float
    score_b: float
    answers: tuple[str, ...]
    documents: tuple[ShownDocument, ...]
    more_judged: int


class ChangedQueries(Record, kw_only=True):
    """The queries of one collection that changed most between two models.

    Attributes:
        a, b: names of the models.
        collection: name of the collection.
        measure: measure of the scores.
        changed: number of queries on which the models differ.
        without: reason why texts and grades are missing; "" if they are available.
        queries: queries on which a is better, the largest difference first, then by id; then the
            same for b.
    """

    a: str
    b: str
    collection: str
    measure: str
    changed: int
    without: str
    queries: tuple[ChangedQuery, ...]


def most_changed_rows(gains: Float64Array, count: int) -> list[int]:
    """Return the rows of the ``count`` largest gains and the ``count`` largest losses.

    Args:
        gains: float64 ``(queries,)``; ties keep their order.
        count: number of rows on each side.
    """
    order = np.argsort(-np.abs(gains), kind="stable")
    wins, losses = order[gains[order] > SAME_SCORE], order[gains[order] < -SAME_SCORE]
    return [*wins[:count].tolist(), *losses[:count].tolist()]


def find_changed_queries(
    names: tuple[str, str],
    evaluations: tuple[Evaluation, Evaluation],
    measure: str,
    count: int,
    opened: Dataset | str,
) -> ChangedQueries:
    """Find the queries on which each of two models gains most over the other.

    Args:
        names: names of the models.
        evaluations: their results on one collection.
        measure: measure to compare by.
        count: number of queries for each model.
        opened: the collection, or the reason why it is not available, so that only ids are shown.
    """
    a, b = (evaluation.scores.by_query(measure) for evaluation in evaluations)
    queries = sorted(a.keys() & b.keys())
    gains = np.array([a[query] - b[query] for query in queries])
    selected = [queries[row] for row in most_changed_rows(gains, count)]
    dataset = None if isinstance(opened, str) else opened
    grades = _judged_grades(selected, dataset)
    ranks = {query: [_ranks(one.run, query) for one in evaluations] for query in selected}
    shown = {query: _documents(grades[query], *ranks[query]) for query in selected}
    documents = _document_texts([doc_id for some in shown.values() for doc_id in some], dataset)
    texts = dict(zip(dataset.queries.ids, dataset.queries.texts, strict=True)) if dataset else {}
    answers = (dataset.answers if dataset else None) or {}
    return ChangedQueries(
        a=names[0],
        b=names[1],
        collection=evaluations[0].dataset,
        measure=measure,
        changed=int((np.abs(gains) > SAME_SCORE).sum()),
        without=opened if isinstance(opened, str) else "",
        queries=tuple(
            ChangedQuery(
                query_id=query,
                text=texts.get(query),
                score_a=a[query],
                score_b=b[query],
                answers=answers.get(query, ()),
                documents=tuple(
                    ShownDocument(
                        doc_id=doc_id,
                        grade=grades[query].get(doc_id),
                        rank_a=ranks[query][0].get(doc_id),
                        rank_b=ranks[query][1].get(doc_id),
                        text=documents.get(doc_id, ""),
                    )
                    for doc_id in shown[query]
                ),
                more_judged=max(0, sum(g > 0 for g in grades[query].values()) - JUDGED),
            )
            for query in selected
        ),
    )


def _ranks(run: Run, query: str) -> dict[str, int]:
    """Return the rank of each document from 1, or nothing if the run lacks the query."""
    if query not in run.query_ids:
        return {}
    start, end = run.offsets[run.query_ids.index(query) :][:2].tolist()
    ids = run.ids.take(pa.array(run.documents[start:end])).to_pylist()
    return {doc_id: rank for rank, doc_id in enumerate(ids, start=1)}


def _judged_grades(selected: Sequence[str], dataset: Dataset | None) -> dict[str, dict[str, int]]:
    grades: dict[str, dict[str, int]] = {query: {} for query in selected}
    for query, doc_id, grade in dataset.qrels if dataset else ():
        if query in grades:
            grades[query][doc_id] = grade
    return grades


def _documents(grades: Mapping[str, int], a: Mapping[str, int], b: Mapping[str, int]) -> list[str]:
    """Select the documents to show for a query by their grades and their ranks."""

    def sort_key(doc_id: str) -> tuple[float, ...]:
        best = min(a.get(doc_id, math.inf), b.get(doc_id, math.inf))
        return (-grades.get(doc_id, 0), best)

    relevant = sorted(sorted(doc_id for doc_id in grades if grades[doc_id] > 0), key=sort_key)
    first = [doc_id for ranks in (a, b) for doc_id in ranks if ranks[doc_id] <= TOP]
    return list(dict.fromkeys([*relevant[:JUDGED], *sorted(first, key=sort_key)]))


def _document_texts(doc_ids: Sequence[str], dataset: Dataset | None) -> dict[str, str]:
    """Return title and text of the documents that the corpus contains."""
    if dataset is None or not doc_ids:
        return {}
    rows = dataset.corpus.rows_of(doc_ids)
    present = np.flatnonzero(rows >= 0)
    documents = zip(*dataset.corpus.documents_at(rows[present]), strict=True)
    return {
        doc_ids[row]: f"{title} {text}".strip()
        for row, (title, text) in zip(present.tolist(), documents, strict=True)
    }


def check_scores_against_rankings(results: Iterable[Evaluation], workspace: Workspace) -> None:
    """Score stored rankings again and raise if the stored scores differ.

    Nothing is downloaded. One warning names the collections whose scores cannot be computed again.
    Files that agreed once are not scored again.

    Args:
        results: stored results.
        workspace: folders of collections and of the cache.

    Raises:
        BenchError: stored scores differ from their ranking, or the ranking is not the one that was
            stored with them.
    """
    opened = cache(lambda protocol: open_evaluated_dataset(protocol, workspace))
    unchecked: list[str] = []
    for stored in results:
        result = stored.record
        hashes = result.per_query_sha256, result.run_sha256, result.protocol.qrels_sha256
        agreed = workspace.cache_dir / "agreed" / hash_records([hashes])  # a marker for each set
        is_remote = isinstance(stored.folder, RemotePath)  # its objects never change
        if agreed.exists() and (is_remote or stored.has_ranking):
            continue
        dataset = opened(result.protocol)
        reason = dataset if isinstance(dataset, str) else check_stored_values(stored, dataset)
        unchecked.append(reason)
        if not reason and all(hashes) and stored.has_ranking:
            with suppress(OSError):  # a cache that is read-only
                agreed.parent.mkdir(parents=True, exist_ok=True)
                agreed.touch()
    warn_unchecked(unchecked)


def open_evaluated_dataset(protocol: Protocol, workspace: Workspace) -> Dataset | str:
    """Open the dataset that was evaluated, if its queries and judgements are available.

    It is looked up by name, then among the folders in which this content was seen before. Nothing
    is downloaded.

    Args:
        protocol: protocol of the evaluation.
        workspace: folders of collections and of the cache.

    Returns:
        The dataset, or the reason why it is not available.
    """
    try:
        offline = replace(workspace, offline=True)
        named = offline.dataset(protocol.collection, protocol.split or None)
    except BenchError:
        of_name: Dataset | str = f"{protocol.collection} is not on this machine (see --data-dir)"
    else:
        of_name = confirm_evaluated(named, protocol)
    if isinstance(of_name, Dataset):
        return of_name
    hashes = (protocol.queries_sha256, protocol.qrels_sha256)
    return open_remembered(*hashes, protocol.split, workspace.cache_dir) or of_name


def confirm_evaluated(dataset: Dataset, protocol: Protocol) -> Dataset | str:
    """Return ``dataset`` if ``protocol`` was evaluated on its content, else the reason why not."""
    here = (dataset.queries_sha256, dataset.qrels_sha256)
    if here != (protocol.queries_sha256, protocol.qrels_sha256):
        return f"the {protocol.collection} on this machine is not the one that was evaluated"
    return dataset
