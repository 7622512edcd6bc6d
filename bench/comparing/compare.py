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
    adjusted,
    paired,
)
from bench.evaluate.judging import suite_weights
from bench.evaluate.scoring import parse_measure
from bench.results.find import RUN_FILE_FACT, differing, protocol_facts, recipe_facts
from bench.results.result import Evaluation, Protocol
from datasets_cfg.catalogue import is_suite, suite_for, suite_names
from foundation.errors import BenchError
from foundation.records import Record


@dataclass(frozen=True)
class Entrant:
    """One of the models that are compared: its name in tables, its evaluations by collection."""

    name: str
    entries: Mapping[str, Evaluation]


@dataclass(frozen=True)
class Choices:
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

    def wanted(self, collection: str) -> bool:
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
    told = [protocol_facts(a), protocol_facts(b)]
    names = differing(told)
    if not (a.corpus_sha256 and b.corpus_sha256):
        names = [name for name in names if name != "corpus_sha256"]
    return tuple(FieldDifference(name, told[0][name], told[1][name]) for name in names)


def check_protocols(collection: str, entrants: Sequence[Entrant]) -> None:
    """Refuse to compare models that were evaluated under different protocols.

    Raises:
        BenchError: what differs.
    """
    found = [one for one in entrants if collection in one.entries]
    for first, other in combinations(found, 2):
        protocols = [one.entries[collection].result.protocol for one in (first, other)]
        if differences := protocol_differences(*protocols):
            raise BenchError(
                f"{first.name} and {other.name} were evaluated under different protocols on "
                f"{collection}: {', '.join(map(str, differences))}",
                f"evaluate {other.name} again; `compare --force` compares all the same and marks "
                "it",
            )


def panel_of(collection: str, entrants: Sequence[Entrant], choices: Choices) -> ScoreMatrix:
    """Read the values of all models on one collection.

    Raises:
        BenchError: different protocols without ``force``, the models' main measures differ and none
            is chosen, a value is not a number, or the models have different queries.
    """
    if not choices.force:
        check_protocols(collection, entrants)
    measure = _measure(collection, entrants, choices)
    values, gaps = _values(collection, measure, entrants)
    queries = _common_queries(collection, values, choices.force)
    scores = np.array([[value[query] for value in values.values()] for query in queries])
    if not np.isfinite(scores).all():
        raise BenchError(f"a value of {measure} on {collection} is not a number")
    return ScoreMatrix(
        collection=collection,
        measure=measure,
        columns={name: column for column, name in enumerate(values)},
        scores=scores,
        resampling=choices.resampling,
        gaps=gaps,
        left_out=len(set().union(*values.values())) - len(queries),
        queries=tuple(queries),
    )


def whole_panel(collection: str, entrants: Sequence[Entrant], choices: Choices) -> ScoreMatrix:
    """`panel_of` without gaps.

    Raises:
        BenchError: as `panel_of`, or a model is a gap.
    """
    for entrant in entrants:
        if collection not in entrant.entries:
            raise BenchError(
                f"{entrant.name} has no result on {collection}",
                f"python -m bench run {collection} --model {entrant.name}",
            )
    panel = panel_of(collection, entrants, choices)
    for name, why in panel.gaps.items():
        raise BenchError(f"{name} on {collection} has {why}", "evaluate it again")
    return panel


def _values(
    collection: str, measure: str, entrants: Sequence[Entrant]
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Values of the queries by model; and why a model has none."""
    values, gaps = {}, {}
    for entrant in entrants:
        if collection not in entrant.entries:
            gaps[entrant.name] = "no result"
            continue
        scores = entrant.entries[collection].scores
        if measure in scores.values:
            values[entrant.name] = scores.by_query(measure)
        else:
            gaps[entrant.name] = f"no {measure}, but {', '.join(scores.values)}"
    return values, gaps


def _measure(collection: str, entrants: Sequence[Entrant], choices: Choices) -> str:
    if choices.measure is not None:
        return parse_measure(choices.measure).name
    entries = [entrant.entries[collection] for entrant in entrants if collection in entrant.entries]
    names = sorted({entry.result.main_measure for entry in entries})
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
Pair = tuple[Entrant, Entrant]


class ComparedOn(Record, kw_only=True):
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
    collections: tuple[ComparedOn, ...]
    suites: tuple[ComparedOn, ...]
    recipes: tuple[FieldDifference, ...]


def compare(entrants: Sequence[Entrant], choices: Choices) -> list[Comparison]:
    """Every model with every later one.

    Raises:
        BenchError: different protocols without ``force``, no collection that two models share, a
            measure that nobody has, too few resamples, or damaged results.
    """
    names = {name for entrant in entrants for name in entrant.entries if choices.wanted(name)}
    panels = [panel_of(name, entrants, choices) for name in sorted(names)]
    if not any(len(panel.columns) > 1 for panel in panels):
        raise _nothing_shared(entrants, panels, choices)
    choices.resampling.check_enough(sum(len(panel.columns) > 1 for panel in panels))
    return [_compare_two(pair, panels, choices) for pair in combinations(entrants, 2)]


def _nothing_shared(
    entrants: Sequence[Entrant], panels: Sequence[ScoreMatrix], choices: Choices
) -> BenchError:
    lacking = [
        f"{name} on {panel.collection} has {panel.gaps[name]}"
        for panel in panels
        for name in panel.gaps
        if any(name == entrant.name and panel.collection in entrant.entries for entrant in entrants)
    ]
    if lacking:
        return BenchError(
            f"no two models have {choices.measure} on one collection: {'; '.join(lacking)}",
            "choose another --measure, or run or score them again with this one",
        )
    has = [
        f"{entrant.name}: {', '.join(filter(choices.wanted, entrant.entries)) or 'none'}"
        for entrant in entrants
    ]
    return BenchError(f"no two of the models have results on one collection: {'; '.join(has)}")


def _compare_two(pair: Pair, panels: Sequence[ScoreMatrix], choices: Choices) -> Comparison:
    a, b = pair
    relevant = [panel for panel in panels if panel.collection in {*a.entries, *b.entries}]
    parts = {
        panel.collection: panel.minus(a.name, b.name)
        for panel in relevant
        if not panel.gaps.keys() & {a.name, b.name}
    }
    tests = adjusted({name: paired([part]) for name, part in parts.items()})
    rows = [_on_collection(pair, panel, tests.get(panel.collection)) for panel in relevant]
    suites = [
        row
        for suite in _suites(pair, choices)
        if (row := _on_suite(suite, {row.on: row for row in rows}, parts))
    ]
    return Comparison(a.name, b.name, tuple(rows), tuple(suites), _recipes(pair, parts))


def _on_collection(pair: Pair, panel: ScoreMatrix, test: Difference | None) -> ComparedOn:
    a, b = pair
    entries = [entrant.entries.get(panel.collection) for entrant in pair]
    protocols = [entry.result.protocol for entry in entries if entry]
    return ComparedOn(
        on=panel.collection,
        measure=panel.measure,
        queries=len(panel.scores),
        mean_a=panel.mean(a.name),
        mean_b=panel.mean(b.name),
        in_domain_a=bool(entries[0] and entries[0].result.in_domain),
        in_domain_b=bool(entries[1] and entries[1].result.in_domain),
        official=all(protocol.official for protocol in protocols),
        paired=test,
        verdict=_verdict(test),
        missing=tuple(
            f"{entrant.name}: {panel.gaps[entrant.name]}"
            for entrant in pair
            if entrant.name in panel.gaps
        ),
        protocol=protocol_differences(*protocols) if len(protocols) == len(pair) else (),
        left_out=panel.left_out,
    )


def _verdict(test: Difference | None) -> Verdict:
    if test is None or not test.significant:
        return "neither"
    return "a" if test.difference > 0 else "b"


def _suites(pair: Pair, choices: Choices) -> Iterator[str]:
    """Suites to show: as chosen, or those that one of the two has a result on each member of."""
    if choices.suites is not None:
        yield from (name for name in choices.suites if suite_for(name).mean)
        return
    for name in (name for name in suite_names() if suite_for(name).mean):
        leaves = set(suite_weights(name))
        if any(leaves <= {n for n in entrant.entries if choices.wanted(n)} for entrant in pair):
            yield name


def _on_suite(
    suite: str, rows: Mapping[str, ComparedOn], parts: Mapping[str, PairedScores]
) -> ComparedOn | None:
    """None if the members' measures differ, which have no mean."""
    weights = suite_weights(suite)
    members = [rows[name] for name in weights if name in parts and rows[name].official]
    names = {row.on for row in members}
    measures = {row.measure for row in members}
    if len(measures) > 1:
        return None
    missing = tuple(m for m in suite_for(suite).members if not _leaves(m) <= names)
    chosen = [weights[row.on] for row in members]
    test = None
    if not missing:
        test = paired([parts[row.on] for row in members], chosen, suite)
    return ComparedOn(
        on=suite,
        measure=measures.pop() if measures else "",
        queries=sum(row.queries for row in members),
        members=len(suite_for(suite).members),
        mean_a=_mean(chosen, [row.mean_a for row in members]) if test else None,
        mean_b=_mean(chosen, [row.mean_b for row in members]) if test else None,
        paired=test,
        verdict=_verdict(test),
        missing=missing,
        protocol=tuple(dict.fromkeys(one for row in members for one in row.protocol)),
        weighted=len(set(suite_for(suite).weights)) > 1,
    )


def _mean(weights: Sequence[float], means: Sequence[float | None]) -> float:
    return float(np.dot(weights, [mean for mean in means if mean is not None]))


def _leaves(member: str) -> set[str]:
    return set(suite_weights(member)) if is_suite(member) else {member}


def _recipes(pair: Pair, collections: Collection[str]) -> tuple[FieldDifference, ...]:
    """Fields that differ on any of the collections; prompts may have several values each.

    The recipe behind a run file is not known, so nothing can be said to differ from it.
    """
    told = [
        [recipe_facts(entrant.entries[name].result) for name in collections] for entrant in pair
    ]
    fields = dict.fromkeys(
        field for recipes in zip(*told, strict=True) for field in differing(recipes)
    )
    if RUN_FILE_FACT in fields:
        fields = dict.fromkeys([RUN_FILE_FACT])
    return tuple(
        FieldDifference(name, *(_field_values(side, name) for side in told)) for name in fields
    )


def _field_values(recipes: Sequence[Mapping[str, str]], name: str) -> str:
    return " or ".join(dict.fromkeys(recipe.get(name, "") for recipe in recipes))
