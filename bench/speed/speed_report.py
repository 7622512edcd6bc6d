"""Records of a speed measurement, saved as JSON with raw samples.

Every timing keeps its samples, so that other statistics can be computed later. Compare timings only
between reports of the same machine, processor and number of threads.
"""

from collections.abc import Sequence

import numpy as np

from bench.evaluation.result_record import Conditions
from foundation.records import Record
from retrievers.models.card import Recipe

SCHEMA = 3


class Spread(Record):
    """Median, quartiles and all samples of repeated measurements, in order."""

    median: float
    q1: float
    q3: float
    samples: tuple[float, ...]

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        """Summarise ``samples``, at least one. Quartiles are interpolated linearly."""
        q1, median, q3 = np.quantile(np.asarray(samples, dtype=np.float64), [0.25, 0.5, 0.75])
        return cls(float(median), float(q1), float(q3), tuple(map(float, samples)))


class ToolTiming(Record, kw_only=True):
    """Times of one tool, measured in alternation with others.

    Attributes:
        tool: name of the tool with its batch size.
        wall_s: wall-clock seconds of all the work.
        processor_s: CPU seconds of all threads and child processes, which other programs affect
            little.
        phases_s: seconds by phase, if the tool reports them; phases may overlap.
        difference: largest absolute difference of its vectors or scores from our first ones.
        agrees: whether the difference is within the tolerance.
        ratio: its median wall-clock time over ours; None for ours, and if results differ.
        score: None if the work was encoding.
    """

    tool: str
    version: str
    wall_s: Spread
    processor_s: Spread
    phases_s: dict[str, Spread] = {}
    difference: float = 0.0
    agrees: bool = True
    ratio: float | None = None
    score: float | None = None


class ToolComparison(Record, kw_only=True):
    """The same work by several tools, ours first: texts to vectors, or a collection to scores.

    Attributes:
        name: such as ``32 tokens`` if all texts have that length, otherwise their origin.
        tokens, p95: total and 95th percentile of document lengths as encoded, special tokens
            included, in the unit ``counted_in``; 0 for a race from process start to scores.
        queries: 0 if only documents were encoded.
        measure: "" if vectors are compared.
        tolerance: largest difference from our result that counts as agreement.
    """

    name: str
    documents: int
    tokens: int = 0
    p95: float = 0.0
    counted_in: str = "tokens"
    queries: int = 0
    measure: str = ""
    tolerance: float
    tools: tuple[ToolTiming, ...]

    @property
    def agree(self) -> bool:
        """True if all results are within the tolerance of ours."""
        return all(tool.agrees for tool in self.tools)


class QueryLatency(Record):
    """Latency of one query at a time.

    Attributes:
        what: ``encode``, ``search`` or ``both``; in `deploy`, the number of threads.
        rows: number of vectors searched.
        k: depth of the search.
        samples_ms: milliseconds of each query.
    """

    what: str
    rows: int
    k: int
    p50_ms: float
    p95_ms: float
    samples_ms: tuple[float, ...]

    @classmethod
    def of(cls, what: str, rows: int, k: int, samples_ms: Sequence[float]) -> "QueryLatency":
        """Summarise milliseconds, at least one."""
        p50, p95 = np.percentile(samples_ms, [50, 95]).tolist()
        return cls(what, rows, k, p50, p95, tuple(map(float, samples_ms)))


class IndexPoint(Record, kw_only=True):
    """One index with its search parameters, all queries in one call.

    Attributes:
        index: ``flat`` is this program's exact search; all others are of FAISS.
        recall: share of the exact top k, mean over queries.
        build_s: seconds of training and adding.
        index_bytes: size of the saved index, or of the vectors for exact search, with what
            candidates are scored again with.
    """

    index: str
    recall: float
    queries_per_s: Spread
    build_s: float
    index_bytes: int


class IndexCurve(Record, kw_only=True):
    """Indexes over the same vectors, searched for the same queries at depth ``k``.

    ``vectors`` is the origin of the vectors.
    """

    rows: int
    dim: int
    k: int
    queries: int
    vectors: str
    points: tuple[IndexPoint, ...]


class SpeedReport(Record, kw_only=True):
    """All results of one call of ``speed``.

    Attributes:
        schema: version of this record.
        torch_threads: threads of the encoder, also given to other tools.
        load: the machine's 1-minute load average beforehand. Other work makes timings worthless.
        repeats: samples of each timing, after one that is not counted.
        encoding: one comparison for each length of documents.
        races: comparisons from process start to scores.
    """

    schema: int = SCHEMA
    model: str
    fingerprint: str
    recipe: Recipe
    conditions: Conditions
    processor: str
    torch_threads: int
    load: float
    repeats: int
    encoding: tuple[ToolComparison, ...] = ()
    latency: tuple[QueryLatency, ...] = ()
    indexes: IndexCurve | None = None
    races: tuple[ToolComparison, ...] = ()
