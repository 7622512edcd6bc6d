"""Names of each kind with a line about each, and all that is known of one name.

Reads declared facts only; no model or collection is opened.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bench.cli.model_list import model_lines
from bench.results.location import place_of
from datasets_cfg.catalogue import dataset_names, facts_for, suite_for, suite_names, unknown
from datasets_cfg.facts import Facts
from foundation.errors import BenchError
from foundation.records import read_toml
from foundation.toml_files import SUFFIX, TomlFiles
from retrievers.models.card import card_names, load_card

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


class _Head(msgspec.Struct):
    """The fields of a preset or grid that lists show; decoding all of it would import torch."""

    title: str
    variants: dict[str, Any] = {}

    @property
    def about(self) -> str:
        """The title, and the variants where there are any."""
        return self.title + (f"; variants: {', '.join(self.variants)}" if self.variants else "")


def _heads(files: TomlFiles[Any], before: str = "") -> Rows:
    """Names of the shipped files of one kind, and a line about each."""
    heads = {name: read_toml(files.folder / f"{name}{SUFFIX}", _Head) for name in files.names()}
    return [(name, before + head.about) for name, head in heads.items()]


def _presets() -> Rows:
    from retrievers.training.finetune.finetune_preset import FILES as FINETUNE
    from retrievers.training.pretrain.preset import FILES as PRETRAIN

    return _heads(PRETRAIN, "pretrain: ") + _heads(FINETUNE, "finetune: ")


def _grids() -> Rows:
    from bench.experiments.grid import FILES

    return _heads(FILES)


def _plain(record: msgspec.Struct) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return fields
