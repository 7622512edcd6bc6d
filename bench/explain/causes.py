"""Causes of a difference inside a stage of the ledger, found from what a system stores and returns.

Stored vectors and query vectors are compared with the checkpoint's under every single deviation
that `explain` knows, and under texts that were cut before they were encoded.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bench.evaluation.runs import Run
from bench.explain.deviation_search import answer_question
from bench.explain.evidence import (
    FLOOR,
    PRECISIONS,
    ROUGH,
    SHARE,
    GivenVectors,
    Texts,
    VectorEvidence,
    choose_documents,
    choose_queries,
    vector_errors,
)
from bench.explain.ledger import SearchStage
from bench.explain.question import Question
from bench.explain.setup import CORRECT_THERE, EvaluationSetup, Observation
from foundation.arrays import Float32Array, Float64Array, Int64Array
from foundation.errors import BenchError, format_count
from retrievers.encoders.objects import join_titles

Encode = Callable[[Sequence[str]], Float32Array]
Rankings = dict[str, list[str]]
FindRun = Callable[[Sequence[str], Float32Array, int], Run]

AGREE = 10.0**ROUGH  # error of a vector that is the checkpoint's, in float32 or float16
LEVELS = dict(PRECISIONS)
CHUNK = 2_048  # documents that are compared at a time
MOST_CAUSES = 4
SECONDS = 60.0  # after which no pair of deviations is tried
FEWEST = 10  # documents on either side of a length that shows a cut
# Lengths at which texts may be cut there.
TOKENS = (8, 12, 16, 20, 24, 32, 48, 64, 100, 128, 200, 256, 300, 384, 400, 500, 512)
CHARACTERS = (
    *(20, 32, 50, 64, 80, 100, 128, 150, 200, 250, 256, 300, 400, 500, 512),
    *(600, 750, 800, 1000, 1024, 1200, 1500, 1600, 2000, 2048, 2500, 3000, 4000, 4096),
)
DOCUMENTS = 64  # in the sample of a group
QUERY_CHARACTERS = (*range(4, 65), *CHARACTERS[4:])
CUT_DOCUMENTS = 4  # on which every length in characters is tried
INGESTION = "encode whole texts there"
PROBE, SAMPLE, FULL = 12, 48, 5  # queries of a probe and a sample; hypotheses of the sample
TOP = 10  # documents in which answers are compared
SAME = 0.9  # share of them in two answers to equal query vectors
CLEAR, PART = 0.1, 0.5  # gain and agreement of a cause that explains answers in part


class Cause(NamedTuple):
    """What differs in some of the stored vectors.

    Attributes:
        name: what differs.
        apply: setting that does the same here, or what to change there.
        places: int64, positions of these vectors.
    """

    name: str
    apply: str
    places: Int64Array


def group_vectors(
    question: Question | None, ids: Sequence[str], stored: Float32Array, ours: Float32Array
) -> list[Cause]:
    """Return groups of stored vectors: those that agree, those with one cause each, and the rest.

    Args:
        question: checkpoint and collection; None if no deviation can be applied to the checkpoint.
        ids: n ids of documents of the collection.
        stored, ours: float32 ``(n, dim)``, of unit length if the similarity is cosine.
    """
    errors = _errors(stored, ours)
    agree, left = np.flatnonzero(errors <= AGREE), np.flatnonzero(errors > AGREE)
    causes = []
    if len(agree):
        name = f"stored vectors as exact as {_precision(errors[agree])}"
        causes.append(Cause(_count(name, len(agree)), "", agree))
    search = StoredCauses(question, ids, stored) if question else None
    while len(left) and search and len(causes) < MOST_CAUSES and stored.shape == ours.shape:
        found = search.find_cut(left, agree) or search.find_deviation(left)
        if found is None:
            break
        causes.append(found)
        left = np.setdiff1d(left, found.places)
    if len(left):
        close = _precision(errors[left])
        name = f"vectors rounded to {close}, or of a checkpoint that is close" if close else ""
        name = name or "vectors of another model or of other texts"
        causes.append(Cause(_count(name, len(left)), "encode these documents again", left))
    return causes


def _errors(stored: Float32Array, predicted: Float32Array) -> Float64Array:
    """Return the relative squared errors of stored vectors, float64 ``(n,)``, part by part."""
    starts = range(0, len(stored), CHUNK)
    parts = [slice(start, start + CHUNK) for start in starts]
    return np.concatenate([vector_errors(stored[part], predicted[part]) for part in parts])


def _precision(errors: Float64Array) -> str:
    """Return the precision that typical errors are like, or "" if none is."""
    level = float(np.median(np.log10(np.maximum(errors, FLOOR))))
    return next((name for name, most in PRECISIONS if level <= most), "")


def _count(name: str, documents: int) -> str:
    return f"{name} ({format_count(documents, 'document', 'documents')})"


@dataclass(frozen=True)
class StoredCauses:
    """Search for causes of stored vectors, float32 ``(n, dim)``, of the documents ``ids``."""

    question: Question
    ids: Sequence[str]
    stored: Float32Array

    def find_cut(self, left: Int64Array, agree: Int64Array) -> Cause | None:
        """Return the documents among ``left`` whose text was cut after a number of characters.

        A length that is not tried is seen if it separates the documents that ``agree`` from all
        others.
        """
        some = left[np.linspace(0, len(left) - 1, min(len(left), CUT_DOCUMENTS)).astype(int)]
        tried = [(length, joined) for length in CHARACTERS for joined in (False, True)]
        best = max(tried, key=lambda each: len(self._cut_at(some, *each)))
        if len(self._cut_at(some, *best)) > len(some) / 2:
            cut = self._cut_at(left, *best)
            name = f"texts cut after {best[0]:,} characters"
            return Cause(_count(name, len(cut)), INGESTION, cut)
        shorter, longer = (
            np.array([len(title) + len(text) for title, text in zip(*texts, strict=True)])
            for texts in map(self._texts, (agree, left))
        )
        if min(len(shorter), len(longer)) < FEWEST or shorter.max() >= longer.min():
            return None
        name = f"texts longer than about {shorter.max():,} characters differ, as if cut"
        return Cause(_count(name, len(left)), INGESTION, left)

    def find_deviation(self, left: Int64Array) -> Cause | None:
        """Return the documents among ``left`` that the best deviation explains, if it does any."""
        question = self.question
        number_of = {self.ids[place]: number for number, place in enumerate(left)}
        texts = choose_documents(question.dataset.corpus, list(number_of), DOCUMENTS)
        rows = np.array([number_of[id_] for id_ in texts.ids])
        given = GivenVectors(texts, self.stored[left], rows)
        evidence = VectorEvidence(question.passes, {"document": given})
        answer = answer_question(question, [evidence], most_seconds=SECONDS)
        best = answer.explanations[0] if answer.explanations else answer.closest
        if best is None:
            return None
        setup = question.setup
        for name in best.deviations:
            setup = question.deviations[name].on(setup)
        explained = left
        if not setup.shuffled:
            predicted = question.passes.documents(setup, *self._texts(left))
            rough = LEVELS.get(best.precision, ROUGH) if answer.explanations else ROUGH
            errors = _errors(self.stored[left], predicted)
            explained = left[errors <= 10.0 ** max(ROUGH, rough)]
        if not len(explained):
            return None
        name = _count(f"documents: {best.name}", len(explained))
        return Cause(name, "; ".join(best.apply), explained)

    def _texts(self, places: Int64Array) -> tuple[list[str], list[str]]:
        corpus = self.question.dataset.corpus
        return corpus.documents_at(corpus.rows_of([self.ids[place] for place in places]))

    def _cut_at(self, places: Int64Array, length: int, joined: bool) -> Int64Array:
        """Return the places whose vectors are those of cut texts, ``joined`` to titles or not."""
        titles, texts = self._texts(places)
        if joined:
            titles, texts = [""] * len(texts), join_titles(titles, texts)
        cut = [text[:length] for text in texts]
        predicted = self.question.passes.documents(self.question.setup, titles, cut)
        same: Int64Array = places[_errors(self.stored[places], predicted) <= AGREE]
        return same


@dataclass(frozen=True)
class QueryCauses:
    """Search for what a system does with the text of a query before it searches.

    Attributes:
        question: checkpoint and collection.
        find: search for query vectors, given ids, vectors and the number of documents.
        answers: the system's own answers.
        depth: documents that are searched for.
    """

    question: Question
    find: FindRun
    answers: Run
    depth: int

    def find_cause(self) -> SearchStage | None:
        """Return the search for our vectors with the deviation that comes closest to the answers.

        None if no deviation explains most of an answer.
        """
        dataset, ids = self.question.dataset, self.answers.query_ids
        probe, sample = (choose_queries(dataset, ids, count) for count in (PROBE, SAMPLE))
        plain = self._encode_by(self.question.setup)
        width, tried = plain(probe.texts).shape[1], dict[bytes, _Candidate]()
        for candidate in self._candidates():
            with suppress(BenchError):  # impossible, as in `explain`
                vectors = candidate.encode(probe.texts)
                if vectors.shape[1] == width:
                    tried.setdefault(vectors.tobytes(), candidate)
        tried.pop(plain(probe.texts).tobytes(), None)
        by_probe = sorted(
            tried.values(), key=lambda one: -self._agreement(probe, one.encode).mean()
        )
        base = self._agreement(sample, plain)
        agreements = [(self._agreement(sample, one.encode), one) for one in by_probe[:FULL]]
        agreement, best = max(agreements, key=lambda pair: pair[0].mean())
        is_whole = (agreement >= SAME).mean() >= SHARE
        is_part = agreement.mean() >= PART and agreement.mean() - base.mean() >= CLEAR
        if agreement.mean() <= base.mean() or not (is_whole or is_part):
            return None
        queries = dataset.queries
        run = self.find(queries.ids, best.encode(queries.texts), self.depth)
        return SearchStage(f"query vectors: {best.cause.name}", run, best.cause.apply)

    def _candidates(self) -> Iterator["_Candidate"]:
        setup = self.question.setup
        for name, each in self.question.deviations.items():
            cause = Observation(name.replace("texts cut", "queries cut"), each.apply)
            yield _Candidate(cause, self._encode_by(each.on(setup)))
        for length in QUERY_CHARACTERS:
            cause = Observation(f"queries cut after {length} characters", CORRECT_THERE)
            yield _Candidate(cause, self._encode_by(setup, length))

    def _encode_by(self, setup: EvaluationSetup, length: int | None = None) -> Encode:
        return lambda texts: self.question.passes.queries(setup, [text[:length] for text in texts])

    def _agreement(self, queries: Texts, encode: Encode) -> Float64Array:
        """Return the share of the system's first documents that a search finds, for each query."""
        found = self.find(queries.ids, encode(queries.texts), TOP)
        return _shares(read_ids(found, TOP), {id_: self._first[id_] for id_ in queries.ids})

    @cached_property
    def _first(self) -> dict[str, list[str]]:
        return read_ids(self.answers, TOP)


class _Candidate(NamedTuple):
    """A hypothesis about query vectors, and an encoder that makes such vectors."""

    cause: Observation
    encode: Encode


def read_ids(run: Run, k: int | None = None) -> Rankings:
    """Return the documents of each query that has any, or only the first ``k``."""
    return {query: ids[:k] for query, ids, _ in run.rankings()}


def overlaps(found: Run, truth: Run, k: int) -> Float64Array:
    """Return the share of the first ``k`` documents of ``truth`` that ``found`` has, ``(q,)``."""
    return _shares(read_ids(found, k), read_ids(truth, k))


def _shares(found: Rankings, truth: Rankings) -> Float64Array:
    """Return the share of the documents of each query of ``truth`` that are found."""
    pairs = [({*found.get(query, ())}, {*ids}) for query, ids in truth.items()]
    return np.array([len(some & ids) / len(ids) if ids else 1.0 for some, ids in pairs])


def find_filter(before: Run, after: Run) -> Observation | None:
    """Return the filter that turns exact rankings into what was returned, if one does.

    Documents that a single query should find would fit any filter, so only the others are evidence.
    """
    wanted, found = read_ids(before), read_ids(after)
    times = Counter(id_ for ids in wanted.values() for id_ in ids)
    seen = {id_ for ids in found.values() for id_ in ids}
    repeated = {id_ for id_, count in times.items() if count > 1}
    hidden = repeated - seen
    lost = _lost(wanted, found)
    lost_of_others = _lost(*(_only(each, repeated - hidden) for each in (wanted, found)))
    if not hidden or lost_of_others > min(1 - SHARE, lost * (1 - SHARE)):
        return None
    never = f"{format_count(len(hidden), 'document is', 'documents are')} never returned"
    if not has_fewer_rows(before, after):
        name = f"{never}: by a filter, or they are not in the index"
        return Observation(name, "leave the filter out, or build the index again")
    rows = _describe_rows(_rows(before, after))
    name = f"filter after the search: {never}, {rows} are left"
    return Observation(name, "filter before the search, or ask for more rows")


def describe_search(before: Run, after: Run, k: int) -> Observation:
    """Return what a search does to exact rankings ``before`` to depth ``k``."""
    if found := find_filter(before, after):
        return found
    rows, more = _rows(before, after), "search more lists or candidates there"
    depths = dict.fromkeys([min(TOP, k), k])
    shares = {each: overlaps(after, before, each) for each in depths}
    recalls = ", ".join(f"recall@{each} {share.mean():.3f}" for each, share in shares.items())
    if has_fewer_rows(before, after):
        usual = int(np.median(rows[0]))
        if (rows[0] == usual).mean() >= SHARE:  # equal vectors may add a row
            name = f"the search stops early: it returns {usual:,} of {rows[1].max():,} rows"
            return Observation(name, "raise ef_search, num_candidates or the limit there")
        return Observation(f"approximate search: {_describe_rows(rows)}, {recalls}", more)
    if shares[k].min(initial=1.0) == 1.0:
        return Observation("search: the answers are those of exact search", "")
    return Observation(f"approximate search: {recalls}", more)


def has_fewer_rows(before: Run, after: Run) -> bool:
    """Return True if fewer rows were returned for a query than there should be."""
    returned, wanted = _rows(before, after)
    return bool((returned < wanted).any())


def _rows(before: Run, after: Run) -> Int64Array:
    """Return the number of rows that were returned and that should be, int64 ``(2, q)``."""
    found, wanted = read_ids(after), read_ids(before).items()
    return np.array([[len(found.get(query, ())), len(ids)] for query, ids in wanted]).T


def _describe_rows(rows: Int64Array) -> str:
    few, many = rows[0].min(), rows[0].max()
    count = f"{few:,}" if few == many else f"{few:,} to {many:,}"
    return f"{count} of {rows[1].max():,} rows"


def _only(rankings: Rankings, kept: set[str]) -> Rankings:
    return {query: [id_ for id_ in ids if id_ in kept] for query, ids in rankings.items()}


def _lost(wanted: Rankings, found: Rankings) -> float:
    """Return the mean share of the wanted documents that are not found at their depth."""
    near = {query: found.get(query, [])[: len(ids)] for query, ids in wanted.items()}
    return 1 - float(_shares(near, wanted).mean())
