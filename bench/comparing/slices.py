"""Slices and groups of queries by a field: which language, tenant or length of query lost?

A slice is the queries of one collection that share a value. Slices are tested together by joint
sign flips: each random set of signs of the queries is used for all slices of a collection, and the
adjusted p of a slice is the share of sets whose largest statistic of any slice is at least as large
as its own (single-step maxT: Westfall and Young, Resampling-based multiple testing, 1993). Slices
that share queries or move together cost less than with Holm's method. The collections as a whole
belong to the family.

The statistic is sum(x) / (sqrt(sum(x ** 2)) + `CONSTANT`). The constant keeps slices with few
changed queries, whose ratio is often extreme, from raising the bar for all others
(``tests/benchmarks/slice_errors.py`` compares its values). Flips do not change the denominator.

A name is a label: signs are drawn in an order of collections, slices and queries that depends on
their scores alone.

A group is the queries that depend on each other, such as paraphrases of one question. Tests and
bounds assume that queries are independent. The means of groups are, if all dependent queries share
a group, so they are compared instead of the queries.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import msgspec
import numpy as np

from bench.comparing.pairs import ComparedModel, ComparisonRow, ComparisonSettings, read_scores
from bench.comparing.sign_flips import flip_means
from bench.comparing.statistics import (
    ALPHA,
    SAME_MEAN,
    SAME_SCORE,
    Resampling,
    ScorePair,
    average_groups,
    collection_order,
    paired_difference,
    resample_differences,
)
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float64Array
from foundation.errors import BenchError, UnavailableError, format_count, format_names
from foundation.records import Record

COLLECTION = "collection"
COMPUTED = ("words", "relevant", COLLECTION)  # values that need no metadata
FEWEST = 5  # queries of a slice with a row of its own
PARTS = 4  # quartiles
CONSTANT = 0.5
COLUMNS = 256  # slices whose flips are in memory at once

Values = Mapping[str, tuple[str, ...]]  # of the queries
_WORD = re.compile(r"\w+")
_WHOLE = re.compile(r"-?\d+")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:e[-+]\d+)?")


@dataclass(frozen=True)
class QueryLabels:
    """Values of each query of a collection, and the label of the queries without one."""

    values: Values
    otherwise: str


@dataclass(frozen=True)
class Slicing:
    """Labels of the queries by collection, and what users should know about them."""

    field: str
    labels: Mapping[str, QueryLabels]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class JointTest:
    """Adjusted p of each slice, and the statistic from which a slice is significant."""

    p_values: tuple[float, ...]
    critical: float


class SliceComparison(Record):
    """Two models, ``a`` minus ``b``, on all slices by a field, the largest loss of ``a`` first.

    p is adjusted over all slices and collections, and all pairs of models (Bonferroni).
    """

    a: str
    b: str
    field: str
    slices: tuple[ComparisonRow, ...]


def find_slices(field: str, opened: Mapping[str, Dataset | UnavailableError]) -> Slicing:
    """Read or compute the values of the queries by which collections are sliced.

    Args:
        field: one of `COMPUTED`, or a field of the queries' metadata, which has precedence.
        opened: collections that were evaluated, or the reason why one is not available, by name.

    Raises:
        BenchError: a collection is not available, or no query of any has the field.
    """
    if field == COLLECTION:
        return Slicing(field, {name: QueryLabels({}, name) for name in opened})
    labels, warnings, errors = {}, [], list[BenchError]()
    for name, dataset in opened.items():
        if isinstance(dataset, UnavailableError):
            raise BenchError(f"--by {field}: {dataset}", "Name other collections with --on.")
        try:
            values, are_counts = _find_values(field, dataset)
        except BenchError as error:
            errors.append(error)
            warnings.append(f"{name}: no query has the field {field}, so it has no slices")
            continue
        if are_numbers(values):
            found = f"{name}: the values of {field} are"
            if not are_counts and are_names(values):
                warnings.append(
                    f"{found} whole numbers that queries share, so each is taken for a name, with "
                    "a slice of its own; write 7.0 instead of 7 for quartiles"
                )
            else:
                values = split_numbers(values)
                warnings.append(f"{found} numbers; slices are quartiles")
        labels[name] = QueryLabels(values, f"without {field}")
    if errors and not labels:
        raise errors[0]
    return Slicing(field, labels, tuple(warnings))


def _find_values(field: str, dataset: Dataset) -> tuple[Values, bool]:
    """Return the values of the queries in the metadata, else computed ones, which are counts."""
    try:
        return dataset.reader.query_values(field, COMPUTED), False
    except BenchError:
        if field == "words":
            texts = dataset.queries.by_id.items()
            return {query: (str(len(text.split())),) for query, text in texts}, True
        if field == "relevant" and dataset.answers is None:
            counts = Counter(query for query, _, grade in dataset.qrels if grade > 0)
            return {query: (str(counts[query]),) for query in dataset.queries.ids}, True
        raise


def are_numbers(values: Values) -> bool:
    """Return True for more than four different numbers, none with leading zeros."""
    texts = {text for several in values.values() for text in several}
    return len(texts) > PARTS and all(map(_NUMBER.fullmatch, texts))


def are_names(numbers: Values) -> bool:
    """Return True for whole numbers that are shared like names: most are those of a slice."""
    counts = Counter(text for several in numbers.values() for text in several)
    shared = sum(count for count in counts.values() if count >= FEWEST)
    return 2 * shared > counts.total() and all(map(_WHOLE.fullmatch, counts))


def split_numbers(values: Values) -> Values:
    """Replace numbers by their quartile, such as "3 to 7"."""
    every = np.sort([float(text) for several in values.values() for text in several])
    levels = np.arange(1, PARTS) / PARTS
    limits = np.unique(np.quantile(every, levels, method="inverted_cdf"))
    part_of = np.searchsorted(limits, every)
    names = {}
    for part in np.unique(part_of):
        ends = dict.fromkeys(f"{end:.12g}" for end in every[part_of == part][[0, -1]])
        names[int(part)] = " to ".join(ends)

    def name_of(text: str) -> str:
        return names[int(np.searchsorted(limits, float(text)))]

    return {query: tuple(dict.fromkeys(map(name_of, several))) for query, several in values.items()}


def slice_scores(
    whole: ScorePair, labels: QueryLabels, groups: Mapping[str, str] | None
) -> list[ScorePair]:
    """Return the slices of a collection, of which those with few queries are one.

    Args:
        whole: scores of each query of the collection.
        labels: values of each query.
        groups: group of each query, if the means of groups are compared.
    """
    slices = []
    for label, rows in slice_rows(whole.queries, labels):
        queries = tuple(whole.queries[row] for row in rows)
        part = replace(whole, a=whole.a[rows], b=whole.b[rows], queries=queries, label=label)
        slices.append(_average(part, groups) if groups else part)
    return slices


def slice_rows(queries: Sequence[str], labels: QueryLabels) -> list[tuple[str, list[int]]]:
    """Return label and query numbers of each slice, of which those with few queries are one."""
    by_value, without = dict[str, list[int]](), list[int]()
    for row, query in enumerate(queries):
        for value in (values := labels.values.get(query, ())):
            by_value.setdefault(value, []).append(row)
        if not values:
            without.append(row)
    found = [(label, rows) for label, rows in (*by_value.items(), (labels.otherwise, without))]
    small = [(label, rows) for label, rows in found if 0 < len(rows) < FEWEST]
    found = [(label, rows) for label, rows in found if len(rows) >= FEWEST]
    if len(small) == 1:
        found += small
    elif small:
        together = sorted({row for _, rows in small for row in rows})
        found.append((f"others ({format_count(len(small), 'slice', 'slices')})", together))
    return found


def _average(part: ScorePair, groups: Mapping[str, str]) -> ScorePair:
    """Return the means of the groups of the queries in ``part``."""
    means, names = average_groups(np.stack([part.a, part.b], axis=1), part.queries, groups)
    return replace(part, a=means[:, 0], b=means[:, 1], queries=tuple(names))


def read_slices(
    models: Sequence[ComparedModel], settings: ComparisonSettings, slicing: Slicing
) -> tuple[list[ScorePair], list[ScorePair]]:
    """Read the slices of two models, and the collections as a whole."""
    slices, wholes = list[ScorePair](), list[ScorePair]()
    by_query = replace(settings, groups={})
    for name in sorted(slicing.labels):
        matrix = read_scores(name, models, by_query)
        if matrix.gaps:
            continue
        whole, groups = matrix.pair(*(model.name for model in models)), settings.groups.get(name)
        slices += slice_scores(whole, slicing.labels[name], groups)
        wholes.append(_average(whole, groups) if groups else whole)
    return slices, wholes


def compare_slices(
    models: Sequence[ComparedModel], settings: ComparisonSettings, slicing: Slicing
) -> list[SliceComparison]:
    """Compare each of ``models`` with every later one on each slice."""
    pairs, compared = list(combinations(models, 2)), []
    settings.resampling.check_enough(len(pairs))
    for pair in pairs:
        a, b = (model.name for model in pair)
        slices, wholes = read_slices(pair, settings, slicing)
        tested = correct_jointly([*slices, *wholes], settings.resampling)
        rows = [
            _slice_row(one, (a, b), min(1.0, len(pairs) * p), settings.resampling)
            for one, p in zip(slices, tested.p_values[: len(slices)], strict=True)
        ]
        rows.sort(key=lambda row: (row.paired.difference if row.paired else 0, row.on, row.value))
        compared.append(SliceComparison(a, b, slicing.field, tuple(rows)))
    return compared


def _slice_row(
    one: ScorePair, names: tuple[str, str], p_adjusted: float, resampling: Resampling
) -> ComparisonRow:
    """Return the row of a slice."""
    part = resample_differences(np.sort(one.differences), resampling, one.on, one.measure)
    test = paired_difference([replace(part, a=names[0], b=names[1])])
    test = msgspec.structs.replace(test, p_adjusted=max(test.p, p_adjusted))
    return ComparisonRow(
        on=one.on,
        value=one.label,
        measure=one.measure,
        queries=len(one.a),
        mean_a=float(one.a.mean()),
        mean_b=float(one.b.mean()),
        paired=test,
        verdict=test.verdict,
    )


def correct_jointly(
    slices: Sequence[ScorePair],
    resampling: Resampling,
    losses_only: bool = False,
    constant: float = CONSTANT,
) -> JointTest:
    """Test slices of one or several collections jointly by sign flips (single-step maxT).

    Args:
        slices: the family: slices, and collections as a whole.
        resampling: number of sets of signs, and seed.
        losses_only: test only losses of the first model. p is twice the one-sided one, as that of
            the gate, and at most 1.
        constant: constant of the statistic.

    Returns:
        p of each slice, at least 1 / (sets + 1), in any number of slices with a family-wise error
        of at most 5 %.
    """
    by_collection: dict[str, list[int]] = {}
    for number, one in enumerate(slices):
        by_collection.setdefault(one.on, []).append(number)
    observed, largest = np.zeros(len(slices)), np.zeros(resampling.resamples)
    collections = []
    for numbers in by_collection.values():
        values = {number: _changes(slices[number]) for number in numbers}
        collections.append(sorted(numbers, key=lambda n: (len(values[n]), *np.sort(values[n]))))
    vectors = [[slices[n].differences for n in reversed(numbers)] for numbers in collections]
    for place, number in enumerate(collection_order(vectors, [1.0] * len(vectors))):
        numbers = collections[number]
        scaled = _scale([slices[n] for n in numbers], constant)
        observed[numbers] = scaled.sum(axis=0)
        for start in range(0, len(numbers), COLUMNS):
            rng = np.random.default_rng([resampling.seed, place, len(scaled)])
            some = scaled[:, start : start + COLUMNS]
            flipped = flip_means(some, resampling.resamples, rng) * len(some)
            extreme = -flipped.min(axis=1) if losses_only else np.abs(flipped).max(axis=1)
            largest = np.maximum(largest, extreme)
    observed = np.maximum(0, -observed) if losses_only else np.abs(observed)
    largest.sort()
    beyond = len(largest) - np.searchsorted(largest, observed - SAME_MEAN)
    p_values = np.minimum(1, (1 + losses_only) * (1 + beyond) / (1 + len(largest)))
    level = ALPHA / (1 + losses_only)
    critical = largest[min(len(largest) - 1, math.ceil((1 - level) * len(largest)))]
    return JointTest(tuple(p_values.tolist()), float(critical))


def _changes(one: ScorePair) -> Float64Array:
    """Return the differences of a slice that are not 0."""
    return np.asarray(one.differences[np.abs(one.differences) > SAME_SCORE])


def _scale(slices: Sequence[ScorePair], constant: float) -> Float64Array:
    """Return what each changed query adds to the statistic of each slice, ``(queries, slices)``.

    Queries are sorted by their differences and slices, so that their names have no influence.
    """
    entries: dict[str, list[tuple[float, int]]] = {}
    for column, one in enumerate(slices):
        for query, value in zip(one.queries, one.differences.tolist(), strict=True):
            if abs(value) > SAME_SCORE:
                entries.setdefault(query, []).append((value, column))
    table = np.zeros((max(1, len(entries)), len(slices)))
    for row, found in enumerate(sorted(map(sorted, entries.values()))):
        for value, column in found:
            table[row, column] = value
    return np.asarray(table / (np.sqrt((table**2).sum(axis=0)) + constant))


@dataclass(frozen=True)
class Grouping:
    """Group of each query by collection, and what users should know about dependent queries."""

    groups: Mapping[str, Mapping[str, str]]
    warnings: tuple[str, ...]


def find_groups(field: str, opened: Mapping[str, Dataset | UnavailableError]) -> Grouping:
    """Group the queries of collections by a ``field`` of their metadata.

    Args:
        field: name of the field; "" for the ``group`` that each collection declares, if any.
        opened: collections that were evaluated, or the reason why one is not available, by name.

    Raises:
        BenchError: a collection is not available, no query has the field, or one has several
            values.
    """
    groups, warnings = {}, []
    for name, dataset in opened.items():
        if isinstance(dataset, UnavailableError):
            if field:
                raise BenchError(f"--group {field}: {dataset}", "Name other collections with --on.")
            continue
        if chosen := field or dataset.metadata.group:
            groups[name] = group_queries(dataset, chosen)
            number = format_count(len(set(groups[name].values())), "group", "groups")
            warnings.append(
                f"{name}: means of {number} by {chosen} are compared, not the "
                f"{len(dataset.queries):,} queries"
            )
        elif repeated := count_repeated(dataset.queries.texts):
            warnings.append(
                f"{name}: {repeated:,} of {len(dataset.queries):,} queries repeat the words of "
                "another one. Tests assume independent queries: use --group FIELD if a field of "
                "the queries names the question they share"
            )
    return Grouping(groups, tuple(warnings))


def group_queries(dataset: Dataset, field: str) -> dict[str, str]:
    """Return the group of each query, which is the value of ``field``.

    A query without a value is a group of its own.
    """
    values = dataset.reader.query_values(field)
    several = [query for query in dataset.queries.ids if len(values.get(query, ())) > 1]
    if several:
        raise BenchError(
            f"{dataset.name}: {format_names(several)} has several values of {field}, and a query "
            "can be in one group only",
            "Choose another field with --group.",
        )
    return {query: values.get(query, (f"query {query}",))[0] for query in dataset.queries.ids}


def count_repeated(texts: Sequence[str]) -> int:
    """Return how many texts have the words of an earlier one.

    Case, white space, punctuation, repeated words and the order of words are ignored.
    """
    counts = Counter(frozenset(_WORD.findall(text.casefold())) for text in texts)
    return sum(number - 1 for words, number in counts.items() if words)
