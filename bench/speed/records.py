"""Records of a speed measurement, as saved in JSON: raw samples with what they mean.

Every timing keeps its samples, so that another statistic can be computed later. Timings compare
only between reports of the same machine, processor and number of threads.

History of the schema: 1, the first; 2, one record for tools that encode and tools that race; 3,
phases are those of what encodes and races.
"""

from collections.abc import Sequence

import numpy as np

from bench.results.result import Conditions
from foundation.records import Record
from retrievers.models.recipe import Recipe

SCHEMA = 3


class Spread(Record):
    """Repeated measurements of one thing: median, quartiles, and all samples in order."""

    median: float
    q1: float
    q3: float
    samples: tuple[float, ...]

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        """A summary of at least one sample; quartiles by linear interpolation."""
        q1, median, q3 = np.quantile(np.asarray(samples, dtype=np.float64), [0.25, 0.5, 0.75])
        return cls(float(median), float(q1), float(q3), tuple(map(float, samples)))


class ToolTiming(Record, kw_only=True):
    """One tool at some work, by turns with the others.

    Attributes:
        wall_s: of the whole work.
        processor_s: of all threads, and of a process's own children; others' work on the machine
            adds little to it.
        phases_s: by kind of work, where the tool tells them apart; they may overlap.
        difference: largest absolute difference of its vectors or scores from our first ones.
        agrees: whether that is within the tolerance.
        ratio: its median wall time by ours; None for ours, and where results differ.
        score: None if vectors were made.
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
        name: ``32 tokens`` where all texts are of that length, else where they come from.
        tokens, p95: of the documents as they are encoded (cut, with special ones); in ``words``
            where the encoder has no tokenizer; 0 from process start to scores.
        queries: 0 if only documents were encoded.
        measure: "" if vectors are compared.
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
        """Whether all results are within the tolerance of ours."""
        return all(tool.agrees for tool in self.tools)


class Latency(Record):
    """Milliseconds of one query at a time; ``what`` is encode, search or both."""

    what: str
    rows: int
    k: int
    p50_ms: float
    p95_ms: float
    samples_ms: tuple[float, ...]


class IndexPoint(Record, kw_only=True):
    """One index with its search parameters, all queries in one call.

    Attributes:
        index: ``flat`` is exact search of this program, anything else is FAISS.
        recall: share of the exact top k, mean over queries.
        queries_per_s: spread over repeats.
        build_s: training and adding, built anew for each point.
        index_bytes: of the index as saved; of the vectors for exact search.
    """

    index: str
    recall: float
    queries_per_s: Spread
    build_s: float
    index_bytes: int


class IndexCurve(Record, kw_only=True):
    """Indexes over the same vectors, searched for the same queries at depth ``k``.

    Attributes:
        vectors: where they come from.
    """

    rows: int
    dim: int
    k: int
    queries: int
    vectors: str
    points: tuple[IndexPoint, ...]


class SpeedReport(Record, kw_only=True):
    """Everything that one call of ``speed`` measured.

    Attributes:
        processor: its name.
        torch_threads: of the encoder, and given to every other tool.
        load: of the machine before anything ran: its 1-minute load average. Others' work makes
            timings worthless.
        repeats: samples of each timing, after one that is not counted.
        encoding: of each length of documents.
        races: from process start to scores.
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
    latency: tuple[Latency, ...] = ()
    indexes: IndexCurve | None = None
    races: tuple[ToolComparison, ...] = ()
