"""Records of ``deploy``."""

from bench.requests.outcomes import ExitCode
from bench.speed.speed_report import Latency
from foundation.records import Record
from retrievers.models.card import Compression, Recipe


class CollectionTest(Record):
    """Test of a setting on one collection.

    Attributes:
        score: mean score.
        recall: share of the exact top documents of the queries that it finds.
        bound: upper 95 % bound of the mean loss.
        needed: number of queries with such losses that prove the margin; None if none up to ten
            million does.
    """

    score: float
    recall: float
    bound: float
    needed: int | None


class TestedSetting(Record, kw_only=True):
    """A setting with its costs and its tests.

    Attributes:
        name: short name for people.
        compression, index: the setting; the index is a factory string of FAISS with parameters.
        bytes_per_document: bytes of a document that a search needs, with links, ids and what
            candidates are scored again with.
        latency: of single queries, with one thread and with all.
        missed: largest share of the true neighbours of documents that it misses, which orders the
            tests.
        tests: by collection; empty if --limit-ms excludes the setting.
        proved: True if every bound is within the margin.
    """

    name: str
    compression: Compression
    index: str
    bytes_per_document: int
    latency: tuple[Latency, ...]
    missed: float = 0.0
    tests: dict[str, CollectionTest]
    proved: bool

    @property
    def costs(self) -> tuple[float, float]:
        """Bytes per document, and median milliseconds of a query with one thread."""
        return self.bytes_per_document, self.latency[0].p50_ms

    @property
    def failed(self) -> bool:
        """True if a bound exceeds the margin."""
        return bool(self.tests) and not self.proved

    @property
    def worst(self) -> tuple[str, CollectionTest] | None:
        """Collection with the highest bound, and its test."""
        return max(self.tests.items(), key=lambda item: item[1].bound, default=None)


class Deployment(Record, kw_only=True):
    """The cheapest setting that is proved, with all that were tested.

    Attributes:
        measures, queries: main measure, and number of queries, by collection.
        margin: largest mean loss that passes.
        provable: smallest margin that these queries can prove, if no score changes.
        queries_for_margin: number of unchanged queries that prove the margin.
        grid: number of settings that were considered.
        over_bytes: number of them that a limit of bytes excludes.
        sequence: number of settings that would be tested if all passed.
        baseline: float32, all dimensions, exact search; None if the margin cannot be proved.
        tested: in the order of the tests. The last one may have failed.
        chosen: the answer; None if nothing is proved within the limits.
    """

    model: str
    recipe: Recipe
    measures: dict[str, str]
    queries: dict[str, int]
    margin: float
    provable: float
    queries_for_margin: int
    grid: int = 0
    over_bytes: int = 0
    sequence: int = 0
    baseline: TestedSetting | None = None
    tested: tuple[TestedSetting, ...] = ()
    chosen: TestedSetting | None = None

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the command."""
        return ExitCode.OK if self.chosen else ExitCode.INCONCLUSIVE

    @property
    def frontier(self) -> list[TestedSetting]:
        """Proved settings, and the baseline, that none of them beats in bytes and time."""
        known = [one for one in (self.baseline, *self.tested) if one and one.proved]

        def beats(one: TestedSetting, other: TestedSetting) -> bool:
            (bytes_, ms), (more_bytes, more_ms) = one.costs, other.costs
            return one.costs != other.costs and bytes_ <= more_bytes and ms <= more_ms

        return [one for one in known if not any(beats(other, one) for other in known)]
