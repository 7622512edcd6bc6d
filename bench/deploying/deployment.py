"""Settings of a deployment: dimensions, precision, rescoring and index, and which are tested.

A setting that loses more than the margin must pass in at most 5 % of all calls, however many
settings there are. A fixed sequence of tests, each at the full level, keeps this promise if the
first test that fails ends it (Maurer, Hothorn and Lehmacher, 1995; Westfall and Krishen, Journal of
Statistical Planning and Inference, 2001): a false pass needs the first setting whose true loss
exceeds the margin to pass, which one test at the 5 % level allows in 5 % of samples.

The sequence must not depend on the scores of the queries. It is made from the documents: some of
them are searched as if they were queries, and the share of their true neighbours that a setting
misses puts the settings in order, from mild to strong. A setting is tested only if it is cheaper
than every milder one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from bench.requests.outcomes import ExitCode
from bench.speed.speed_report import QueryLatency
from foundation.records import Record
from retrievers.index.faiss_index import ADVISED_POINTS_PER_CENTROID, IndexSpec
from retrievers.models.card import Compression, Precision, Recipe


class CollectionTest(Record):
    """Test of a setting on one collection.

    Attributes:
        score: mean score.
        recall: share of the top documents of the baseline that it has, on average of the queries.
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
    latency: tuple[QueryLatency, ...]
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
        encoders: names of the encoders whose vectors have the settings: the model, or those in it.
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
    encoders: tuple[str, ...]
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


WHOLE = Compression()
EXACT = IndexSpec.parse("Flat")  # of FAISS, as a deployment searches
BITS: dict[Precision, int] = {"float32": 32, "float16": 16, "int8": 8, "binary": 1}
FEWEST_DIMENSIONS = 32
FEWEST_CANDIDATES = 40  # that are scored again
GRAPH_DOCUMENTS = 5_000  # exact search of fewer is as fast
MISSED_STEP = 0.005  # shares of missed neighbours that a sample of documents can tell apart
TESTED_SHARE = 4  # a quarter of the grid is tested at most


@dataclass(frozen=True)
class Setting:
    """A way to deploy the vectors of a model."""

    compression: Compression = WHOLE
    index: IndexSpec = EXACT

    @property
    def name(self) -> str:
        """Short text for people, such as ``192 int8 120:stored HNSW32:128``."""
        how = self.compression
        rescored = f"{how.rescore}:{how.rescore_by}" if how.rescore else ""
        precision = "" if "PQ" in self.index.factory else how.precision
        index = re.sub(r"(,Flat)?\?\w+=", ":", str(self.index)) if self.index != EXACT else ""
        return " ".join(filter(None, (str(how.dimensions or ""), precision, rescored, index)))

    def bytes_read(self, documents: int, dim: int) -> float:
        """Estimate the bytes that the search of one query reads.

        ``documents`` is the number of vectors, ``dim`` the dimension of the stored ones.
        """
        how, factory, parameters = self.compression, self.index.factory, dict(self.index.parameters)
        width, pieces = how.dimensions or dim, re.search(r"PQ(\d+)", factory)
        code = int(pieces[1]) if pieces else width * BITS[how.precision] / 8
        read = documents * code
        if lists := re.match(r"IVF(\d+)", factory):
            read = read * parameters["nprobe"] / int(lists[1]) + 4 * width * int(lists[1])
        elif links := re.match(r"HNSW(\d+)", factory):
            read = min(read, code * parameters["efSearch"] * 2 * int(links[1]))
        return read + (how.rescore or 0) * dim * (1 if how.rescore_by == "int8" else 4)


def make_grid(dim: int, documents: int, depth: int) -> list[Setting]:
    """Return all settings except the baseline.

    Args:
        dim: dimension of the stored vectors.
        documents: number of documents.
        depth: number of documents per query that the measure reads.
    """
    widths = [None, *(dim // part for part in (2, 4, 8) if dim // part >= FEWEST_DIMENSIONS)]
    few = max(FEWEST_CANDIDATES, 4 * depth)
    by_stored = {"rescore": 3 * few}
    rescoring: list[dict[str, Any]] = [{}]
    if 3 * few < documents:
        by_int8 = [{"rescore": number, "rescore_by": "int8"} for number in (few, 3 * few)]
        rescoring += [*by_int8, by_stored]
    indexes, quantized = [EXACT], list[IndexSpec]()
    if documents >= GRAPH_DOCUMENTS:
        indexes.append(IndexSpec.parse("HNSW32?efSearch=128"))
    lists = 1 << round(2 + (documents.bit_length() - 0.5) / 2)  # about four times the root
    if documents >= ADVISED_POINTS_PER_CENTROID * lists:
        probed = [f"nprobe={lists // part}" for part in (16, 4)]
        indexes += [IndexSpec.parse(f"IVF{lists},Flat?{some}") for some in probed]
        if dim % 8 == 0:
            quantized = [IndexSpec.parse(f"IVF{lists},PQ{dim // 8}?{some}") for some in probed]
    grid = [Setting(Compression(**again), index) for again in rescoring for index in quantized]
    for width, precision, again, index in product(widths, BITS, rescoring, indexes):
        # All dimensions in float are not improved by rescoring, and int8 only by stored vectors.
        improved = precision == "binary" or (precision == "int8" and again == by_stored)
        if width or improved or not again:
            how = Compression(dimensions=width, precision=precision, **again)
            grid.append(Setting(how, index))
    return [setting for setting in grid if setting != Setting()]


def choose_sequence(
    missed: Mapping[Setting, float], costs: Mapping[Setting, tuple[float, float]], most: int
) -> list[Setting]:
    """Return the settings to test, from mild to strong.

    The saving that a test must promise rises from a tenth until they are few enough.

    Args:
        missed: share of the true neighbours of documents that each setting misses.
        costs: bytes per document and bytes read for a query, of each setting and of the baseline.
        most: maximum number of settings.
    """
    ordered = sorted(missed, key=lambda one: (round(missed[one] / MISSED_STEP), *costs[one]))
    share = 0.9
    chosen: list[Setting] = []
    while share == 0.9 or len(chosen) > most:
        cheapest, chosen = [costs[Setting()]], []
        for setting in ordered:
            pairs = [list(zip(costs[setting], milder, strict=True)) for milder in cheapest]
            if all(any(cost <= share * other for cost, other in pair) for pair in pairs):
                cheapest.append(costs[setting])
                chosen.append(setting)
        share *= 0.9
    return chosen
