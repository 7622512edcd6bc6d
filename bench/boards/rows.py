"""Columns and rows of a leaderboard, with intervals and groups instead of ranks.

A column is a collection under one protocol, since scores of different protocols are not comparable.
A row is a model under one recipe and index. Prompts depend on the collection and may differ within
a row.

Neighbours on a leaderboard rarely differ significantly. A group is led by its best model and ends
before the first model that is worse at the 5 % level, by paired sign flips of the queries with
Holm's correction over the pairs with the leader. That model leads the next group.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from tqdm import tqdm

from bench.boards.leaderboard_record import Score, natural_sort_key
from bench.comparing.pairs import ComparedModel, ComparisonSettings, read_scores
from bench.comparing.sign_flips import flip_means
from bench.comparing.statistics import (
    ALPHA,
    SAME_MEAN,
    Resampling,
    ScoreMatrix,
    collection_order,
    holm,
    resample,
    shuffle_draws,
)
from bench.evaluation.judging import suite_weights
from bench.evaluation.result_record import Evaluation, Protocol, Result
from bench.result_store.find import (
    HASH_DIGITS,
    RUN_FILE,
    SELECTOR,
    TOKENS,
    choose_newest,
    describe_protocol,
    describe_recipe,
    find_differing_settings,
    find_results,
    mix_token_ids,
    no_result_error,
    recipe_key,
)
from datasets_cfg.catalogue import dataset_names, metadata_for
from foundation.arrays import Float64Array
from retrievers.models.card import UNKNOWN_SETTINGS


def find_distinct_results(*locations: Path) -> list[Evaluation]:
    """Find the results below ``locations``, the newest of each evaluation, or raise if none."""
    results = [stored for location in locations for stored in find_results(location)]
    if not results:
        raise no_result_error("", locations)
    repeated: dict[tuple[str, str], list[Evaluation]] = defaultdict(list)
    for stored in results:
        repeated[stored.record.model, stored.record.key].append(stored)
    return [choose_newest(model, stored) for (model, _), stored in repeated.items()]


Columns = dict[str, list[Evaluation]]  # results by name of column


def group_by_column(stored: Sequence[Evaluation]) -> tuple[Columns, dict[str, str]]:
    """Group results by column, and return a short label of each column, unique in the table.

    The column that represents a collection has the collection's name. That is the official
    protocol, then the declared one, then the newest. The names of the others list their
    differences: ``beir/scifact@depth=100``. Labels have the fewest fields that distinguish the
    protocols of a collection, hashes last: ``my-docs@split=dev``. The protocol that a shipped
    collection declares has its plain name.
    """
    by_collection: dict[str, dict[Protocol, list[Evaluation]]] = defaultdict(
        lambda: defaultdict(list)
    )
    complete = _protocols_with_corpus(stored)
    for entry in stored:
        protocol = complete.get(entry.record.protocol, entry.record.protocol)
        by_collection[protocol.collection][protocol].append(entry)
    columns: Columns = {}
    labels: dict[str, str] = {}
    for collection in sorted(by_collection, key=natural_sort_key):
        protocols = by_collection[collection]
        main = max(protocols, key=lambda protocol: _priority(protocol, protocols[protocol]))
        described = {protocol: describe_protocol(protocol) for protocol in protocols}
        telling = _distinguishing_settings(list(described.values()))
        for protocol in sorted(protocols, key=main.__ne__):  # the main one first
            own = described[protocol]
            different = find_differing_settings([own, described[main]])
            is_plain = protocol == main and collection in dataset_names()
            name, label = (
                SELECTOR.join([collection, *(f"{field}={own.get(field, '')}" for field in fields)])
                for fields in (different, [] if is_plain else telling)
            )
            columns[name], labels[name] = protocols[protocol], label
    return columns, labels


def _protocols_with_corpus(stored: Iterable[Evaluation]) -> dict[Protocol, Protocol]:
    """Map protocols without a corpus, as of a run file, to the only equal one with a corpus."""
    known: dict[Protocol, set[Protocol]] = defaultdict(set)
    for protocol in {entry.record.protocol for entry in stored}:
        if protocol.corpus_sha256:
            known[msgspec.structs.replace(protocol, corpus_sha256="")].add(protocol)
    return {bare: next(iter(complete)) for bare, complete in known.items() if len(complete) == 1}


def _priority(protocol: Protocol, results: list[Evaluation]) -> tuple[bool, bool, str, int, bytes]:
    """Return a larger value for the protocol that represents a collection.

    The last two values only make the choice deterministic.
    """
    newest = max(stored.record.conditions.time for stored in results)
    content = msgspec.json.encode(protocol)
    return not protocol.is_altered, _is_declared(protocol), newest, len(results), content


def _is_declared(protocol: Protocol) -> bool:
    if protocol.collection not in dataset_names():
        return False
    metadata = metadata_for(protocol.collection)
    names = ("version", "split", "title_track", "exclude_self", "depth")
    return all(getattr(protocol, name) == getattr(metadata, name) for name in names)


def group_by_row(by_column: Mapping[str, Sequence[Evaluation]]) -> dict[str, dict[str, Evaluation]]:
    """Group results by row, then by column.

    A model with several recipes has a row for each: ``minilm@index=IVF64,Flat``.
    """
    by_model: dict[str, list[tuple[str, Evaluation]]] = defaultdict(list)
    for column, results in by_column.items():
        for stored in results:
            by_model[stored.record.model].append((column, stored))
    named: dict[str, dict[str, Evaluation]] = {}
    for model in sorted(by_model, key=natural_sort_key):
        variants = [dict(results) for results in _split_into_rows(by_model[model], SPLIT_BY)]
        labelled = dict(zip(_row_labels(variants), variants, strict=True))
        for label, variant in sorted(labelled.items(), key=lambda item: natural_sort_key(item[0])):
            named[f"{model}{SELECTOR}{label}" if label else model] = variant
    return named


# A row is split by the first of these, and by the next if a cell still has two results, or the row
# has token ids of different library versions.
SPLIT_BY: tuple[Callable[[Result], Hashable], ...] = (
    recipe_key,
    lambda result: result.recipe and result.recipe.prompts,
    lambda result: result.fingerprint,
    lambda result: result.tokens_sha256,
)


def _split_into_rows(
    results: Sequence[tuple[str, Evaluation]], ladder: Sequence[Callable[[Result], Hashable]]
) -> list[Sequence[tuple[str, Evaluation]]]:
    parts: dict[Hashable, list[tuple[str, Evaluation]]] = defaultdict(list)
    for column, stored in results:
        parts[ladder[0](stored.record)].append((column, stored))
    variants: list[Sequence[tuple[str, Evaluation]]] = []
    for part in parts.values():
        most = max(Counter(column for column, _ in part).values())
        is_mixed = most > 1 or mix_token_ids([stored for _, stored in part])
        variants += _split_into_rows(part, ladder[1:]) if is_mixed and len(ladder) > 1 else [part]
    return variants


def _row_labels(variants: Sequence[Mapping[str, Evaluation]]) -> list[str]:
    """Return labels that distinguish the variants of one model, or "" if there is one."""
    described = [_variant_settings(list(variant.values())) for variant in variants]
    names = _distinguishing_settings(described)
    labels = [
        SELECTOR.join(f"{name}={each[name]}" for name in names if each.get(name))
        for each in described
    ]
    if len(set(labels)) == len(labels):
        return labels
    return [f"{label}, {number}".lstrip(", ") for number, label in enumerate(labels, start=1)]


def _distinguishing_settings(described: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a small set of settings that distinguishes all variants.

    Settings that every variant has come first. The hash of a run file is used last, and hashes of
    data only if nothing else tells all variants apart.
    """
    names = find_differing_settings(described)
    names.sort(key=lambda name: (not all(each.get(name) for each in described), name != RUN_FILE))
    selected: list[str] = []

    def kinds(some: Sequence[str]) -> int:
        return len({tuple(each.get(name, "") for name in some) for each in described})

    readable = [name for name in names if not name.endswith("sha256")]
    names = readable if kinds(readable) == kinds(names) else names
    while kinds(selected) < kinds(names):
        selected.append(max(names, key=lambda name: kinds([*selected, name])))
    return selected


def _variant_settings(results: Sequence[Evaluation]) -> dict[str, str]:
    """Return the settings that all results of a row share, so not all prompts."""
    described = [
        {**describe_recipe(stored.record), TOKENS: stored.record.tokens_sha256[:HASH_DIGITS]}
        for stored in results
    ]
    varied = find_differing_settings(described)
    return {name: value for name, value in described[0].items() if name not in varied}


def row_settings(results: Sequence[Evaluation]) -> dict[str, str]:
    """Return the recipe and index that all results of a row share, as far as they apply."""
    shared = _variant_settings(results).items()
    described = {name: value for name, value in shared if value and name != TOKENS}
    if described.get("pooling") == "unknown":  # a Python object that does not state its settings
        return dict.fromkeys(UNKNOWN_SETTINGS, "unknown") | described
    return described


ByRow = Mapping[str, Mapping[str, Evaluation]]  # name of row -> name of column -> result


RankedScores = dict[tuple[str, str, str], Score]  # (row, column or suite, measure)


def rank_scores(
    by_row: ByRow, wanted: Mapping[str, Sequence[str]], suites: list[str], resampling: Resampling
) -> RankedScores:
    """Compute intervals and groups in every column, and in every suite with complete rows.

    ``wanted`` are the measures of each column.
    """
    most = max(sum(column in cells for cells in by_row.values()) for column in wanted)
    resampling.check_enough(most - 1)  # with fewer, all models would form one group
    ranked: RankedScores = {}
    weights = {suite: suite_weights(suite) for suite in suites}
    # Running sums of means, bootstrap and flipped means over the collections of a suite.
    sums: dict[tuple[str, str], list[Float64Array]] = {}
    complete: dict[tuple[str, str], list[str]] = {}
    order = _order_columns(by_row, wanted)
    for number, column in enumerate(tqdm(order, "resampling", unit=" collections")):
        results = {row: cells[column] for row, cells in by_row.items() if column in cells}
        for matrix, *drawn in _matrices(column, results, wanted[column], resampling):
            tables = [matrix.scores.mean(axis=0), *drawn]
            ranked |= _rank(column, matrix.measure, list(matrix.columns), tables)
            for suite in (suite for suite, shares in weights.items() if column in shares):
                key = suite, matrix.measure
                if key not in sums:
                    complete[key] = _complete_rows(by_row, weights[suite], matrix.measure)
                    sums[key] = [np.zeros(1)] * len(tables)
                of_rows = [matrix.columns[row] for row in complete[key]]
                tables[1:] = (shuffle_draws(table, number) for table in drawn)
                parts = [weights[suite][column] * table[..., of_rows] for table in tables]
                sums[key] = [total + part for total, part in zip(sums[key], parts, strict=True)]
    for (suite, measure), rows in complete.items():
        if rows:
            ranked |= _rank(suite, measure, rows, sums[suite, measure])
    return ranked


def _order_columns(by_row: ByRow, wanted: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the columns in an order that does not depend on names."""
    columns, vectors = list(wanted), []
    for column, measures in wanted.items():
        results = [cells[column] for cells in by_row.values() if column in cells]
        values = [one.scores.values.get(measures[0], np.zeros(0)) for one in results]
        vectors.append([np.concatenate([np.zeros(0), *values])])
    return [columns[number] for number in collection_order(vectors, [1.0] * len(columns))]


def _complete_rows(by_row: ByRow, shares: Mapping[str, float], measure: str) -> list[str]:
    """Return the rows with scores on every collection of a suite."""
    return [
        row
        for row, cells in by_row.items()
        if all(column in cells and measure in cells[column].scores.values for column in shares)
    ]


def _matrices(
    column: str, results: Mapping[str, Evaluation], measures: Sequence[str], resampling: Resampling
) -> Iterator[tuple[ScoreMatrix, Float64Array, Float64Array]]:
    """Yield the scores of the rows by each measure, with bootstrap means and flipped means.

    All measures are resampled at once, since drawing the queries takes longer than the products.
    """
    models = [ComparedModel(row, {column: one}) for row, one in results.items()]
    variants = [ComparisonSettings(measure, resampling=resampling) for measure in measures]
    matrices = [read_scores(column, models, settings) for settings in variants if models]
    matrices = [matrix for matrix in matrices if matrix.columns]
    if not matrices:
        return
    every = np.concatenate([matrix.scores for matrix in matrices], axis=1)
    bootstrap = resample(every, resampling)
    signs = np.random.default_rng([resampling.seed, len(every)])
    flipped = flip_means(every, resampling.resamples, signs)
    start = 0
    for matrix in matrices:
        of_rows = slice(start, start + len(matrix.columns))
        start = of_rows.stop
        yield matrix, bootstrap[:, of_rows], flipped[:, of_rows]


def _rank(column: str, measure: str, rows: list[str], tables: list[Float64Array]) -> RankedScores:
    means, bootstrap, flipped = tables
    low, high = np.quantile(bootstrap, [ALPHA / 2, 1 - ALPHA / 2], axis=0)
    group = assign_groups(means, flipped)
    return {
        (row, column, measure): Score(float(mean), float(low[n]), float(high[n]), group[n])
        for n, (row, mean) in enumerate(zip(rows, means, strict=True))
    }


def assign_groups(means: Float64Array, flipped: Float64Array) -> list[int]:
    """Assign each model to a group, 1 for the best.

    Args:
        means: float64 ``(models,)``.
        flipped: float64 ``(resamples, models)``, means under random signs, the same for every
            model.
    """
    order = np.argsort(-means, kind="stable")
    signs = np.ascontiguousarray(flipped.T[order])
    numbers, start, group = [0] * len(means), 0, 0
    while start < len(order):
        group += 1
        behind = means[order[start]] - means[order[start + 1 :]]
        apart = np.abs(signs[start] - signs[start + 1 :])
        as_far = (apart >= behind[:, None] - SAME_MEAN).sum(axis=1)
        adjusted = holm(((1 + as_far) / (1 + len(flipped))).tolist())
        end = start + 1 + next((n for n, p in enumerate(adjusted) if p <= ALPHA), len(adjusted))
        for index in order[start:end]:
            numbers[index] = group
        start = end
    return numbers
