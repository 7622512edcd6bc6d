"""Does the gate keep its promises? False alarms, false passes and power on real scores.

The tables have the real differences of `gate_pairs`, by both rules. Equal models are drawn from a
pair in two ways: its queries with replacement, the models swapped on each or not by chance; and the
differences less their mean, which keeps their skew. How often is either rule a REGRESSION, and how
often does a loss beyond the margin show that is none? Losses are planted in two ways, too:
differences moved until their mean is the loss, and more of them turned to losses than to gains. How
often does rule ``loss`` find the effect that it states, and rule ``margin`` pass a loss of the
margin, or rule ``loss`` one of the effect? All with the settings that are shipped, the floor too.

    python -m tests.benchmarks.gate_simulation [--draws 500] [--resamples 499]

A rate is marked ``!`` where it is above its level by more than simulation explains (99 %), or a
power is below 80 % (99 % at twice the effect) by as much. The last line of stdout is one JSON
document.

`test_gate_simulation.py` asks the same of a `Population`: what queries score when documents are put
before the first relevant one, as many as a geometric distribution says.

* exchangeable: both models are changed alike. How often does rule ``loss`` raise a false alarm?
* rare losses: rare large losses and many small gains, with mean 0; rare gains: the reverse. The
  same question. These models are not exchangeable, so that the randomisation test alone promises
  nothing, and errs where a sample misses the gains.
* margin: the mean loss is exactly the margin, the differences are skewed. How often does each bound
  pass it: bootstrap-t (ours), shifted sign flips, Student's t, percentile bootstrap?
* planted: rankings of a random share of queries are degraded, until the mean loss is the minimum
  detectable effect that the gate states, and twice that. How often is it found?
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from scipy import stats
from tabulate import tabulate

from bench.comparing.pairs import ComparisonSettings
from bench.comparing.statistics import (
    PairedScores,
    Resampling,
    detectable_effect,
    resample,
)
from bench.gate.check_record import StoredModel
from bench.gate.paired_tests import check_against, loss_tests
from bench.gate.scope import Candidate, Scope
from bench.gate.settings import GateSettings
from bench.gate.skew import UNSEEN, largest_loss, studentise, unseen_allowance
from bench.gate.verdicts import Evidence, decide
from bench.result_store.result import Evaluation
from tests.benchmarks.gate_pairs import FAMILY as REAL_FAMILY
from tests.benchmarks.gate_pairs import Pair, real_pairs
from tests.support.results import PROTOCOL, evaluation

MARGINS = (0.01, 0.02)  # of rule margin, on real pairs
BEYOND = "observed beyond"  # a loss that is not ruled out, though there is none
FAMILY = (50, 100, 300, 1_000)  # queries of several collections
MOST_PUSHED = 12
PUSHED = 0.3  # of the geometric distribution of how many documents are pushed in
MARGIN = 0.02
MDE_FACTOR = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
LEVEL, POWER, SURE = 0.05, 0.8, 0.99


@dataclass(frozen=True)
class Population:
    """Queries that something relevant was found for.

    Attributes:
        values: float64 ``(queries, MOST_PUSHED + 1)``: the measure with so many documents put
            before the first relevant one.
    """

    name: str
    values: np.ndarray

    def losses(self, shape: int | tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Differences of degraded rankings of drawn queries, 0 or less."""
        drawn = rng.integers(len(self.values), size=shape)
        pushed = np.minimum(rng.geometric(PUSHED, size=shape), MOST_PUSHED)
        return self.values[drawn, pushed] - self.values[drawn, 0]


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


def outcomes(differences: np.ndarray, resampling: Resampling) -> list[str]:
    """What the gate says by rule ``loss`` of each column."""
    return [decide(one, GateSettings()).outcome for one in evidence_of(differences, resampling)]


def evidence_of(
    differences: np.ndarray, resampling: Resampling, stated: float = 1.0
) -> list[Evidence]:
    """What the gate knows of each column, as differences on one collection."""
    drawn = resample(differences, resampling)
    columns = zip(differences.T, drawn.bootstrap.T, drawn.flipped.T, strict=True)
    return [_evidence(PairedScores(*column), resampling, stated) for column in columns]


def _evidence(part: PairedScores, resampling: Resampling, stated: float) -> Evidence:
    tests = loss_tests({"collection": part}, {"collection": 1.0}, resampling)
    return Evidence(
        plain=tests.plain,
        cautious=tests.cautious,
        same_rankings=tests.plain["collection"].changed == 0,
        losses={"collection": largest_loss(tests.skew["collection"])},
        stated={"collection": stated},
    )


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


def _regressions(differences: np.ndarray, resampling: Resampling) -> float:
    return outcomes(differences, resampling).count("REGRESSION") / differences.shape[1]


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
    loss = GateSettings()
    row["exchangeable"] = _share_of(null, loss, resampling, "REGRESSION")
    row["rare gains"] = _share_of(gains, loss, resampling, "REGRESSION")
    lost = [skewed(real, zeros, -MARGIN, sh, rng) for real, sh in zip(own, shapes, strict=True)]
    margin = GateSettings(rule="margin", margin=MARGIN)
    row["mean lost the margin, passes"] = _share_of(lost, margin, resampling, "OK")
    for factor, name in ((1, "one lost its MDE"), (2, "one lost twice")):
        found = planted(own[-1], zeros, factor, shapes[-1], rng)
        worse = [*null[:-1], found[0]] if found else None
        row[name] = _share_of(worse, loss, resampling, "REGRESSION") if worse else None
    return row


def swapped(pair: Pair, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Differences ``shape`` of two models that are equal: either is the better one by chance."""
    return rng.choice(pair.differences, shape) * rng.choice((-1, 1), shape)


def moved(pair: Pair, mean: float, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Differences ``shape`` with the deviation and the skew of a pair, and another mean."""
    return rng.choice(pair.differences - pair.differences.mean() + mean, shape)


def turned(
    pair: Pair, factor: float, shape: tuple[int, int], rng: np.random.Generator
) -> np.ndarray | None:
    """Differences of which more are losses, until their mean is ``factor`` times the effect.

    None where the effect is larger than if all were losses.
    """
    sizes = np.abs(pair.differences)
    excess = np.linspace(0, 1, 10_001)  # share of losses less share of gains
    deviations = np.sqrt(np.mean(sizes**2) - (excess * sizes.mean()) ** 2)
    enough = excess * sizes.mean() >= factor * stated_effect(deviations, shape[0])
    if not enough.any():
        return None
    loses = rng.random(shape) < (1 + excess[enough.argmax()]) / 2
    return rng.choice(sizes, shape) * np.where(loses, -1, 1)


def stated_effect(deviation: np.ndarray, queries: int) -> np.ndarray:
    """What the gate states beforehand of differences with this deviation."""
    return detectable_effect(deviation / math.sqrt(queries), queries - 1) + unseen_allowance(
        [queries]
    )


def both_rules(pair: Pair, draws: int, resampling: Resampling) -> list[dict[str, object]]:
    """Both rules on equal models, and on planted losses: a row for each way to draw them."""
    rng = np.random.default_rng([len(pair.differences), draws])
    shape = (len(pair.differences), draws)
    effect = stated_effect(pair.differences.std(ddof=1), shape[0])
    equal = {"swapped": swapped(pair, shape, rng), "less their mean": moved(pair, 0, shape, rng)}
    lost = {
        "swapped": [turned(pair, factor, shape, rng) for factor in (1, 2)],
        "less their mean": [moved(pair, -factor * effect, shape, rng) for factor in (1, 2)],
    }
    rows = []
    for way, differences in equal.items():
        row: dict[str, object] = {"pair": pair.name, "queries": shape[0], "equal models": way}
        evidence = evidence_of(differences, resampling, effect)
        row["loss: REGRESSION"] = _said(evidence, "REGRESSION")
        row["loss: equal models pass"] = _said(evidence, "OK")
        at_effect = evidence_of(differences - differences.mean() - effect, resampling, effect)
        row["loss: passes its MDE"] = _said(at_effect, "OK")
        for margin in MARGINS:
            row |= _margin_rates(evidence, margin)
            at_margin = evidence_of(differences - differences.mean() - margin, resampling)
            row[f"passes a loss of {margin}"] = _said(at_margin, "OK", rule="margin", margin=margin)
        for name, planted_loss in zip(("at MDE", "at twice"), lost[way], strict=True):
            row[name] = _regressions(planted_loss, resampling) if planted_loss is not None else None
        rows.append(row)
    return rows


def _margin_rates(evidence: Sequence[Evidence], margin: float) -> dict[str, object]:
    """How often rule ``margin`` decides what, and how often it is tempted."""
    beyond = [
        -one.cautious["collection"].difference > margin
        and decide(one, GateSettings(rule="margin", margin=margin)).outcome != "OK"
        for one in evidence
    ]
    return {
        f"margin {margin}: REGRESSION": _said(evidence, "REGRESSION", rule="margin", margin=margin),
        f"{BEYOND} {margin}": float(np.mean(beyond)),
    }


def _said(evidence: Sequence[Evidence], outcome: str, **changed: Any) -> float:
    """How often the gate says this with other settings."""
    settings = GateSettings(**changed)
    decisions = [decide(one, settings) for one in evidence]
    return float(np.mean([decision.outcome == outcome for decision in decisions]))


def both_rules_on_several(
    pairs: Sequence[Pair], draws: int, resampling: Resampling
) -> dict[str, object]:
    """Both rules on equal models over several real collections, by `check_against` itself."""
    rng = np.random.default_rng(draws)
    null = [swapped(pair, (len(pair.differences), draws), rng) for pair in pairs]
    row: dict[str, object] = {"collections": ", ".join(pair.name for pair in pairs)}
    loss = GateSettings()
    row["loss: REGRESSION"] = _share_of(null, loss, resampling, "REGRESSION")
    means = np.mean([part.mean(axis=0) for part in null], axis=0)
    for margin in MARGINS:
        settings = GateSettings(rule="margin", margin=margin)
        row[f"margin {margin}: REGRESSION"] = _share_of(null, settings, resampling, "REGRESSION")
        row[f"{BEYOND} {margin}"] = float(np.mean(-means > margin))
    return row


def _share_of(
    parts: Sequence[np.ndarray], settings: GateSettings, resampling: Resampling, outcome: str
) -> float:
    """How often the gate says this of columns, one of each collection."""
    weights = {f"c{i}": 1 / len(parts) for i in range(len(parts))}
    found = 0
    for columns in zip(*(part.T for part in parts), strict=True):
        candidate = {name: _entry(name, c) for name, c in zip(weights, columns, strict=True)}
        zero = {name: _entry(name, 0 * c) for name, c in zip(weights, columns, strict=True)}
        comparison_settings = ComparisonSettings(resampling=resampling)
        compared = (Candidate("ckpt", candidate), StoredModel("baseline", "base", zero))
        done = check_against(*compared, Scope(weights=weights), settings, comparison_settings)
        found += done.outcome == outcome
    return found / parts[0].shape[1]


def _entry(name: str, values: np.ndarray) -> Evaluation:
    protocol = msgspec.structs.replace(PROTOCOL, collection=name, exclude_self=False)
    return evaluation({"RR@10": values}, list(map(str, range(len(values)))), protocol=protocol)


def table(rows: Sequence[Mapping[str, object]], pairs: int) -> str:
    """Rates with a mark where they are worse than promised."""
    cells = [[_cell(name, value, pairs) for name, value in row.items()] for row in rows]
    return tabulate(cells, list(rows[0]), "pipe")


def _cell(name: str, value: object, pairs: int) -> str:
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    said, hits = f"{100 * value:.1f} %", round(value * pairs)
    if name.startswith((BEYOND, "loss: equal")):
        return said  # what is observed, and passes, is no promise
    least = {"at MDE": POWER, "at twice": SURE}.get(name)
    if least is None:
        broken = hits > stats.binom.ppf(0.99, pairs, LEVEL)
    else:
        broken = hits < stats.binom.ppf(0.01, pairs, least)
    return f"{said} !" if broken else said


def on_real_pairs(draws: int, resampling: Resampling) -> dict[str, list[dict[str, object]]]:
    """Both rules on the real differences that are on this machine; prints a table of each."""
    real = real_pairs()
    rules = [row for pair in real.values() for row in both_rules(pair, draws, resampling)]
    several = [real[names] for names in REAL_FAMILY if names in real]
    families = [both_rules_on_several(several, draws, resampling)] if several else []
    for rows in (rules, families):
        print(table(rows, draws) if rows else "no real pairs", end="\n\n", flush=True)
    return {"real pairs": rules, "several real collections": families}


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate the gate on real scores.")
    parser.add_argument("--draws", type=int, default=500, help="of each real pair")
    parser.add_argument("--resamples", type=int, default=499)
    options = parser.parse_args()
    rows = on_real_pairs(options.draws, Resampling(options.resamples))
    print(json.dumps({"draws": options.draws, **rows}))


if __name__ == "__main__":
    main()
