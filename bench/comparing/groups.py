"""Groups of queries that depend on each other, such as paraphrases of one question.

Tests and bounds assume that queries are independent. The means of groups are, if all dependent
queries share a group, so they are compared instead of the queries.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from datasets_cfg.dataset import Dataset
from foundation.arrays import Float64Array
from foundation.errors import BenchError, UnavailableError, format_count, format_names

_WORD = re.compile(r"\w+")


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
        if chosen := field or dataset.facts.group:
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


def average_groups(
    scores: Float64Array, queries: Sequence[str], groups: Mapping[str, str]
) -> tuple[Float64Array, list[str]]:
    """Return the mean scores of groups, float64 ``(groups, models)``, and their names.

    ``scores`` are float64 ``(queries, models)``.
    """
    names, rows = np.unique([groups[query] for query in queries], return_inverse=True)
    totals = np.zeros((len(names), scores.shape[1]))
    np.add.at(totals, rows, scores)
    return totals / np.bincount(rows)[:, None], names.tolist()


def count_repeated(texts: Sequence[str]) -> int:
    """Return how many texts have the words of an earlier one.

    Case, white space, punctuation, repeated words and the order of words are ignored.
    """
    counts = Counter(frozenset(_WORD.findall(text.casefold())) for text in texts)
    return sum(number - 1 for words, number in counts.items() if words)
