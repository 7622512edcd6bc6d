"""Checks of rankings from other programs: run files, and responses of search systems.

The order of a response counts. Scores are used if they are finite and never rise within it, so that
equal scores are ties. Otherwise ranks are the scores.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bench.evaluation.asking import Response
from bench.evaluation.result_record import Latency
from bench.evaluation.runs import Run, merge_passages, round_scores
from bench.evaluation.scoring import parse_measure
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array
from foundation.errors import BenchError, format_count

MOST_UNKNOWN = 0.05  # share of documents that the collection may lack
SHOWN = 3
SEPARATORS = "#_:-/|"  # between the id of a document and the number of a passage


def read_responses(
    responses: Sequence[Response],
    passages: str,
    dataset: Dataset,
    name: str,
    most_unknown: float = MOST_UNKNOWN,
) -> tuple[Run, list[str]]:
    """Return the rankings of the system ``name``, and warnings about its responses.

    If ``passages`` is not "", a document has the score of its best passage.

    Raises:
        BenchError: there are no documents, or too many that the collection lacks.
    """
    documents: list[str] = []
    scores: list[Float32Array] = []
    repeated: list[str] = []
    unordered: list[str] = []
    for response in responses:
        read = rank_response(response.ids, response.scores)
        unordered += [response.query] * (read.has_ranks and response.scores is not None)
        repeated += [response.query] * (len(read.ids) < len(response.ids))
        documents += read.ids
        scores.append(read.scores)
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
    warnings = [told]
    if dataset.has_documents:
        warnings.append(_tell_unknown(run, name, dataset, dataset.corpus, most_unknown))
    else:
        _require_judged(run, name, dataset)
    if unordered:
        about = f"scores that rise, or are not finite, for {_count(unordered, len(responses))}"
        warnings.append(f"returned {about}: the order of its responses counts there")
    if repeated:
        about = f"an id twice for {_count(repeated, len(responses))}, such as {repeated[0]!r}"
        warnings.append(f"returned {about}: its first rank counts")
    return run, list(filter(None, warnings))


def _count(some: Sequence[object], total: int) -> str:
    return f"{len(some):,} of {format_count(total, 'query', 'queries')}"


class RankedResponse(NamedTuple):
    """Distinct documents of a response, best first, and whether their scores are ranks."""

    ids: list[str]
    scores: Float32Array
    has_ranks: bool


def rank_response(ids: Sequence[str], given: Sequence[float | None] | None) -> RankedResponse:
    """Read the documents of a response, each at its first rank, and their scores if any."""
    scores, has_ranks = -np.arange(1, len(ids) + 1, dtype=np.float32), True
    if given is not None and None not in given:
        with suppress(BenchError):  # not finite as float32
            values = np.array(given, np.float64)
            rounded = round_scores(values)
            if not (np.diff(values) > 0).any():
                scores, has_ranks = rounded, False
    rows = sorted({id_: row for row, id_ in reversed(list(enumerate(ids)))}.values())
    return RankedResponse([ids[row] for row in rows], scores[rows], has_ranks)


def check_run(run: Run, name: str, dataset: Dataset, measures: Sequence[str]) -> list[str]:
    """Return what makes the scores of a run file mean something else, one sentence each.

    Args:
        run: as its file states it.
        name: its name in messages.
        dataset: collection whose judgements score it.
        measures: names of the measures, whose cutoffs the rankings should reach.

    Raises:
        BenchError: the run has no document, no query of the collection, or, if documents can be
            looked up in seconds, none of its documents.
    """
    if not len(run):
        raise BenchError(f"the run {name} is empty")
    known = set(dataset.queries.ids)
    unknown = [query for query in run.query_ids if query not in known]
    if len(unknown) == len(run.query_ids):
        raise BenchError(
            f"no query of the run {name} is in {dataset.name}: the run has {unknown[0]!r}, the "
            f"collection {dataset.queries.ids[0]!r}",
            "Check --dataset and --split.",
        )
    notes = []
    if unknown:
        notes.append(
            f"{_count(unknown, len(run.query_ids))}, such as {unknown[0]!r}, are not in this split "
            f"of {dataset.name}; they do not count"
        )
    corpus, size = dataset.find_quick_corpus(), dataset.metadata.counts.documents
    if corpus is not None:
        size = len(corpus)
        notes.append(_tell_unknown(run, f"the run {name}", dataset, corpus, most=1.0))
    elif not dataset.has_documents:
        _require_judged(run, f"the run {name}", dataset)
    longest = int(np.diff(run.offsets).max())
    deeper = _deeper_than(longest, measures)
    if deeper and (size is None or longest + bool(dataset.metadata.exclude_self) < size):
        fewer = format_count(longest, "document", "documents")
        notes.append(f"no query has more than {fewer}, fewer than {', '.join(deeper)} can count")
    return list(filter(None, notes))


def _tell_unknown(run: Run, name: str, dataset: Dataset, corpus: Corpus, most: float) -> str:
    """Return a warning about documents that ``corpus`` lacks.

    Raises:
        BenchError: it lacks more than the share ``most``, or all.
    """
    ids = run.ids.to_pylist()
    unknown = [ids[row] for row in np.flatnonzero(corpus.rows_of(tuple(ids)) < 0)]
    if not unknown:
        return ""
    shown = ", ".join(map(repr, unknown[:SHOWN]))
    counted = f"{len(unknown):,} of the {len(ids):,} documents of {name}"
    if len(unknown) <= most * len(ids) and len(unknown) < len(ids):
        return f"{counted} are not in {dataset.name}: {shown}; they keep their ranks"
    own = ", ".join(repr(each) for each in corpus.ids[:SHOWN].to_pylist())
    raise BenchError(
        f"{counted} are not in {dataset.name}: {name} has {shown}, the collection {own}",
        _explain_unknown(unknown[:SHOWN], corpus),
    )


def _require_judged(run: Run, name: str, dataset: Dataset) -> None:
    """Raise if a ranking has no judged document of a collection that has ids alone."""
    judged, ids = dict.fromkeys(dataset.qrels.doc_ids), run.ids.to_pylist()
    if judged.keys() & {*ids}:
        return
    shown, own = (", ".join(map(repr, list(some)[:SHOWN])) for some in (ids, judged))
    raise BenchError(
        f"no document of {name} is judged in {dataset.name}: {name} has {shown}, the judgements "
        f"{own}",
        "Check that it is of this collection, with the ids of documents and not with rows.",
    )


def _explain_unknown(unknown: Sequence[str], corpus: Corpus) -> str:
    """Return the hint for unknown ids, which may be those of passages."""
    for separator in SEPARATORS:
        parents = tuple(each.rpartition(separator)[0] for each in unknown)
        if all(parents) and (corpus.rows_of(parents) >= 0).all():
            return f"Add --passages '{separator}' if they are passages of documents."
    return "Check that it is of this collection, with the ids of documents and not with rows."


def _deeper_than(length: int, measures: Sequence[str]) -> list[str]:
    """Return the measures that can count more documents than a ranking of ``length`` has."""
    return [name for name in measures if parse_measure(name).documents > length]


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
    limited = dict.fromkeys(_deeper_than(fewest, measures), fewest)
    about = f"{short:,} of {format_count(len(lengths), 'query', 'queries')}"
    warning = f"returned fewer than {wanted:,} documents for {about}, at fewest {fewest:,}"
    return limited, f"{warning}; limited: {', '.join(limited)}" if limited else warning


def measure_latency(seconds: Sequence[float], concurrency: int) -> Latency:
    """Return the median and the 95th and 99th percentile of the calls' ``seconds``."""
    median, p95, p99 = (1000 * np.percentile(seconds, [50, 95, 99])).tolist()
    return Latency(median, p95, p99, queries=len(seconds), concurrency=concurrency)
