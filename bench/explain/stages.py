"""The stages between exact search of a checkpoint's vectors and the answer of a search system.

Exact search of our vectors, E0, of our vectors of the stored documents, E1, of the stored vectors,
E2, the system's search for our query vectors, E3, and its own answer to the texts, E4. E2 has a
step for each cause, for documents that the collection lacks, and for the system's own metric.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.comparing.statistics import Resampling, paired_difference, resample_differences
from bench.evaluation.encoding import encode_documents, encode_queries
from bench.evaluation.judging import resolve_measures, search_depth
from bench.evaluation.runs import Run
from bench.evaluation.scoring import parse_measure
from bench.evaluation.vector_retriever import VectorRetriever
from bench.evaluation.vector_search import transform_queries
from bench.explain.causes import (
    SAME,
    TOKENS,
    TOP,
    QueryCauses,
    describe_search,
    find_filter,
    group_vectors,
    has_fewer_rows,
    overlaps,
)
from bench.explain.evidence import SHARE
from bench.explain.ledger import Ledger, SearchStage, compare_stages
from bench.explain.question import Question
from bench.explain.scored import search_exactly
from bench.explain.system import METHODS, StoredSystem
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError, format_count, format_names
from retrievers.encoders.views import ViewedVectors

Metric = Literal["cosine", "inner product", "L2 distance"]
METRICS: tuple[Metric, ...] = ("cosine", "inner product", "L2 distance")
RESAMPLING = Resampling()
UNIT, SCALED = 1e-3, 1e-5  # deviations from length 1 of vectors that count as normalised


def examine(
    system: StoredSystem,
    retriever: VectorRetriever,
    dataset: Dataset,
    question: Question | None = None,
    measures: Sequence[str] | None = None,
) -> Ledger:
    """Return the ledger of a search system on a collection.

    Args:
        system: the system.
        retriever: the checkpoint whose vectors it is meant to search.
        dataset: collection.
        question: applies deviations to the checkpoint; None if that is impossible.
        measures: names; None for the collection's main one and the deepest.

    Raises:
        BenchError: the system fails, or stores no document of the collection.
    """
    names = resolve_measures(dataset, measures, None)
    depths = {name: parse_measure(name).documents or dataset.metadata.depth for name in names}
    if measures is None:
        names = tuple(dict.fromkeys([names[0], max(depths, key=depths.__getitem__)]))
    depth = max(depths[name] for name in names)
    if question is not None:
        question = replace(question, lengths=TOKENS)
    examination = Examination(system, retriever, dataset, depth, question)
    stages = examination.stages()
    return compare_stages(
        dataset,
        stages,
        names,
        depth,
        RESAMPLING,
        system=system.name,
        version=system.stated("version"),
        checkpoint=retriever.name,
        notes=examination.notes(),
    )


def scale(vectors: Float32Array) -> Float32Array:
    """Return vectors scaled to length 1. Those that have it stay as they are, to the last bit."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    lengths = np.where((lengths == 0) | (abs(lengths - 1) < SCALED), 1, lengths)
    scaled: Float32Array = (vectors / lengths).astype(np.float32, copy=False)
    return scaled


@dataclass(frozen=True)
class SystemVectors:
    """Vectors of documents in any store.

    Attributes:
        ids: n distinct ids.
        vectors: float32 ``(n, dim)``.
    """

    ids: Sequence[str]
    vectors: Float32Array

    @cached_property
    def _columns(self) -> tuple[pa.Array, Int64Array]:
        """Ids as a column, and the rank of each in byte order."""
        ids = pa.array(self.ids, pa.large_string())
        return ids, np.argsort(pc.sort_indices(ids).to_numpy())

    def search(
        self, metric: Metric, query_ids: Sequence[str], queries: Float32Array, k: int
    ) -> Run:
        """Return the exact ranking of these vectors by a metric."""
        vectors, (ids, tie_rank) = self.vectors, self._columns
        if metric == "cosine":
            vectors = scale(vectors)
        is_distance = metric == "L2 distance"
        hits = search_exactly(vectors, queries, min(k, len(ids)), tie_rank, is_distance)
        return Run.from_hits(hits, query_ids, ids, tie_rank)


@dataclass(frozen=True)
class Examination:
    """A system next to the checkpoint whose vectors it is meant to search.

    Attributes:
        depth: documents that the system is asked for.
        question: see `examine`.
    """

    system: StoredSystem
    retriever: VectorRetriever
    dataset: Dataset
    depth: int
    question: Question | None

    def stages(self) -> list[SearchStage]:
        """Return the stages in order. What cannot be told apart is one change."""
        hits, _ = self.retriever.find(self.dataset, self.depth)
        corpus, ids = self.dataset.corpus, self.dataset.queries.ids
        stages = [
            SearchStage("exact search", Run.from_hits(hits, ids, corpus.ids, corpus.tie_rank))
        ]
        together: list[str] = []
        for step in self._steps():
            if isinstance(step, str):
                together.append(step)
                continue
            name = ", ".join([*together, step.name])
            absent = [f"{each}()" for each in METHODS if not self.system.offers(each)]
            split = f"{' and '.join(absent)} of the system would split this" if absent else ""
            stages.append(replace(step, name=name, apply=split if together else step.apply))
            together = []
        return stages

    def notes(self) -> list[str]:
        """Return notes about the system."""
        notes = []
        if self._other_dimension:
            ours = self._queries[1].shape[1]
            sizes = f"{self._other_dimension:,} dimensions, the checkpoint's {ours:,}"
            notes.append(f"stored vectors have {sizes}")
        if self._ids is not None and (twice := len(self.system.listed_ids) - len(self._ids)):
            notes.append(f"{format_count(twice, 'id is', 'ids are')} stored more than once")
        if self._stored is not None and not self._is_unit and self._metric == "cosine":
            lengths = np.linalg.norm(self._stored.vectors, axis=1)
            low, high = lengths.min(), lengths.max()
            notes.append(f"stored vectors are not normalised: lengths {low:.3f} to {high:.3f}")
        corpus = set(self.dataset.corpus.ids.to_pylist())
        unknown = [id_ for id_ in self._answers.ids.to_pylist() if id_ not in corpus]
        if unknown:
            found = format_count(len(unknown), "document", "documents")
            notes.append(f"answers have {found} that the collection lacks: {format_names(unknown)}")
        rows, every = np.diff(self._answers.offsets), len(self._ids or self.dataset.corpus)
        asked = min(self._asked, every)
        if len(rows) < len(self.dataset.queries) or rows.min() < asked:
            few = rows.min() if len(rows) == len(self.dataset.queries) else 0
            short = int((rows < asked).sum()) + len(self.dataset.queries) - len(rows)
            notes.append(
                f"asked for {asked:,} rows, the system returns as few as {few:,}; fewer for "
                f"{format_count(short, 'query', 'queries')}"
            )
        return notes

    def _steps(self) -> Iterator[SearchStage | str]:
        """Yield stages after the first, and what the next one changes besides."""
        yield from self._document_steps() if self._ids is not None else ["missing documents"]
        reference = None
        if self._stored is None:
            yield "stored vectors"
        else:
            for step in self._vector_steps(self._stored):
                reference = step.run
                yield step
        if self._found is None:
            yield "search"
        else:
            name, apply = "search", ""
            if reference is not None:
                cause = describe_search(reference, self._found, self._asked)
                name, apply = cause.name, cause.apply
            yield SearchStage(name, self._found, apply)
            reference = self._found
        yield from self._answer_steps(reference)

    def _document_steps(self) -> Iterator[SearchStage]:
        """Yield exact search of our vectors of the stored documents."""
        known, missing = self._known, self._missing
        if not known:
            theirs, ours = self._ids or ["none"], self.dataset.corpus.ids
            problem = f"{self.system.name} stores no document of {self.dataset.name}"
            found = f"its ids are such as {theirs[0]!r}, the collection's {ours[0].as_py()!r}"
            raise BenchError(f"{problem}: {found}", "Return the collection's ids from ids().")
        run = SystemVectors(known, self._ours).search(self._metric, *self._queries, self._asked)
        count = format_count(len(missing), "document is missing", "documents are missing")
        such = f": {format_names(missing)}" if missing else ""
        yield SearchStage(f"{count}{such}", run, "add them there" if missing else "")

    def _vector_steps(self, stored: SystemVectors) -> Iterator[SearchStage]:
        """Yield exact search after each group of stored vectors took the place of ours."""
        place_of = {id_: place for place, id_ in enumerate(stored.ids)}
        known = self._known
        theirs = stored.vectors[[place_of[id_] for id_ in known]]
        mixed = self._ours.copy()
        compared = scale(theirs) if self._metric == "cosine" else theirs
        for cause in group_vectors(self.question, known, compared, mixed):
            mixed[cause.places] = theirs[cause.places]
            part = SystemVectors(known, mixed)
            run = part.search(self._metric, *self._queries, self._asked)
            yield SearchStage(cause.name, run, cause.apply)
        of_collection = set(known)
        extra = [id_ for id_ in stored.ids if id_ not in of_collection]
        run = stored.search(self._metric, *self._queries, self._asked)
        if extra:
            count = format_count(len(extra), "document", "documents")
            name = f"{count} that the collection lacks: {format_names(extra)}"
            yield SearchStage(name, run, "remove them there")
        yield from self._metric_step(stored, run)

    def _metric_step(self, stored: SystemVectors, own: Run) -> Iterator[SearchStage]:
        """Yield exact search by another metric if the system's answers are closer to it."""
        found = self._answers if self._found is None else self._found
        base, runs = overlaps(found, own, TOP), dict[Metric, Run]()
        for metric in METRICS:
            runs[metric] = stored.search(metric, *self._queries, self._asked)
        gains = {metric: overlaps(found, run, TOP) - base for metric, run in runs.items()}
        best = max(METRICS, key=lambda metric: gains[metric].mean())
        part = resample_differences(gains[best], RESAMPLING, self.dataset.name, "overlap")
        if paired_difference([part]).verdict == "a":
            lengths = "" if self._is_unit else " of vectors that are not normalised"
            name = f"search by {best}{lengths}, not by {self._metric}"
            yield SearchStage(name, runs[best], f"search by {self._metric} there, or normalise")

    def _answer_steps(self, reference: Run | None) -> Iterator[SearchStage]:
        """Yield search for query vectors of the system's kind, and its own answers to texts."""
        if reference is None:
            yield SearchStage("query vectors", self._answers)
            return
        if found := self._query_stage(reference):
            if self._agrees(found.run):
                yield replace(found, run=self._answers)
                return
            yield found
            reference = found.run
        filtered = find_filter(reference, self._answers)
        if not filtered and not self._agrees(reference):
            name = "query vectors of another kind, or a step after the search"
            yield SearchStage(name, self._answers, "compare what search() and search_vectors() do")
        elif filtered or has_fewer_rows(reference, self._answers):
            cause = describe_search(reference, self._answers, self._asked)
            yield SearchStage(cause.name, self._answers, cause.apply)
        else:
            yield SearchStage("query vectors as the checkpoint's", self._answers)

    def _query_stage(self, reference: Run) -> SearchStage | None:
        """Return the search for query vectors that come closer to the system's, if any do."""
        is_known = self._agrees(reference) or find_filter(reference, self._answers)
        if is_known or self.question is None:
            return None
        return QueryCauses(self.question, self._find, self._answers, self._asked).find_cause()

    def _agrees(self, run: Run) -> bool:
        """Return True if a run has nearly the first documents of nearly all of the answers."""
        return bool((overlaps(run, self._answers, TOP) >= SAME).mean() >= SHARE)

    def _find(self, query_ids: Sequence[str], queries: Float32Array, k: int) -> Run:
        """Return the system's search for query vectors, or exact search of what it stores."""
        if self.system.offers("search_vectors"):
            return self.system.rank(query_ids, queries, k)
        assert self._stored is not None
        return self._stored.search(self._metric, query_ids, queries, k)

    @cached_property
    def _asked(self) -> int:
        return search_depth(self.dataset, self.depth)

    @property
    def _metric(self) -> Metric:
        return "cosine" if self.retriever.recipe.similarity == "cos" else "inner product"

    @cached_property
    def _queries(self) -> tuple[tuple[str, ...], Float32Array]:
        """Ids and vectors of the queries, as they are searched."""
        dataset, retriever = self.dataset, self.retriever
        vectors = encode_queries(dataset, retriever.encoder, retriever.store)
        searched = transform_queries(vectors, retriever.view, in_faiss=False)
        return tuple(dataset.queries.ids), searched

    @cached_property
    def _ids(self) -> list[str] | None:
        """Distinct ids of the stored documents, if the system lists them."""
        return list(dict.fromkeys(self.system.listed_ids)) if self.system.offers("ids") else None

    @cached_property
    def _known(self) -> list[str]:
        """Stored documents of the collection, in its order."""
        stored = set(self._ids or ())
        return [id_ for id_ in self.dataset.corpus.ids.to_pylist() if id_ in stored]

    @cached_property
    def _missing(self) -> list[str]:
        known = set(self._known)
        return [id_ for id_ in self.dataset.corpus.ids.to_pylist() if id_ not in known]

    @cached_property
    def _ours(self) -> Float32Array:
        """Our vectors of the documents in ``_known``, as they are searched."""
        stored = encode_documents(self.dataset, self.retriever.encoder, self.retriever.store)
        view = self.retriever.view
        vectors = ViewedVectors(stored, view) if view else stored
        return vectors.rows(self.dataset.corpus.rows_of(self._known))

    @cached_property
    def _shown(self) -> SystemVectors | None:
        """What the system stores, if it shows that."""
        if self._ids is None or not self.system.offers("vectors"):
            return None
        return SystemVectors(self._ids, self.system.vectors(self._ids))

    @property
    def _stored(self) -> SystemVectors | None:
        """What the system stores, if our query vectors can search it."""
        return None if self._other_dimension else self._shown

    @cached_property
    def _other_dimension(self) -> int:
        """Dimension of the stored vectors if it is not the checkpoint's, else 0."""
        width = self._shown.vectors.shape[1] if self._shown else 0
        return 0 if width == self._queries[1].shape[1] else width

    @cached_property
    def _is_unit(self) -> bool:
        assert self._stored is not None
        lengths = np.linalg.norm(self._stored.vectors, axis=1)
        return bool((np.abs(lengths - 1) < UNIT).all())

    @cached_property
    def _found(self) -> Run | None:
        """The system's search for our query vectors."""
        if self._other_dimension or not self.system.offers("search_vectors"):
            return None
        ids, vectors = self._queries
        return self.system.rank(ids, vectors, self._asked, "searching with query vectors")

    @cached_property
    def _answers(self) -> Run:
        """The system's own answers."""
        queries = self.dataset.queries
        title = f"asking {self.system.name}"
        return self.system.rank(queries.ids, list(queries.texts), self._asked, title)
