"""How often `check` calls equal models a regression, and what it costs to err less often.

Queries are drawn from the losses of real pairs of models, with weights that give their mean the
planted loss: exponential tilting, which keeps ties and the size of each loss. Two rules are
compared: a loss is shown if p is at most .05, or if in addition its lower bound is above 0.
Planted kinds of losses that no real pair has are drawn as well: many small losses and a rare gain.

    python -m tests.benchmarks.gate_errors RESULTS [--queries 50 300] [--draws 400]

RESULTS has stored results of at least two models on some collections.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy import optimize
from tabulate import tabulate

from bench.comparing.sign_flips import sign_flip_p
from bench.comparing.statistics import ALPHA, SAME_SCORE
from bench.gate.decision import LEVEL, LOWER_LEVEL, draw_means, upper_bound
from bench.result_store.find import find_results

MARGIN = 0.02
TRUE_LOSSES = (0.0, 0.02, 0.05, 0.1)
INNER = 999  # random weights of a bound


def tilt(losses: np.ndarray, mean: float) -> np.ndarray | None:
    """Return weights of the queries with which ``losses`` have this mean, or None if none have."""
    if not losses.min() < mean < losses.max():
        return None

    def weights(slope: float) -> np.ndarray:
        exponents = slope * losses
        shares = np.exp(exponents - exponents.max())
        return shares / shares.sum()

    slope = optimize.brentq(lambda slope: weights(slope) @ losses - mean, -200, 200)
    return weights(slope)


def rare_gain(queries: int, expected: float, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draw equal small losses and a rare gain of 1 with a mean of 0, ``(queries, draws)``."""
    share = expected / queries
    return np.where(rng.random((queries, draws)) < share, -1.0, share / (1 - share))


def outcomes(sample: np.ndarray) -> tuple[float, float]:
    """Return the share of REGRESSION with both rules, for losses ``(queries, draws)``."""
    shown = []
    for losses in sample.T:
        changed = losses[np.abs(losses) > SAME_SCORE]
        is_significant = losses.mean() > 0 and sign_flip_p(changed) <= ALPHA
        if not is_significant or upper_bound([draw_means(losses, INNER)], level=LEVEL) <= MARGIN:
            shown.append((False, False))
            continue
        lower = -upper_bound([draw_means(-losses, INNER)], level=LOWER_LEVEL)
        shown.append((True, lower > 0))
    by_p, by_both = np.mean(shown, axis=0).tolist()
    return by_p, by_both


def losses_of_pairs(results: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield collection and losses of each ordered pair of models, by the main measure."""
    by_collection = defaultdict(list)
    for stored in find_results(results):
        by_collection[stored.dataset].append(stored)
    for name, several in sorted(by_collection.items()):
        for a, b in combinations(several, 2):
            measure = a.record.main_measure
            losses = a.scores.values[measure] - b.scores.values[measure]
            if (np.abs(losses) > SAME_SCORE).any():
                yield name, losses
                yield name, -losses


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--queries", type=int, nargs="+", default=[50, 300])
    parser.add_argument("--draws", type=int, default=400)
    typed = parser.parse_args(words)
    rng, rows = np.random.default_rng(0), []
    for queries in typed.queries:
        for expected in (0.3, 1.0, 3.0):
            found = outcomes(rare_gain(queries, expected, typed.draws, rng))
            rows.append(("rare gain", queries, 0.0, f"{expected:g} expected", *found))
        by_kind = defaultdict(list)
        for name, losses in losses_of_pairs(typed.results):
            for mean in TRUE_LOSSES:
                weights = tilt(losses, mean)
                if weights is not None:
                    sample = rng.choice(losses, (queries, typed.draws), p=weights)
                    by_kind[name, mean].append(outcomes(sample))
        for (name, mean), found in by_kind.items():
            rows.append((name, queries, mean, "mean of pairs", *np.mean(found, axis=0)))
            rows.append((name, queries, mean, "worst pair", *np.max(found, axis=0)))
    headers = ("losses", "queries", "true loss", "", "p", "p and lower bound")
    print(tabulate(rows, headers, "github", floatfmt=("", "", ".2f", "", ".3f", ".3f")))


if __name__ == "__main__":
    main()
