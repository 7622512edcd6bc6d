"""How often `--by` finds a loss in one slice, and how often it finds one that is not there.

Slices of unequal size are drawn at random from the queries of real pairs of models. The null
hypothesis is made true by exchanging the models on random queries. Then a loss is planted: in one
slice, scores of the candidate fall to 0 on random queries until its mean has fallen by the loss.
Joint sign flips with several constants and Holm's method test the same slices, and the gate, which
also asks for a loss of more than its floor and for a lower bound above 0, decides on them.

    python -m tests.benchmarks.slice_errors RESULTS [--draws 400]

RESULTS has stored results of at least two models on some collections.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from tabulate import tabulate

from bench.comparing.sign_flips import sign_flip_p
from bench.comparing.slices import CONSTANT, correct_jointly
from bench.comparing.statistics import ALPHA, SAME_SCORE, Resampling, ScorePair, holm
from bench.gate.check_record import Decision
from bench.gate.decision import GateSettings, decide, decide_slices
from bench.result_store.find import find_results

FLIPS = 999
CONSTANTS = (0.1, 0.5, 2.0)


def draw_slices(queries: int, number: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Split the queries at random into slices of very unequal size, at least 5 queries each."""
    shares = rng.dirichlet(np.full(number, 1.5))
    sizes = 5 + rng.multinomial(queries - 5 * number, shares)
    return np.split(rng.permutation(queries), np.cumsum(sizes)[:-1])


def exchange(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Exchange two models on random queries, so that they are equal in distribution."""
    swap = rng.random(len(a)) < 0.5
    return np.where(swap, b, a), np.where(swap, a, b)


def plant(
    candidate: np.ndarray, rows: np.ndarray, loss: float, rng: np.random.Generator
) -> np.ndarray:
    """Return scores that are 0 on random queries of ``rows``, whose mean is lower by ``loss``."""
    lost, order = candidate.copy(), rng.permutation(rows)
    fallen = np.cumsum(candidate[order]) / len(rows)
    lost[order[: 1 + np.searchsorted(fallen, loss)]] = 0
    return lost


def make_slices(candidate: np.ndarray, baseline: np.ndarray, parts: Sequence[np.ndarray]):
    """Return the slices, then the whole collection."""
    rows = [*parts, np.arange(len(candidate))]
    return [
        ScorePair("x", "m", candidate[some], baseline[some], tuple(map(str, some)), str(number))
        for number, some in enumerate(rows)
    ]


def found_by_all(slices: Sequence[ScorePair], seed: int) -> dict[str, list[bool]]:
    """Return which slices each rule shows."""
    resampling = Resampling(FLIPS, seed)
    family, shown = [*slices], {}
    for constant in CONSTANTS:
        joint = correct_jointly(family, resampling, constant=constant)
        shown[f"maxT {constant:g}"] = [p <= ALPHA for p in joint.p_values[:-1]]
    changes = [one.differences for one in family]
    changes = [values[np.abs(values) > SAME_SCORE] for values in changes]
    single = [sign_flip_p(values, SAME_SCORE) for values in changes]
    shown["Holm"] = [p <= ALPHA for p in holm(single)[:-1]]
    failed = failed_slices(family, resampling)
    shown["check --by"] = [one.label in failed for one in family[:-1]]
    without = whole_is_regression(family[-1], single[-1], resampling)
    shown["REGRESSION without --by"] = [without] * (len(family) - 1)
    shown["REGRESSION"] = [without or bool(failed)] * (len(family) - 1)
    return shown


def failed_slices(family: Sequence[ScorePair], resampling: Resampling) -> set[str]:
    """Return the slices that the gate calls a regression. Its bound is slow, so p is first."""
    p_values = correct_jointly(family, resampling, losses_only=True).p_values
    if min(p_values) > ALPHA:
        return set()
    settings = GateSettings()
    passed = Decision(outcome="OK", reasons=())
    decided = decide_slices(passed, family[:-1], family[-1:], settings, resampling)
    return {row.value for row in decided.slice_rows if row.failure}


def whole_is_regression(whole: ScorePair, p: float, resampling: Resampling) -> bool:
    """Return whether the gate calls a collection a regression. Its bound is slow, so p is first."""
    if p > ALPHA or whole.a.mean() >= whole.b.mean():
        return False
    return decide([whole], {"x": 1.0}, GateSettings(), resampling).outcome == "REGRESSION"


def pairs_of(results: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the names and the main scores of each pair of models on a collection."""
    by_collection = defaultdict(list)
    for stored in find_results(results):
        by_collection[f"{stored.dataset} {stored.record.protocol.split}"].append(stored)
    for name, several in sorted(by_collection.items()):
        for a, b in combinations(several, 2):
            measure = a.record.main_measure
            scores = (one.scores.by_query(measure) for one in (a, b))
            first, second = scores
            queries = sorted(first)
            label = f"{name}: {a.model}, {b.model}"
            yield label, *(np.array([one[q] for q in queries]) for one in (first, second))


def rates(
    a: np.ndarray, b: np.ndarray, number: int, loss: float, draws: int, largest: bool
) -> dict[str, float]:
    """Return how often each rule shows the slice with the loss, or any slice without a loss.

    The loss is planted in the largest slice, or else in one of median size.
    """
    rng, hits = np.random.default_rng(number), defaultdict(int)
    for draw in range(draws):
        candidate, baseline = exchange(a, b, rng)
        parts = sorted(draw_slices(len(a), number, rng), key=len)
        target = number - 1 if largest else number // 2
        if loss:
            candidate = plant(candidate, parts[target], loss, rng)
        for rule, shown in found_by_all(make_slices(candidate, baseline, parts), draw).items():
            hits[rule] += shown[target] if loss else any(shown)
    return {rule: count / draws for rule, count in hits.items()}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--slices", type=int, nargs="+", default=[1, 5, 8, 20, 50])
    parser.add_argument("--losses", type=float, nargs="+", default=[0.0, 0.05, 0.1, 0.2, 0.3])
    typed = parser.parse_args(words)
    rows = []
    for name, a, b in pairs_of(typed.results):
        for number in (n for n in typed.slices if 6 * n <= len(a)):
            for loss in typed.losses:
                for largest in (True, False)[: 1 + (loss > 0 and number > 1)]:
                    found = rates(a, b, number, loss, typed.draws, largest)
                    what = f"{loss:g} on the {'largest' if largest else 'median'} slice"
                    rows.append((name, number, what if loss else "none", *found.values()))
                    print(*rows[-1], file=sys.stderr)
    headers = ("models", "slices", "planted loss", *found)
    print(tabulate(rows, headers, "github", floatfmt=".3f"))
    print(f"The constant of `compare` and `check` is {CONSTANT}.")


if __name__ == "__main__":
    main()
