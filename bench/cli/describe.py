"""What there is: names with a line about each, and all that is known of one of them.

Reads declared facts only; no model or collection is opened.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bench.results.location import place_of
from datasets_cfg.catalogue import dataset_names, facts_for, suite_for, suite_names, unknown
from datasets_cfg.facts import Facts
from foundation.errors import BenchError
from retrievers.models.card import Card, all_cards, card_names, load_card

Rows = list[tuple[str, str]]


def listing(what: str) -> Rows:
    """Names and a line about each: models, datasets, suites, measures or indexes."""
    lists: Mapping[str, Callable[[], Rows]] = {
        "models": lambda: [(name, _about_card(card)) for name, card in all_cards().items()],
        "datasets": lambda: [(name, _about_facts(facts_for(name))) for name in dataset_names()],
        "suites": lambda: [(name, suite_for(name).title) for name in suite_names()],
        "measures": _measures,
        "indexes": _indexes,
    }
    return lists[what]()


def describe(name: str) -> dict[str, Any]:
    """All that is declared of a model, collection or suite, or recorded of a result.

    Raises:
        BenchError: there is nothing of that name.
    """
    if name in card_names() or name.endswith(".toml"):
        return _plain(load_card(name))
    if name in dataset_names():
        return _plain(facts_for(name))
    if name in suite_names():
        return _plain(suite_for(name))
    if place_of(name).exists():
        from bench.results.load import load

        return _plain(load(place_of(name)).result)
    known = (*card_names(), *dataset_names(), *suite_names())
    hint = unknown(name, known).hint
    raise BenchError(f"there is no model, collection, suite or result {name!r}", hint)


def _about_card(card: Card) -> str:
    if card.missing:
        return f"{card.title} — not available: {card.missing}"
    notes = [card.title]
    if card.unverified:
        notes.append(f"unverified: {', '.join(card.unverified)}")
    if card.warning:
        notes.append(card.warning)
    return " — ".join(notes)


def _about_facts(facts: Facts) -> str:
    counts = facts.counts
    sizes = [
        f"{count:,} {what}"
        for count, what in ((counts.documents, "documents"), (counts.queries, "queries"))
        if count is not None
    ]
    access = [] if facts.public else ["licensed: see `show`"]
    return "; ".join([facts.title, facts.main_measure, *sizes, *access])


def _measures() -> Rows:
    from bench.evaluate.measures import measure_names

    return list(measure_names().items())


def _indexes() -> Rows:
    from retrievers.index.faiss_index import INDEX_EXAMPLES

    return list(INDEX_EXAMPLES.items())


def _plain(record: msgspec.Struct) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found
