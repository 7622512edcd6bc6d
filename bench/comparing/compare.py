"""Models beside each other: on each collection, and in the means of suites.

Results are compared only under the same protocol. Recipes may differ, and are shown.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

import numpy as np

from bench.comparing.statistics import (
    Difference,
    PairedScores,
    Resampling,
    ScoreMatrix,
    adjust_p_values,
    paired_difference,
)
from bench.evaluate.judging import suite_weights
from bench.evaluate.scoring import parse_measure
from bench.results.find import (
    RUN_FILE_FACT,
    describe_protocol,
    describe_recipe,
    find_differing_facts,
)
from bench.results.result import Evaluation, Protocol
from datasets_cfg.catalogue import is_suite, suite_for, suite_names
from foundation.errors import BenchError
from foundation.records import Record


@dataclass(frozen=True)
class ComparedModel:
    """One of the models that are compared: its name in tables, its evaluations by collection."""

    name: str
    results: Mapping[str, Evaluation]


@dataclass(frozen=True)
class ComparisonSettings:
    """Terms of a comparison.

    Attributes:
        measure: instead of the main measure of each collection.
        force: compare results of different protocols, marked.
        collections: only these; None for all.
        suites: whose means are shown even as gaps; None for those that a model is complete on.
    """

    measure: str | None = None
    force: bool = False
    collections: Collection[str] | None = None
    suites: Sequence[str] | None = None
    resampling: Resampling = field(default_factory=Resampling)

    def includes(self, collection: str) -> bool:
        """True if the collection is compared."""
        return self.collections is None or collection in self.collections


class FieldDifference(Record):
    """A field of the protocol or the recipe in which two models differ."""

    field: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.field} {self.a or '-'} and {self.b or '-'}"


def protocol_differences(a: Protocol, b: Protocol) -> tuple[FieldDifference, ...]:
    """Fields that forbid to compare. An unknown corpus, of a run file, is no difference."""
    told = [describe_protocol(a), describe_protocol(b)]
    names = find_differing_facts(told)
    if not (a.corpus_sha256 and b.corpus_sha256):
        names = [name for name in names if name != "corpus_sha256"]
    return tuple(FieldDifference(name, told[0][name], told[1][name]) for name in names)


def check_protocols(collection: str, models: Sequence[ComparedModel]) -> None:
    """Refuse to compare models that were evaluated under different protocols.

    Raises:
        BenchError: what differs.
    """
    found = [one for one in models if collection in one.results]
    for first, other in combinations(found, 2):
        protocols = [one.results[collection].result.protocol for one in (first, other)]
        if differences := protocol_differences(*protocols):
            raise BenchError(
                f"{first.name} and {other.name} were evaluated under different protocols on "
                f"{collection}: {', '.join(map(str, differences))}",
                f"evaluate {other.name} again; `compare --force` compares all the same and marks "
                "it",
            )


def read_score_matrix(
    collection: str, models: Sequence[ComparedModel], settings: ComparisonSettings
) -> ScoreMatrix:
    """Read the values of all models on one collection.

    Raises:
        BenchError: different protocols without ``force``, the models' main measures differ and none
            is chosen, a value is not a number, or the models have different queries.
    """
    if not settings.force:
        check_protocols(collection, models)
    measure = _shared_measure(collection, models, settings)
    values, gaps = _scores_by_model(collection, measure, models)
    queries = _common_queries(collection, values, settings.force)
    scores = np.array([[value[query] for value in values.values()] for query in queries])
    if not np.isfinite(scores).all():
        raise BenchError(f"a value of {measure} on {collection} is not a number")
    return ScoreMatrix(
        collection=collection,
        measure=measure,
        columns={name: column for column, name in enumerate(values)},
        scores=scores,
        resampling=settings.resampling,
        gaps=gaps,
        left_out=len(set().union(*values.values())) - len(queries),
        queries=tuple(queries),
    )


def read_complete_matrix(
    collection: str, models: Sequence[ComparedModel], settings: ComparisonSettings
) -> ScoreMatrix:
    """`read_score_matrix` without gaps.

    Raises:
        BenchError: as `read_score_matrix`, or a model is a gap.
    """
    for model in models:
        if collection not in model.results:
            raise BenchError(
                f"{model.name} has no result on {collection}",
                f"python -m bench run {collection} --model {model.name}",
            )
    matrix = read_score_matrix(collection, models, settings)
    for name, why in matrix.gaps.items():
        raise BenchError(f"{name} on {collection} has {why}", "evaluate it again")
    return matrix


def _scores_by_model(
    collection: str, measure: str, models: Sequence[ComparedModel]
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Values of the queries by model; and why a model has none."""
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


def _shared_measure(
    collection: str, models: Sequence[ComparedModel], settings: ComparisonSettings
) -> str:
    if settings.measure is not None:
        return parse_measure(settings.measure).name
    results = [model.results[collection] for model in models if collection in model.results]
    names = sorted({evaluation.result.main_measure for evaluation in results})
    if len(names) > 1:
        raise BenchError(
            f"the main measures of the results on {collection} differ: {', '.join(names)}",
            "choose one with --measure",
        )
    return names[0]


def _common_queries(
    collection: str, values: Mapping[str, Mapping[str, float]], force: bool
) -> list[str]:
    """Queries that all models have, sorted, so that no order changes what is drawn."""
    sets = [set(value) for value in values.values()]
    common = sorted(set.intersection(*sets)) if sets else []
    if any(len(queries) != len(common) for queries in sets) and not force:
        raise BenchError(
            f"the results on {collection} are of different queries, though their protocols agree",
            "one of them is damaged: evaluate it again",
        )
    if sets and not common:
        raise BenchError(f"the results on {collection} have no query in common")
    return common


Verdict = Literal["a", "b", "neither"]
ModelPair = tuple[ComparedModel, ComparedModel]


class ComparisonRow(Record, kw_only=True):
    """Two models on one collection, or in the mean of a suite.

    Attributes:
        on: name of the collection or suite.
        queries: that both have, of all members.
        members: that the mean is over; a suite among them counts once. 0 for a collection.
        weighted: True if members do not count the same.
        mean_a, mean_b: None if there is no result, or a member is missing.
        paired: on a collection with p adjusted for all of this pair of models; None for a gap.
        verdict: which is better, at 5 %.
        missing: what is missing, and of which model; of a suite, its members.
        protocol: what differs in the protocols, which only --force allows.
        left_out: queries that not all models have, by force.
    """

    on: str
    measure: str
    queries: int
    members: int = 0
    weighted: bool = False
    mean_a: float | None
    mean_b: float | None
    in_domain_a: bool = False
    in_domain_b: bool = False
    official: bool = True
    paired: Difference | None
    verdict: Verdict
    missing: tuple[str, ...] = ()
    protocol: tuple[FieldDifference, ...] = ()
    left_out: int = 0


class Comparison(Record):
    """Two models on all collections that either has.

    Differences are first minus second: above 0 the first is better.

    Attributes:
        recipes: fields of the recipes that differ, with their values over the collections.
    """

    a: str
    b: str
    collections: tuple[ComparisonRow, ...]
    suites: tuple[ComparisonRow, ...]
    recipes: tuple[FieldDifference, ...]


def compare(models: Sequence[ComparedModel], settings: ComparisonSettings) -> list[Comparison]:
    """Every model with every later one.

    Raises:
        BenchError: different protocols without ``force``, no collection that two models share, a
            measure that nobody has, too few resamples, or damaged results.
    """
    names = {name for model in models for name in model.results if settings.includes(name)}
    matrices = [read_score_matrix(name, models, settings) for name in sorted(names)]
    if not any(len(matrix.columns) > 1 for matrix in matrices):
        raise _no_shared_collection(models, matrices, settings)
    settings.resampling.check_enough(sum(len(matrix.columns) > 1 for matrix in matrices))
    return [_compare_pair(pair, matrices, settings) for pair in combinations(models, 2)]


def _no_shared_collection(
    models: Sequence[ComparedModel], matrices: Sequence[ScoreMatrix], settings: ComparisonSettings
) -> BenchError:
    lacking = [
        f"{name} on {matrix.collection} has {matrix.gaps[name]}"
        for matrix in matrices
        for name in matrix.gaps
        if any(name == model.name and matrix.collection in model.results for model in models)
    ]
    if lacking:
        return BenchError(
            f"no two models have {settings.measure} on one collection: {'; '.join(lacking)}",
            "choose another --measure, or run or score them again with this one",
        )
    has = [
        f"{model.name}: {', '.join(filter(settings.includes, model.results)) or 'none'}"
        for model in models
    ]
    return BenchError(f"no two of the models have results on one collection: {'; '.join(has)}")


def _compare_pair(
    pair: ModelPair, matrices: Sequence[ScoreMatrix], settings: ComparisonSettings
) -> Comparison:
    a, b = pair
    relevant = [matrix for matrix in matrices if matrix.collection in {*a.results, *b.results}]
    parts = {
        matrix.collection: matrix.minus(a.name, b.name)
        for matrix in relevant
        if not matrix.gaps.keys() & {a.name, b.name}
    }
    tests = adjust_p_values({name: paired_difference([part]) for name, part in parts.items()})
    rows = [
        _compare_on_collection(pair, matrix, tests.get(matrix.collection)) for matrix in relevant
    ]
    suites = [
        row
        for suite in _suites_to_show(pair, settings)
        if (row := _compare_on_suite(suite, {row.on: row for row in rows}, parts))
    ]
    return Comparison(a.name, b.name, tuple(rows), tuple(suites), _recipe_differences(pair, parts))


def _compare_on_collection(
    pair: ModelPair, matrix: ScoreMatrix, test: Difference | None
) -> ComparisonRow:
    a, b = pair
    results = [model.results.get(matrix.collection) for model in pair]
    protocols = [evaluation.result.protocol for evaluation in results if evaluation]
    return ComparisonRow(
        on=matrix.collection,
        measure=matrix.measure,
        queries=len(matrix.scores),
        mean_a=matrix.mean(a.name),
        mean_b=matrix.mean(b.name),
        in_domain_a=bool(results[0] and results[0].result.in_domain),
        in_domain_b=bool(results[1] and results[1].result.in_domain),
        official=all(protocol.official for protocol in protocols),
        paired=test,
        verdict=_verdict(test),
        missing=tuple(
            f"{model.name}: {matrix.gaps[model.name]}"
            for model in pair
            if model.name in matrix.gaps
        ),
        protocol=protocol_differences(*protocols) if len(protocols) == len(pair) else (),
        left_out=matrix.left_out,
    )


def _verdict(test: Difference | None) -> Verdict:
    if test is None or not test.significant:
        return "neither"
    return "a" if test.difference > 0 else "b"


def _suites_to_show(pair: ModelPair, settings: ComparisonSettings) -> Iterator[str]:
    """Suites to show: as chosen, or those that one of the two has a result on each member of."""
    if settings.suites is not None:
        yield from (name for name in settings.suites if suite_for(name).mean)
        return
    for name in (name for name in suite_names() if suite_for(name).mean):
        leaves = set(suite_weights(name))
        if any(leaves <= {n for n in model.results if settings.includes(n)} for model in pair):
            yield name


def _compare_on_suite(
    suite: str, rows: Mapping[str, ComparisonRow], parts: Mapping[str, PairedScores]
) -> ComparisonRow | None:
    """None if the members' measures differ, which have no mean."""
    weights = suite_weights(suite)
    members = [rows[name] for name in weights if name in parts and rows[name].official]
    names = {row.on for row in members}
    measures = {row.measure for row in members}
    if len(measures) > 1:
        return None
    missing = tuple(m for m in suite_for(suite).members if not _collections_in(m) <= names)
    chosen = [weights[row.on] for row in members]
    test = None
    if not missing:
        test = paired_difference([parts[row.on] for row in members], chosen, suite)
    return ComparisonRow(
        on=suite,
        measure=measures.pop() if measures else "",
        queries=sum(row.queries for row in members),
        members=len(suite_for(suite).members),
        mean_a=_weighted_mean(chosen, [row.mean_a for row in members]) if test else None,
        mean_b=_weighted_mean(chosen, [row.mean_b for row in members]) if test else None,
        paired=test,
        verdict=_verdict(test),
        missing=missing,
        protocol=tuple(dict.fromkeys(one for row in members for one in row.protocol)),
        weighted=len(set(suite_for(suite).weights)) > 1,
    )


def _weighted_mean(weights: Sequence[float], means: Sequence[float | None]) -> float:
    return float(np.dot(weights, [mean for mean in means if mean is not None]))


def _collections_in(member: str) -> set[str]:
    return set(suite_weights(member)) if is_suite(member) else {member}


def _recipe_differences(
    pair: ModelPair, collections: Collection[str]
) -> tuple[FieldDifference, ...]:
    """Fields that differ on any of the collections; prompts may have several values each.

    The recipe behind a run file is not known, so nothing can be said to differ from it.
    """
    told = [[describe_recipe(model.results[name].result) for name in collections] for model in pair]
    fields = dict.fromkeys(
        field for recipes in zip(*told, strict=True) for field in find_differing_facts(recipes)
    )
    if RUN_FILE_FACT in fields:
        fields = dict.fromkeys([RUN_FILE_FACT])
    return tuple(
        FieldDifference(name, *(_field_values(side, name) for side in told)) for name in fields
    )


def _field_values(recipes: Sequence[Mapping[str, str]], name: str) -> str:
    return " or ".join(dict.fromkeys(recipe.get(name, "") for recipe in recipes))
