"""What there is: names with a line about each, and all that is known of one of them.

Reads declared facts only; no model or collection is opened.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from bench.cli.model_list import model_lines
from bench.results.location import place_of
from datasets_cfg.catalogue import dataset_names, facts_for, suite_for, suite_names, unknown
from datasets_cfg.facts import Facts
from foundation.errors import BenchError
from retrievers.models.card import card_names, load_card

if TYPE_CHECKING:
    from bench.experiments.grid import Ablation

Rows = list[tuple[str, str]]


def listing(what: str) -> Rows:
    """Names of one kind, as `bench list` has them, and a line about each."""
    lists: Mapping[str, Callable[[], Rows]] = {
        "models": lambda: [(line.name, line.about) for line in model_lines()],
        "datasets": lambda: [(name, _about_facts(facts_for(name))) for name in dataset_names()],
        "suites": lambda: [(name, suite_for(name).title) for name in suite_names()],
        "measures": _measures,
        "indexes": _indexes,
        "presets": _presets,
        "grids": _grids,
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


def _presets() -> Rows:
    from retrievers.training.finetune.finetune_preset import FILES as FINETUNE
    from retrievers.training.pretrain.preset import FILES as PRETRAIN

    rows = [(name, f"pretrain: {PRETRAIN.load(name).title}") for name in PRETRAIN.names()]
    return rows + [(name, f"finetune: {FINETUNE.load(name).title}") for name in FINETUNE.names()]


def _grids() -> Rows:
    from bench.experiments.grid import FILES

    return [(name, _about_grid(FILES.load(name))) for name in FILES.names()]


def _about_grid(grid: "Ablation") -> str:
    variants = f"; variants: {', '.join(grid.variants)}" if grid.variants else ""
    return f"{grid.title}{variants}"


def _plain(record: msgspec.Struct) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return fields
