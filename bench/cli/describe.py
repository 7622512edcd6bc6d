"""Names of each kind with a line about each, and all that is known of one name.

Reads declared facts only; no model or collection is opened.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.cli.model_list import model_lines
from bench.results.location import Place, place_of
from datasets_cfg.catalogue import dataset_names, facts_for, suite_for, suite_names, unknown
from datasets_cfg.facts import Facts, Suite
from foundation.errors import BenchError
from foundation.records import SUFFIX, TomlFiles, read_toml
from retrievers.models.card import FILES as CARDS
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
        "grids": lambda: _heads(_preset_and_grid_files()[2]),
    }
    return lists[what]()


def describe(name: str) -> dict[str, Any]:
    """All that is declared of a name or in a TOML file, or recorded of a result.

    A model, collection or suite comes before a preset or grid of the same name.

    Raises:
        BenchError: there is nothing of that name, or the file is not valid.
    """
    if name in card_names():
        return _plain(load_card(name))
    if name in dataset_names():
        return _plain(facts_for(name))
    if name in suite_names():
        return _plain(suite_for(name))
    for files in _preset_and_grid_files():
        if name in files.names():
            return _plain(files.load(name))
    if name.endswith(SUFFIX):
        return _own_file(name)
    if name and (result := _result_at(place_of(name))):
        return _plain(result)
    own = (shipped for files in _preset_and_grid_files() for shipped in files.names())
    hint = unknown(name, (*card_names(), *dataset_names(), *suite_names(), *own)).hint
    raise BenchError(f"nothing is called {name!r}, and there is no such file or result", hint)


def _result_at(where: Place) -> msgspec.Struct | None:
    """The result in a folder or in its ``result.json``; None where there is none."""
    from bench.results.load import load
    from bench.results.result import RESULT_FILE

    file = where if where.name == RESULT_FILE else where / RESULT_FILE
    return load(file).result if file.exists() else None


def _own_file(name: str) -> dict[str, Any]:
    """The record in a TOML file of the user's own, of the kind whose fields the file has."""
    from datasets_cfg.dataset import facts_of_folder

    path = Path(name).expanduser()
    kinds: dict[str, tuple[type[msgspec.Struct], Callable[[], msgspec.Struct]]] = {
        CARDS.kind: (CARDS.record, lambda: load_card(path)),
        "suite": (Suite, lambda: suite_for(name)),
        "facts of a collection": (Facts, lambda: facts_of_folder(path.parent)),
    } | {
        files.kind: (files.record, partial(files.load, path)) for files in _preset_and_grid_files()
    }
    written = read_toml(path, dict[str, Any]).keys()
    kind = max(kinds, key=lambda kind: len(written & set(kinds[kind][0].__struct_fields__)))
    return {"content": kind, **_plain(kinds[kind][1]())}


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


def _preset_and_grid_files() -> tuple[TomlFiles[Any], TomlFiles[Any], TomlFiles[Any]]:
    """The presets of pre-training and fine-tuning, and the grids."""
    from bench.experiments.grid import FILES as GRIDS
    from retrievers.training.finetune.finetune_preset import FILES as FINETUNE
    from retrievers.training.pretrain.preset import FILES as PRETRAIN

    return PRETRAIN, FINETUNE, GRIDS


def _presets() -> Rows:
    pretrain, finetune, _ = _preset_and_grid_files()
    return _heads(pretrain, "pretrain: ") + _heads(finetune, "finetune: ")


def _plain(record: msgspec.Struct) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return fields
