"""Reports of ablations with known figures."""

import msgspec
import numpy as np

from bench.experiments.experiment import Cost
from bench.experiments.grid import AxisResult
from bench.experiments.report_record import MEAN, CellResult, Report, RowOnCollection, RowResult
from bench.experiments.seed_statistics import SeedEstimate, estimate_interval
from tests.support.results import CONDITIONS

RNG = np.random.default_rng(2)
NOISE = {name: RNG.normal(0, 0.02, (3, 60)) for name in ("a", "b")}


def on(collection, mean, against=None, verdict="", seeds=3):
    """Figures of a row: ``mean``, and its difference to ``against``."""
    scores = mean + NOISE["a"][:seeds]
    found = RowOnCollection(
        collection=collection, measure="nDCG@10", queries=60, score=estimate_interval([scores])
    )
    if against is None:
        return found
    differences = scores - against - NOISE["b"][:seeds]
    found_difference = estimate_interval([differences])
    if seeds == 1:
        found_difference = SeedEstimate(
            value=mean - against, low=mean - against - 0.008, high=1.0, p=0.5
        )
    return msgspec.structs.replace(
        found,
        seeds=tuple(range(seeds)),
        difference=found_difference,
        p_holm=0.00001,
        verdict=verdict,
    )


def row(name, mean, verdict="", change="", failed=(), seeds=3):
    """A row on two collections and in their mean."""
    against = "" if name == "reference" else "reference"
    base = None if name == "reference" else 0.3
    cells = tuple(
        CellResult(seed=seed, scores={}, failed_at="finetune", error="loss is | not a number")
        if seed in failed
        else CellResult(
            seed=seed,
            scores={"beir/nfcorpus": mean + seed / 100, "beir/scifact": mean + 0.1 + seed / 100},
            costs={
                "pretrain": Cost(60.0 + seed, tokens=1000, parameters=12_345),
                "evaluate": Cost(9.0, tokens=77, parameters=1),
            },
        )
        for seed in range(seeds)
    )
    shown = () if len(failed) == seeds else tuple(
        on(where, mean, base, verdict, seeds) for where in ("beir/nfcorpus", "beir/scifact", MEAN)
    )  # fmt: skip
    return RowResult(name=name, against=against, change=change, cells=cells, on=shown)


def report(*rows, seeds=3):
    """A report of these rows along one axis."""
    points = {one.name.rpartition("=")[2]: one.name for one in rows}
    return Report(
        name="masks",
        title="Masks",
        command="python -m bench ablate masks",
        seeds=tuple(range(seeds)),
        reference={"pretrain": {"steps": 1}, "evaluate": {"on": ["beir/nfcorpus"]}},
        rows=rows,
        axes=(AxisResult(title="mask", field="pretrain.mask", points=points),),
        leaks=("2 queries read like one that is scored: they are left out.",),
        commits=("0123456789abcdef",),
        seconds=3_700.0,
        conditions=CONDITIONS,
    )


REFERENCE = row("reference", 0.3)
BETTER = row("mask=0.15", 0.4, "better", "pretrain.mask: 0.5 -> 0.15")
OPEN = row("mask=0.9", 0.301, "cannot tell", "pretrain.mask: 0.5 -> 0.9")
GAP = row("mask=1.0", 0.3, change="pretrain.mask: 0.5 -> 1.0", failed=(0, 1, 2))
FULL = report(REFERENCE, BETTER, OPEN, GAP)
