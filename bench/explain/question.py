"""A question: a model, collections and evidence. Its answer is found by `DeviationSearch`."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from bench.evaluate.retrieval import LoadedModel
from bench.evaluate.runs import Run, read_run_file
from bench.explain.answer import Answer, ExplanationRow, Observation
from bench.explain.evidence import (
    GivenVectors,
    RunEvidence,
    SetupEvidence,
    VectorEvidence,
    describe_ids,
    encode_sample,
    sample_documents,
    sample_queries,
)
from bench.explain.given import (
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
from retrievers.models.recipe import Role

SPLITS = ("test", "dev", "train")
COST_QUERIES = 24
COST_RELEVANT = 2  # documents of each of them
SHOWN = 5  # explanations whose cost is measured


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
            BenchError: fewer than four ids are of the collection.
        """
        given, ids = read_vectors(path, self.dataset)
        if not given:
            raise self._ids_differ(path, ids)
        return VectorEvidence(self.passes, given)

    def of_encoder(self, encoder: Encoder, name: str) -> VectorEvidence:
        """Return the evidence of an encoder that is at hand: another checkpoint, or a server.

        Args:
            encoder: with the prompts of the collection.
            name: of it, for people.
        """
        return VectorEvidence(self.passes, self.encode_sample(encoder), f"vectors of {name}")

    def of_canary(self, path: Path) -> VectorEvidence:
        """Return the evidence of vectors that ``--save-canary`` saved.

        Args:
            path: of the file.
        """
        return VectorEvidence(self.passes, read_canary(path), "canary")

    def of_run(self, path: Path) -> tuple[RunEvidence, list[Observation]]:
        """Return the evidence of a run file, and the differences that it shows itself.

        Args:
            path: TREC run file.

        Raises:
            BenchError: its documents or queries are not those of the collection.
        """
        run = read_run_file(path).run
        ids: list[str] = run.ids.to_pylist()
        if (self.dataset.corpus.rows_of(ids) >= 0).sum() < 0.5 * len(ids):
            raise self._ids_differ(path, ids)
        if set(run.query_ids) & set(self.dataset.queries.ids):
            return RunEvidence(self.passes, self.dataset, run), seen_in(run, self.dataset)
        for split in SPLITS:
            with suppress(BenchError):
                other = self.open_split(self.dataset.name, split)
                if set(run.query_ids) & set(other.queries.ids):
                    seen = Observation(f"queries of the split {split}", f"--split {split}")
                    return RunEvidence(self.passes, other, run), [seen, *seen_in(run, other)]
        raise BenchError(
            f"{path}: none of its queries, such as {run.query_ids[0]!r}, is in {self.dataset.name}",
            "Name the collection of the run",
        )

    def of_query_scores(self, path: Path) -> QueryEvidence:
        """Return the evidence of scores by query.

        Args:
            path: see `bench.explain.given.read_query_scores`.

        Raises:
            BenchError: none of its queries is judged.
        """
        main = self.dataset.facts.main_measure
        measure, given, digits = read_query_scores(path, main)
        collection = self.collections[self.dataset.name]
        collection.check()
        if not set(given) & set(self.dataset.qrels.queries()):
            raise BenchError(
                f"{path}: none of its queries, such as {next(iter(given))!r}, is judged here",
                "Name the collection of the scores",
            )
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

    def encode_sample(self, encoder: Encoder) -> dict[Role, GivenVectors]:
        """Return a sample of the collection with the vectors of an encoder.

        Args:
            encoder: of a checkpoint or a server, with the prompts of the collection.
        """
        documents = sample_documents(self.dataset.corpus, self._all_ids())
        queries = sample_queries(self.dataset, self.dataset.queries.ids)
        return encode_sample(encoder, documents, queries)

    def answer(self, evidence: Sequence[SetupEvidence], seen: Sequence[Observation] = ()) -> Answer:
        """Return the answer that all evidence together supports.

        Args:
            evidence: of one or several kinds.
            seen: differences that the files show themselves.
        """
        known = deviations(self.passes.model, self.setup, self.passes.abilities, self.dataset.facts)
        findings = DeviationSearch(self.setup, known, evidence, self.announce).run()
        closest = findings.closest
        return Answer(
            model=self.model.name,
            collections=tuple(dataset.name for dataset in self.datasets),
            evidence=tuple(each.name for each in evidence),
            verdict=findings.verdict,
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

    def _ids_differ(self, path: Path, ids: Sequence[str]) -> BenchError:
        """Return the error for ids that are not those of the collection, and how to change them."""
        corpus = self.dataset.corpus
        change = describe_ids(ids, lambda some: int((corpus.rows_of(some) >= 0).sum()))
        return BenchError(
            f"{path} has ids such as {ids[0]!r}, and {self.dataset.name} has ids such as "
            f"{corpus.ids[0].as_py()!r}",
            f"They match {change}: change them so" if change else "Name the collection of the file",
        )


def seen_in(run: Run, dataset: Dataset) -> list[Observation]:
    """Return differences of protocol that a run shows.

    Args:
        run: somebody else's.
        dataset: its collection.
    """
    facts, longest = dataset.facts, int(np.diff(run.offsets).max())
    seen = []
    owned = sum(query in documents for query, documents, _ in run.rankings())
    if facts.exclude_self and owned:
        name = f"the document with the query's id is kept, for {owned:,} queries"
        seen.append(Observation(name, "dataset.toml: exclude_self = false"))
    if longest < min(facts.depth, len(dataset.corpus) - 1):
        name = f"at most {longest:,} documents per query, and the depth is {facts.depth:,}"
        seen.append(Observation(name, f"--depth {longest}"))
    lacking = len(set(dataset.qrels.queries()) - set(run.query_ids))
    if lacking:
        name = f"{lacking:,} judged queries have no documents"
        seen.append(Observation(name, "they score 0 here; a mean over the others is higher"))
    return seen
