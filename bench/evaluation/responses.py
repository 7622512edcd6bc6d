"""What the responses of a search system show: its rankings, and what to tell about them.

The order of a response counts. Scores are used if they are finite and never rise within it, so that
equal scores are ties. Otherwise ranks are the scores.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bench.evaluation.asking import Response
from bench.evaluation.result_record import Latency
from bench.evaluation.runs import Run, merge_passages, round_scores
from bench.evaluation.scoring import parse_measure
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array
from foundation.errors import BenchError, format_count

MOST_UNKNOWN = 0.05  # share of documents that the collection may lack
SHOWN = 3
SEPARATORS = "#_:-/|"  # between the id of a document and the number of a passage


@dataclass(frozen=True)
class ReadResponses:
    """Rankings of responses, with the warnings about them."""

    run: Run
    warnings: tuple[str, ...]


def read_responses(
    responses: Sequence[Response],
    passages: str,
    dataset: Dataset,
    name: str,
    most_unknown: float = MOST_UNKNOWN,
) -> ReadResponses:
    """Return the rankings of the system ``name``, a query with the id of each response.

    If ``passages`` is not "", a document has the score of its best passage.

    Raises:
        BenchError: there are no documents, or too many that the collection lacks.
    """
    documents: list[str] = []
    scores: list[Float32Array] = []
    repeated: list[str] = []
    unordered: list[str] = []
    for response in responses:
        ids, values = response.ids, _read_scores(response)
        if values is None:
            values = -np.arange(1, len(ids) + 1, dtype=np.float32)
            unordered += [response.query] * (response.scores is not None)
        rows = list(dict(zip(reversed(ids), range(len(ids) - 1, -1, -1), strict=True)).values())
        if len(rows) < len(ids):
            rows.sort()
            ids, values = [ids[row] for row in rows], values[rows]
            repeated.append(response.query)
        documents += ids
        scores.append(values)
    if not documents:
        asked = format_count(len(responses), "query", "queries")
        problem = f"{name} returned no document for {asked}"
        raise BenchError(problem, "Check that the system holds this collection.")
    counts = list(map(len, scores))
    queries = pa.array(np.repeat(np.arange(len(counts), dtype=np.int32), counts))
    query_ids = pa.array([response.query for response in responses], pa.large_string())
    column = pa.DictionaryArray.from_arrays(queries, query_ids)
    run = Run.from_columns(column, pa.array(documents, pa.large_string()), np.concatenate(scores))
    told = ""
    if passages:
        run = merge_passages(run, passages)
        told = count_passages(len(documents), run, passages)
    warnings = [told, _tell_unknown(run, dataset, name, most_unknown)]
    if unordered:
        about = f"scores that rise, or are not finite, for {_count(unordered, len(responses))}"
        warnings.append(f"returned {about}: the order of its responses counts there")
    if repeated:
        about = f"an id twice for {_count(repeated, len(responses))}, such as {repeated[0]!r}"
        warnings.append(f"returned {about}: its first rank counts")
    return ReadResponses(run, tuple(filter(None, warnings)))


def _count(some: Sequence[object], total: int) -> str:
    return f"{len(some):,} of {format_count(total, 'query', 'queries')}"


def _read_scores(response: Response) -> Float32Array | None:
    """Return scores that can be used, or None if the ranks are the scores."""
    if response.scores is None or None in response.scores:
        return None
    with suppress(BenchError):  # not finite as float32
        values = np.array(response.scores, np.float64)
        rounded = round_scores(values)
        return None if (np.diff(values) > 0).any() else rounded
    return None


def _tell_unknown(run: Run, dataset: Dataset, name: str, most: float) -> str:
    """Return a warning about documents that ``dataset`` lacks, or raise if they are many."""
    ids = run.ids.to_pylist()
    unknown = [ids[row] for row in np.flatnonzero(dataset.corpus.rows_of(tuple(ids)) < 0)]
    if not unknown:
        return ""
    shown = ", ".join(map(repr, unknown[:SHOWN]))
    counted = f"{len(unknown):,} of the {len(ids):,} documents that {name} returned"
    if len(unknown) <= most * len(ids):
        return f"{counted} are not in {dataset.name}: {shown}; they keep their ranks"
    own = ", ".join(repr(each) for each in dataset.corpus.ids[:SHOWN].to_pylist())
    raise BenchError(
        f"{counted} are not in {dataset.name}: {name} has {shown}, the collection {own}",
        _explain_unknown(unknown[:SHOWN], dataset),
    )


def _explain_unknown(unknown: Sequence[str], dataset: Dataset) -> str:
    """Return the hint for unknown ids, which may be those of passages."""
    for separator in SEPARATORS:
        parents = tuple(each.rpartition(separator)[0] for each in unknown)
        if all(parents) and (dataset.corpus.rows_of(parents) >= 0).all():
            return f"Add --passages '{separator}' if they are passages of documents."
    return "Check that the system holds this collection, under the same ids."


def count_passages(rows: int, run: Run, separator: str) -> str:
    """Return how many documents ``rows`` of passages are in ``run``, which has the documents."""
    lengths = np.diff(run.offsets)
    return (
        f"{rows:,} passages, with {separator!r} in their ids, are of {len(run):,} documents: "
        f"{lengths.min():,} to {lengths.max():,} for a query"
    )


def find_short_measures(
    run: Run, measures: Sequence[str], depth: int, documents: int
) -> tuple[dict[str, int], str]:
    """Find measures that count more documents than a system returned for some query.

    Args:
        run: rankings, cut at the depth.
        measures: names of measures.
        depth: documents per query that were asked for.
        documents: number of documents of the collection.

    Returns:
        The smallest number of documents of a query, by measure; and a warning, or "".
    """
    lengths, wanted = np.diff(run.offsets), min(depth, documents)
    fewest, short = int(lengths.min()), int((lengths < wanted).sum())
    if not short:
        return {}, ""
    limited = {name: fewest for name in measures if parse_measure(name).documents > fewest}
    about = f"{short:,} of {format_count(len(lengths), 'query', 'queries')}"
    warning = f"returned fewer than {wanted:,} documents for {about}, at fewest {fewest:,}"
    return limited, f"{warning}; limited: {', '.join(limited)}" if limited else warning


def measure_latency(seconds: Sequence[float], concurrency: int) -> Latency:
    """Return the median and the 95th and 99th percentile of the calls' ``seconds``."""
    median, p95, p99 = (1000 * np.percentile(seconds, [50, 95, 99])).tolist()
    return Latency(median, p95, p99, queries=len(seconds), concurrency=concurrency)
