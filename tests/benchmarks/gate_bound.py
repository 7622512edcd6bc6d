"""Which upper bound of a mean loss may a gate trust? Four bounds on drawn losses and real pairs.

A candidate passes if the upper 95 % bound of its mean loss is at most the margin. Most losses are
zero, and the few that matter may be missing from the sample, so each bound must cover the true mean
in 95 % of samples whatever the losses are:

* t: Student's t (Welch and Satterthwaite for several collections);
* bootstrap-t: the mean divided by its standard error in every resample;
* betting: the capital of Waudby-Smith and Ramdas (JRSS-B 2024), predictable plug-in bets, capped at
  half. It depends on the order of the queries and knows a single mean: no column for several
  collections;
* Gaffke: `bench.gate.decision`, which the gate uses: Dirichlet weights over the losses and one
  worst loss for each collection (Learned-Miller and Thomas, 2020).

Tables, of the worst number of queries each: coverage on drawn losses (0 to 100 % of the queries
changed, rare losses that gains balance, 30 to 3,000 queries, 1 to 14 unequal collections); how
often equal models pass a margin of .02; how often a true loss of the margin passes; the unchanged
queries that prove a margin; and the outcomes of the whole rule.
With ``--results``, all pairs of stored results on one collection: samples are drawn from the
observed losses of each, whose mean is then the true one.

    python -m tests.benchmarks.gate_bound [--draws 2000] [--inner 1999] [--seed 0]
    python -m tests.benchmarks.gate_bound --results results [--baseline minilm]

A rate is marked ``!`` if it breaks the promise of 5 % by more than simulation explains (99.9 %).
The last line of stdout is one JSON document with every cell. With the defaults, half an hour on
two cores, and a minute for five real pairs.

Real pairs come from any results: of `bench run` with several ``--set``, ``--dtype``, ``--index`` or
copies of a checkpoint, and of `bench score` for run files.
"""

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy import stats
from tabulate import tabulate

from bench.comparing.pairs import differing_fields
from bench.comparing.statistics import Resampling
from bench.gate.decision import LEVEL, GateSettings, ScorePair, decide, draw_means, upper_bound
from bench.result_store.find import find_results

ALPHA = 1 - LEVEL
MARGIN = 0.02
SIZES = (30, 100, 300, 1_000, 3_000)
SURE = 0.999
OUTCOMES = ("OK", "INCONCLUSIVE", "REGRESSION")
METHODS = ("t", "bootstrap-t", "betting", "Gaffke")
Sample = Sequence[np.ndarray]  # losses of each collection, ``(queries, draws)``


@dataclass(frozen=True)
class Population:
    """Losses of queries with a known mean.

    Attributes:
        values, shares: possible losses, and their probabilities; None for a normal distribution.
        changed: share of the queries with a loss or gain.
        mean, deviation: of the losses of changed queries.
    """

    name: str
    values: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    changed: float = 1.0
    mean: float = 0.0
    deviation: float = 0.2

    @property
    def true_mean(self) -> float:
        """Mean loss of all queries."""
        if self.values:
            return float(np.dot(self.values, self.shares))
        return self.changed * self.mean

    def draw(self, queries: int, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Losses ``(queries, draws)``."""
        if self.values:
            return rng.choice(self.values, (queries, draws), p=self.shares)
        spread = min(1 - abs(self.mean), 4 * self.deviation)  # symmetric, so the mean stays
        losses = rng.normal(0, self.deviation, (queries, draws)).clip(-spread, spread)
        return np.where(rng.random((queries, draws)) < self.changed, self.mean + losses, 0.0)


def symmetric(changed: float, mean: float = 0.0) -> Population:
    """Normal losses on a share of the queries, so that all have this mean."""
    name = f"{changed:.0%} changed"
    return Population(name, changed=changed, mean=mean / changed if changed else 0.0)


def rare(share: float, gaining: float, mean: float = 0.0, loss: float = 1.0) -> Population:
    """A rare large loss, and equal gains on a share of the queries that leave this mean."""
    gain = (share * loss - mean) / gaining if gaining else 0.0
    values, shares = (loss, -gain, 0.0), (share, gaining, 1 - share - gaining)
    return Population(f"{share:.2%} lose {loss:g}, {gaining:.0%} gain", values, shares)


def populations(queries: int, mean: float = 0.0) -> Iterator[tuple[str, Population]]:
    """Kinds of losses with this mean, for samples of this size."""
    for changed in (0.02, 0.1, 0.5, 1.0):
        if mean <= changed * 0.5:
            yield f"{changed:.0%} of the queries changed", symmetric(changed, mean)
    if mean == 0:
        yield "no query changed", Population("no query changed", (0.0,), (1.0,))
    for expected in (0.3, 1.0, 3.0, 10.0):  # rare losses in a sample
        share = max(expected / queries, mean) if mean else expected / queries
        if share <= 0.4:
            yield "rare losses of 1, half gain", rare(share, 0.5, mean)
            yield "rare losses of .5, a tenth gain", rare(share, 0.1, mean * 0.5, loss=0.5)
            yield "rare losses of 1, the rest equal", rare(share, 0.0)


def bound_by_t(sample: Sample, weights: Sequence[float]) -> np.ndarray:
    """Student's t."""
    squares = np.array(
        [
            w**2 * part.var(axis=0, ddof=1) / len(part)
            for w, part in zip(weights, sample, strict=True)
        ]
    )
    degrees = np.array([len(part) - 1 for part in sample])[:, None]
    total = squares.sum(axis=0)
    freedom = total**2 / np.maximum((squares**2 / degrees).sum(axis=0), 1e-300)
    return weighted_mean(sample, weights) + stats.t.ppf(LEVEL, np.maximum(freedom, 1)) * np.sqrt(
        total
    )


def weighted_mean(sample: Sample, weights: Sequence[float]) -> np.ndarray:
    """Weighted mean of the collections' mean losses, ``(draws,)``."""
    return sum(w * part.mean(axis=0) for w, part in zip(weights, sample, strict=True))


def bound_by_bootstrap_t(
    sample: Sample, weights: Sequence[float], inner: int, seed: int = 0
) -> np.ndarray:
    """Bootstrap-t, the same resamples for all draws."""
    rng = np.random.default_rng([seed, 1])
    draws = sample[0].shape[1]
    means, squares = np.zeros((inner, draws)), np.zeros((inner, draws))
    variance = np.zeros(draws)
    for weight, part in zip(weights, sample, strict=True):
        queries = len(part)
        times = rng.multinomial(queries, np.full(queries, 1 / queries), inner) / queries
        first = times @ part
        means += weight * first
        squares += weight**2 * np.maximum(times @ part**2 - first**2, 0) / queries
        variance += weight**2 * part.var(axis=0) / queries
    centre, error = weighted_mean(sample, weights), np.sqrt(variance)
    flat = squares <= 1e-18
    distance = np.where(flat, np.inf, (centre - means) / np.sqrt(np.where(flat, 1, squares)))
    distance[:, variance <= 1e-18] = 0  # nothing varies: the bound is the mean
    place = math.ceil(LEVEL * inner) - 1
    quantile = np.partition(distance, place, axis=0)[place]
    return centre + np.where(error > 1e-9, quantile * error, 0)


def bound_by_gaffke(sample: Sample, weights: Sequence[float], inner: int) -> np.ndarray:
    """Gaffke's bound by the gate's own weights, for all draws at once."""
    total = np.zeros((inner, sample[0].shape[1]))
    for number, (weight, part) in enumerate(zip(weights, sample, strict=True)):
        drawn = draw_means(part, f"collection {number}", inner)
        worst = (1 - (1 - drawn.levels) ** (1 / len(part)))[:, None]
        total += weight * (worst + (1 - worst) * drawn.means)
    place = math.ceil(LEVEL * inner) - 1
    return np.partition(total, place, axis=0)[place]


def betting_rules_out(losses: np.ndarray, loss: float, cap: float = 0.5) -> np.ndarray:
    """Whether betting rules out that the mean is ``loss`` or more, ``(draws,)``.

    The capital of bets against it must reach 20 at some query.
    """
    values, mean = (losses + 1) / 2, (loss + 1) / 2
    queries, draws = values.shape
    capital, best = np.zeros(draws), np.zeros(draws)
    total, squares = np.full(draws, 0.5), np.full(draws, 0.25)
    for number, value in enumerate(values, start=1):
        bet = np.sqrt(2 * math.log(1 / ALPHA) * number / (queries * squares))
        capital += np.log1p(-np.minimum(bet, cap / (1 - mean)) * (value - mean))
        np.maximum(best, capital, out=best)
        total += value
        squares += (value - total / (number + 1)) ** 2
    return best >= math.log(1 / ALPHA)


def rules_out(
    sample: Sample, weights: Sequence[float], loss: float, inner: int
) -> dict[str, np.ndarray]:
    """Whether each bound is at most ``loss``, by name: booleans ``(draws,)``."""
    tiny = 1e-12  # rounding of a mean
    found = {
        "t": bound_by_t(sample, weights) <= loss + tiny,
        "bootstrap-t": bound_by_bootstrap_t(sample, weights, inner) <= loss + tiny,
        "Gaffke": bound_by_gaffke(sample, weights, inner) <= loss + tiny,
    }
    if len(sample) == 1:
        found["betting"] = betting_rules_out(sample[0], loss)
    return found


def misses(sample: Sample, weights: Sequence[float], mean: float, inner: int) -> dict[str, float]:
    """Share of the draws whose bound is below the true mean, by bound."""
    return {
        name: float(below.mean())
        for name, below in rules_out(sample, weights, mean - 1e-9, inner).items()
    }


def coverage(draws: int, inner: int, seed: int) -> list[dict[str, object]]:
    """Share of samples whose bound is below the true mean, by kind and number of queries."""
    rng, rows = np.random.default_rng(seed), []
    for queries in SIZES:
        for kind, one in populations(queries):
            found = misses([one.draw(queries, draws, rng)], [1.0], one.true_mean, inner)
            rows.append({"losses": kind, "queries": queries, **found})
    return rows


FAMILIES = {  # queries of each collection
    "2, very unequal": (30, 3_000),
    "5, unequal": (30, 100, 300, 1_000, 3_000),
    "14, unequal": (43, 50, 54, 150, 225, 300, 323, 400, 648, 1_000, 1_000, 1_406, 2_000, 3_000),
}


def coverage_of_several(draws: int, inner: int, seed: int) -> list[dict[str, object]]:
    """Coverage of each bound for means of several collections, of equal and unequal weight."""
    rng, rows = np.random.default_rng([seed, 2]), []
    for family, sizes in FAMILIES.items():
        first = np.array([2.0] + [1.0] * (len(sizes) - 1))
        last = first[::-1]
        for name, shares in (("equal", np.ones(len(sizes))), ("small 2", first), ("large 2", last)):
            weights = (shares / shares.sum()).tolist()
            for kind, members in mixtures(sizes):
                sample = [one.draw(n, draws, rng) for one, n in zip(members, sizes, strict=True)]
                mean = float(np.dot(weights, [one.true_mean for one in members]))
                found = misses(sample, weights, mean, inner)
                rows.append({"losses": kind, "collections": family, "weights": name, **found})
    return rows


def mixtures(sizes: Sequence[int]) -> Iterator[tuple[str, list[Population]]]:
    """Populations of several collections."""
    equal = Population("no query changed", (0.0,), (1.0,))
    yield "half of the queries changed", [symmetric(0.5)] * len(sizes)
    yield "2 % to 100 % changed", [symmetric(c) for c in np.linspace(0.02, 1, len(sizes))]
    for expected in (0.3, 1.0, 3.0):
        rates = [expected / n for n in sizes]
        yield "rare losses of 1 everywhere, half gain", [rare(rate, 0.5) for rate in rates]
        yield "rare losses of 1 everywhere, the rest equal", [rare(rate, 0.0) for rate in rates]
        for place, where in ((0, "the smallest"), (len(sizes) - 1, "the largest")):
            one: list[Population] = [equal] * len(sizes)
            one[place] = rare(rates[place], 0.0)
            yield f"rare losses of 1 on {where} alone", one


def equal_models_pass(draws: int, inner: int, seed: int) -> list[dict[str, object]]:
    """How often equal models pass the margin: half of the queries changed, their deviation .2."""
    rng, rows = np.random.default_rng([seed, 3]), []
    for queries in SIZES:
        rates = rules_out([symmetric(0.5).draw(queries, draws, rng)], [1.0], MARGIN, inner)
        rows.append(
            {"queries": queries, **{name: float(one.mean()) for name, one in rates.items()}}
        )
    return rows


def outcomes_of_the_rule(draws: int, seed: int) -> list[dict[str, object]]:
    """Share of each outcome of `decide`, for candidates of a known loss on every collection."""
    rng, rows = np.random.default_rng([seed, 5]), []
    families = {"1 of 50": (50,), "1 of 300": (300,), **FAMILIES}
    for family, sizes in families.items():
        weights = {f"collection {number}": 1 / len(sizes) for number in range(len(sizes))}
        for kind, rate in (("half of the queries changed", 0.0), ("rare losses of 1", 1.0)):
            for loss in (0.0, MARGIN, 0.05):
                found: Counter[str] = Counter()
                for _ in range(draws):
                    pairs = {}
                    for name, queries in zip(weights, sizes, strict=True):
                        one = rare(rate / queries, 0.5, loss) if rate else symmetric(0.5, loss)
                        losses = one.draw(queries, 1, rng)[:, 0]
                        pairs[name] = ScorePair("", -losses, 0 * losses)
                    found[decide(pairs, weights, GateSettings(), Resampling()).outcome] += 1
                shares = {name: found[name] / draws for name in OUTCOMES}
                rows.append({"collections": family, "losses": kind, "true loss": loss, **shares})
    return rows


def lost_the_margin_pass(draws: int, inner: int, seed: int) -> list[dict[str, object]]:
    """How often a true loss of exactly the margin passes."""
    rng, rows = np.random.default_rng([seed, 5]), []
    for queries in SIZES:
        for kind, population in populations(queries, MARGIN):
            if abs(population.true_mean - MARGIN) < 1e-9:
                found = misses([population.draw(queries, draws, rng)], [1.0], MARGIN, inner)
                rows.append({"losses": kind, "queries": queries, **found})
    return rows


def unchanged_queries() -> list[dict[str, object]]:
    """The bound by unchanged queries alone, and the number that proves the margin."""
    rows = []
    for queries in (130, 148, 149, 150):
        bound = upper_bound([draw_means(np.zeros(queries), "collection")])
        exact = 1 - ALPHA ** (1 / queries)
        rows.append({"unchanged": queries, "Gaffke": bound, "1 - .05^(1/n)": exact})
    return rows


@dataclass(frozen=True)
class Pair:
    """Two models on the queries of one collection.

    Attributes:
        losses: baseline minus candidate by the collection's main measure, float64 ``(n,)``.
    """

    name: str
    collection: str
    losses: np.ndarray


def real_pairs(folder: str, baseline: str = "") -> list[Pair]:
    """Pairs of stored results under one protocol, by the main measure of the collection.

    Args:
        folder: folder of results.
        baseline: one model of each pair; "" for all pairs.
    """
    stored = sorted(find_results(Path(folder)), key=lambda one: (one.dataset, one.model))
    pairs = []
    for a, b in combinations(stored, 2):
        if b.model == baseline:
            a, b = b, a
        measure = a.record.main_measure
        if (
            a.dataset != b.dataset
            or baseline not in ("", a.model)
            or differing_fields(a.record.protocol, b.record.protocol)
        ):
            continue
        first, second = (one.scores.by_query(measure) for one in (a, b))
        losses = np.array([first[query] - second[query] for query in sorted(first)])
        pairs.append(Pair(f"{a.model} and {b.model}", a.dataset, losses))
    return pairs


def on_real_pairs(
    pairs: Sequence[Pair], sizes: Sequence[int], draws: int, inner: int, seed: int
) -> list[dict[str, object]]:
    """Each pair: its outcome, how often equal models pass, and the worst coverage of each bound.

    Equal models are drawn with replacement from the losses, each with a random sign.
    """
    rng, rows = np.random.default_rng([seed, 4]), []
    for pair in pairs:
        worst: dict[str, float] = {}
        for queries in sizes:
            sample = [rng.choice(pair.losses, (queries, draws))]
            for name, rate in misses(sample, [1.0], float(pair.losses.mean()), inner).items():
                worst[name] = max(rate, worst.get(name, 0.0))
        shape = (len(pair.losses), draws)
        equal = [rng.choice(pair.losses, shape) * rng.choice([-1.0, 1.0], shape)]
        scores = ScorePair("", -pair.losses, 0 * pair.losses)
        name = pair.collection
        done = decide({name: scores}, {name: 1.0}, GateSettings(), Resampling())
        rows.append(
            {
                "pair": pair.name,
                "collection": pair.collection,
                "queries": len(pair.losses),
                "changed": f"{np.mean(np.abs(pair.losses) > 1e-9):.0%}",
                "sd": f"{pair.losses.std(ddof=1):.3f}",
                "loss": f"{pair.losses.mean():+.4f}",
                "bound": f"{done.rows[0].bound:+.4f}",
                "outcome": done.outcome,
                "equal models pass": float(np.mean(bound_by_gaffke(equal, [1.0], inner) <= MARGIN)),
                **worst,
            }
        )
    return rows


def worst_by(rows: Sequence[Mapping[str, object]], *keys: str) -> list[dict[str, object]]:
    """The highest rate of each bound, by the values of ``keys``."""
    worst: dict[tuple[object, ...], dict[str, float]] = defaultdict(dict)
    for row in rows:
        found = worst[tuple(row[key] for key in keys)]
        for name in METHODS:
            rate = row.get(name)
            if isinstance(rate, float):
                found[name] = max(rate, found.get(name, 0.0))
    return [dict(zip(keys, values, strict=True)) | rates for values, rates in worst.items()]


def table(rows: Sequence[Mapping[str, object]], draws: int, promise: bool = True) -> str:
    """Rates in percent, marked if they break the promise of 5 %."""
    most = stats.binom.ppf(SURE, draws, ALPHA) / draws
    labels = [name for name in rows[0] if name not in METHODS]
    headers = labels + [name for name in METHODS if any(name in row for row in rows)]

    def cell(row: Mapping[str, object], name: str) -> str:
        value = row.get(name, "-")
        if not isinstance(value, float):
            return f"{value:,}" if isinstance(value, int) else str(value)
        mark = " !" if promise and name in METHODS and value > most else ""
        return f"{100 * value:.1f} %{mark}"

    cells = [[cell(row, name) for name in headers] for row in rows]
    return tabulate(cells, headers, "pipe", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare upper bounds of a mean loss.")
    parser.add_argument("--draws", type=int, default=2_000, help="samples of each population")
    parser.add_argument("--inner", type=int, default=1_999, help="random weights of a sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", help="folder of results: real pairs instead of drawn losses")
    parser.add_argument("--baseline", default="", help="model of each real pair")
    parser.add_argument("--queries", type=int, nargs="+", default=[30, 100, 300, 1_000])
    options = parser.parse_args()
    settings = (options.draws, options.inner, options.seed)
    if options.results:
        pairs = real_pairs(options.results, options.baseline)
        found = {"real pairs": on_real_pairs(pairs, options.queries, *settings)}
        print(
            f"Real pairs: bound below the true mean\n\n{table(found['real pairs'], options.draws)}"
        )
    else:
        found = {
            "coverage": coverage(*settings),
            "several": coverage_of_several(*settings),
            "equal": equal_models_pass(*settings),
            "margin": lost_the_margin_pass(*settings),
            "unchanged": unchanged_queries(),
            "rule": outcomes_of_the_rule(max(1, options.draws // 20), options.seed),
        }
        by_size = [
            {"losses": "all of these"} | row for row in worst_by(found["coverage"], "queries")
        ]
        tables = (
            ("Bound below the true mean", worst_by(found["coverage"], "losses"), True),
            ("The same by number of queries", by_size, True),
            ("Means of several", worst_by(found["several"], "losses", "collections"), True),
            ("Equal models pass a margin of .02", found["equal"], False),
            ("A true loss of .02 passes", worst_by(found["margin"], "losses"), True),
        )
        for title, rows, promise in tables:
            print(f"{title}\n\n{table(rows, options.draws, promise)}\n", flush=True)
        print(tabulate(found["unchanged"], "keys", "pipe", floatfmt=".5f"))
        print(f"\nThe whole rule\n\n{tabulate(found['rule'], 'keys', 'pipe', floatfmt='.3f')}")
    print(f"\n{json.dumps({'draws': options.draws, 'inner': options.inner, **found})}")


if __name__ == "__main__":
    main()
