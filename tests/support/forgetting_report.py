"""Checkpoints of two successive trainings on two collections, with known figures."""

from msgspec.structs import replace

from bench.comparing.pairs import Forgetting, TransferRow, Transfers
from bench.comparing.statistics import Difference, Estimate, Resampling

VALUES = {
    "base": {"bio": 0.3, "law": 0.2},
    "after $bio$": {"bio": 0.6, "law": 0.25},
    "after|law": {"bio": 0.4, "law": 0.55},
}


def compared(difference: float, **labels: str) -> Difference:
    return Difference(
        **labels,
        difference=difference,
        low=difference - 0.05,
        high=difference + 0.05,
        p=0.01,
        wins=30,
        ties=50,
        losses=20,
        effect=0.2,
        detectable=0.03,
    )


def transfers(difference: float, collection: str, after: str, before: str) -> Transfers:
    row = compared(difference, on=collection, a=after, b=before)
    return Transfers(compared(difference, on="mean"), (replace(row, p_adjusted=0.02),))


def forgetting(base: bool = True) -> Forgetting:
    rows = [
        TransferRow(
            name, {key: Estimate(value, value - 0.1, value + 0.1) for key, value in levels.items()}
        )
        for name, levels in VALUES.items()
    ]
    last, first = "after|law", "after $bio$"
    return Forgetting(
        measure="nDCG@10",
        rows=tuple(rows if base else rows[1:]),
        base="base" if base else "",
        trained=("bio", "law"),
        queries={"bio": 100, "law": 100},
        average=Estimate(0.475, 0.4, 0.55),
        gain=transfers(0.3, "law", last, first),
        backward=transfers(-0.2, "bio", last, first),
        forward=transfers(0.05, "law", first, "base") if base else None,
        resampling=Resampling(resamples=99),
    )
