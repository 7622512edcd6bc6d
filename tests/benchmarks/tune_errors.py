"""How often `tune` proves a gain that is none, on real rankings, and how often it finds one.

Three kinds of samples have no gain: real judgements dealt at random to the documents of each query,
so that every ranking of these documents is as good as every other; real gains with random signs of
the queries, as if each setting and the baseline were exchanged; and queries drawn with replacement
from real gains whose means were taken off. In the last one gains may be skewed, which sign flips do
not assume. With --split, the rankings are two noisy copies of that of the first model. (With real
judgements a fusion of such copies is better, since their noise averages out.)

The naive sweep takes the best setting and tests it alone, as if it had not been chosen. Last, a
gain is planted in every setting, to be found by queries drawn with replacement.

    python -m tests.benchmarks.tune_errors minilm bm25 --on beir/scifact
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.comparing.sign_flips import sign_flip_p
from bench.comparing.statistics import Resampling
from bench.evaluation.judging import common_measure
from bench.evaluation.runs import Run, round_scores
from bench.requests.deciding import TuneRequest
from bench.runner.workspace import open_workspace
from bench.tuning.gains import GainTest, selection_gain
from bench.tuning.rankings import collect_rankings, open_collection
from bench.tuning.tune import Trial, make_grid
from retrievers.models.card import Fusion

TOP = 10  # documents of each ranking that are scored
Draw = Callable[[np.random.Generator], np.ndarray]  # gains, ``(queries, settings)``


@dataclass(frozen=True)
class Rates:
    """Shares of samples: a setting is proved; the best one seems better by a test of its own.

    ``shown`` is the mean gain of the best setting, ``explained`` what selection explains of it, and
    ``exceeded`` the share of samples in which a lower limit exceeds the true gain.
    """

    proved: float
    naive: float
    shown: float
    explained: float
    exceeded: float


def rates(draw: Draw, draws: int, sets: int, true: float = 0.0) -> Rates:
    """Test so many samples, each with so many sets of signs, of settings with the ``true`` gain."""
    rows = []
    for number in range(draws):
        gains = draw(np.random.default_rng([7, number]))
        test, means = GainTest(gains, Resampling(sets, number)), gains.mean(axis=0)
        best = gains[:, means.argmax()]
        naive = best.mean() > 0 and sign_flip_p(best[best != 0]) <= 0.05
        known = selection_gain(gains, number) if number < 50 else np.nan
        exceeded = test.exceeds(true).any() if true else False
        rows.append((test.exceeds(0).any(), naive, means.max(), known, exceeded))
    return Rates(*np.nanmean(np.array(rows, dtype=float), axis=0).tolist())


def flipped(gains: np.ndarray) -> Draw:
    """Random signs of the queries."""
    return lambda rng: gains * rng.choice((-1.0, 1.0), len(gains))[:, None]


def drawn(gains: np.ndarray, planted: float = 0.0) -> Draw:
    """Queries drawn with replacement, after the means of the gains became ``planted``."""
    centred = gains - gains.mean(axis=0) + planted
    return lambda rng: centred[rng.integers(len(gains), size=len(gains))]


@dataclass(frozen=True)
class Dealt:
    """Grades of the documents of each query, dealt anew for each sample.

    Attributes:
        grades: float64 ``(queries, documents)``, NaN beyond the documents of a query.
        ranked: int64 ``(settings, queries, TOP)``, numbers of the first documents.
        ideal: float64 ``(queries,)``, the normaliser of nDCG.
    """

    grades: np.ndarray
    ranked: np.ndarray
    ideal: np.ndarray

    def scores(self, grades: np.ndarray) -> np.ndarray:
        """nDCG@10 of each query and setting, by its definition."""
        rows = np.arange(len(grades))[:, None]
        discounts = 1 / np.log2(np.arange(2, TOP + 2))
        total = np.stack([grades[rows, one] @ discounts for one in self.ranked], axis=1)
        return np.asarray(total / self.ideal[:, None])

    def __call__(self, rng: np.random.Generator) -> np.ndarray:
        order = np.argsort(rng.random(self.grades.shape) + np.isnan(self.grades), axis=1)
        scores = self.scores(np.take_along_axis(self.grades, order, axis=1))
        return scores[:, 1:] - scores[:, :1]


def deal(trial: Trial) -> Dealt:
    """Number the documents of the rankings, for queries that are ranked and judged enough."""
    grid = make_grid(len(trial.members), trial.depth)
    union = trial.fuse(Fusion(depth=trial.depth))
    runs = [_run_of(trial, one) for one in grid]
    judged: dict[str, dict[str, int]] = {}
    for query, document, grade in trial.judged:
        judged.setdefault(query, {})[document] = max(0, grade)
    documents = {query: ids for query, ids, _ in union.rankings()}
    firsts = [{query: ids[:TOP] for query, ids, _ in run.rankings()} for run in runs]
    usable = [
        query
        for query, ids in documents.items()
        if any(judged.get(query, {}).get(one, 0) for one in ids)
        and all(len(first.get(query, ())) == TOP for first in firsts)
    ]
    width = max(len(documents[query]) for query in usable)
    grades = np.full((len(usable), width), np.nan)
    ranked = np.zeros((len(runs), len(usable), TOP), dtype=np.int64)
    ideal = np.zeros(len(usable))
    for row, query in enumerate(usable):
        known, number = judged[query], {one: n for n, one in enumerate(documents[query])}
        grades[row, : len(number)] = [known.get(one, 0) for one in number]
        best = sorted(known.values(), reverse=True)[:TOP]
        ideal[row] = (np.array(best) / np.log2(np.arange(2, len(best) + 2))).sum()
        for setting, first in enumerate(firsts):
            ranked[setting, row] = [number[one] for one in first[query]]
    return Dealt(grades, ranked, ideal)


def _run_of(trial: Trial, setting) -> Run:  # type: ignore[no-untyped-def]
    if setting.fusion is None:
        return trial.members[setting.members[0]].run
    return trial.fuse(setting.fusion, setting.members)


def gains_of(trial: Trial) -> np.ndarray:
    """Real gains over the first member, ``(queries, settings)``."""
    _, *grid = make_grid(len(trial.members), trial.depth)  # without the baseline alone
    baseline = trial.score(trial.members[0].run)
    return np.column_stack([trial.score(_run_of(trial, one)) - baseline for one in grid])


def noisy(run: Run, share: float, rng: np.random.Generator) -> Run:
    """Add noise to the scores of each query, whose deviation is a ``share`` of theirs."""
    queries = np.repeat(np.arange(len(run.query_ids)), np.diff(run.offsets))
    counts = np.maximum(np.bincount(queries), 1)
    means = np.bincount(queries, run.scores) / counts
    spread = np.sqrt(np.bincount(queries, (run.scores - means[queries]) ** 2) / counts)
    scores = run.scores + share * spread[queries] * rng.standard_normal(len(run))
    names = np.array(run.query_ids, dtype=object)[queries]
    return Run.from_rows(names.tolist(), run.doc_ids.to_pylist(), round_scores(scores))


def trial_of(request: TuneRequest, split: float) -> Trial:
    """The rankings of a request, or two noisy copies of the first one."""
    workspace = open_workspace(request)
    opened = open_collection(request, workspace)
    members = collect_rankings(request, workspace, opened)
    if split:
        rng = np.random.default_rng(0)
        members = [
            replace(members[0], name=name, run=noisy(members[0].run, split, rng)) for name in "ab"
        ]
    return Trial(opened, members, common_measure([opened.dataset], request.measure), None)


def report(name: str, found: Rates, draws: int) -> None:
    print(
        f"{name}: proved in {found.proved:.1%} of {draws} samples, naive sweep {found.naive:.1%}; "
        f"best gain {found.shown:+.4f}, of which selection explains {found.explained:.4f}; "
        f"lower limits above the true gain {found.exceeded:.1%}",
        flush=True,
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="models or run files, the baseline first")
    parser.add_argument("--on", required=True)
    parser.add_argument("--split", type=float, default=0.0, help="noise of two copies of the first")
    parser.add_argument("--planted", type=float, nargs="*", default=[0.01, 0.02, 0.03, 0.05])
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--sets", type=int, default=1_999, help="sets of random signs")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cache-dir", type=Path)
    typed = parser.parse_args(words)
    folders = {"data_dir": typed.data_dir, "cache_dir": typed.cache_dir}
    request = TuneRequest(typed.models, typed.on, measure=f"nDCG@{TOP}", results=None, **folders)
    trial = trial_of(request, typed.split)
    gains = gains_of(trial)
    print(f"{typed.on}: {gains.shape[1]} settings, {len(gains)} queries")
    samples = {"dealt": deal(trial), "flipped": flipped(gains), "drawn": drawn(gains)}
    for name, draw in samples.items():
        report(name, rates(draw, typed.draws, typed.sets), typed.draws)
    for gain in typed.planted:
        found = rates(drawn(gains, gain), typed.draws, typed.sets, gain)
        report(f"planted {gain}", found, typed.draws)


if __name__ == "__main__":
    main()
