"""The queries on which two models differ most: what is relevant, and both rankings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from bench.comparing.statistics import SAME_SCORE
from bench.evaluate.runs import Run
from bench.results.result import Evaluation, Protocol
from bench.workspace import Workspace
from datasets_cfg.dataset import Dataset, open_remembered
from foundation.arrays import Float64Array
from foundation.errors import BenchError
from foundation.records import Record

TOP = 5  # documents of each ranking
JUDGED = 10  # relevant documents of a query


class RankedDocument(Record):
    """A document of a ranking; the grade is None where it has none or is not known."""

    doc_id: str
    grade: int | None


class JudgedDocument(Record, kw_only=True):
    """A relevant document, and where the models have it.

    Attributes:
        rank_a, rank_b: from 1; None where it was not retrieved.
        text: title and text; "" where the corpus does not have it.
    """

    doc_id: str
    grade: int
    rank_a: int | None
    rank_b: int | None
    text: str


class ChangedQuery(Record, kw_only=True):
    """A query on which two models differ.

    Attributes:
        text: None where the collection is not at hand.
        answers: accepted answers, where they decide and not judgements.
        judged: relevant documents, the highest grade first, then the best rank.
        more_judged: how many relevant documents there are besides.
        top_a, top_b: the first documents of both rankings.
    """

    query_id: str
    text: str | None
    score_a: float
    score_b: float
    answers: tuple[str, ...]
    judged: tuple[JudgedDocument, ...]
    more_judged: int
    top_a: tuple[RankedDocument, ...]
    top_b: tuple[RankedDocument, ...]


class Changes(Record, kw_only=True):
    """The queries of one collection that changed most between two models.

    Attributes:
        changed: queries on which the models differ at all.
        without: why texts and grades are missing; "" where they are there.
        queries: those on which a is better, the largest difference first, then by id; then the
            same for b.
    """

    a: str
    b: str
    collection: str
    measure: str
    changed: int
    without: str
    queries: tuple[ChangedQuery, ...]


@dataclass(frozen=True)
class _Side:
    """One model: its values and its rankings by query id."""

    values: Mapping[str, float]
    run: Run
    places: Mapping[str, int]

    @classmethod
    def of(cls, done: Evaluation, measure: str) -> "_Side":
        run = done.run
        places = {query_id: place for place, query_id in enumerate(run.query_ids)}
        return cls(done.scores.by_query(measure), run, places)

    def ranking(self, query_id: str) -> list[str]:
        """Document ids, best first; none where the run lacks the query."""
        if query_id not in self.places:
            return []
        start, end = self.run.offsets[self.places[query_id] :][:2].tolist()
        ids: list[str] = self.run.doc_ids[start:end].to_pylist()
        return ids


def most_different(gains: Float64Array, count: int) -> list[int]:
    """Places of the ``count`` largest gains and of the ``count`` largest losses; first of ties."""
    order = np.argsort(-np.abs(gains), kind="stable")
    wins, losses = order[gains[order] > SAME_SCORE], order[gains[order] < -SAME_SCORE]
    return [*wins[:count].tolist(), *losses[:count].tolist()]


def most_changed(
    names: tuple[str, str],
    entries: tuple[Evaluation, Evaluation],
    measure: str,
    count: int,
    opened: Dataset | str,
) -> Changes:
    """The ``count`` queries on which each of the two models is better by most.

    Args:
        opened: the collection; or why it is not at hand, so that only ids are known.
    """
    a, b = (_Side.of(entry, measure) for entry in entries)
    queries = sorted(a.values.keys() & b.values.keys())
    gains = np.array([a.values[query] - b.values[query] for query in queries])
    chosen = [queries[place] for place in most_different(gains, count)]
    dataset = None if isinstance(opened, str) else opened
    return Changes(
        a=names[0],
        b=names[1],
        collection=entries[0].collection,
        measure=measure,
        changed=int((np.abs(gains) > SAME_SCORE).sum()),
        without=opened if isinstance(opened, str) else "",
        queries=tuple(_queries(chosen, a, b, dataset)),
    )


def _queries(
    chosen: Sequence[str], a: _Side, b: _Side, dataset: Dataset | None
) -> list[ChangedQuery]:
    grades = _grades(chosen, dataset)
    ranks = {query: (_ranks(a, query), _ranks(b, query)) for query in chosen}
    relevant = {query: _relevant(grades[query], *ranks[query]) for query in chosen}
    shown = [doc_id for docs in relevant.values() for doc_id in docs[:JUDGED]]
    documents = _documents(shown, dataset)
    texts = dict(zip(dataset.queries.ids, dataset.queries.texts, strict=True)) if dataset else {}
    answers = (dataset.answers if dataset else None) or {}
    return [
        ChangedQuery(
            query_id=query,
            text=texts.get(query),
            score_a=a.values[query],
            score_b=b.values[query],
            answers=answers.get(query, ()),
            judged=tuple(
                JudgedDocument(
                    doc_id=doc_id,
                    grade=grades[query][doc_id],
                    rank_a=ranks[query][0].get(doc_id),
                    rank_b=ranks[query][1].get(doc_id),
                    text=documents.get(doc_id, ""),
                )
                for doc_id in relevant[query][:JUDGED]
            ),
            more_judged=max(0, len(relevant[query]) - JUDGED),
            top_a=_top(a.ranking(query), grades[query]),
            top_b=_top(b.ranking(query), grades[query]),
        )
        for query in chosen
    ]


def _ranks(side: _Side, query: str) -> dict[str, int]:
    return {doc_id: rank for rank, doc_id in enumerate(side.ranking(query), start=1)}


def _grades(chosen: Sequence[str], dataset: Dataset | None) -> dict[str, dict[str, int]]:
    grades: dict[str, dict[str, int]] = {query: {} for query in chosen}
    for query, doc_id, grade in dataset.qrels if dataset else ():
        if query in grades:
            grades[query][doc_id] = grade
    return grades


def _relevant(
    grades: Mapping[str, int], ranks_a: Mapping[str, int], ranks_b: Mapping[str, int]
) -> list[str]:
    """Relevant documents: the highest grade first, then the best rank in either ranking."""

    def place(doc_id: str) -> tuple[float, ...]:
        best = min(ranks_a.get(doc_id, math.inf), ranks_b.get(doc_id, math.inf))
        return (-grades[doc_id], best)

    return sorted(sorted(doc_id for doc_id in grades if grades[doc_id] > 0), key=place)


def _documents(doc_ids: Sequence[str], dataset: Dataset | None) -> dict[str, str]:
    """Title and text of the documents that the corpus has."""
    if dataset is None or not doc_ids:
        return {}
    rows = dataset.corpus.rows_of(doc_ids)
    known = np.flatnonzero(rows >= 0)
    titles = dataset.corpus.titles.take(pa.array(rows[known])).to_pylist()
    texts = dataset.corpus.texts_at(rows[known])
    return {
        doc_ids[place]: f"{title} {text}".strip()
        for place, title, text in zip(known.tolist(), titles, texts, strict=True)
    }


def _top(ranking: Sequence[str], grades: Mapping[str, int]) -> tuple[RankedDocument, ...]:
    return tuple(RankedDocument(doc_id, grades.get(doc_id)) for doc_id in ranking[:TOP])


def at_hand(protocol: Protocol, space: Workspace) -> Dataset | str:
    """The collection that was evaluated, with the same queries and judgements; else why not.

    Looked for by its name, then where a collection of this content was. Nothing is downloaded.
    """
    try:
        named = replace(space, offline=True).dataset(protocol.collection, protocol.split or None)
    except BenchError:
        of_name: Dataset | str = (
            f"{protocol.collection} is not on this machine (--data-dir says where to look)"
        )
    else:
        of_name = if_evaluated(named, protocol)
    if isinstance(of_name, Dataset):
        return of_name
    hashes = (protocol.queries_sha256, protocol.qrels_sha256)
    return open_remembered(*hashes, protocol.split, space.cache_dir) or of_name


def if_evaluated(dataset: Dataset, protocol: Protocol) -> Dataset | str:
    """A collection if it is the one that was evaluated; else that it is not."""
    here = (dataset.queries_sha256, dataset.qrels_sha256)
    if here != (protocol.queries_sha256, protocol.qrels_sha256):
        return f"the {protocol.collection} on this machine is not the one that was evaluated"
    return dataset
