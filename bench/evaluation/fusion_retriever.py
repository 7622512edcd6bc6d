"""A fusion as a retriever: the rankings of its members become one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.evaluation.member_retriever import MemberRetriever
from bench.evaluation.result_record import Timings
from bench.evaluation.retriever import SearchStatistics
from bench.evaluation.runs import Run, round_scores
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float64Array, Int64Array
from retrievers.encoders.protocol import PhaseTimer
from retrievers.models.card import Fusion


@dataclass(frozen=True, kw_only=True)
class FusionRetriever(MemberRetriever):
    """Several retrievers, whose rankings are fused."""

    def search(self, dataset: Dataset, depth: int) -> tuple[Run, SearchStatistics]:
        """Return the fused rankings of all queries, with all documents of the members."""
        runs, statistics = self.search_members(dataset, depth)
        timer = PhaseTimer()
        with timer.phase("search_s"):
            fused = fuse(runs, dataset.queries.ids, self.card.fusion)
        return fused, self.sum_statistics(statistics, Timings(search_s=timer.seconds["search_s"]))


def fuse(runs: Sequence[Run], query_ids: Sequence[str], fusion: Fusion) -> Run:
    """Fuse rankings, see `Fusion`. Scores are added in float64.

    Args:
        runs: rankings, of which the best ``fusion.depth`` documents of each query are used.
        query_ids: queries of the result, in its order. Others are left out.
        fusion: method and its settings.

    Raises:
        BenchError: a fused score is not finite as float32.
    """
    number = {query: row for row, query in enumerate(query_ids)}
    names = pa.chunked_array([run.ids for run in runs], pa.large_string()).unique()
    width = max(len(names), 1)
    rows, scores = list[Int64Array](), list[Float64Array]()
    for run in runs:
        queries = np.array([number.get(query, -1) for query in run.query_ids], np.int64)
        lengths = np.diff(run.offsets)
        ranks = np.arange(len(run)) - np.repeat(run.offsets[:-1], lengths) + 1
        queries = np.repeat(queries, lengths)
        used = (queries >= 0) & (ranks <= fusion.depth)
        positions = pc.index_in(run.ids, names).to_numpy().astype(np.int64)
        rows.append(queries[used] * width + positions[run.documents[used]])
        plain = run.scores[used].astype(np.float64)
        scores.append(_normalize(plain, ranks[used], queries[used], len(query_ids), fusion))
    pairs = np.unique(np.concatenate(rows))
    queries, total = pairs // width, np.zeros(len(pairs))
    for weight, own, values in zip(fusion.weights or (1.0,) * len(runs), rows, scores, strict=True):
        lowest = np.zeros(len(query_ids))
        if fusion.method == "weighted":
            lowest = _reduce(np.minimum, values, own // width, len(query_ids))
        added = lowest[queries]
        added[np.searchsorted(pairs, own)] = values
        total += weight * added
    ids = pa.array(query_ids, pa.large_string())
    return Run.from_columns(
        pa.DictionaryArray.from_arrays(pa.array(queries.astype(np.int32)), ids),
        pa.DictionaryArray.from_arrays(pa.array((pairs % width).astype(np.int32)), names),
        round_scores(total),
    )


def _normalize(
    scores: Float64Array, ranks: Int64Array, queries: Int64Array, count: int, fusion: Fusion
) -> Float64Array:
    """Return the scores of one ranking's rows as they are added, float64 ``(n,)``.

    Scores of a query that are all equal become 0 by ``min-max`` and ``z-score``.
    """
    options = fusion.options
    if fusion.method == "rrf":
        return 1 / (float(options["k"]) + ranks)
    if options["normalization"] == "raw":
        return scores
    least = _reduce(np.minimum, scores, queries, count)
    spread = _reduce(np.maximum, scores, queries, count) - least
    base, scale = least, spread.copy()
    if options["normalization"] == "z-score":
        rows = np.maximum(np.bincount(queries, minlength=count), 1)
        base = np.bincount(queries, scores, minlength=count) / rows
        squares = np.bincount(queries, (scores - base[queries]) ** 2, minlength=count)
        scale = np.sqrt(squares / rows)
    scale[spread == 0] = np.inf
    centred: Float64Array = (scores - base[queries]) / scale[queries]
    return centred


def _reduce(
    function: np.ufunc, values: Float64Array, queries: Int64Array, count: int
) -> Float64Array:
    """Return the least or greatest value of each query, float64 ``(count,)``, 0 without any."""
    start = np.inf if function is np.minimum else -np.inf
    found = np.full(count, start)
    function.at(found, queries, values)
    found[~np.isfinite(found)] = 0
    return found
