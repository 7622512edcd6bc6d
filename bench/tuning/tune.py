"""The use case ``tune``: find the cheapest pipeline that is proved better than a baseline.

The rankings of all models and run files are found once. Every setting is fused from them and scored
in memory, on the same queries.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
from tqdm import tqdm

from bench.comparing.slices import find_groups
from bench.comparing.statistics import Resampling, average_groups
from bench.evaluation.asking import Response
from bench.evaluation.fusion_retriever import fuse
from bench.evaluation.judging import common_measure, judge
from bench.evaluation.pipeline import OpenDataset
from bench.evaluation.rerank_retriever import RerankRetriever, rerank
from bench.evaluation.runs import Run
from bench.evaluation.scoring import parse_measure, score, tie_bounds
from bench.requests.deciding import TuneRequest
from bench.runner.workspace import open_workspace
from bench.speed.race import time_call
from bench.tuning.gains import GainTest, selection_gain
from bench.tuning.rankings import (
    CARD,
    Member,
    collect_rankings,
    open_collection,
    open_reranking,
    reranking_card,
    reranking_cost,
)
from bench.tuning.tuning_record import Ceiling, Cost, Reranking, TunedSetting, Tuning
from datasets_cfg.dataset import Dataset
from datasets_cfg.readers.reader import Qrels
from foundation.arrays import Float64Array
from foundation.errors import BenchError
from foundation.files import replace_file
from foundation.records import SUFFIX
from retrievers.models.card import Fusion, format_card, load_card, make_card
from retrievers.models.names import anchor_members, anchor_path

DEPTH = 100  # documents of each ranking that are fused, unless the measure reads more
CONSTANTS = (10, 60)  # of reciprocal ranks
WEIGHTS = tuple(tenths / 10 for tenths in range(1, 10))  # of the first of two rankings
DEPTHS = (10, 20, 50, 100)  # that are reranked, and of ceilings


@dataclass(frozen=True)
class Setting:
    """A pipeline of the rankings of a tuning.

    Attributes:
        members: numbers of the rankings that take part.
        fusion: how they are fused; None for one alone.
        reranked: number of first documents that are reranked; 0 for none.
    """

    members: tuple[int, ...]
    fusion: Fusion | None = None
    reranked: int = 0

    def describe(self, members: Sequence[Member]) -> str:
        """Return a short text for people, such as ``minilm + bm25, weights .3 .7``."""
        if self.reranked:
            return f"{replace(self, reranked=0).describe(members)}, first {self.reranked} reranked"
        names = " + ".join(members[number].name for number in self.members)
        if self.fusion is None:
            return names
        options = self.fusion.options
        if self.fusion.method == "rrf":
            return f"{names}, reciprocal ranks (k = {options['k']})"
        weights = self.fusion.weights or (1.0,) * len(self.members)
        return f"{names}, {options['normalization']}, weights {' '.join(f'{w:g}' for w in weights)}"


def make_grid(count: int, depth: int) -> list[Setting]:
    """Return the settings for ``count`` rankings without a reranker.

    They are each ranking alone, the baseline first, fusions of each pair, and fusions of all.
    """
    settings = [Setting((number,)) for number in range(count)]
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
    reranker = open_reranking(request, workspace, opened.dataset, max(DEPTHS))
    members = collect_rankings(request, workspace, opened)
    trial = Trial(opened, members, measure, groups.groups.get(opened.name), reranker)
    every = tuple(range(len(members)))
    grid = [Setting((0,)), Setting(every, only)] if only else make_grid(len(members), trial.depth)
    return _choose(request, trial, _score(trial, grid))


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
        reranker: reranks the documents of every setting; None for no reranker.
    """

    opened: OpenDataset
    members: Sequence[Member]
    measure: str
    groups: Mapping[str, str] | None
    reranker: RerankRetriever | None = None

    @property
    def dataset(self) -> Dataset:
        """The collection."""
        return self.opened.dataset

    @property
    def depth(self) -> int:
        """Number of documents of each ranking that are fused."""
        cutoff = parse_measure(self.measure).documents or self.dataset.metadata.depth
        return max(DEPTH, cutoff)

    @cached_property
    def judged(self) -> Qrels:
        """Judgements of all documents of the rankings."""
        return judge(self.dataset, self.fuse(Fusion(depth=self.dataset.metadata.depth)))

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
            for depth in DEPTHS:
                union = self.fuse(Fusion(depth=depth))
                tied = replace(union, scores=np.zeros_like(union.scores))
                best = tie_bounds(tied, self.judged, self.measure, self.judged_queries)[1]
                yield Ceiling(depth, best)


@dataclass(frozen=True)
class Scores:
    """Scores of all settings, float64 ``(queries,)`` each, and what they cost.

    ``reranking`` is what a reranker adds to the cost, by its depth.
    """

    of: Mapping[Setting, Float64Array]
    costs: Mapping[Setting, Cost | None]
    reranking: Mapping[int, Cost]

    def ms(self, setting: Setting) -> float | None:
        """Return the milliseconds of a query, or None if they are unknown."""
        cost = self.costs[setting]
        return None if cost is None else cost.ms


def _score(trial: Trial, grid: Sequence[Setting]) -> Scores:
    """Score the settings of ``grid`` and, with a reranker, each of them at several depths."""
    members, queries = trial.members, len(trial.dataset.queries)
    scores, seconds, pairs = dict[Setting, Float64Array](), [0.0], dict[str, Response]()
    for setting in tqdm(grid, desc="tune", unit=" settings"):
        run = members[setting.members[0]].run
        if setting.fusion:
            spent, run = time_call(partial(trial.fuse, setting.fusion, setting.members))
            seconds.append(spent)
        scores[setting] = trial.score(run)
        if trial.reranker:
            pairs = dict(trial.reranker.score_pairs(trial.dataset, run))
            for depth in DEPTHS:
                reranked = replace(setting, reranked=depth)
                scores[reranked] = trial.score(rerank(run, pairs, depth))
    fusing_ms = 1000 * median(seconds) / queries
    fusing = Cost(fusing_ms, fusing_ms)
    reranking = {depth: reranking_cost(pairs, depth) for depth in (0, *DEPTHS)}
    costs = {one: _cost(members, one, fusing, reranking[one.reranked]) for one in scores}
    return Scores(scores, costs, reranking)


def _choose(request: TuneRequest, trial: Trial, scores: Scores) -> Tuning:
    """Test all settings that are cheap enough, and choose one."""
    members, baseline = trial.members, Setting((0,))
    settings = [one for one in scores.of if one != baseline]
    allowed = [one for one in settings if _is_allowed(scores.ms(one), request.limit_ms)]
    if not allowed:
        least = min(ms for one in settings if (ms := scores.ms(one)) is not None)
        limit = f"{request.limit_ms:f}".rstrip("0").rstrip(".")
        problem = f"every setting costs more than {limit} ms a query"
        raise BenchError(problem, f"Use --limit-ms {math.ceil(100 * least) / 100:.2f} or more.")
    gains, low, high = _test(request, scores, allowed, baseline)
    tested = {
        setting: TunedSetting(
            name=setting.describe(members),
            models=tuple(members[one].typed for one in setting.members),
            fusion=setting.fusion,
            reranked=setting.reranked,
            costs=scores.costs[setting],
            score=float(scores.of[setting].mean()),
            gain=float(gains[:, place].mean()),
            low=float(low[place]),
            high=float(high[place]),
        )
        for place, setting in enumerate(allowed)
    }
    proved = [setting for setting, one in tested.items() if one.proved]
    proved.sort(key=lambda one: (tested[one].cost, -tested[one].low))
    chosen = tested[proved[0]] if proved else None
    first = next((one for one in proved if not one.reranked), baseline)
    cards = _write_cards(request, chosen) if chosen else ("", "")
    return Tuning(
        on=trial.opened.name,
        measure=trial.measure,
        queries=len(gains),
        baseline=members[0].name,
        baseline_score=float(scores.of[baseline].mean()),
        baseline_costs=scores.costs[baseline],
        over_ms=len(settings) - len(allowed),
        settings=tuple(sorted(tested.values(), key=lambda one: -one.gain)),
        selection=selection_gain(gains, request.seed),
        ceilings=tuple(trial.ceilings()),
        chosen=chosen,
        card=cards[0],
        first_card=cards[1],
        reranked=first.describe(members) if trial.reranker else "",
        rerankings=tuple(_test_reranking(request, scores, first)) if trial.reranker else (),
    )


def _test(
    request: TuneRequest, scores: Scores, settings: Sequence[Setting], against: Setting
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return gains, float64 ``(queries, settings)``, and both limits of each mean gain."""
    gains = np.column_stack([scores.of[one] - scores.of[against] for one in settings])
    test = GainTest(gains, Resampling(request.resamples, request.seed))
    return gains, test.limits(), -test.limits(-1)


def _test_reranking(request: TuneRequest, scores: Scores, first: Setting) -> Iterator[Reranking]:
    """Yield what reranking adds to a setting at each depth."""
    depths = [replace(first, reranked=depth) for depth in DEPTHS]
    gains, low, high = _test(request, scores, depths, first)
    for place, (setting, gain) in enumerate(zip(depths, gains.mean(axis=0), strict=True)):
        limits = float(low[place]), float(high[place])
        yield Reranking(
            setting.reranked, scores.reranking[setting.reranked].ms, float(gain), *limits
        )


def _cost(
    members: Sequence[Member], setting: Setting, fusing: Cost, reranking: Cost
) -> Cost | None:
    """Return the cost of a setting, or None if a run file takes part in the tuning."""
    if any(one.cost is None for one in members):
        return None
    total = fusing + reranking if setting.fusion else reranking
    for number in setting.members:
        total += members[number].cost or Cost()
    return total


def _is_allowed(ms: float | None, limit: float | None) -> bool:
    """Return whether a cost is within the limit, or raise if a limit has no cost to compare."""
    if limit is None:
        return True
    if ms is None:
        raise BenchError("--limit-ms needs times, and run files have none", "Leave it out.")
    return ms <= limit


def _write_cards(request: TuneRequest, chosen: TunedSetting) -> tuple[str, str]:
    """Return the card of the answer and of the fusion that it reranks, and write them to files.

    A card is "" where none is needed.
    """
    name = request.out.stem if request.out else CARD
    if not chosen.reranked:
        return _write(request.out, _fusion_card(chosen, name)), ""
    first = f"{name}-first"
    fused = _fusion_card(chosen, first)
    path = request.out.with_stem(first) if request.out else Path(f"{first}{SUFFIX}")
    model = path.name if fused else anchor_path(chosen.models[0], Path.cwd())
    card = format_card(reranking_card(request, model, chosen.reranked))
    return _write(request.out, card), _write(path if request.out else None, fused)


def _write(path: Path | None, card: str) -> str:
    """Write a card, if there is one and a file for it, and return it."""
    if card and path:
        with replace_file(path) as file:
            file.write(card.encode())
    return card


def _fusion_card(setting: TunedSetting, name: str) -> str:
    """Return the card of a fusion as TOML; "" for one ranking alone."""
    if setting.fusion is None:
        return ""
    about = {"name": name, "title": setting.name, "kind": "fusion", "models": setting.models}
    card = make_card(about | msgspec.structs.asdict(setting.fusion))
    return format_card(anchor_members(card, Path.cwd()))
