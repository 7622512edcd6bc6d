"""Comparison of models: pairwise on collections and in means of suites, and as a sequence.

Results are comparable only under the same protocol. Recipes may differ, and are shown.

In a sequence of trainings, checkpoint i was trained on collection i, starting from checkpoint
i - 1, and the first one from the base. R[i, j] is the score of checkpoint i on collection j. As
defined by Lopez-Paz and Ranzato (Gradient Episodic Memory, NeurIPS 2017), with T trainings:

* gain: R[i, i] - R[i - 1, i], from before to after the training on the collection itself;
* backward transfer: the mean over i < T of R[T, i] - R[i, i]; below 0 it is forgetting;
* forward transfer: the mean over i > 1 of R[i - 1, i] - R[base, i]; they compare with a random
  start, this module compares with the checkpoint from which the first training started;
* average: the mean over i of R[T, i].

All are means of differences on the same queries, so intervals resample the queries.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import msgspec
import numpy as np

from bench.comparing.statistics import (
    Difference,
    Estimate,
    ResampledScores,
    Resampling,
    ScoreMatrix,
    Verdict,
    adjust_p_values,
    average_groups,
    mean_with_interval,
    paired_difference,
)
from bench.evaluation.judging import suite_weights
from bench.evaluation.result_record import Evaluation, Latency, Protocol
from bench.evaluation.scoring import parse_measure
from bench.result_store.find import (
    RUN_FILE,
    describe_protocol,
    describe_recipe,
    find_differing_settings,
)
from datasets_cfg.catalogue import collections_of, suite_for, suite_names
from foundation.errors import BenchError
from foundation.records import Record


@dataclass(frozen=True)
class ComparedModel:
    """Model under its label in tables, with its evaluations by collection."""

    name: str
    results: Mapping[str, Evaluation]

    def protocol(self, collection: str) -> Protocol | None:
        """Return the protocol of its result on ``collection``, or None without a result."""
        return self.results[collection].record.protocol if collection in self.results else None


Models = Sequence[ComparedModel]


@dataclass(frozen=True)
class ComparisonSettings:
    """Settings of a comparison.

    Attributes:
        measure: used instead of the main measure of each collection.
        collections: collections to compare on; None for all.
        suites: suites whose means are shown even if incomplete; None for the suites that one
            model completes.
        groups: group of each query by collection, for collections whose groups are compared.
    """

    measure: str | None = None
    collections: Collection[str] | None = None
    suites: Sequence[str] | None = None
    resampling: Resampling = field(default_factory=Resampling)
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def includes(self, collection: str) -> bool:
        """Return True if ``collection`` is compared."""
        return self.collections is None or collection in self.collections


class FieldDifference(Record):
    """Field of the protocol or the recipe in which two models differ; "" if it does not apply."""

    field: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.field} {self.a or '-'} and {self.b or '-'}"


def differing_fields(a: Protocol, b: Protocol) -> tuple[FieldDifference, ...]:
    """Return the fields in which two protocols differ. An unknown corpus is no difference."""
    described = [describe_protocol(a), describe_protocol(b)]
    names = find_differing_settings(described)
    if not (a.corpus_sha256 and b.corpus_sha256):
        names = [name for name in names if name != "corpus_sha256"]
    return tuple(
        FieldDifference(name, *(each.get(name, "") for each in described)) for name in names
    )


def check_protocols(collection: str, models: Models) -> None:
    """Raise if ``models`` were evaluated on ``collection`` under different protocols."""
    evaluated = [one for one in models if collection in one.results]
    for first, other in combinations(evaluated, 2):
        protocols = [one.results[collection].record.protocol for one in (first, other)]
        if differences := differing_fields(*protocols):
            raise BenchError(
                f"{first.name} and {other.name} were evaluated under different protocols on "
                f"{collection}: {', '.join(map(str, differences))}",
                f"Evaluate {other.name} again.",
            )


def read_scores(collection: str, models: Models, settings: ComparisonSettings) -> ScoreMatrix:
    """Read the scores of all models on one collection. A model without a result is a gap.

    Raises:
        BenchError: the protocols differ, the models' main measures differ and none is chosen, a
            score is not finite, or the models have different queries.
    """
    check_protocols(collection, models)
    measure = _shared_measure(collection, models, settings)
    values, gaps = _scores_by_model(collection, measure, models)
    # Sorted, so that their order never matters.
    queries = sorted(next(iter(values.values()), ()))
    if any(scores.keys() != set(queries) for scores in values.values()):
        raise BenchError(
            f"the results on {collection} have different queries, although their protocols agree",
            "One of them is damaged. Evaluate it again.",
        )
    scores = np.array([[value[query] for value in values.values()] for query in queries])
    if not np.isfinite(scores).all():
        raise BenchError(f"a score of {measure} on {collection} is not finite")
    if values and collection in settings.groups:
        scores, queries = average_groups(scores, queries, settings.groups[collection])
    columns, ids = {name: column for column, name in enumerate(values)}, tuple(queries)
    return ScoreMatrix(collection, measure, columns, scores, settings.resampling, gaps, ids)


def read_all_scores(collection: str, models: Models, settings: ComparisonSettings) -> ScoreMatrix:
    """Read the scores of all models on one collection, none of which may be missing.

    Raises:
        BenchError: as `read_scores`, or a model has no scores.
    """
    for model in models:
        if collection not in model.results:
            raise BenchError(
                f"{model.name} has no result on {collection}",
                f"Run `python -m bench run {collection} --model {model.name}`.",
            )
    matrix = read_scores(collection, models, settings)
    for name, why in matrix.gaps.items():
        raise BenchError(f"{name} on {collection} has {why}", "Evaluate it again.")
    return matrix


def _scores_by_model(
    collection: str, measure: str, models: Models
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Return the scores by model and query, and for each model without scores the reason."""
    values, gaps = {}, {}
    for model in models:
        if collection not in model.results:
            gaps[model.name] = "no result"
            continue
        scores = model.results[collection].scores
        if measure in scores.values:
            values[model.name] = scores.by_query(measure)
        else:
            gaps[model.name] = f"no {measure}, but {', '.join(scores.values)}"
    return values, gaps


def _shared_measure(collection: str, models: Models, settings: ComparisonSettings) -> str:
    """Return the measure to compare by, or raise if the models' main measures differ."""
    if settings.measure is not None:
        return parse_measure(settings.measure).name
    results = [model.results[collection] for model in models if collection in model.results]
    names = sorted({evaluation.record.main_measure for evaluation in results})
    if len(names) > 1:
        raise BenchError(
            f"the main measures of the results on {collection} differ: {', '.join(names)}",
            "Choose one with --measure.",
        )
    return names[0]


ModelPair = tuple[ComparedModel, ComparedModel]


class PairedRow(Record, kw_only=True):
    """Two models, ``a`` and ``b``, on one collection or a slice of it, or in a mean.

    Attributes:
        on: name of the collection or suite, or "mean".
        value: value that the queries of a slice share; "" for all queries.
        measure: name of the measure.
        queries: number of queries, or of their groups, summed over the collections of a mean; 0 if
            it is unknown.
        mean_a, mean_b: mean scores; None for a gap.
        in_domain_a, in_domain_b: whether the model was trained on the collection.
        paired: difference with its interval and p; None for a gap or a score without queries.
        missing: reasons for a gap.
    """

    on: str
    value: str = ""
    measure: str = ""
    queries: int = 0
    mean_a: float | None = None
    mean_b: float | None = None
    in_domain_a: bool = False
    in_domain_b: bool = False
    paired: Difference | None = None
    missing: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """a minus b, or None for a gap."""
        if self.paired:
            return self.paired.difference
        if self.mean_a is None or self.mean_b is None:
            return None
        return self.mean_a - self.mean_b


class ComparisonRow(PairedRow, kw_only=True):
    """Two models on one collection or a slice of it, or in the mean of a suite.

    p is adjusted over the collections of all pairs of models (a mean: over all pairs). What is
    missing is a model's result, with its name; in a suite, a member.

    Attributes:
        members: number of sets in the mean, a nested suite counting once; 0 for a collection.
        weighted: True if members have different weights.
        official: whether this is the published collection; None if nothing is published for it.
        verdict: better model at the 5 % level.
        overlay: hash of imported judgements that count, too; "" without any.
        latency_a, latency_b: latency of a search system; None for other models.
        fewest_a, fewest_b: fewest documents of a query, if the measure counts more than a search
            system returned; otherwise None.
    """

    members: int = 0
    weighted: bool = False
    official: bool | None = True
    verdict: Verdict
    overlay: str = ""
    latency_a: Latency | None = None
    latency_b: Latency | None = None
    fewest_a: int | None = None
    fewest_b: int | None = None


class Comparison(Record):
    """Two models, ``a`` minus ``b``, on all collections that either of them has.

    Attributes:
        pairs: number of pairs of models that were compared, over which p is adjusted.
        recipes: fields of the recipes that differ, with their values over the collections.
    """

    a: str
    b: str
    collections: tuple[ComparisonRow, ...]
    suites: tuple[ComparisonRow, ...]
    recipes: tuple[FieldDifference, ...]
    pairs: int = 1

    @property
    def all_rows(self) -> tuple[ComparisonRow, ...]:
        """Rows of the collections, then of the suites."""
        return (*self.collections, *self.suites)


def compare_models(models: Models, settings: ComparisonSettings) -> list[Comparison]:
    """Compare each of ``models`` with every later one, by ``settings``.

    p is corrected over all collections of all pairs, so that equal models have a significant
    difference anywhere in at most 5 % of comparisons. The means of a suite are another family.

    Raises:
        BenchError: different protocols, no shared collection, an unknown measure, too few
            resamples, or damaged results.
    """
    names = {name for model in models for name in model.results if settings.includes(name)}
    matrices = [read_scores(name, models, settings) for name in sorted(names)]
    if not any(len(matrix.columns) > 1 for matrix in matrices):
        gaps = [
            f"{name} on {matrix.collection} has {gap}"
            for matrix in matrices
            for name, gap in matrix.gaps.items()
        ]
        raise BenchError(
            "; ".join(["no two models have the same measure on the same collection", *gaps]),
            "Choose another --measure, or evaluate them on the same collection.",
        )
    compared = [_compare_pair(pair, matrices, settings) for pair in combinations(models, 2)]
    return _adjust(compared)


def _adjust(compared: list[Comparison]) -> list[Comparison]:
    """Correct p over the collections of all pairs, and the means of each suite over all pairs."""
    families: dict[str, dict[tuple[int, str], Difference]] = {}
    for number, one in enumerate(compared):
        for row in one.all_rows:
            if row.paired:
                family = families.setdefault(row.on if row.members else "", {})
                family[number, row.on] = row.paired
    tests: dict[tuple[int, str], Difference] = {}
    for family in families.values():
        tests |= adjust_p_values(family)

    def adjust(number: int, row: ComparisonRow) -> ComparisonRow:
        test = tests.get((number, row.on))
        if test is None or (row.members and len(compared) == 1):
            return row
        return msgspec.structs.replace(row, paired=test, verdict=test.verdict)

    return [
        msgspec.structs.replace(
            one,
            collections=tuple(adjust(number, row) for row in one.collections),
            suites=tuple(adjust(number, row) for row in one.suites),
            pairs=len(compared),
        )
        for number, one in enumerate(compared)
    ]


def _compare_pair(
    pair: ModelPair, matrices: Sequence[ScoreMatrix], settings: ComparisonSettings
) -> Comparison:
    """Compare two models. No p is adjusted."""
    a, b = pair
    relevant = [matrix for matrix in matrices if matrix.collection in {*a.results, *b.results}]
    complete = [matrix for matrix in relevant if not matrix.gaps.keys() & {a.name, b.name}]
    parts = {matrix.collection: matrix.minus(a.name, b.name) for matrix in complete}
    tests = {name: paired_difference([part]) for name, part in parts.items()}
    rows = [_collection_row(pair, matrix, tests.get(matrix.collection)) for matrix in relevant]
    by_name = {row.on: row for row in rows}
    suites = [_suite_row(suite, by_name, parts) for suite in _suites_to_show(pair, settings)]
    shown = tuple(row for row in suites if row)
    return Comparison(a.name, b.name, tuple(rows), shown, differing_recipes(pair, parts))


def _collection_row(pair: ModelPair, matrix: ScoreMatrix, test: Difference | None) -> ComparisonRow:
    a, b = pair
    results = [model.results.get(matrix.collection) for model in pair]
    protocols = [evaluation.record.protocol for evaluation in results if evaluation]
    gaps = [name for name in (a.name, b.name) if name in matrix.gaps]
    return ComparisonRow(
        on=matrix.collection,
        measure=matrix.measure,
        queries=len(matrix.scores),
        mean_a=matrix.mean(a.name),
        mean_b=matrix.mean(b.name),
        in_domain_a=bool(results[0] and results[0].record.in_domain),
        in_domain_b=bool(results[1] and results[1].record.in_domain),
        official=_all_official(protocols),
        paired=test,
        verdict=test.verdict if test else "neither",
        missing=tuple(f"{name}: {matrix.gaps[name]}" for name in gaps),
        overlay=protocols[0].overlay if protocols else "",
        latency_a=results[0].record.latency if results[0] else None,
        latency_b=results[1].record.latency if results[1] else None,
        fewest_a=results[0].record.short_measures.get(matrix.measure) if results[0] else None,
        fewest_b=results[1].record.short_measures.get(matrix.measure) if results[1] else None,
    )


def _all_official(protocols: Sequence[Protocol]) -> bool | None:
    """Return whether all are of the published collection, or None if nothing is published."""
    stated = [protocol.official for protocol in protocols]
    return None if None in stated and False not in stated else all(stated)


def _suites_to_show(pair: ModelPair, settings: ComparisonSettings) -> Iterator[str]:
    """Yield the chosen suites, or else each suite of which one model has every member."""
    measured = [set(filter(settings.includes, model.results)) for model in pair]
    for name in suite_names() if settings.suites is None else settings.suites:
        is_complete = any(each.issuperset(suite_weights(name)) for each in measured)
        if suite_for(name).mean and (is_complete or settings.suites is not None):
            yield name


def _suite_row(
    suite: str, rows: Mapping[str, ComparisonRow], parts: Mapping[str, ResampledScores]
) -> ComparisonRow | None:
    """Return the row of a suite's mean, or None if the members' measures differ."""
    weights = suite_weights(suite)
    members = [rows[name] for name in weights if name in parts and rows[name].official is not False]
    names = {row.on for row in members}
    measures = {row.measure for row in members}
    if len(measures) > 1:
        return None
    missing = tuple(m for m in suite_for(suite).members if not names.issuperset(collections_of(m)))
    shares = [weights[row.on] for row in members]
    test = None
    if not missing:
        test = paired_difference([parts[row.on] for row in members], shares, suite)
    return ComparisonRow(
        on=suite,
        measure=measures.pop() if measures else "",
        queries=sum(row.queries for row in members),
        members=len(suite_for(suite).members),
        mean_a=_weighted_mean(shares, [row.mean_a for row in members]) if test else None,
        mean_b=_weighted_mean(shares, [row.mean_b for row in members]) if test else None,
        paired=test,
        verdict=test.verdict if test else "neither",
        missing=missing,
        weighted=len(set(suite_for(suite).weights)) > 1,
    )


def _weighted_mean(weights: Sequence[float], means: Sequence[float | None]) -> float:
    return float(np.dot(weights, [mean for mean in means if mean is not None]))


def differing_recipes(pair: ModelPair, names: Collection[str]) -> tuple[FieldDifference, ...]:
    """Return the recipe fields in which two models differ on any of the collections ``names``.

    Prompts may have several values. The recipe behind a run file is unknown, so only that it is a
    run file counts as a difference.
    """
    described = [[describe_recipe(model.results[name].record) for name in names] for model in pair]
    fields = dict.fromkeys(
        field
        for recipes in zip(*described, strict=True)
        for field in find_differing_settings(recipes)
    )
    if RUN_FILE in fields:
        fields = dict.fromkeys([RUN_FILE])

    def values(recipes: Sequence[Mapping[str, str]], name: str) -> str:
        return " or ".join(dict.fromkeys(recipe.get(name, "") for recipe in recipes))

    return tuple(
        FieldDifference(name, *(values(side, name) for side in described)) for name in fields
    )


class Transfers(Record):
    """One kind of transfer: the checkpoint after minus the checkpoint before, on each collection.

    The ``mean`` compares no two checkpoints, so its names are empty.
    """

    mean: Difference
    rows: tuple[Difference, ...]

    @property
    def all_rows(self) -> tuple[Difference, ...]:
        """Rows of the collections, then of the mean."""
        return (*self.rows, self.mean)


class TransferRow(Record):
    """Mean scores of one checkpoint by collection."""

    checkpoint: str
    levels: dict[str, Estimate]


class Forgetting(Record, kw_only=True):
    """Matrix of checkpoints by collections, with the transfer computed from it.

    Attributes:
        rows: checkpoints in training order, the base first if there is one.
        trained: collection that each checkpoint was trained on, in order.
        average: mean score of the last checkpoint over ``trained``.
        gain: None with one training and no base.
        backward: None with one training.
        forward: None with one training or without a base.
    """

    measure: str
    rows: tuple[TransferRow, ...]
    base: str
    trained: tuple[str, ...]
    queries: dict[str, int]
    average: Estimate
    gain: Transfers | None
    backward: Transfers | None
    forward: Transfers | None
    resampling: Resampling


def measure_forgetting(
    models: Models, trained: Sequence[str], measure: str | None, resampling: Resampling
) -> Forgetting:
    """Compute the matrix of checkpoints by collections, with transfer and its intervals.

    ``models`` are the checkpoints in training order, before them the base if there is one, and
    ``trained`` the collection of each training. The main measure is used by default, which all
    collections must share.

    Raises:
        BenchError: there are too many or too few models, or too few resamples; the main measures
            differ; a result is missing, damaged, or under a different protocol.
    """
    extra = len(models) - len(trained)
    if extra not in (0, 1):
        raise BenchError(
            f"{len(models)} models do not match {len(trained)} collections of --sequence",
            "Name one collection per model, in training order; the start of the training may come "
            "first.",
        )
    settings = ComparisonSettings(measure, resampling=resampling)
    matrices = {name: read_all_scores(name, models, settings) for name in trained}
    measures = sorted({matrix.measure for matrix in matrices.values()})
    if len(measures) > 1:
        raise BenchError(
            f"the main measures of the collections differ: {', '.join(measures)}",
            "Choose one with --measure.",
        )
    order = [checkpoint.name for checkpoint in models[extra:]]
    last, base = order[-1], models[0].name if extra else ""
    checkpoint_of = dict(zip(trained, order, strict=True))
    before = [*([base] if base else []), *order[:-1]]
    latest = len(before)
    gain = list(zip(trained[-latest:], order[-latest:], before, strict=True)) if before else []
    backward = [(name, last, checkpoint_of[name]) for name in trained[:-1]]
    forward = [(name, earlier, base) for name, earlier in zip(trained[1:], order[:-1], strict=True)]
    rows = []
    for model in models:
        levels = {key: mean_with_interval([one.minus(model.name)]) for key, one in matrices.items()}
        rows.append(TransferRow(model.name, levels))
    return Forgetting(
        measure=measures[0],
        rows=tuple(rows),
        base=base,
        trained=tuple(trained),
        queries={name: len(matrix.scores) for name, matrix in matrices.items()},
        average=mean_with_interval([matrices[name].minus(last) for name in trained]),
        gain=_transfers(gain, matrices),
        backward=_transfers(backward, matrices),
        forward=_transfers(forward, matrices) if base else None,
        resampling=resampling,
    )


def _transfers(
    steps: Sequence[tuple[str, str, str]], matrices: Mapping[str, ScoreMatrix]
) -> Transfers | None:
    """Return differences on collections and their mean, or None without any.

    A step is a collection, the checkpoint after and the checkpoint before.
    """
    if not steps:
        return None
    parts = {name: matrices[name].minus(after, before) for name, after, before in steps}
    rows = adjust_p_values({name: paired_difference([part]) for name, part in parts.items()})
    mean = paired_difference(list(parts.values()), [1 / len(parts)] * len(parts), "mean")
    return Transfers(msgspec.structs.replace(mean, a="", b=""), tuple(rows.values()))
