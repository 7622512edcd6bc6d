"""Does the gate keep its promises? False alarms, false passes and power on real scores.

`gate_populations` says which queries, and what they score when documents are put before the first
relevant one, as many as a geometric distribution says. Pairs of models are drawn from them:

* exchangeable: both models are changed alike. How often does rule ``loss`` raise a false alarm?
* rare losses: rare large losses and many small gains, with mean 0; rare gains: the reverse. The
  same question. These models are not exchangeable, so that the randomisation test alone promises
  nothing, and errs where a sample misses the gains: its column shows it beside the gate's.
* margin: the mean loss is exactly the margin, the differences are skewed. How often does each bound
  pass it: bootstrap-t (ours), shifted sign flips, Student's t, percentile bootstrap?
* planted: rankings of a random share of queries are degraded, until the mean loss is the minimum
  detectable effect that the gate states, and twice that. How often is it found?

The first table has 50 to 7,000 queries of which 50 to 90 % do not change; the second has other
measures and collections that the gate's allowance was not chosen on; the third has several
collections at once, with Holm over them and their mean, decided by `check_against` itself.

    python -m tests.benchmarks.gate_simulation [--pairs 300] [--resamples 499]

A rate is marked ``!`` where it is above its level by more than simulation explains (99 %), or a
power is below 80 % (99 % at twice the effect) by as much. The last line of stdout is one JSON
document.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from scipy import stats
from tabulate import tabulate

from bench.compare.panels import Entry
from bench.compare.statistics import Differences, Resampling, paired, resample
from bench.evaluate.runs import Run
from bench.gate.check import Terms
from bench.gate.evidence import check_against
from bench.gate.noninferiority import largest_loss
from bench.gate.skew import UNSEEN, p_of_loss, studentise
from bench.gate.verdicts import Evidence, Loss, decide
from bench.results.record import Protocol
from tests.benchmarks.gate_populations import Population, populations

SIZES, ZEROS = (50, 300, 2_000, 7_000), (0.5, 0.9)
SMALL = (50, 300)  # of the second table
FAMILY = (50, 100, 300, 1_000)  # queries of the collections of the third table
FAMILY_MEASURE = "nDCG@10"
MARGIN = 0.02
MDE_FACTOR = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
LEVEL, POWER, SURE = 0.05, 0.8, 0.99
PROTOCOL = Protocol(
    collection="",
    version="1",
    split="test",
    title_track="",
    corpus_sha256="",
    queries_sha256="",
    qrels_sha256="",
    exclude_self=False,
    depth=10,
    official=True,
)


def exchangeable(
    real: Population, zeros: float, shape: tuple[int, int], rng: np.random.Generator
) -> np.ndarray:
    """Differences ``shape`` of models of which either is changed by the same lot."""
    signed = real.losses(shape, rng) * rng.choice((-1, 1), shape)
    return np.where(rng.random(shape) < zeros, 0.0, signed)


def skewed(
    real: Population, zeros: float, mean: float, shape: tuple[int, int], rng: np.random.Generator
) -> np.ndarray:
    """Differences of which a tenth of those changed lose much; recentred to a mean over all."""
    loss = real.losses(200_000, rng)
    changed = np.where(rng.random(loss.shape) < 0.1, loss, 0.05 * loss)
    changed += mean / (1 - zeros) - changed.mean()
    return np.where(rng.random(shape) < zeros, 0.0, rng.choice(changed, shape))


def planted(
    real: Population, zeros: float, factor: float, shape: tuple[int, int], rng: np.random.Generator
) -> tuple[np.ndarray, float] | None:
    """Exchangeable differences with degraded rankings, and the loss; None if all are too few."""
    loss = real.losses(200_000, rng)
    share = _share(loss, (1 - zeros) * (loss**2).mean(), factor, shape[0])
    if share is None:
        return None
    lost = np.where(rng.random(shape) < share, rng.choice(loss, shape), 0.0)
    return exchangeable(real, zeros, shape, rng) + lost, float(-share * loss.mean())


def _share(loss: np.ndarray, noise: float, factor: float, size: int) -> float | None:
    """Share of degraded queries at which the mean loss is ``factor`` times the stated effect."""
    mean, square = -loss.mean(), (loss**2).mean()
    shares = np.linspace(0, 1, 10_001)[1:]
    deviation = np.sqrt(noise + shares * square - (shares * mean) ** 2)
    stated = MDE_FACTOR * deviation / math.sqrt(size) + UNSEEN / size
    enough = shares * mean >= factor * stated
    return float(shares[enough.argmax()]) if enough.any() else None


def outcomes(differences: np.ndarray, resampling: Resampling, floor: float = 1.0) -> list[str]:
    """What the gate says by rule ``loss`` of each column."""
    drawn = resample(differences, resampling)
    columns = zip(differences.T, drawn.bootstrap.T, drawn.flipped.T, strict=True)
    return [_outcome(Differences(*column), resampling, floor) for column in columns]


def _outcome(part: Differences, resampling: Resampling, floor: float) -> str:
    found, skew = paired([part]), studentise(part.scores, resampling)
    loss = Loss("one", found.difference, max(found.p, p_of_loss(skew)), found.p)
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


def alone(differences: np.ndarray, resampling: Resampling) -> float:
    """How often the randomisation test alone finds a loss: a share of the columns."""
    means, flipped = differences.mean(axis=0), resample(differences, resampling).flipped
    p = (1 + (np.abs(flipped) >= np.abs(means) - 1e-12).sum(axis=0)) / (1 + len(flipped))
    return float(np.mean((means < 0) & (p <= LEVEL)))


def passes(differences: np.ndarray, resampling: Resampling) -> dict[str, float]:
    """How often each bound rules out a loss beyond the margin: a share of the columns."""
    count = len(differences)
    means, errors = differences.mean(axis=0), differences.std(axis=0, ddof=1) / math.sqrt(count)
    drawn = resample(differences, resampling).bootstrap
    flips = resample(differences + MARGIN, resampling).flipped
    p = (1 + (flips >= means + MARGIN - 1e-12).sum(axis=0)) / (1 + len(flips))
    bounds = [largest_loss(studentise(column, resampling)) for column in differences.T]
    return {
        "bootstrap-t": float(np.mean([b is not None and b <= MARGIN for b in bounds])),
        "sign flips": float(np.mean(p <= LEVEL)),
        "t": float(np.mean(means - stats.t.ppf(1 - LEVEL, count - 1) * errors >= -MARGIN)),
        "percentile": float(np.mean(np.quantile(drawn, LEVEL, axis=0) >= -MARGIN)),
    }


def simulate(
    real: Population, size: int, zeros: float, pairs: int, resampling: Resampling
) -> dict[str, object]:
    """All questions for one population, number of queries and share of zeros."""
    rng = np.random.default_rng([size, int(100 * zeros)])
    shape = (size, pairs)
    row: dict[str, object] = {"population": real.name, "queries": size, "zeros": zeros}
    alike = exchangeable(real, zeros, shape, rng)
    row["exchangeable"] = _regressions(alike, resampling)
    row["with floor 0.1"] = _regressions(alike, resampling, floor=0.1)
    balanced = skewed(real, zeros, 0.0, shape, rng)
    row["rare losses"] = _regressions(balanced, resampling)
    row["rare gains"] = _regressions(-balanced, resampling)
    row["rare gains, flips alone"] = alone(-balanced, resampling)
    at_margin = passes(skewed(real, zeros, -MARGIN, shape, rng), resampling)
    row |= {f"passes: {name}": rate for name, rate in at_margin.items()}
    for factor, name in ((1, "at MDE"), (2, "at twice")):
        found = planted(real, zeros, factor, shape, rng)
        row[name] = _regressions(found[0], resampling) if found else None
        row[f"loss {name}"] = found[1] if found else None
    return row


def _regressions(differences: np.ndarray, resampling: Resampling, floor: float = 1.0) -> float:
    return outcomes(differences, resampling, floor).count("REGRESSION") / differences.shape[1]


def family(
    reals: Sequence[Population], zeros: float, pairs: int, resampling: Resampling
) -> dict[str, object]:
    """Several collections at once: how often any of them, or the mean, is a regression."""
    rng = np.random.default_rng([len(reals), int(100 * zeros)])
    own = [reals[i % len(reals)] for i in range(len(FAMILY))]
    shapes = [(size, pairs) for size in FAMILY]
    null = [exchangeable(real, zeros, shape, rng) for real, shape in zip(own, shapes, strict=True)]
    gains = [-skewed(real, zeros, 0.0, sh, rng) for real, sh in zip(own, shapes, strict=True)]
    row: dict[str, object] = {"collections": len(FAMILY), "zeros": zeros}
    loss = Terms(floor=1.0, resampling=resampling)
    row["exchangeable"] = _share_of(null, loss, "REGRESSION")
    row["rare gains"] = _share_of(gains, loss, "REGRESSION")
    lost = [skewed(real, zeros, -MARGIN, sh, rng) for real, sh in zip(own, shapes, strict=True)]
    margin = Terms(rule="margin", margin=MARGIN, floor=1.0, resampling=resampling)
    row["mean lost the margin, passes"] = _share_of(lost, margin, "OK")
    for factor, name in ((1, "one lost its MDE"), (2, "one lost twice")):
        found = planted(own[-1], zeros, factor, shapes[-1], rng)
        worse = [*null[:-1], found[0]] if found else None
        row[name] = _share_of(worse, loss, "REGRESSION") if worse else None
    return row


def _share_of(parts: Sequence[np.ndarray], terms: Terms, outcome: str) -> float:
    """How often the gate says this of columns, one of each collection."""
    weights = {f"c{i}": 1 / len(parts) for i in range(len(parts))}
    found = 0
    for columns in zip(*(part.T for part in parts), strict=True):
        candidate = {name: _entry(name, c) for name, c in zip(weights, columns, strict=True)}
        zero = {name: _entry(name, 0 * c) for name, c in zip(weights, columns, strict=True)}
        done = check_against("baseline", "base", candidate, zero, {}, weights, terms)
        found += done.outcome == outcome
    return found / parts[0].shape[1]


def _entry(name: str, values: np.ndarray) -> Entry:
    ids = tuple(map(str, range(len(values))))
    return Entry(
        protocol=msgspec.structs.replace(PROTOCOL, collection=name),
        main_measure="RR@10",
        in_domain=False,
        recipe={},
        scores=lambda: (ids, {"RR@10": values}),
        run=lambda: Run.from_rows([], [], []),
    )


def table(rows: Sequence[Mapping[str, object]], pairs: int) -> str:
    """Rates with a mark where they are worse than promised."""
    names = [name for name in rows[0] if not name.startswith("loss at")]
    return tabulate(
        [[_cell(name, row[name], pairs) for name in names] for row in rows], names, "pipe"
    )


def _cell(name: str, value: object, pairs: int) -> str:
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    if name == "zeros":
        return f"{value:.0%}"
    said, hits = f"{100 * value:.1f} %", round(value * pairs)
    if name.startswith("one lost"):
        return said  # Holm costs power on purpose
    least = {"at MDE": POWER, "at twice": SURE}.get(name)
    if least is None:
        broken = hits > stats.binom.ppf(0.99, pairs, LEVEL)
    else:
        broken = hits < stats.binom.ppf(0.01, pairs, least)
    return f"{said} !" if broken else said


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate the gate on real scores.")
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--resamples", type=int, default=499)
    options = parser.parse_args()
    pairs, resampling = options.pairs, Resampling(options.resamples)
    first, *others = populations()
    own = [simulate(first, n, z, pairs, resampling) for n in SIZES for z in ZEROS]
    print(table(own, pairs), end="\n\n", flush=True)
    rest = [simulate(one, n, z, pairs, resampling) for one in others for n in SMALL for z in ZEROS]
    print(table(rest, pairs), end="\n\n", flush=True)
    alike = [one for one in (first, *others) if one.name.endswith(FAMILY_MEASURE)]
    families = [family(alike, z, pairs, resampling) for z in ZEROS]
    print(table(families, pairs), end="\n\n")
    rows = {"queries": own, "independent": rest, "several collections": families}
    print(json.dumps({"pairs": pairs, "margin": MARGIN, **rows}))


if __name__ == "__main__":
    main()
