"""Records of an evaluation, every field set; tests replace some."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from bench.evaluation.result_record import Conditions, Evaluation, Protocol, Result, Timings
from bench.evaluation.runs import Run
from bench.evaluation.scoring import Scores
from retrievers.models.card import Recipe

PROTOCOL = Protocol(
    collection="beir/tiny",
    version="1",
    split="test",
    title_track="",
    corpus_sha256="c" * 64,
    queries_sha256="d" * 64,
    qrels_sha256="e" * 64,
    exclude_self=True,
    depth=10,
    official=True,
)
CONDITIONS = Conditions(
    time="2026-01-02T03:04:05+00:00",
    bench="0.1",
    commit="0123456789abcdef",
    dirty=False,
    python="3.11.0",
    machine="Linux x86_64",
    device="cpu",
    search_device="cpu",
    threads=2,
    libraries={"numpy": "2"},
)
RECIPE = Recipe(model="words", kind="hashing", dim=8)
RESULT = Result(
    model="words",
    main_measure="nDCG@10",
    measures={"nDCG@10": 0.5},
    judged_at_10=None,
    tie_low=None,
    tie_high=None,
    queries=2,
    documents=3,
    unanswered=0,
    ignored=0,
    index="flat",
    index_recall={},
    in_domain=False,
    protocol=PROTOCOL,
    recipe=RECIPE,
    fingerprint=RECIPE.fingerprint,
    preflight={},
    timings=Timings(),
    conditions=CONDITIONS,
)


def evaluation(
    values: Mapping[str, npt.ArrayLike],
    ids: Sequence[str],
    run: Run | None = None,
    protocol: Protocol = PROTOCOL,
    recipe: Recipe | None = None,
    index: str = "",
) -> Evaluation:
    """An evaluation in memory with these values of the queries, those of the main measure first."""
    scores = {name: np.array(of, dtype=float) for name, of in values.items()}
    result = msgspec.structs.replace(
        RESULT,
        main_measure=next(iter(scores)),
        measures={name: float(np.mean(of)) for name, of in scores.items()},
        protocol=protocol,
        recipe=recipe,
        fingerprint=recipe.fingerprint if recipe else "f" * 64,
        index=index,
    )
    nowhere = Run.from_rows(ids, ["d"] * len(ids), np.ones(len(ids)))
    return Evaluation(result, Scores(tuple(ids), scores, 0, 0), run or nowhere)
