"""Records of an evaluation: scores, protocol, recipe and conditions.

Results are comparable only under the same `Protocol`. Recipes may differ, and are shown.

History of the schema: 4 adds ``run_sha256``, ``recall_queries`` and ``conditions.program``, and
later ``tokens_sha256``, ``bytes_per_document``, ``latency``, ``training`` and
``conditions.request``, which may be absent.
Records of older schemas are not read.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from bench.evaluation.run_files import read_run_file
from bench.evaluation.runs import Run
from bench.evaluation.scoring import Scores
from datasets_cfg.catalogue import dataset_names
from datasets_cfg.readers.reader import Qrels
from foundation.errors import BenchError, format_count
from foundation.records import Record, decode_json
from retrievers.models.card import Recipe
from retrievers.models.checkpoint import Parameters

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 4
SCORES_FILE, RUN_FILE = "per_query.parquet", "run.arrow"
SHORT = "short"  # in a preflight
OVERLAY_FILE = "judgements.jsonl"  # next to them, if judgements were imported
QUERY_ID = "query_id"  # column of SCORES_FILE, next to the measures
Time = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$")]


class Protocol(Record, kw_only=True, omit_defaults=True):
    """The rules of an evaluation, which must be equal to compare two scores.

    Attributes:
        collection: name of the collection.
        version: declared release of the data.
        split: split of the judgements.
        title_track: how titles and texts are joined.
        corpus_sha256: hash of the corpus; "" if a run file was scored without it.
        queries_sha256: hash of the queries.
        qrels_sha256: hash of the judgements.
        exclude_self: whether the document whose id equals the query id is dropped.
        depth: documents retrieved per query.
        official: True for the published collection, False if the user allowed one that differs,
            None if nothing is published for it. Older records have True then, too.
        overlay: hash of imported judgements, which count in addition to those of the collection; ""
            and absent in files without any.
    """

    collection: str
    version: str
    split: str
    title_track: str
    corpus_sha256: str
    queries_sha256: str
    qrels_sha256: str
    exclude_self: bool
    depth: int
    official: bool | None
    overlay: str = ""

    def __post_init__(self) -> None:
        if self.official and self.collection not in dataset_names():
            msgspec.structs.force_setattr(self, "official", None)

    @property
    def is_altered(self) -> bool:
        """Whether the collection differs from the published one."""
        return self.official is False


class Timings(Record):
    """Wall-clock seconds of each stage. Stored vectors are not encoded again.

    Attributes:
        encode_queries_s: encoding of the queries.
        encode_documents_s: encoding of the documents.
        encoded_documents: number of distinct texts that this process encoded, without stored ones
            and those of other processes.
        search_s: search.
        score_s: scoring.
        encoded_tokens: tokens of encoded documents and queries, after truncation; 0 without a
            tokenizer.
        busy_s: seconds by kind of work (load, tokenise, forward, copy, write, search, rescore).
            Kinds that run in parallel overlap, so their sum may exceed the stages'.
    """

    encode_queries_s: float = 0.0
    encode_documents_s: float = 0.0
    encoded_documents: int = 0
    search_s: float = 0.0
    score_s: float = 0.0
    encoded_tokens: int = 0
    busy_s: dict[str, float] = {}


class Latency(Record):
    """How long a search system took to answer, seen from here: with the network and its client.

    Attributes:
        median_ms, p95_ms, p99_ms: percentiles of the calls, in milliseconds.
        queries: number of queries behind them.
        concurrency: number of calls at once.
    """

    median_ms: float
    p95_ms: float
    p99_ms: float
    queries: int
    concurrency: int


class Conditions(Record):
    """The request, the machine and the libraries of an evaluation.

    Attributes:
        time: ISO 8601 in UTC, to the second, so that it sorts as text.
        bench: version of this program.
        commit: git commit of the code; "" outside a checkout.
        dirty: whether tracked files differed from the commit, or the packages had untracked files.
        python: version of Python.
        machine: operating system and architecture.
        device: requested device of the encoder; ``auto`` is a GPU if there is one.
        search_device: device of the search.
        threads: CPU threads of each library, see `library_threads`; in older records the number of
            cores that were available.
        libraries: versions by name.
        program: hash of the source code that encodes, ranks and scores; "" if it was not recorded.
        own_code: names of the user's files whose code was run.
        command: command that repeats it; "" if none does, as for Python objects, and in older
            records.
        request: fields of the command with another value than their default; paths as typed.
    """

    time: Time
    bench: str
    commit: str
    dirty: bool
    python: str
    machine: str
    device: str
    search_device: str
    threads: dict[str, int] | int
    libraries: dict[str, str]
    program: str = ""
    own_code: tuple[str, ...] = ()
    command: str = ""
    request: dict[str, Any] = {}

    @property
    def shown_threads(self) -> str:
        """Threads for tables and reports."""
        if isinstance(self.threads, int):
            return f"{format_count(self.threads, 'core', 'cores')} available"
        (first, *others) = sorted(set(self.threads.values()))
        if not others:
            return format_count(first, "thread", "threads")
        return f"threads: {', '.join(f'{name} {count}' for name, count in self.threads.items())}"


class Result(Record, kw_only=True):
    """One model on one collection.

    Attributes:
        schema: version of the record.
        model: name of the model.
        main_measure: main measure of the collection.
        measures: means over all queries of the qrels.
        judged_at_10: share of the first ten documents that have a judgement; None if answer strings
            decide, which judge all documents.
        tie_low, tie_high: range of the main measure over all orders of tied documents; None if it
            is not known for this measure.
        queries: number of queries.
        documents: number of documents; None if a run file was scored.
        unanswered: number of queries without any document; they score 0.
        ignored: number of queries of a run file without judgements; they do not count.
        index: index as `IndexSpec` writes it, with the device of its training if that is a GPU;
            ``flat`` is exact, ``bm25`` a product with BM25's scores.
        index_recall: share of the exact top k that the index found, by ``recall@k``; empty for
            exact search.
        in_domain: whether the model was trained on the collection.
        protocol: rules of the evaluation.
        recipe: settings that determine the vectors; None if a run file was scored.
        fingerprint: hash of the recipe, or of the run file.
        preflight: results of the checks before encoding; ``run_file`` is what was assumed to read
            a run file, ``short`` the fewest documents that a system returned, by measure that
            counts more.
        timings: seconds of each stage.
        conditions: machine and libraries.
        parameters: parameters of the model; None if unknown.
        per_query_sha256: hash of the file of scores per query; "" before saving.
        run_sha256: hash of the file of the ranking; "" before saving.
        recall_queries: number of queries behind ``index_recall``; None for all.
        tokens_sha256: hash of the token ids of fixed texts, which depend on the versions of
            libraries; "" without a tokenizer, and in older records.
        assumptions: what was assumed about the collection's files, with counts, and the commit of a
            collection of the Hugging Face Hub.
        bytes_per_document: bytes that a search reads of each document, on average; None without
            vectors, and in older records.
        latency: time of each query of a search system; None for other models.
        training: sha256 of the ``training.json`` of the training that made the weights; "" if there
            is none, and in older records.
    """

    schema: int = SCHEMA
    model: str
    main_measure: str
    measures: dict[str, float]
    judged_at_10: float | None
    tie_low: float | None
    tie_high: float | None
    queries: int
    documents: int | None
    unanswered: int
    ignored: int
    index: str
    index_recall: dict[str, float]
    in_domain: bool
    protocol: Protocol
    recipe: Recipe | None
    fingerprint: str
    preflight: dict[str, Any]
    timings: Timings
    conditions: Conditions
    parameters: Parameters | None = None
    per_query_sha256: str = ""
    run_sha256: str = ""
    recall_queries: int | None = None
    tokens_sha256: str = ""
    assumptions: dict[str, int] = {}
    bytes_per_document: int | None = None
    latency: Latency | None = None
    training: str = ""

    def __post_init__(self) -> None:
        if self.main_measure not in self.measures:
            raise ValueError(f"the main measure {self.main_measure} has no value")

    @property
    def short_measures(self) -> dict[str, int]:
        """Fewest documents that a system returned, by measure that counts more."""
        return dict(self.preflight.get(SHORT, {}))

    @property
    def key(self) -> str:
        """Hash of model, protocol, index and token ids, 12 hexadecimal digits."""
        tokens = [self.tokens_sha256] if self.tokens_sha256 else []
        official = not self.protocol.is_altered  # as in older records, so that keys stay
        protocol = msgspec.to_builtins(self.protocol) | {"official": official}
        content = msgspec.json.encode((self.fingerprint, protocol, self.index, *tokens))
        return hashlib.sha256(content).hexdigest()[:12]


@dataclass(frozen=True)
class Evaluation:
    """One model on one collection: the result, the scores of each query, and the ranking.

    Attributes:
        record: means, protocol, recipe, timings and conditions.
        scores: unrounded scores per query.
        folder: folder of the stored result; None if it is in memory only.
    """

    record: Result
    scores: Scores
    _run: Run | None = None
    folder: Path | None = None

    def __repr__(self) -> str:
        """Return model, collection and main score, in one line."""
        main = self.record.main_measure
        score = f"{main} {self.record.measures[main]:.4f}"
        return f"<Evaluation {self.model} on {self.dataset}: {score}>"

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.record.model

    @property
    def dataset(self) -> str:
        """Name of the collection."""
        return self.record.protocol.collection

    @property
    def measures(self) -> dict[str, float]:
        """Mean of each measure over all queries of the qrels, unrounded, the main measure first."""
        return self.record.measures

    @property
    def per_query(self) -> "pd.DataFrame":
        """Scores per query: a row for each query id, a float64 column for each measure."""
        import pandas as pd

        index = pd.Index(self.scores.query_ids, name=QUERY_ID)
        return pd.DataFrame({name: self.scores.values[name] for name in self.measures}, index=index)

    @property
    def run_file(self) -> Path:
        """File of the ranking."""
        if self.folder is None:
            raise ValueError("an evaluation in memory has no files")
        return self.folder / RUN_FILE

    @property
    def has_ranking(self) -> bool:
        """True if the file of the ranking exists and is the one written with the record."""
        try:
            content = self.run_file.read_bytes()
        except (OSError, BenchError):
            return False
        return self.record.run_sha256 == hashlib.sha256(content).hexdigest()

    @property
    def run(self) -> Run:
        """Ranking of each query. A stored ranking is read on each access.

        Raises:
            BenchError: the file is missing, damaged, or not the one written with the record.
        """
        if self._run is not None:
            return self._run
        file = read_run_file(self.run_file)
        if self.record.run_sha256 != file.sha256:
            problem = f"{self.run_file} is not the file that was written with its result"
            raise BenchError(problem, f"Evaluate {self.model} on {self.dataset} again.")
        return file.run


class ImportedJudgement(Record):
    """A judgement that ``judge import`` added to those of a collection.

    ``copies`` are documents with the same text, which have the same grade.
    """

    query_id: str
    doc_id: str
    grade: int
    judge: str
    copies: tuple[str, ...] = ()


def read_overlay(path: Path) -> Qrels:
    """Read the judgements in a file of `ImportedJudgement` lines, copies included.

    Raises:
        BenchError: a line is damaged.
        OSError: the file cannot be read.
    """
    lines = path.read_bytes().splitlines()
    return as_qrels(decode_json(line, ImportedJudgement, path) for line in lines)


def as_qrels(judgements: Iterable[ImportedJudgement]) -> Qrels:
    """Return judgements as qrels with a row for each document and each copy."""
    rows = [
        (one.query_id, doc_id, one.grade)
        for one in judgements
        for doc_id in (one.doc_id, *one.copies)
    ]
    queries, documents, grades = zip(*rows, strict=True) if rows else ((), (), ())
    return Qrels(queries, documents, np.array(grades, dtype=np.int32))
