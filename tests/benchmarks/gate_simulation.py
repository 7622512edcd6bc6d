"""Does the gate keep its promises? False alarms, false passes and power on real scores.

Reciprocal ranks of BM25 on the embedded collection are the population of queries. A changed query
has documents put before its first relevant one, as many as a geometric distribution says. Four
questions, for 50 to 7,000 queries of which 50 to 90 % do not change:

* exchangeable: both models are changed alike. How often does rule ``loss`` raise a false alarm?
* rare losses: rare large losses and many small gains, with mean 0; rare gains: the reverse. The
  same question; these models are not exchangeable, so that the test promises nothing here.
* margin: the mean loss is exactly the margin, the differences are skewed. How often does each bound
  pass it: bootstrap-t (ours), shifted sign flips, Student's t, percentile bootstrap?
* planted: rankings of a random share of queries are degraded, until the mean loss is the minimum
  detectable effect, and twice that. How often is it found?

    python -m tests.benchmarks.gate_simulation [--pairs 300] [--resamples 499]

A rate is marked ``!`` where it is above its level by more than simulation explains (99 %). The last
line of stdout is one JSON document.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

import numpy as np
from scipy import stats
from tabulate import tabulate

from bench.decisions.noninferiority import largest_loss
from bench.decisions.statistics import Differences, Resampling, paired, resample
from bench.decisions.verdicts import Evidence, Loss, decide
from bench.pipeline import Options, evaluate
from bench.store import VectorStore
from datasets_cfg.dataset import open_dataset
from retrievers.index import IndexSpec
from retrievers.model import resolve_model

SIZES, ZEROS = (50, 300, 2_000, 7_000), (0.5, 0.9)
DEPTH, MARGIN, PUSHED = 10, 0.02, 0.3
ALARMS = ("exchangeable", "with floor 0.1", "rare losses", "rare gains")
MDE_FACTOR = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)


def real_ranks() -> np.ndarray:
    """Rank of the first relevant document, int64 ``(queries,)``; 0 below rank 10."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = open_dataset("stdlib-code", cache_dir=Path(folder), download=False)
        model, options = resolve_model("bm25"), Options(IndexSpec.parse("flat"))
        done = evaluate(dataset, model, None, VectorStore(Path(folder)), options)
        values = done.scores.values[f"RR@{DEPTH}"]
    return np.where(values > 0, np.round(1 / np.maximum(values, 0.01)), 0).astype(np.int64)


def reciprocal(ranks: np.ndarray) -> np.ndarray:
    return np.where((ranks > 0) & (ranks <= DEPTH), 1 / np.maximum(ranks, 1), 0.0)


def degraded(ranks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Ranks with documents put before the first relevant one."""
    return np.where(ranks > 0, ranks + rng.geometric(PUSHED, ranks.shape), 0)


def exchangeable(
    ranks: np.ndarray, zeros: float, shape: tuple[int, int], rng: np.random.Generator
) -> np.ndarray:
    """Differences ``shape`` of models of which either is changed by the same lot."""
    drawn = rng.choice(ranks[ranks > 0], shape)
    loss = reciprocal(degraded(drawn, rng)) - reciprocal(drawn)
    return np.where(rng.random(shape) < zeros, 0.0, loss * rng.choice((-1, 1), shape))


def skewed(
    ranks: np.ndarray, zeros: float, mean: float, shape: tuple[int, int], rng: np.random.Generator
) -> np.ndarray:
    """Differences of which a tenth of those changed lose much; recentred to a mean over all."""
    drawn = rng.choice(ranks[ranks > 0], (200_000,))
    loss = reciprocal(degraded(drawn, rng)) - reciprocal(drawn)
    changed = np.where(rng.random(loss.shape) < 0.1, loss, 0.05 * loss)
    changed += mean / (1 - zeros) - changed.mean()
    return np.where(rng.random(shape) < zeros, 0.0, rng.choice(changed, shape))


def planted(
    ranks: np.ndarray, zeros: float, factor: float, shape: tuple[int, int], rng: np.random.Generator
) -> tuple[np.ndarray, float] | None:
    """Exchangeable differences with degraded rankings, and the loss; None if all are too few."""
    drawn = rng.choice(ranks[ranks > 0], (200_000,))
    loss = reciprocal(degraded(drawn, rng)) - reciprocal(drawn)
    noise = (1 - zeros) * (loss**2).mean()
    share = _share(-loss.mean(), (loss**2).mean(), noise, factor * MDE_FACTOR / math.sqrt(shape[0]))
    if share is None:
        return None
    lost = np.where(rng.random(shape) < share, rng.choice(loss, shape), 0.0)
    return exchangeable(ranks, zeros, shape, rng) + lost, float(-share * loss.mean())


def _share(mean: float, square: float, noise: float, errors: float) -> float | None:
    """Share of degraded queries at which the mean loss is so many deviations."""
    shares = np.linspace(0, 1, 10_001)[1:]
    deviation = np.sqrt(noise + shares * square - (shares * mean) ** 2)
    enough = shares * mean >= errors * deviation
    return float(shares[enough.argmax()]) if enough.any() else None


def outcomes(differences: np.ndarray, resampling: Resampling, floor: float = 1.0) -> list[str]:
    """What the gate says by rule ``loss`` of each column."""
    drawn = resample(differences, resampling)
    columns = zip(differences.T, drawn.bootstrap.T, drawn.flipped.T, strict=True)
    return [_outcome(Differences(*column), floor) for column in columns]


def _outcome(part: Differences, floor: float) -> str:
    found = paired([part])
    loss = Loss("one", found.difference, found.p)
    evidence = Evidence(
        rule="loss",
        collections=(loss,),
        mean=loss,
        changed=found.changed,
        same_rankings=found.changed == 0,
        largest_loss=None,
        margin=MARGIN,
        floor=floor,
    )
    return decide(evidence).outcome


def passes(differences: np.ndarray, resampling: Resampling) -> dict[str, float]:
    """How often each bound rules out a loss beyond the margin: a share of the columns."""
    count = len(differences)
    means, errors = differences.mean(axis=0), differences.std(axis=0, ddof=1) / math.sqrt(count)
    drawn = resample(differences, resampling).bootstrap
    flips = resample(differences + MARGIN, resampling).flipped
    p = (1 + (flips >= means + MARGIN - 1e-12).sum(axis=0)) / (1 + len(flips))
    bounds = [largest_loss([column], resampling=resampling) for column in differences.T]
    return {
        "bootstrap-t": float(np.mean([b is not None and b <= MARGIN for b in bounds])),
        "sign flips": float(np.mean(p <= 0.05)),
        "t": float(np.mean(means - stats.t.ppf(0.95, count - 1) * errors >= -MARGIN)),
        "percentile": float(np.mean(np.quantile(drawn, 0.05, axis=0) >= -MARGIN)),
    }


def simulate(
    ranks: np.ndarray, size: int, zeros: float, pairs: int, resampling: Resampling
) -> dict[str, object]:
    """All questions for one number of queries and share of zeros."""
    rng = np.random.default_rng([size, int(100 * zeros)])
    shape = (size, pairs)
    row: dict[str, object] = {"queries": size, "zeros": zeros}
    alike = exchangeable(ranks, zeros, shape, rng)
    row["exchangeable"] = _regressions(alike, resampling)
    row["with floor 0.1"] = _regressions(alike, resampling, floor=0.1)
    balanced = skewed(ranks, zeros, 0.0, shape, rng)
    row["rare losses"] = _regressions(balanced, resampling)
    row["rare gains"] = _regressions(-balanced, resampling)
    row["margin"] = passes(skewed(ranks, zeros, -MARGIN, shape, rng), resampling)
    for factor in (1, 2):
        found = planted(ranks, zeros, factor, shape, rng)
        row[f"power at {factor} MDE"] = _regressions(found[0], resampling) if found else None
        row[f"loss at {factor} MDE"] = found[1] if found else None
    return row


def _regressions(differences: np.ndarray, resampling: Resampling, floor: float = 1.0) -> float:
    return outcomes(differences, resampling, floor).count("REGRESSION") / differences.shape[1]


def _rate(value: object, pairs: int, level: float | None = None) -> str:
    if not isinstance(value, float):
        return "-"
    over = level is not None and value * pairs > stats.binom.ppf(0.99, pairs, level)
    return f"{100 * value:.1f} %" + (" !" if over else "")


def table(rows: list[dict[str, object]], pairs: int) -> str:
    cells = []
    for row in rows:
        margin = row["margin"]
        assert isinstance(margin, dict)
        alarms = [
            row[name] for name in ("exchangeable", "with floor 0.1", "rare losses", "rare gains")
        ]
        power = [_rate(row[f"power at {factor} MDE"], pairs) for factor in (1, 2)]
        rates = [_rate(value, pairs, 0.05) for value in [*alarms, *margin.values()]]
        cells.append([f"{row['queries']:,}", f"{row['zeros']:.0%}", *rates, *power])
    names = [*ALARMS, *(f"passes: {n}" for n in margin)]
    return tabulate(cells, ["queries", "zeros", *names, "power at MDE", "at twice"], "pipe")


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate the gate on real scores.")
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--resamples", type=int, default=499)
    options = parser.parse_args()
    ranks = real_ranks()
    resampling = Resampling(options.resamples)
    rows = [simulate(ranks, n, z, options.pairs, resampling) for n in SIZES for z in ZEROS]
    print(table(rows, options.pairs))
    print(json.dumps({"pairs": options.pairs, "margin": MARGIN, "rows": rows}))


if __name__ == "__main__":
    main()
