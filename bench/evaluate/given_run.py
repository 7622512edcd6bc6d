"""Evaluation of a ranking that another program made."""

from collections.abc import Sequence

import msgspec

from bench.evaluate.judging import as_retrieved, measure_names, protocol_of, score_run
from bench.evaluate.pipeline import Evaluation, conditions_here
from bench.evaluate.runs import Run
from bench.results.result import Result, Timings
from datasets_cfg.dataset import Dataset


def evaluate_run(
    run: Run,
    name: str,
    sha256: str,
    dataset: Dataset,
    measures: Sequence[str] | None,
    depth: int | None,
    official: bool,
) -> Evaluation:
    """Score a ranking by the collection's own protocol; its documents are not looked for.

    Args:
        name: of the run in results.
        sha256: hash of its content, by which it is known.
        measures: besides the collection's main one; None for the collection's.
        depth: documents per query; None for the collection's.

    Raises:
        BenchError: an unknown measure, or one that looks deeper than ``depth``.
    """
    names = measure_names(dataset, measures, depth)
    depth = depth or dataset.facts.depth
    retrieved = as_retrieved(run, dataset, depth)
    scores, quality = score_run(dataset, retrieved, names, depth)
    result = Result(
        model=name,
        main_measure=names[0],
        measures={measure: scores.mean(measure) for measure in names},
        queries=len(scores.query_ids),
        documents=None,
        unanswered=scores.unanswered,
        ignored=scores.ignored,
        index="",
        index_recall={},
        in_domain=False,
        protocol=protocol_of(dataset, depth, corpus_sha256="", official=official),
        recipe=None,
        fingerprint=sha256,
        preflight={},
        timings=Timings(),
        conditions=conditions_here("cpu"),
        **msgspec.structs.asdict(quality),
    )
    return Evaluation(result, scores, retrieved)
