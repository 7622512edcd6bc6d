"""How often `cutoff` breaks its promise, on real scores.

Samples of queries are drawn with replacement from all queries of a collection, whose mean is then
the true one: a promise is broken if the cut-off of a sample keeps less of all. Two other rules
choose from the same samples: the highest cut-off whose mean over the sample is enough, and
conformal risk control (Angelopoulos et al., 2022), which bounds the expected loss alone.

Then the queries are split at random into calibration and test. The mean of the test queries has an
error of its own, so it falls below the promise more often.

    python -m tests.benchmarks.cutoff_errors beir/scifact:test,train beir/nfcorpus stdlib-code
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bench.cutoffs.cutoff import MeanBound, ScoredRankings, Search, choose_cutoff, lower_bound
from bench.gate.decision import LEVEL
from bench.runner.workspace import Workspace
from foundation.files import cache_folder

Take = Callable[[ScoredRankings, np.random.Generator], tuple[ScoredRankings, ScoredRankings]]


def rules(inner: int) -> dict[str, MeanBound]:
    """Estimates of the kept share: by so many random weights, by the mean, and by CRC."""
    return {
        "cutoff": lambda kept: lower_bound(kept, inner),
        "mean": lambda kept: float(kept.mean()) + 1e-11,
        "risk control": lambda kept: 1 - (float((1 - kept).sum()) + 1) / (len(kept) + 1),
    }


def rows_of(population: ScoredRankings, rows: np.ndarray) -> ScoredRankings:
    """Some queries of a population."""
    return ScoredRankings(population.scores[rows], population.relevant[rows], population.at)


def draw_sample(queries: int) -> Take:
    """Draw so many queries with replacement; the cut-off is judged by the population."""

    def take(
        population: ScoredRankings, rng: np.random.Generator
    ) -> tuple[ScoredRankings, ScoredRankings]:
        rows = rng.integers(len(population), size=queries)
        return rows_of(population, rows), population

    return take


def split(share: float) -> Take:
    """Split the queries; the cut-off of the first part is judged by the second."""

    def take(
        population: ScoredRankings, rng: np.random.Generator
    ) -> tuple[ScoredRankings, ScoredRankings]:
        rows = rng.permutation(len(population))
        middle = round(share * len(population))
        return rows_of(population, rows[:middle]), rows_of(population, rows[middle:])

    return take


def broken(
    population: ScoredRankings, keep: float, take: Take, draws: int, estimate: MeanBound
) -> float:
    """Share of draws whose cut-off keeps too little. None is as good as a kept promise."""
    failures, rng = 0, np.random.default_rng(0)
    for _ in range(draws):
        sample, judged = take(population, rng)
        chosen = choose_cutoff([sample], [keep], estimate)
        failures += chosen is not None and judged.kept(chosen).mean() < keep - 1e-9
    return failures / draws


def broken_anywhere(
    population: ScoredRankings, keep: float, slices: int, draws: int, inner: int
) -> float:
    """Share of draws of so many slices of 100 queries in which any cut-off keeps too little."""
    failures, rng, take = 0, np.random.default_rng(0), draw_sample(100)
    level = 1 - (1 - LEVEL) / slices
    for _ in range(draws):
        samples = [take(population, rng)[0] for _ in range(slices)]
        chosen = [
            choose_cutoff([one], [keep], partial(lower_bound, draws=inner, level=level))
            for one in samples
        ]
        kept = [population.kept(one).mean() for one in chosen if one is not None]
        failures += min(kept, default=1.0) < keep - 1e-9
    return failures / draws


def population_of(name: str, model: str, workspace: Workspace, at: int) -> ScoredRankings:
    """Queries with an answer in ``NAME`` or ``NAME:SPLIT,SPLIT``."""
    collection, _, splits = name.partition(":")
    source = Path(model) if model.endswith(".trec") else workspace.load(model)
    found = [
        Search(workspace, workspace.open(collection, part or None), at).run(source).ranked.answered
        for part in splits.split(",")
    ]
    scores = np.concatenate([one.scores[:, :at] for one in found])
    return ScoredRankings(scores, np.concatenate([one.relevant[:, :at] for one in found]), at)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("on", nargs="+", help="collections, or NAME:SPLIT,SPLIT")
    parser.add_argument("--model", default="minilm", help="model, or NAME.trec")
    parser.add_argument("--keep", type=float, nargs="+", default=[0.9, 0.95])
    parser.add_argument("--at", type=int, default=10)
    parser.add_argument("--queries", type=int, nargs="+", default=[60, 100, 200, 400])
    parser.add_argument(
        "--slices", type=int, nargs="*", default=[], help="of 100 queries, together"
    )
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--inner", type=int, default=1_999, help="random weights of a bound")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cache-dir", type=Path)
    typed = parser.parse_args(words)
    workspace = Workspace(cache_folder(typed.cache_dir), typed.data_dir)
    for name in typed.on:
        population = population_of(name, typed.model, workspace, typed.at)
        takes = {f"{n} queries": draw_sample(n) for n in typed.queries}
        takes |= {"test half": split(0.5), "test 3 quarters": split(0.25)}
        for keep in typed.keep:
            for number in typed.slices:
                rate = broken_anywhere(population, keep, number, typed.draws, typed.inner)
                print(f"{name} ({len(population)}), keep {keep}, {number} slices: {rate:.1%}")
            for what, take in takes.items():
                rates = [
                    f"{rule} {broken(population, keep, take, typed.draws, estimate):.1%}"
                    for rule, estimate in rules(typed.inner).items()
                ]
                print(f"{name} ({len(population)}), keep {keep}, {what}: {', '.join(rates)}")


if __name__ == "__main__":
    main()
