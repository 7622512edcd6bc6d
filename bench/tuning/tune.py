"""The use case ``tune``: find the cheapest pipeline that is proved better than a baseline.

The rankings of all models and run files are found once. Every setting is fused from them and scored
in memory, on the same queries.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
from tqdm import tqdm

from bench.comparing.groups import average_groups, find_groups
from bench.comparing.statistics import Resampling
from bench.evaluation.fusion_retriever import fuse
from bench.evaluation.judging import common_measure, judge
from bench.evaluation.pipeline import OpenDataset
from bench.evaluation.runs import Run
from bench.evaluation.scoring import parse_measure, score, tie_bounds
from bench.requests.deciding import TuneRequest
from bench.runner.workspace import open_workspace
from bench.speed.race import time_call
from bench.tuning.gains import GainTest, selection_gain
from bench.tuning.rankings import Member, collect_rankings, open_collection
from bench.tuning.tuning_record import Ceiling, TunedSetting, Tuning
from datasets_cfg.dataset import Dataset
from datasets_cfg.readers.reader import Qrels
from foundation.arrays import Float64Array
from foundation.errors import BenchError
from foundation.files import replace_file
from retrievers.models.card import Fusion, format_card, load_card, make_card
from retrievers.models.locate import member_names

DEPTH = 100  # documents of each ranking that are fused, unless the measure reads more
CONSTANTS = (10, 60)  # of reciprocal ranks
WEIGHTS = tuple(tenths / 10 for tenths in range(1, 10))  # of the first of two rankings
CEILINGS = (10, 20, 50, 100)  # depths
CARD = "tuned"  # name of a card that is not written


@dataclass(frozen=True)
class Setting:
    """Numbers of the rankings that take part, and how they are fused; one alone is not."""

    members: tuple[int, ...]
    fusion: Fusion | None = None

    def describe(self, members: Sequence[Member]) -> str:
        """Return a short text for people, such as ``minilm + bm25, weights .3 .7``."""
        names = " + ".join(members[number].name for number in self.members)
        if self.fusion is None:
            return names
        options = self.fusion.options
        if self.fusion.method == "rrf":
            return f"{names}, reciprocal ranks (k = {options['k']})"
        weights = self.fusion.weights or (1.0,) * len(self.members)
        return f"{names}, {options['normalization']}, weights {' '.join(f'{w:g}' for w in weights)}"


def make_grid(count: int, depth: int) -> list[Setting]:
    """Return the settings for ``count`` rankings, without the baseline alone.

    They are each other ranking alone, fusions of each pair, and fusions of all.
    """
    settings = [Setting((number,)) for number in range(1, count)]
    for pair in combinations(range(count), 2):
        settings += [Setting(pair, Fusion(k=k, depth=depth)) for k in CONSTANTS]
        for weight in WEIGHTS:
            weights = (weight, round(1 - weight, 1))
            settings.append(Setting(pair, Fusion(method="weighted", weights=weights, depth=depth)))
    if count > 2:
        every = tuple(range(count))
        settings += [Setting(every, Fusion(k=k, depth=depth)) for k in CONSTANTS]
        settings.append(Setting(every, Fusion(method="weighted", depth=depth)))
    return settings


def tune(request: TuneRequest) -> Tuning:
    """Compare all settings with the baseline, and choose the cheapest that is proved better.

    Raises:
        BenchError: wrong input, or every setting costs more than ``limit_ms``.
    """
    if len(request.models) < 2:
        problem = f"{request.models[0]} alone cannot be fused" if request.models else "no models"
        raise BenchError(problem, "Name two or more models or run files, the baseline first.")
    only = None if request.only is None else _read_fusion(request.only, len(request.models))
    workspace = open_workspace(request)
    opened = open_collection(request, workspace)
    measure = common_measure([opened.dataset], request.measure)
    groups = find_groups(request.group, {opened.name: opened.dataset})
    members = collect_rankings(request, workspace, opened)
    trial = Trial(opened, members, measure, groups.groups.get(opened.name))
    every = tuple(range(len(members)))
    grid = [Setting(every, only)] if only else make_grid(len(members), trial.depth)
    return _choose(request, trial, grid)


def _read_fusion(path: Path, count: int) -> Fusion:
    """Return the fusion of a card, for so many rankings."""
    card = load_card(path)
    if not card.models:
        raise BenchError(f"{path} is not the card of a fusion", 'Use a card with kind = "fusion".')
    if card.weights and len(card.weights) != count:
        problem = f"{path} has {len(card.weights)} weights, for {count} models"
        raise BenchError(problem, "Name as many models as it has, in the same order.")
    return card.fusion


@dataclass(frozen=True)
class Trial:
    """The rankings of one collection, from which settings are fused and scored.

    Attributes:
        opened: the collection.
        members: rankings, that of the baseline first.
        measure: measure of the scores.
        groups: group of each query, if the means of groups are compared.
    """

    opened: OpenDataset
    members: Sequence[Member]
    measure: str
    groups: Mapping[str, str] | None

    @property
    def dataset(self) -> Dataset:
        """The collection."""
        return self.opened.dataset

    @property
    def depth(self) -> int:
        """Number of documents of each ranking that are fused."""
        cutoff = parse_measure(self.measure).documents or self.dataset.facts.depth
        return max(DEPTH, cutoff)

    @cached_property
    def judged(self) -> Qrels:
        """Judgements of all documents of the rankings."""
        return judge(self.dataset, self.fuse(Fusion(depth=self.dataset.facts.depth)))

    @cached_property
    def judged_queries(self) -> tuple[str, ...] | None:
        """Queries in the mean; None for those of the judgements."""
        return None if self.dataset.answers is None else self.dataset.queries.ids

    def fuse(self, fusion: Fusion, members: Sequence[int] | None = None) -> Run:
        """Return the fused ranking of some members, or of all."""
        runs = [one.run for one in self.members]
        chosen = runs if members is None else [runs[number] for number in members]
        return fuse(chosen, self.dataset.queries.ids, fusion)

    def score(self, run: Run) -> Float64Array:
        """Return the score of each query, or the mean of each group, float64 ``(queries,)``."""
        scores = score(run, self.judged, [self.measure], self.judged_queries)
        values = scores.values[self.measure]
        if self.groups:
            values = average_groups(values[:, None], scores.query_ids, self.groups)[0][:, 0]
        return values

    def ceilings(self) -> Iterator[Ceiling]:
        """Yield the mean score of the best order of the first documents, if it is known."""
        if parse_measure(self.measure).native:
            for depth in CEILINGS:
                union = self.fuse(Fusion(depth=depth))
                tied = replace(union, scores=np.zeros_like(union.scores))
                best = tie_bounds(tied, self.judged, self.measure, self.judged_queries)[1]
                yield Ceiling(depth, best)


def _choose(request: TuneRequest, trial: Trial, grid: Sequence[Setting]) -> Tuning:
    """Score and test all settings, and choose one."""
    members, queries = trial.members, len(trial.dataset.queries)
    baseline = trial.score(members[0].run)
    scores, seconds = [], [0.0]
    for setting in tqdm(grid, desc="tune", unit=" settings"):
        run = members[setting.members[0]].run
        if setting.fusion:
            spent, run = time_call(partial(trial.fuse, setting.fusion, setting.members))
            seconds.append(spent)
        scores.append(trial.score(run))
    fusing = 1000 * median(seconds) / queries
    costs = [_cost(members, setting, fusing) for setting in grid]
    allowed = [number for number, ms in enumerate(costs) if _is_allowed(ms, request.limit_ms)]
    if not allowed:
        least = min(ms for ms in costs if ms is not None)
        problem = f"every setting costs more than {request.limit_ms:g} ms a query"
        raise BenchError(problem, f"Use --limit-ms {least:.3g} or more.")
    gains = np.column_stack([scores[number] - baseline for number in allowed])
    test = GainTest(gains, Resampling(request.resamples, request.seed))
    low, high = test.limits(), -test.limits(-1)
    settings = [
        TunedSetting(
            name=grid[number].describe(members),
            models=tuple(members[one].typed for one in grid[number].members),
            fusion=grid[number].fusion,
            ms=costs[number],
            score=float(scores[number].mean()),
            gain=float(gains[:, place].mean()),
            low=float(low[place]),
            high=float(high[place]),
        )
        for place, number in enumerate(allowed)
    ]
    proved = [one for one in settings if one.proved]
    chosen = min(proved, key=lambda one: (one.cost, -one.low), default=None)
    card = _card(chosen, request.out.stem if request.out else CARD) if chosen else ""
    if card and request.out:
        with replace_file(request.out) as file:
            file.write(card.encode())
    return Tuning(
        on=trial.opened.name,
        measure=trial.measure,
        queries=len(gains),
        baseline=members[0].name,
        baseline_score=float(baseline.mean()),
        baseline_ms=_cost(members, Setting((0,)), 0.0),
        over_ms=len(grid) - len(allowed),
        settings=tuple(sorted(settings, key=lambda one: -one.gain)),
        selection=selection_gain(gains, request.seed),
        ceilings=tuple(trial.ceilings()),
        chosen=chosen,
        card=card,
    )


def _cost(members: Sequence[Member], setting: Setting, fusing: float) -> float | None:
    """Return the milliseconds of a query, of which ``fusing`` takes some; None with run files."""
    times = [members[number].ms for number in setting.members]
    if any(one.ms is None for one in members):
        return None
    return sum(ms for ms in times if ms is not None) + fusing * (setting.fusion is not None)


def _is_allowed(ms: float | None, limit: float | None) -> bool:
    """Return whether a cost is within the limit, or raise if a limit has no cost to compare."""
    if limit is None:
        return True
    if ms is None:
        raise BenchError("--limit-ms needs times, and run files have none", "Leave it out.")
    return ms <= limit


def _card(setting: TunedSetting, name: str) -> str:
    """Return the card of a fusion as TOML; "" for one ranking alone."""
    if setting.fusion is None:
        return ""
    about = {"name": name, "title": setting.name, "kind": "fusion", "models": setting.models}
    fields = about | msgspec.structs.asdict(setting.fusion)
    models = tuple(member_names(make_card(fields), Path.cwd()))
    return format_card(make_card(fields | {"models": models}))
