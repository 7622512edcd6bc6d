"""How often `deploy` accepts a setting that loses the margin, on real losses.

The losses of all settings of its sequence are shifted until each has a mean of exactly the margin,
and queries are drawn from them with replacement. To accept one of them is then an error, which may
happen in 5 % of samples, whichever of them comes first. Choosing among settings that are each
tested at the full level, without a sequence, errs more often.

    python -m tests.benchmarks.deploy_errors beir/scifact beir/nfcorpus --model minilm
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import optimize, stats

from bench.comparing.statistics import combine_draws
from bench.deploying.deploy import Trial
from bench.deploying.deployment import TESTED_SHARE, Setting, choose_sequence, make_grid
from bench.evaluation.vector_search import bytes_per_document
from bench.gate.decision import LEVEL, draw_means
from bench.runner.workspace import Workspace
from foundation.files import cache_folder
from retrievers.encoders.views import compress

Sample = Sequence[np.ndarray]  # losses of each collection, ``(queries, draws)``


def bound_by_gaffke(sample: Sample, weights: Sequence[float], inner: int) -> np.ndarray:
    """Gaffke's bound by the gate's own weights, for all draws at once."""
    draws = []
    for part in sample:
        drawn = draw_means(part, inner)
        worst = (1 - (1 - drawn.levels) ** (1 / len(part)))[:, None]
        draws.append(worst + (1 - worst) * drawn.means)
    total = combine_draws(weights, draws)
    place = math.ceil(LEVEL * inner) - 1
    return np.partition(total, place, axis=0)[place]


def plant(losses: np.ndarray, margin: float) -> np.ndarray:
    """Shift ``losses`` ``(queries, settings)`` to columns with a mean of ``margin``, at most 1."""

    def shifted(column: np.ndarray) -> np.ndarray:
        def excess(shift: float) -> float:
            return float(np.minimum(column + shift, 1).mean()) - margin

        return np.minimum(column + optimize.brentq(excess, -2, 2), 1)

    return np.column_stack([shifted(column) for column in losses.T])


def error_rates(
    losses: np.ndarray, margin: float, draws: int, inner: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Share of samples with an accepted setting: in a sequence, and without one.

    The sequence begins with settings that pass. It accepts a setting that loses the margin if the
    first of them passes; the share is that of the first setting that passes most often.
    """
    rows = rng.integers(len(losses), size=(len(losses), draws))
    passed = np.array(
        [bound_by_gaffke([column[rows]], [1.0], inner) <= margin for column in losses.T]
    )
    return float(passed.mean(axis=1).max()), float(passed.any(axis=0).mean())


def correlations(losses: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Spearman's correlation of the order with the sampling errors, for each sample of queries.

    The order is that of the columns of ``losses``, ``(queries, settings)``. The sampling error of a
    setting is its mean loss in a sample minus that of all queries. An order that depends on the
    sample has correlations whose mean is not 0.
    """
    rows = rng.integers(len(losses), size=(draws, len(losses)))
    errors = np.array([losses[drawn].mean(axis=0) for drawn in rows]) - losses.mean(axis=0)
    order = np.arange(losses.shape[1])
    return np.array([stats.spearmanr(order, error).statistic for error in errors])


def sequence_of(trial: Trial) -> list[Setting]:
    """The sequence that `deploy` tests on a collection."""
    recipe, documents = trial.model.model.recipe, len(trial.dataset.corpus)
    grid = make_grid(recipe.dim, documents, trial.depth)
    costs = {
        one: (
            bytes_per_document(compress(recipe, one.compression), one.index),
            one.bytes_read(documents, recipe.dim),
        )
        for one in (Setting(), *grid)
    }
    return choose_sequence(trial.missed(grid), costs, len(grid) // TESTED_SHARE)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("on", nargs="+")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--margin", type=float, nargs="+", default=[0.01, 0.02, 0.05])
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--inner", type=int, default=1_999, help="random weights of a bound")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cache-dir", type=Path)
    typed = parser.parse_args(words)
    workspace = Workspace(cache_folder(typed.cache_dir), typed.data_dir)
    model = workspace.load(typed.model)
    for name in typed.on:
        trial = Trial(workspace, workspace.open(name), model)
        losses = np.column_stack([trial.losses(trial.rank(one)) for one in sequence_of(trial)])
        found = correlations(losses, typed.draws, np.random.default_rng(0))
        print(
            f"{name}: the order correlates with the sampling errors by {found.mean():+.3f} "
            f"on average of {typed.draws} samples (standard error "
            f"{found.std() / math.sqrt(typed.draws):.3f})"
        )
        for margin in typed.margin:
            rng = np.random.default_rng(0)
            planted = plant(losses, margin)
            rates = error_rates(planted, margin, typed.draws, typed.inner, rng)
            print(
                f"{name}, {losses.shape[1]} settings, margin {margin}: a sequence errs in "
                f"{rates[0]:.1%} of {typed.draws} samples, separate tests in {rates[1]:.1%}"
            )


if __name__ == "__main__":
    main()
