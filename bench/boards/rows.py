"""Columns and rows of a leaderboard, from stored results.

A column is a collection under one protocol, since scores of different protocols are not comparable.
A row is a model under one recipe and index. Prompts depend on the collection and may differ within
a row.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import msgspec

from bench.boards.leaderboard_record import natural_sort_key
from bench.evaluation.result_record import Evaluation, Protocol, Result
from bench.result_store.find import (
    RUN_FILE_FACT,
    SELECTOR,
    describe_protocol,
    describe_recipe,
    find_differing_facts,
    find_results,
    recipe_key,
)
from datasets_cfg.catalogue import dataset_names, facts_for
from foundation.errors import BenchError
from foundation.locations import Location
from retrievers.models.recipe import UNKNOWN_SETTINGS

SAME_SCORE = 1e-9  # smaller differences are a repeated evaluation


def find_distinct_results(*locations: Location) -> list[Evaluation]:
    """Find all results below ``locations``, without repeats of the same evaluation.

    Raises:
        BenchError: there are none, or one is damaged or of a different schema.
    """
    results = [stored for location in locations for stored in find_results(location)]
    if not results:
        raise BenchError(
            f"{', '.join(map(str, locations))} holds no results",
            "Name the folder of results with --results, or make some with `python -m bench run`.",
        )
    return _drop_repeats(results)


def _drop_repeats(results: Iterable[Evaluation]) -> list[Evaluation]:
    """Keep, of results with equal key and scores, the one with most measures, then the newest."""
    distinct: dict[str, list[Evaluation]] = defaultdict(list)
    for stored in sorted(results, key=_measures_and_time, reverse=True):
        others = distinct[stored.record.key]
        if not any(_is_repeat(stored.record, other.record) for other in others):
            others.append(stored)
    kept = [stored for results in distinct.values() for stored in results]
    return sorted(kept, key=lambda stored: str(stored.folder))


def _measures_and_time(stored: Evaluation) -> tuple[int, str]:
    return len(stored.record.measures), stored.record.conditions.time


def _is_repeat(result: Result, other: Result) -> bool:
    """Return True if the other result has the same scores."""
    same = (
        name in other.measures and abs(value - other.measures[name]) <= SAME_SCORE
        for name, value in result.measures.items()
    )
    return result.model == other.model and all(same)


def group_by_column(stored: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """Group results by column. The column that represents a collection has the collection's name.

    That is the official protocol, then the declared one, then the newest. The names of the others
    list their differences: ``beir/scifact@depth=100``.

    Args:
        stored: results to group.
    """
    by_collection: dict[str, dict[Protocol, list[Evaluation]]] = defaultdict(
        lambda: defaultdict(list)
    )
    complete = _protocols_with_corpus(stored)
    for entry in stored:
        protocol = complete.get(entry.record.protocol, entry.record.protocol)
        by_collection[protocol.collection][protocol].append(entry)
    named: dict[str, list[Evaluation]] = {}
    for collection in sorted(by_collection, key=natural_sort_key):
        protocols = by_collection[collection]
        main = max(protocols, key=lambda protocol: _rank(protocol, protocols[protocol]))
        named[collection] = protocols.pop(main)
        facts = describe_protocol(main)
        for protocol, results in protocols.items():
            named[_column_name(collection, describe_protocol(protocol), facts)] = results
    return named


def _protocols_with_corpus(stored: Iterable[Evaluation]) -> dict[Protocol, Protocol]:
    """Map protocols without a corpus, as of a run file, to the only equal one with a corpus."""
    known: dict[Protocol, set[Protocol]] = defaultdict(set)
    for protocol in {entry.record.protocol for entry in stored}:
        if protocol.corpus_sha256:
            known[msgspec.structs.replace(protocol, corpus_sha256="")].add(protocol)
    return {bare: next(iter(complete)) for bare, complete in known.items() if len(complete) == 1}


def _rank(protocol: Protocol, results: Sequence[Evaluation]) -> tuple[bool, bool, str, int, bytes]:
    """Return a larger value for the protocol that represents a collection.

    The last two values only make the choice deterministic.
    """
    newest = max(stored.record.conditions.time for stored in results)
    return (
        protocol.official,
        _is_declared(protocol),
        newest,
        len(results),
        msgspec.json.encode(protocol),
    )


def _is_declared(protocol: Protocol) -> bool:
    if protocol.collection not in dataset_names():
        return False
    facts = facts_for(protocol.collection)
    names = ("version", "split", "title_track", "exclude_self", "depth")
    return all(getattr(protocol, name) == getattr(facts, name) for name in names)


def _column_name(name: str, facts: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Return a name with the facts that differ, as it can be typed on the command line."""
    different = [f"{fact}={facts.get(fact, '')}" for fact in find_differing_facts([facts, others])]
    return SELECTOR.join([name, *different])


def group_by_row(by_column: Mapping[str, Sequence[Evaluation]]) -> dict[str, dict[str, Evaluation]]:
    """Group results by row, then by column.

    A model with several recipes has a row for each: ``minilm@index=IVF64,Flat``.

    Args:
        by_column: results by name of column.
    """
    cells = [(column, entry) for column, results in by_column.items() for entry in results]
    by_model: dict[str, list[tuple[str, Evaluation]]] = defaultdict(list)
    for column, stored in cells:
        by_model[stored.record.model].append((column, stored))
    named: dict[str, dict[str, Evaluation]] = {}
    for model in sorted(by_model, key=natural_sort_key):
        variants = [dict(results) for results in _split_into_rows(by_model[model], SPLIT_BY)]
        labelled = dict(zip(_row_labels(variants), variants, strict=True))
        for label, variant in sorted(labelled.items(), key=lambda item: natural_sort_key(item[0])):
            named[f"{model}{SELECTOR}{label}" if label else model] = variant
    return named


# A row is split by the first of these, and by the next if a cell still has two results.
SPLIT_BY: tuple[Callable[[Result], Hashable], ...] = (
    recipe_key,
    lambda result: result.recipe and result.recipe.prompts,
    lambda result: result.fingerprint,
    lambda result: (result.conditions.time, result.conditions.machine),
    lambda result: tuple(result.measures.items()),
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
        variants += _split_into_rows(part, ladder[1:]) if most > 1 and len(ladder) > 1 else [part]
    return variants


def _row_labels(variants: Sequence[Mapping[str, Evaluation]]) -> list[str]:
    """Return labels that distinguish the variants of one model, or "" if there is one.

    Variants that differ in nothing else are labelled by the time of their newest result.
    """
    facts = [_variant_facts(list(variant.values())) for variant in variants]
    names = _distinguishing_facts(facts)
    labels = [
        SELECTOR.join(f"{name}={fact[name]}" for name in names if fact.get(name)) for fact in facts
    ]
    if len(set(labels)) == len(labels):
        return labels
    times = [max(one.record.conditions.time for one in each.values()) for each in variants]
    numbered = enumerate(zip(labels, times, strict=True), start=1)
    return [f"{label}, {time}, {number}".lstrip(", ") for number, (label, time) in numbered]


def _distinguishing_facts(facts: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a small set of facts that distinguishes all variants.

    Facts that every variant has come first. The hash of a run file is used last.
    """
    names = find_differing_facts(facts)
    names.sort(key=lambda name: (not all(fact.get(name) for fact in facts), name != RUN_FILE_FACT))
    selected: list[str] = []

    def kinds(some: Sequence[str]) -> int:
        return len({tuple(fact.get(name, "") for name in some) for fact in facts})

    while kinds(selected) < kinds(names):
        selected.append(max(names, key=lambda name: kinds([*selected, name])))
    return selected


def _variant_facts(results: Sequence[Evaluation]) -> dict[str, str]:
    """Return the facts that all results of a row share, so not all prompts."""
    facts = [describe_recipe(stored.record) for stored in results]
    varied = find_differing_facts(facts)
    return {name: value for name, value in facts[0].items() if name not in varied}


def row_facts(results: Sequence[Evaluation]) -> dict[str, str]:
    """Return the recipe and index that all results of a row share, as far as they apply.

    Args:
        results: results of the row.
    """
    facts = {name: value for name, value in _variant_facts(results).items() if value}
    if facts.get("pooling") == "unknown":  # a Python object that does not state its settings
        return dict.fromkeys(UNKNOWN_SETTINGS, "unknown") | facts
    if facts.get("kind") != "bm25":
        return facts
    return {name: value for name, value in facts.items() if name.startswith(("kind", "options."))}
