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

from retrievers.index.faiss_index import ADVISED_POINTS_PER_CENTROID, IndexSpec
from retrievers.models.card import Compression, Precision

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
