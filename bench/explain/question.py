"""A question: a model, collections and evidence. Its answer is found by `DeviationSearch`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from bench.evaluate.retrieval import LoadedModel
from bench.evaluate.runs import Run, read_run_file
from bench.explain.answer import Answer, ExplanationRow, Observation, settled_by_files
from bench.explain.evidence import (
    RunEvidence,
    SetupEvidence,
    VectorEvidence,
    describe_ids,
    encode_sample,
    sample_documents,
    sample_queries,
)
from bench.explain.given import (
    Canary,
    canary_texts,
    parse_published,
    read_canary,
    read_query_scores,
    read_vectors,
)
from bench.explain.passes import ForwardPasses
from bench.explain.scored import CollectionScores, PublishedEvidence, QueryEvidence
from bench.explain.search import DeviationSearch, Explanation, Findings
from bench.explain.setup import EvaluationSetup, deviations, setup_of
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from retrievers.encoders.protocol import Encoder

COST_QUERIES = 24
COST_RELEVANT = 2  # documents of each of them
CANARY_DOCUMENTS, CANARY_QUERIES = 48, 16
SHOWN = 5  # explanations whose cost is measured


class IdsDifferError(Exception):
    """The ids of a file are not those of the collection; ``seen`` says how."""

    def __init__(self, evidence: str, seen: Observation) -> None:
        super().__init__(seen.name)
        self.evidence, self.seen = evidence, seen


@dataclass(frozen=True)
class Question:
    """A model on collections, whose results differ from what somebody else got.

    Attributes:
        model: the model as it is used here.
        datasets: collections, the first of which is sampled.
        open_split: opens another split of a collection.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        other: another checkpoint, whose weights may have been used.
        announce: called with lines of progress.
    """

    model: LoadedModel
    datasets: Sequence[Dataset]
    open_split: Callable[[str, str], Dataset]
    device: str = "auto"
    other: LoadedModel | None = None
    announce: Callable[[str], None] = lambda line: None

    @property
    def dataset(self) -> Dataset:
        """The collection that is sampled."""
        return self.datasets[0]

    @cached_property
    def passes(self) -> ForwardPasses:
        """Forward passes that all evidence shares."""
        other = self.other.model if self.other else None
        return ForwardPasses(self.model.for_dataset(self.dataset.name).model, self.device, other)

    @cached_property
    def setup(self) -> EvaluationSetup:
        """The model's own set-up on the first collection."""
        return setup_of(self.passes.model, self.dataset.facts)

    @cached_property
    def collections(self) -> dict[str, CollectionScores]:
        """Scores of each collection under any set-up."""
        return {
            dataset.name: CollectionScores(
                self.passes,
                dataset,
                setup_of(self.model.for_dataset(dataset.name).model, dataset.facts),
                lambda split, name=dataset.name: self.open_split(name, split),  # type: ignore[misc]
            )
            for dataset in self.datasets
        }

    def of_vectors(self, path: Path) -> VectorEvidence:
        """Return the evidence of a file of vectors.

        Args:
            path: see `bench.explain.given.read_vectors`.

        Raises:
            IdsDifferError: fewer than four ids are of the collection.
        """
        given, ids = read_vectors(path, self.dataset)
        if not given:
            raise IdsDifferError("vectors", self._ids_observation(ids))
        return VectorEvidence(self.passes, given)

    def of_encoder(self, encoder: Encoder, name: str) -> VectorEvidence:
        """Return the evidence of an encoder that is at hand: another checkpoint, or a server.

        Args:
            encoder: with the prompts of the collection.
            name: of it, for people.
        """
        documents = sample_documents(self.dataset.corpus, self._all_ids())
        queries = sample_queries(self.dataset, self.dataset.queries.ids)
        given = encode_sample(encoder, documents, queries)
        return VectorEvidence(self.passes, given, f"vectors of {name}")

    def of_canary(self, path: Path) -> VectorEvidence:
        """Return the evidence of vectors that `canary` saved.

        Args:
            path: of the file.
        """
        return VectorEvidence(self.passes, read_canary(path), "canary")

    def of_run(self, path: Path) -> tuple[RunEvidence, list[Observation]]:
        """Return the evidence of a run file, and the differences that it shows itself.

        Args:
            path: TREC run file.

        Raises:
            IdsDifferError: its documents or queries are not those of the collection.
        """
        run = read_run_file(path).run
        seen = []
        dataset = self.dataset
        if not set(run.query_ids) & set(dataset.queries.ids):
            dataset, split = self._split_of(run)
            seen.append(Observation(f"split {split}", f"--split {split} in `run`"))
        self._check_ids(run, dataset)
        seen += _seen_in(run, dataset, self.setup)
        return RunEvidence(self.passes, dataset, run), seen

    def of_query_scores(self, path: Path) -> QueryEvidence:
        """Return the evidence of scores by query.

        Args:
            path: see `bench.explain.given.read_query_scores`.

        Raises:
            IdsDifferError: its queries are not those of the collection.
        """
        main = self.dataset.facts.main_measure
        measure, given, digits = read_query_scores(path, main)
        collection = self.collections[self.dataset.name]
        collection.check()
        if not set(given) & set(self.dataset.qrels.queries()):
            seen = Observation(
                f"none of its queries, such as {next(iter(given))!r}, has judgements here",
                "are they of another split or collection?",
            )
            raise IdsDifferError("per-query scores", seen)
        return QueryEvidence(collection, measure, given, digits)

    def of_published(self, typed: Sequence[str]) -> PublishedEvidence:
        """Return the evidence of published scores.

        Args:
            typed: each as ``[DATASET:][MEASURE=]VALUE``.
        """
        numbers = [parse_published(each, self.datasets) for each in typed]
        names = dict.fromkeys(number.dataset for number in numbers)
        collections = {name: self.collections[name] for name in names}
        for collection in collections.values():
            collection.check()
        return PublishedEvidence(collections, numbers)

    def canary(self) -> Canary:
        """Return texts of the collection with the model's vectors."""
        encoder = self.model.for_dataset(self.dataset.name).require_encoder()
        documents = sample_documents(self.dataset.corpus, self._all_ids(), CANARY_DOCUMENTS)
        queries = sample_queries(self.dataset, self.dataset.queries.ids, CANARY_QUERIES)
        given = encode_sample(encoder, documents, queries)
        return Canary(
            model=self.model.name,
            fingerprint=encoder.recipe.fingerprint,
            documents=canary_texts(documents, given["document"].vectors),
            queries=canary_texts(queries, given["query"].vectors),
        )

    def answer(self, evidence: Sequence[SetupEvidence], seen: Sequence[Observation] = ()) -> Answer:
        """Return the answer that all evidence together supports.

        Args:
            evidence: of one or several kinds.
            seen: differences that the files show themselves.
        """
        known = deviations(self.passes.model, self.setup, self.passes.abilities, self.dataset.facts)
        findings = DeviationSearch(self.setup, known, evidence, self.announce).run()
        verdict = findings.verdict
        if seen and verdict in ("none", "reproduced"):
            verdict = "explained" if verdict == "reproduced" else verdict
        closest = findings.closest
        return Answer(
            model=self.model.name,
            collections=tuple(dataset.name for dataset in self.datasets),
            evidence=tuple(each.name for each in evidence),
            verdict=verdict,
            share=findings.base.share,
            precision=findings.base.precision,
            explanations=tuple(self._rows(findings, evidence)),
            closest=self._row(closest, evidence, None) if closest else None,
            seen=tuple(seen),
            chance=findings.chance,
            singles=findings.singles,
            pairs=findings.pairs,
            encoded=self.passes.encoded,
            measure=self.dataset.facts.main_measure,
        )

    def answer_by_ids(self, difference: IdsDifferError) -> Answer:
        """Return the answer when ids already explain everything.

        Args:
            difference: of ids.
        """
        names = tuple(dataset.name for dataset in self.datasets)
        seen = (difference.seen,)
        return settled_by_files(self.model.name, names, difference.evidence, seen)

    def _rows(self, findings: Findings, evidence: Sequence[SetupEvidence]) -> list[ExplanationRow]:
        rows = []
        for place, found in enumerate(findings.explanations):
            cost = self._cost(found.setup, evidence) if place < SHOWN else None
            rows.append(self._row(found, evidence, cost))
        return rows

    def _row(
        self, found: Explanation, evidence: Sequence[SetupEvidence], cost: float | None
    ) -> ExplanationRow:
        details = filter(None, (each.detail(found.setup) for each in evidence))
        return ExplanationRow(
            deviations=tuple(each.name for each in found.deviations),
            share=found.fit.share,
            precision=found.fit.precision,
            apply=tuple(each.apply for each in found.deviations),
            cost=cost,
            equals=found.equals,
            detail="; ".join(details),
        )

    def _cost(self, setup: EvaluationSetup, evidence: Sequence[SetupEvidence]) -> float | None:
        """Return the change of the main measure: on all queries if scores are the evidence."""
        if setup.shuffled or not len(self.dataset.qrels):
            return None
        collection = self.collections[self.dataset.name]
        whole = any(isinstance(each, QueryEvidence | PublishedEvidence) for each in evidence)
        queries, rows = (None, None) if whole else self._small_collection
        setup = replace(setup, split="")
        main = [self.dataset.facts.main_measure]
        base = collection.scores(self.setup, main, queries, rows).mean(main[0])
        return collection.scores(setup, main, queries, rows).mean(main[0]) - base

    @cached_property
    def _small_collection(self) -> tuple[list[str], np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Some queries, and rows of their relevant documents among a sample of others."""
        relevant: dict[str, list[str]] = {}
        for query, document, grade in self.dataset.qrels:
            if grade > 0:
                relevant.setdefault(query, []).append(document)
        queries = sample_queries(self.dataset, list(relevant), COST_QUERIES).ids
        wanted = [id_ for query in queries for id_ in relevant[query][:COST_RELEVANT]]
        others = sample_documents(self.dataset.corpus, self._all_ids())
        rows = np.unique(self.dataset.corpus.rows_of([*wanted, *others.ids]))
        return list(queries), rows[rows >= 0]

    def _all_ids(self) -> list[str]:
        ids: list[str] = self.dataset.corpus.ids.to_pylist()
        return ids

    def _split_of(self, run: Run) -> tuple[Dataset, str]:
        for split in ("test", "dev", "train"):
            try:
                dataset = self.open_split(self.dataset.name, split)
            except BenchError:
                continue
            if set(run.query_ids) & set(dataset.queries.ids):
                return dataset, split
        seen = Observation(
            f"none of its queries, such as {run.query_ids[0]!r}, is in a split of the collection",
            "are they of another collection?",
        )
        raise IdsDifferError("run", seen)

    def _check_ids(self, run: Run, dataset: Dataset) -> None:
        ids: list[str] = run.ids.to_pylist()
        known = int((dataset.corpus.rows_of(ids) >= 0).sum())
        if known < 0.5 * len(ids):
            raise IdsDifferError("run", self._ids_observation(ids))

    def _ids_observation(self, ids: Sequence[str]) -> Observation:
        corpus = self.dataset.corpus
        change = describe_ids(ids, lambda some: int((corpus.rows_of(some) >= 0).sum()))
        known = f"ids such as {ids[0]!r}, and here they are such as {corpus.ids[0].as_py()!r}"
        if change:
            return Observation(f"{known}: they match {change}", "change the ids so")
        return Observation(known, "are they of another collection or release?")


def _seen_in(run: Run, dataset: Dataset, setup: EvaluationSetup) -> list[Observation]:
    """Return differences of protocol that a run shows."""
    seen = []
    lengths = np.diff(run.offsets)
    if not setup.keep_self:
        owned = sum(query in documents for query, documents, _ in run.rankings())
        if owned:
            seen.append(
                Observation(
                    f"the document with the query's id is kept, for {owned:,} queries",
                    "dataset.toml: exclude_self = false",
                )
            )
    deepest = min(setup.depth, len(dataset.corpus) - (not setup.keep_self))
    if lengths.max() < deepest:
        name = f"at most {lengths.max():,} documents per query, and the depth is {setup.depth:,}"
        seen.append(Observation(name, f"--depth {lengths.max()}"))
    lacking = len(set(dataset.qrels.queries()) - set(run.query_ids))
    if lacking:
        seen.append(
            Observation(
                f"{lacking:,} judged queries have no documents",
                "they score 0 here; a mean over the others is higher",
            )
        )
    return seen
