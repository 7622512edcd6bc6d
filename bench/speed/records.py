"""Records of a speed measurement, as saved in JSON: raw samples with what they mean.

Every timing keeps its samples, so that another statistic can be computed later. Timings compare
only between reports of the same machine, processor and number of threads.

History of the schema: 1, the first.
"""

from collections.abc import Sequence

import numpy as np

from bench.results.result import Conditions
from foundation.records import Record
from retrievers.models.recipe import Recipe

SCHEMA = 1


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


def ratio_of(numerator: Spread | None, denominator: Spread | None) -> float | None:
    """Ratio of medians; None where either is unknown, or the denominator is 0."""
    if numerator is None or denominator is None or not denominator.median:
        return None
    return numerator.median / denominator.median


class Lengths(Record):
    """Lengths of the texts of a measurement, in tokens as they are encoded (cut, with specials).

    Attributes:
        name: ``32 tokens`` where all are equal, else where the texts come from.
        counted_in: ``tokens``, or ``words`` where the encoder has no tokenizer.
    """

    name: str
    documents: int
    tokens: int
    mean: float
    p50: float
    p95: float
    counted_in: str = "tokens"


class Throughput(Record, kw_only=True):
    """One tool encoding the same documents again and again, in alternation with the others.

    Attributes:
        seconds: of a whole pass, texts to vectors in memory, on the wall.
        processor_s: of a whole pass, of all threads; others' work on the machine adds little to it.
            None in earlier reports.
        documents_per_s, tokens_per_s: at the median.
        phases_s: by kind of work, where the tool tells them apart; they may overlap.
        difference: largest absolute difference from our vectors; None for our own.
        agrees: whether the vectors are the same within ``tolerance``.
        speedup: our tokens/s by those of this tool; None for our own, and where vectors differ.
        processor_speedup: the same by seconds of the processor.
        peak_share: seconds that the products of the model's dense layers take alone, at these
            tokens and in this process, by those of the whole pass: of the processor on the CPU, on
            the wall on a GPU. What is missing to 1 is attention, the layers between, padding,
            tokenising. None where there are none, and in earlier reports.
    """

    tool: str
    version: str
    lengths: Lengths
    seconds: Spread
    documents_per_s: float
    tokens_per_s: float
    phases_s: dict[str, Spread] = {}
    difference: float | None = None
    tolerance: float = 0.0
    agrees: bool = True
    speedup: float | None = None
    processor_s: Spread | None = None
    processor_speedup: float | None = None
    peak_share: float | None = None


class Phases(Record, kw_only=True):
    """Where the time of whole evaluations goes; every repeat opens the model anew.

    Attributes:
        cold_s: the first evaluation in this process, imports included; it is not in the others.
        wall_s: of a whole evaluation.
        busy_s: by kind of work; kinds that run beside each other overlap.
    """

    collection: str
    documents: int
    queries: int
    tokens: int
    cold_s: float
    wall_s: Spread
    busy_s: dict[str, Spread]


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
        vectors: where they come from.
    """

    index: str
    rows: int
    dim: int
    k: int
    queries: int
    recall: float
    queries_per_s: Spread
    build_s: float
    index_bytes: int
    vectors: str


class Growth(Record, kw_only=True):
    """Growth of a cost: ``y = constant * x ** exponent``, fitted to the medians in logarithms.

    Attributes:
        x, y: what they are, with units.
        at: what was kept the same.
        error: standard error of the exponent; None with fewer than three sizes.
        base, per_x: of the straight line ``y = base + per_x * x`` through the medians.
    """

    x: str
    y: str
    at: str
    sizes: tuple[float, ...]
    costs: tuple[Spread, ...]
    exponent: float
    error: float | None
    constant: float
    base: float
    per_x: float


class RaceRun(Record, kw_only=True):
    """One tool in an end-to-end race.

    Attributes:
        wall_s: from the start of a fresh process to its end, nothing cached.
        scores: of each round, not rounded by us.
        peak_bytes: most of all rounds; VmHWM of the process.
        ratio: our wall time by that of this tool, medians; None for ours, and where scores differ.
        processor_s: of all threads and of the process's own children; None in earlier reports.
        processor_ratio: as ``ratio``, of the processor's time.
    """

    tool: str
    version: str
    wall_s: Spread
    scores: tuple[float, ...]
    peak_bytes: int
    ratio: float | None = None
    processor_s: Spread | None = None
    processor_ratio: float | None = None


class Race(Record, kw_only=True):
    """Evaluations of the same model on the same files, from process start to scores.

    Attributes:
        limit: documents that were kept for a quick look; None for the whole collection.
        agree: whether all scores are within ``tolerance`` of ours.
        ratio: our wall time by that of the fastest other tool; None where scores differ.
    """

    collection: str
    documents: int
    queries: int
    limit: int | None
    measure: str
    tolerance: float
    runs: tuple[RaceRun, ...]
    agree: bool
    ratio: float | None


class SpeedReport(Record, kw_only=True):
    """Everything that one call of ``speed`` measured.

    Attributes:
        processor: its name.
        torch_threads: of the encoder, and given to every other tool.
        libraries: of tools that were raced, beside those of the conditions.
        load: of the machine before anything ran: its 1-minute load average. Others' work makes
            timings worthless.
        repeats: samples of each timing, after one that is not counted.
        peak_bytes: of this process: VmHWM, the most that was resident, mapped files included.
    """

    schema: int = SCHEMA
    model: str
    fingerprint: str
    recipe: Recipe
    conditions: Conditions
    processor: str
    torch_threads: int
    libraries: dict[str, str]
    load: float
    repeats: int
    phases: Phases | None = None
    throughput: tuple[Throughput, ...] = ()
    latency: tuple[Latency, ...] = ()
    indexes: tuple[IndexPoint, ...] = ()
    growth: tuple[Growth, ...] = ()
    races: tuple[Race, ...] = ()
    peak_bytes: int = 0
