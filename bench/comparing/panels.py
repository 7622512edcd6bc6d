"""Models that are compared, and their scores on the same queries of one collection."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.comparing.statistics import Resampling, ScoreMatrix
from bench.evaluate.measures import parse_measure
from bench.results.find import differing, protocol_facts
from bench.results.result import Evaluation, Protocol
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
        """True where the collection is compared."""
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


def panel_of(collection: str, entrants: Sequence[Entrant], choices: Choices) -> ScoreMatrix:
    """Read the values of all models on one collection.

    Raises:
        BenchError: the models' main measures differ and none is chosen, a value is not a number, or
            the models have different queries.
    """
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
