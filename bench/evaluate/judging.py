"""A run on a collection becomes scores, by the rules of that collection."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.evaluate.answers import answer_qrels
from bench.evaluate.measures import parse_measure
from bench.evaluate.runs import Run
from bench.evaluate.scoring import Scores, score, tie_bounds
from bench.results.record import Protocol
from datasets_cfg.dataset import Dataset
from datasets_cfg.records import Qrels
from foundation.errors import BenchError

JUDGED = "Judged@10"
JUDGED_BY_ANSWERS = ("Success", "RR")  # need no judgement of what was not retrieved


class Standing(msgspec.Struct, frozen=True):
    """How sure a main score is: see `Result` for the fields."""

    judged_at_10: float | None
    tie_low: float | None
    tie_high: float | None


def measure_names(dataset: Dataset, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Canonical names, the collection's main measure first, then those wanted or its own.

    Raises:
        BenchError: an unknown measure, or one that needs judgements where answers decide.
    """
    further = dataset.facts.measures if wanted is None else wanted
    names = [parse_measure(name).name for name in (dataset.facts.main_measure, *further)]
    for name in names if dataset.answers is not None else ():
        if parse_measure(name).kind not in JUDGED_BY_ANSWERS:
            raise BenchError(
                f"{name} needs judgements, and {dataset.name} is judged by answer strings",
                f"use {' or '.join(f'{kind}@k' for kind in JUDGED_BY_ANSWERS)}",
            )
    return tuple(dict.fromkeys(names))


def as_retrieved(run: Run, dataset: Dataset, depth: int) -> Run:
    """Somebody's run as this collection's protocol retrieves: self-matches out, cut at depth."""
    queries = np.repeat(np.arange(len(run.query_ids)), np.diff(run.offsets))
    kept = np.ones(len(run), dtype=bool)
    if dataset.facts.exclude_self:
        names = pa.array(run.query_ids, pa.large_string()).take(pa.array(queries))
        kept = pc.not_equal(names, run.doc_ids).to_numpy(zero_copy_only=False)
    before = np.concatenate([[0], np.cumsum(kept)])
    ranks = before[:-1] - before[run.offsets[queries]]
    kept &= ranks < depth
    offsets = np.concatenate([[0], np.cumsum(kept)])[run.offsets]
    return Run(run.query_ids, offsets, run.doc_ids.filter(pa.array(kept)), run.scores[kept])


def judge(dataset: Dataset, run: Run, depth: int) -> Qrels:
    """Judgements of a collection: its qrels, or its answers looked up in the passages found."""
    if dataset.answers is None:
        return dataset.qrels
    corpus = dataset.corpus
    return answer_qrels(
        run, dataset.answers, lambda ids: corpus.texts_at(corpus.rows_of(ids)), depth
    )


def score_run(
    dataset: Dataset, run: Run, names: Sequence[str], depth: int
) -> tuple[Scores, Standing]:
    """Scores of the measures, and how sure the main one is."""
    judgements = judge(dataset, run, depth)
    queries = dataset.queries.ids if dataset.answers is not None else None
    scores = score(run, judgements, names, queries)
    judged = None if queries is not None else score(run, judgements, [JUDGED]).mean(JUDGED)
    low, high = None, None
    if parse_measure(names[0]).native:
        low, high = tie_bounds(run, judgements, names[0], queries)
    return scores, Standing(judged, low, high)


def protocol_of(dataset: Dataset, depth: int, corpus_sha256: str, official: bool) -> Protocol:
    """What another result must share to be compared with one on this collection."""
    facts = dataset.facts
    return Protocol(
        collection=facts.name,
        version=facts.version,
        split=facts.split,
        title_track=facts.title_track,
        corpus_sha256=corpus_sha256,
        queries_sha256=dataset.queries_sha256,
        qrels_sha256=dataset.qrels_sha256,
        exclude_self=facts.exclude_self,
        depth=depth,
        official=official,
    )
