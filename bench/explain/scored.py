"""Scores of somebody else, by query or as published means, and their fit to a configuration."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from bench.evaluation.exact import ArrayVectors, exact_search
from bench.evaluation.runs import Run
from bench.evaluation.scoring import Scores, score
from bench.evaluation.vector_search import transform_queries
from bench.explain.evidence import Fit, SetupEvidence, value_fit
from bench.explain.passes import ForwardPasses, round_to
from bench.explain.setup import EUCLIDEAN, EvaluationSetup, document_key, forward_key
from datasets_cfg.dataset import Dataset
from datasets_cfg.readers.reader import Qrels
from foundation.arrays import Float32Array, Float64Array, Int64Array
from foundation.errors import BenchError
from retrievers.encoders.views import ViewedVectors
from retrievers.index.hits import Hits, exclude_documents

CHUNK = 2_048  # documents that are encoded at a time
MOST_DOCUMENTS = 200_000
POOL_DEPTH = 20  # documents of each query that a changed document may overtake
SAMPLE_QUERIES = 32
MATRICES = 3  # vectors of the whole collection that are remembered


@dataclass(frozen=True)
class CollectionScores:
    """Scores of a collection under any configuration.

    Attributes:
        dataset: the collection with its usual split.
        base: the model's own configuration.
        open_split: opens another split; raises a `BenchError` if there is none.
    """

    passes: ForwardPasses
    dataset: Dataset
    base: EvaluationSetup
    open_split: Callable[[str], Dataset]
    _matrices: OrderedDict[tuple[object, ...], Float32Array] = field(default_factory=OrderedDict)

    def check(self) -> None:
        """Refuse a collection that is too large to encode again and again, or judged by answers."""
        count = len(self.dataset.corpus)
        if count > MOST_DOCUMENTS or self.dataset.answers is not None:
            raise BenchError(
                f"{self.dataset.name} has {count:,} documents: scores are explained with qrels "
                f"and up to {MOST_DOCUMENTS:,}",
                "Use --run-file or --vectors, which need a sample only.",
            )

    def scores(
        self,
        setup: EvaluationSetup,
        measures: Sequence[str],
        queries: Sequence[str] | None = None,
        rows: Int64Array | None = None,
    ) -> Scores:
        """Return scores of each query, whose mean is the score of the collection.

        Args:
            setup: how vectors, ranking and means are made.
            measures: names.
            queries: ids of some queries; None for all.
            rows: int64, of the documents that are ranked; None for all.
        """
        dataset = self.open_split(setup.split) if setup.split else self.dataset
        wanted = set(dataset.queries.ids if queries is None else queries)
        known = {id_: text for id_, text in dataset.queries.by_id.items() if id_ in wanted}
        ids, texts = list(known), list(known.values())
        corpus = self.dataset.corpus
        excluded = self.dataset.excluded_rows(ids, not setup.keep_self)
        encoded = self.passes.queries(setup, texts)
        hits = self._search(setup, encoded, setup.depth + excluded.shape[1], rows)
        if excluded.size:
            hits = exclude_documents(hits, excluded, setup.depth)
        run = Run.from_hits(hits, ids, corpus.ids, corpus.tie_rank)
        scores = score(run, _judgements(dataset.qrels, setup, wanted), [*measures, "AP"])
        if not setup.answered_only:
            return scores
        # A query without a relevant document in the run scores 0: only the mean's divisor changes.
        answered = float((scores.values["AP"] > 0).mean()) or 1.0
        values = {name: value / answered for name, value in scores.values.items()}
        return replace(scores, values=values)

    @cached_property
    def pool(self) -> tuple[list[str], Int64Array]:
        """Some queries, and rows of their relevant documents and of the first that are found."""
        judged = self.dataset.qrels.queries()
        chosen = np.random.default_rng(0).permutation(len(judged))[:SAMPLE_QUERIES]
        texts = self.dataset.queries.by_id
        queries = {judged[place]: texts[judged[place]] for place in chosen}
        encoded = self.passes.queries(self.base, list(queries.values()))
        hits = self._search(self.base, encoded, POOL_DEPTH, None)
        judgements = [(id_, grade) for query, id_, grade in self.dataset.qrels if query in queries]
        relevant = self.dataset.corpus.rows_of([id_ for id_, grade in judgements if grade > 0])
        rows = np.unique(np.concatenate([hits.rows.ravel(), relevant]))
        return list(queries), rows[rows >= 0]

    def is_free(self, setup: EvaluationSetup) -> bool:
        """Return True if ``setup`` needs no document to be encoded."""
        return forward_key(setup) == forward_key(self.base)

    def _search(
        self, setup: EvaluationSetup, queries: Float32Array, depth: int, rows: Int64Array | None
    ) -> Hits:
        """Return hits with rows of the corpus."""
        corpus, vectors = self.dataset.corpus, self._documents(setup, rows)
        order = -np.arange(len(corpus)) if setup.input_order else corpus.tie_rank
        ranks = np.argsort(np.argsort(order if rows is None else order[rows]))
        hits = search_exactly(vectors, queries, depth, ranks, setup.euclidean)
        if rows is None:
            return hits
        return Hits(hits.scores, np.where(hits.rows >= 0, rows[hits.rows], -1))

    def _documents(self, setup: EvaluationSetup, rows: Int64Array | None) -> Float32Array:
        key = document_key(setup)
        if key in self._matrices:
            self._matrices.move_to_end(key)
            return self._matrices[key] if rows is None else self._matrices[key][rows]
        wanted = np.arange(len(self.dataset.corpus)) if rows is None else rows
        # int8 takes its steps from all documents, so nothing is rounded chunk by chunk.
        plain = replace(setup, precision="float32") if setup.precision == "int8" else setup
        parts = [
            self.passes.documents(plain, *self.dataset.corpus.documents_at(part))
            for part in np.array_split(wanted, -(-len(wanted) // CHUNK))
        ]
        matrix = np.concatenate(parts)
        if setup.precision == "int8":
            matrix = round_to(matrix, "int8")
        if rows is None:
            self._matrices[key] = matrix
            if len(self._matrices) > MATRICES:
                self._matrices.popitem(last=False)
        return matrix


def search_exactly(
    vectors: Float32Array, queries: Float32Array, k: int, ranks: Int64Array, euclidean: bool
) -> Hits:
    """Return the best ``k`` vectors for each query, by inner product or Euclidean distance.

    ``vectors`` are float32 ``(n, dim)``, and ``ranks`` int64 ``(n,)`` order those of equal score.
    """
    stored = ArrayVectors(np.ascontiguousarray(vectors))
    view = EUCLIDEAN if euclidean else None
    documents = ViewedVectors(stored, view) if view else stored
    return exact_search(documents, transform_queries(queries, view, in_faiss=False), k, ranks)


def _judgements(qrels: Qrels, setup: EvaluationSetup, queries: set[str]) -> Qrels:
    """Return the judgements of some queries, with the configuration's gain and grades."""
    keep = [row for row, query in enumerate(qrels.query_ids) if query in queries]
    grades = np.maximum(qrels.grades[keep], 0)
    grades = np.where(grades >= setup.least_grade, grades, 0)
    if setup.exponential:
        grades = (2**grades - 1).astype(np.int32)
    return Qrels(
        tuple(qrels.query_ids[row] for row in keep),
        tuple(qrels.doc_ids[row] for row in keep),
        grades.astype(np.int32),
    )


@dataclass(frozen=True)
class QueryEvidence(SetupEvidence):
    """Scores of one measure by query, as ``given`` with a number of decimal digits."""

    collection: CollectionScores
    measure: str
    given: Mapping[str, float]
    digits: int
    name: str = "per-query scores"
    needs_collection: bool = True

    def fit(self, setup: EvaluationSetup, probe: bool) -> Fit:
        queries, rows = self.collection.pool if probe else (None, None)
        if not self._shared.intersection(queries or self._shared):
            queries, rows = None, None  # few were given, and none of them is in the pool
        if self.collection.is_free(setup):
            rows = None
        known = list(self.given) if queries is None else queries
        if setup.split:
            return value_fit(*np.array([[0.0], [1.0], [1e-9]]))
        setup = replace(setup, answered_only=False)  # it changes means only
        scores = self.collection.scores(setup, [self.measure], queries, rows)
        by_query = scores.by_query(self.measure)
        pairs = [(self.given[id_], by_query.get(id_, 0.0)) for id_ in known if id_ in self._shared]
        given, predicted = np.array(pairs).T
        tolerance = max(0.51 * 10.0**-self.digits, 1e-6)
        return value_fit(given, predicted, np.full(len(pairs), tolerance))

    @cached_property
    def _shared(self) -> set[str]:
        return set(self.given) & set(self.collection.dataset.qrels.queries())


@dataclass(frozen=True)
class PublishedNumber:
    """A published mean, rounded to a number of decimal digits."""

    dataset: str
    measure: str
    value: float
    digits: int


@dataclass(frozen=True)
class PublishedEvidence(SetupEvidence):
    """Published means of one model on one or several collections."""

    collections: Mapping[str, CollectionScores]
    numbers: Sequence[PublishedNumber]
    name: str = "published scores"
    needs_collection: bool = True

    def fit(self, setup: EvaluationSetup, probe: bool) -> Fit:
        # One unit of the last digit: half of it is rounding, half another machine's.
        predicted = self._predict(setup, probe)
        rows = [(one.value, mean, 10.0**-one.digits + doubt) for one, mean, doubt in predicted]
        return value_fit(*np.array(rows).T)

    def detail(self, setup: EvaluationSetup) -> str:
        predicted = self._predict(setup, False)
        return "gives " + ", ".join(f"{number.measure} {mean:.4f}" for number, mean, _ in predicted)

    def _predict(
        self, setup: EvaluationSetup, probe: bool
    ) -> Iterator[tuple[PublishedNumber, float, float]]:
        """Yield each number with its mean under ``setup``, and the error of an estimate."""
        first = next(iter(self.collections.values())).base
        for name, collection in self.collections.items():
            local = transfer_setup(setup, collection.base, first)
            numbers = [number for number in self.numbers if number.dataset == name]
            measures = list(dict.fromkeys(number.measure for number in numbers))
            means, doubt = self._means(collection, local, measures, probe)
            for number in numbers:
                yield number, means[number.measure], doubt[number.measure]

    def _means(
        self, collection: CollectionScores, setup: EvaluationSetup, measures: list[str], probe: bool
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Return the mean of each measure, and twice its standard error if it is estimated."""
        if not probe or collection.is_free(setup):
            scores = collection.scores(setup, measures)
            return {each: scores.mean(each) for each in measures}, dict.fromkeys(measures, 0.0)
        queries, rows = collection.pool
        base = collection.scores(collection.base, measures)
        before = collection.scores(collection.base, measures, queries, rows)
        after = collection.scores(setup, measures, queries, rows)
        changes = {each: after.values[each] - before.values[each] for each in measures}
        means = {each: base.mean(each) + float(changes[each].mean()) for each in measures}
        doubt = {each: 2 * _standard_error(changes[each]) for each in measures}
        return means, doubt


def _standard_error(values: Float64Array) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 1.0


def transfer_setup(
    setup: EvaluationSetup, base: EvaluationSetup, first: EvaluationSetup
) -> EvaluationSetup:
    """Return a hypothesis about the first collection as it reads on another one.

    ``base`` is the model's own configuration on the other one, and ``first`` on the first one.
    """
    changed = {name: value for name, value in vars(setup).items() if value != getattr(first, name)}
    if changed.get("depth", 0) >= base.depth:
        del changed["depth"]
    return replace(base, **changed)
