"""A question: a model, collections, and the evidence that is read from files or encoders."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from safetensors import SafetensorError

from bench.evaluation.retriever import Retriever
from bench.evaluation.run_files import read_run_file
from bench.evaluation.runs import Run
from bench.evaluation.scoring import parse_measure
from bench.explain.evidence import (
    DOCUMENTS,
    QUERIES,
    GivenVectors,
    RunEvidence,
    Texts,
    VectorEvidence,
    choose_documents,
    choose_queries,
    encode_texts,
)
from bench.explain.passes import ForwardPasses
from bench.explain.scored import CollectionScores, PublishedEvidence, PublishedNumber, QueryEvidence
from bench.explain.setup import (
    LENGTHS,
    SPLITS,
    Deviation,
    EvaluationSetup,
    Observation,
    deviations,
    make_setup,
)
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError, name_path_in_errors
from retrievers.encoders.protocol import Encoder
from retrievers.models.card import Role
from retrievers.models.read_vectors import READERS

FORMATS = "Use .npy, .npz (arrays ids and vectors), .parquet (columns id, vector) or .safetensors"
QUERY_LINES = "Write one line for each query: its id, white space and its score"
LEAST = 4  # vectors of a role
NAMES = ("vectors", "vector", "embeddings", "embedding")
SUFFIXES = (".npy", ".npz", ".parquet", ".safetensors")


def parse_published(typed: str, datasets: Sequence[Dataset]) -> PublishedNumber:
    """Read a published score typed as ``[DATASET:][MEASURE=]VALUE``.

    The default is the first dataset and its main measure. Examples are ``.2441``, ``R@100=.72`` and
    ``beir/scifact:nDCG@10=.6451``.
    """
    name, colon, rest = typed.rpartition(":")
    measure, _, value = rest.rpartition("=")
    known = {dataset.name: dataset for dataset in datasets}
    if colon and name not in known:
        raise BenchError(f"--published {typed}: {name} is not given with --on", f"Add --on {name}")
    if not re.fullmatch(r"0?\.\d+|1\.0+", value):
        raise BenchError(
            f"--published {typed}: {value!r} is not a score from 0 to 1",
            "Type it as .2441 or nDCG@10=.2441 (24.41 is .2441)",
        )
    dataset = known[name] if colon else datasets[0]
    canonical = parse_measure(measure or dataset.metadata.main_measure).name
    return PublishedNumber(dataset.name, canonical, float(value), len(value.partition(".")[2]))


def read_query_scores(path: Path, default: str) -> tuple[str, dict[str, float], int]:
    """Return measure, score by query, and decimal digits of the scores in a file.

    Its lines are a query id and a score, or a measure, a query id and a score as ``trec_eval -q``
    prints them, separated by white space or commas. ``default`` is the measure of a file that names
    none, and preferred in a file that names several.
    """
    found: dict[str, dict[str, float]] = {}
    digits = 0
    with _refuse_unreadable(path, "is not a text file in UTF-8", QUERY_LINES):
        lines = path.read_bytes().decode().splitlines()
    for line in lines:
        *measure, query, written = ["", *re.split(r"[\s,]+", line.strip())][-3:]
        if re.fullmatch(r"[01]?\.\d+|[01]", written) and query != "all":
            found.setdefault(measure[0] if measure else "", {})[query] = float(written)
            digits = max(digits, len(written.partition(".")[2]))
    by_measure = {parse_measure(name).name if name else default: found[name] for name in found}
    if not by_measure:
        raise BenchError(f"{path} has no line of a query id and a score from 0 to 1", QUERY_LINES)
    measure_name = default if default in by_measure else next(iter(by_measure))
    return measure_name, by_measure[measure_name], digits


def read_vectors(path: Path, dataset: Dataset) -> tuple[dict[Role, GivenVectors], list[str]]:
    """Return a sample of the vectors in a file by role, and all ids in the file.

    Ids decide whether vectors are of documents or of queries; ids of both are taken for
    documents. Without ids, rows are the collection's documents, or its queries, in order. Ids of
    .npy and .safetensors are read from FILE.ids.txt, one a line.
    """
    vectors, named = _read_arrays(path)
    ids = _ids_by_count(path, len(vectors), dataset) if named is None else named
    if len(ids) != len(vectors):
        raise BenchError(
            f"{path} has {len(vectors):,} vectors and {len(ids):,} ids", "Write one id for each."
        )
    if vectors.dtype == np.uint8 and vectors.max() > 1:
        vectors = np.unpackbits(vectors, axis=1)
    row_of = {id_: row for row, id_ in enumerate(ids)}
    queries = np.array(ids)[dataset.corpus.rows_of(ids) < 0].tolist()
    samples: dict[Role, Texts] = {
        "document": choose_documents(dataset.corpus, ids),
        "query": choose_queries(dataset, queries),
    }
    given: dict[Role, GivenVectors] = {}
    for role, texts in samples.items():
        if len(texts.ids) >= LEAST:
            rows = np.array([row_of[id_] for id_ in texts.ids])
            given[role] = GivenVectors(texts, vectors, rows)
    return given, ids


def _ids_by_count(path: Path, count: int, dataset: Dataset) -> list[str]:
    for ids in (dataset.corpus.ids.to_pylist(), dataset.queries.ids):
        if len(ids) == count:
            return list(ids)
    raise BenchError(
        f"{path} has {count:,} vectors without ids, and {dataset.name} has "
        f"{len(dataset.corpus):,} documents and {len(dataset.queries):,} queries",
        f"Write the ids, one a line, into {path}.ids.txt",
    )


def _read_arrays(path: Path) -> tuple[Any, list[str] | None]:
    """Return the vectors of a file, and their ids if it has any."""
    if path.suffix not in SUFFIXES:
        raise BenchError(f"{path} is not a file of vectors", FORMATS)
    with _refuse_unreadable(path, f"is not a complete {path.suffix} file of numbers", FORMATS):
        ids_file = Path(f"{path}.ids.txt")
        lines = ids_file.read_bytes().decode().splitlines() if ids_file.exists() else None
        arrays = list(READERS[path.suffix](path))
    found = [array for name, array in arrays if name in NAMES]
    found += [array for name, array in arrays if name == path.stem and array.ndim > 1]
    if not found:
        raise BenchError(f"{path} has no array called {' or '.join(NAMES)}", FORMATS)
    vectors = np.asarray(found[0])
    if vectors.ndim != 2 or vectors.dtype.kind not in "biuf" or not np.isfinite(vectors).all():
        raise BenchError(
            f"{path} has an array {vectors.shape} of {vectors.dtype}, not rows of finite numbers",
            "Write one vector a row.",
        )
    of_column = [array for name, array in arrays if name == path.stem and array.ndim == 1]
    ids = [array for name, array in arrays if name in ("ids", "id")] or of_column
    return vectors, list(map(str, ids[0])) if ids else lines


@contextmanager
def _refuse_unreadable(path: Path, reason: str, hint: str) -> Iterator[None]:
    """Raise a `BenchError` if the content of ``path`` is not what the block reads."""
    try:
        with name_path_in_errors(path):
            yield
    except (ValueError, LookupError, EOFError, BadZipFile, SafetensorError) as error:
        raise BenchError(f"{path} {reason}", hint) from error


PER_REQUEST = 16  # texts that an encoder gets at a time
COST_QUERIES = 24
COST_RELEVANT = 2  # documents of each of them


@dataclass(frozen=True)
class Question:
    """A model on collections, whose results differ from somebody else's.

    Attributes:
        datasets: collections, the first of which is sampled.
        open_split: opens a split of a collection, given the collection's name and the split's.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        other: another checkpoint, whose weights may have been used.
        sampled_documents, sampled_queries: most texts of the sample of the first collection.
        lengths: at which texts may be cut.
        notes: what was seen without a search.
    """

    model: Retriever
    datasets: Sequence[Dataset]
    open_split: Callable[[str, str], Dataset]
    device: str = "auto"
    other: Retriever | None = None
    sampled_documents: int = DOCUMENTS
    sampled_queries: int = QUERIES
    lengths: Sequence[int] = LENGTHS
    notes: Sequence[Observation] = ()

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
        """The model's own configuration on the first collection."""
        return make_setup(self.passes.model, self.dataset.metadata)

    @cached_property
    def deviations(self) -> dict[str, Deviation]:
        """Every single deviation that is possible for the model, by name."""
        model, other, metadata = self.passes.model, self.passes.other, self.dataset.metadata
        possible = deviations(model, self.setup, other, metadata, sorted(set(self.lengths)))
        return {each.name: each for each in possible}

    @cached_property
    def collections(self) -> dict[str, CollectionScores]:
        """Scores of each collection under any configuration."""
        found = {}
        for dataset in self.datasets:
            base = make_setup(self.model.for_dataset(dataset.name).model, dataset.metadata)
            open_split = partial(self.open_split, dataset.name)
            found[dataset.name] = CollectionScores(self.passes, dataset, base, open_split)
        return found

    def of_vectors(self, path: Path) -> VectorEvidence:
        """Return the evidence of a file of vectors, see `read_vectors`."""
        given, ids = read_vectors(path, self.dataset)
        if not given:
            raise self._ids_differ(path, ids)
        return VectorEvidence(self.passes, given)

    def of_encoder(self, encoder: Encoder, name: str) -> VectorEvidence:
        """Return the evidence of another checkpoint, or of a server, in small requests."""
        print(f"encoding a sample with {name}", file=sys.stderr)
        encoder = encoder.for_dataset(self.dataset.name)
        samples: dict[Role, Texts] = {
            "document": self._sampled_documents,
            "query": choose_queries(self.dataset, self.dataset.queries.ids, self.sampled_queries),
        }
        given: dict[Role, GivenVectors] = {}
        for role, texts in samples.items():
            starts = range(0, len(texts.ids), PER_REQUEST)
            parts = [slice(start, start + PER_REQUEST) for start in starts]
            encoded = [encode_texts(encoder, role, texts, part) for part in parts]
            if encoded:
                vectors = np.concatenate(encoded)
                given[role] = GivenVectors(texts, vectors, np.arange(len(vectors)))
        return VectorEvidence(self.passes, given, f"vectors of {name}")

    def of_run(self, path: Path) -> RunEvidence:
        """Return the evidence of a run file, whose queries may be of another split."""
        run, passes = read_run_file(path, split=self.dataset.metadata.split).run, self.passes
        ids: list[str] = run.ids.to_pylist()
        if (self.dataset.corpus.rows_of(ids) >= 0).sum() < 0.5 * len(ids):
            raise self._ids_differ(path, ids)
        for split in ("", *SPLITS):
            with suppress(BenchError):
                name = self.dataset.name
                dataset = self.open_split(name, split) if split else self.dataset
                if set(run.query_ids) & set(dataset.queries.ids):
                    note = Observation(f"queries of the split {split}", f"--split {split}")
                    notes = [*([note] if split else []), *observe_run(run, dataset)]
                    return RunEvidence(passes, dataset, run, notes)
        raise BenchError(
            f"{path}: none of its queries, such as {run.query_ids[0]!r}, is in {self.dataset.name}",
            "Name the collection of the run.",
        )

    def of_query_scores(self, path: Path) -> QueryEvidence:
        """Return the evidence of scores by query, see `read_query_scores`."""
        main = self.dataset.metadata.main_measure
        measure, given, digits = read_query_scores(path, main)
        collection = self.collections[self.dataset.name]
        collection.check()
        if not set(given) & set(self.dataset.qrels.queries()):
            raise BenchError(
                f"{path}: none of its queries, such as {next(iter(given))!r}, is judged here",
                "Name the collection of the scores.",
            )
        return QueryEvidence(collection, measure, given, digits)

    def of_published(self, typed: Sequence[str]) -> PublishedEvidence:
        """Return the evidence of published scores, see `parse_published`."""
        numbers = [parse_published(each, self.datasets) for each in typed]
        names = dict.fromkeys(number.dataset for number in numbers)
        collections = {name: self.collections[name] for name in names}
        for collection in collections.values():
            collection.check()
        return PublishedEvidence(collections, numbers)

    def cost(self, setup: EvaluationSetup, whole: bool) -> float | None:
        """Return the change of the main measure, or None if it cannot be computed.

        It is measured on the ``whole`` collection, or on a sample.
        """
        if setup.shuffled or not len(self.dataset.qrels):
            return None
        collection = self.collections[self.dataset.name]
        queries, rows = (None, None) if whole else self._small_collection
        setup = replace(setup, split="")
        main = [self.dataset.metadata.main_measure]
        base = collection.scores(self.setup, main, queries, rows).mean(main[0])
        return collection.scores(setup, main, queries, rows).mean(main[0]) - base

    @cached_property
    def _small_collection(self) -> tuple[list[str], np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Some queries, and rows of their relevant documents among a sample of others."""
        relevant = {
            query: [document for document, grade in judged.items() if grade > 0]
            for query, judged in self.dataset.qrels.by_query.items()
        }
        relevant = {query: documents for query, documents in relevant.items() if documents}
        queries = choose_queries(self.dataset, list(relevant), COST_QUERIES).ids
        wanted = [id_ for query in queries for id_ in relevant[query][:COST_RELEVANT]]
        rows = np.unique(self.dataset.corpus.rows_of([*wanted, *self._sampled_documents.ids]))
        return list(queries), rows[rows >= 0]

    @cached_property
    def _sampled_documents(self) -> Texts:
        corpus = self.dataset.corpus
        return choose_documents(corpus, corpus.ids.to_pylist(), self.sampled_documents)

    def _ids_differ(self, path: Path, ids: Sequence[str]) -> BenchError:
        """Return the error for ids that the collection lacks."""
        return BenchError(
            f"{path} has ids such as {ids[0]!r}, and {self.dataset.name} has ids such as "
            f"{self.dataset.corpus.ids[0].as_py()!r}",
            "Name the collection of the file, or write its ids.",
        )


def observe_run(run: Run, dataset: Dataset) -> list[Observation]:
    """Return differences of protocol that somebody else's run shows."""
    metadata, longest = dataset.metadata, int(np.diff(run.offsets).max())
    notes = []
    kept = sum(query in documents for query, documents, _ in run.rankings())
    possible = int((dataset.corpus.rows_of(run.query_ids) >= 0).sum())
    if metadata.exclude_self and kept:
        name = f"the document with the query's id is kept, for {kept:,} queries"
        notes.append(Observation(name, "dataset.toml: exclude_self = false"))
    # In a random order, one of these documents would almost surely be retrieved.
    coincidence = (1 - longest / len(dataset.corpus)) ** possible
    if not metadata.exclude_self and not kept and coincidence < 0.01:
        name = f"none of {possible:,} queries has the document with the query's id"
        notes.append(Observation(name, "dataset.toml: exclude_self = true"))
    if longest < min(metadata.depth, len(dataset.corpus) - 1):
        name = f"at most {longest:,} documents per query, and the depth is {metadata.depth:,}"
        notes.append(Observation(name, f"--depth {longest}"))
    lacking = len(set(dataset.qrels.queries()) - set(run.query_ids))
    if lacking:
        name = f"{lacking:,} judged queries have no documents"
        notes.append(Observation(name, "they score 0 here; a mean over the others is higher"))
    return notes
