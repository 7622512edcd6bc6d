"""``list`` prints names with a line about each. ``show`` prints a declaration or a stored result.

Only declarations are read: no model and no collection is opened.
"""

from collections.abc import Iterable
from itertools import chain, starmap
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from bench.cli.command_table import OutputOptions
from bench.cli.terminal import as_json, format_columns, print_result
from bench.requests.data import Listed, ListRequest, ShowRequest
from datasets_cfg import catalogue
from foundation.errors import BenchError
from foundation.records import SUFFIX, TomlFiles, read_toml
from retrievers.models.card import FILES as CARDS
from retrievers.models.card import Card, all_cards
from retrievers.models.locate import find_local

ModelGroup = Literal["ready", "download", "pretrained", "unpublished"]  # in the order of lists


class NameLine(msgspec.Struct, omit_defaults=True):
    """Line of a list. Fields that only models have are empty for other names.

    Attributes:
        name: name to type.
        about: title, with notes and warnings.
        group: availability of a model, see `ListRequest`.
        parameters: approximate number of parameters; 0 if the card does not state it.
        dim: dimension of the vectors; 0 if there are none or the card does not state it.
        licence: followed by ``?`` if no first-party source confirms it.
    """

    name: str
    about: str
    group: str = ""
    parameters: int = 0
    dim: int = 0
    licence: str = ""


def list_names(request: ListRequest, output: OutputOptions) -> int:
    """Print the names of one kind as a table or as JSON."""
    lines = [
        line
        for line in list_lines(request.what)
        if request.match.lower() in f"{line.name} {line.group} {line.about} {line.licence}".lower()
    ]
    if not lines:
        raise BenchError(f"no {request.what} match", f"Run `python -m bench list {request.what}`.")
    return print_result(output.json, lines, format_columns(list(map(_format_line, lines))))


def _format_line(line: NameLine) -> list[str]:
    if not line.group:
        return [line.name, line.about]
    size = f"{line.parameters / 1e6:,.0f}M" if line.parameters else ""
    return [line.name, line.group, size, str(line.dim or ""), line.licence, line.about]


def group_of(card: Card) -> ModelGroup:
    """Return the availability of the model of ``card``.

    A pre-trained checkpoint stays in its group even if it is on this machine.
    """
    if card.missing:
        return "unpublished"
    if card.pretrained_only:
        return "pretrained"
    towers = [(card.checkpoint, card.revision), (card.query_checkpoint, card.query_revision)]
    needed = [tower for tower in towers if tower[0]]
    return "ready" if all(find_local(*tower, card.package) for tower in needed) else "download"


def _describe_model(card: Card) -> NameLine:
    notes = [card.title]
    if card.missing:
        notes.append(f"not available: {card.missing}")
    elif card.unverified:
        notes.append(f"unverified: {', '.join(card.unverified)}")
    notes += [card.warning] if card.warning and not card.missing else []
    licence = card.licence + ("?" if "licence" in card.unverified else "")
    about = " — ".join(notes)
    return NameLine(card.name, about, group_of(card), card.parameters, card.dim, licence)


def _describe_dataset(name: str) -> NameLine:
    metadata = catalogue.metadata_for(name)
    counts = (metadata.counts.documents, "documents"), (metadata.counts.queries, "queries")
    sizes = [f"{count:,} {what}" for count, what in counts if count is not None]
    access = [] if metadata.public else ["licensed: see `show`"]
    return NameLine(name, "; ".join([metadata.title, metadata.main_measure, *sizes, *access]))


class _Title(msgspec.Struct):
    """Title of a preset or grid, for lists. Decoding all fields would import torch."""

    title: str


def _list_titles(files: TomlFiles[Any], before: str = "") -> Iterable[NameLine]:
    """Yield a line per TOML file of a folder, each title after the prefix."""
    for name in files.names():
        title = read_toml(files.folder / f"{name}{SUFFIX}", _Title).title
        yield NameLine(name, f"{before}{title}")


def _preset_and_grid_files() -> tuple[TomlFiles[Any], TomlFiles[Any], TomlFiles[Any]]:
    from bench.experiments.grid import FILES as GRIDS
    from retrievers.training.preset import FINETUNE_PRESETS, PRETRAIN_PRESETS

    return PRETRAIN_PRESETS, FINETUNE_PRESETS, GRIDS


def list_lines(what: Listed) -> Iterable[NameLine]:
    """Return the lines of a list: models by availability, others in their own order."""
    if what == "models":
        order: tuple[str, ...] = get_args(ModelGroup)
        lines = map(_describe_model, all_cards().values())
        return sorted(lines, key=lambda line: (order.index(line.group), line.name))
    if what == "datasets":
        return map(_describe_dataset, catalogue.dataset_names())
    if what == "suites":
        return (NameLine(name, catalogue.suite_for(name).title) for name in catalogue.suite_names())
    if what == "measures":
        from bench.evaluation.scoring import list_measures

        return starmap(NameLine, list_measures().items())
    if what == "indexes":
        from retrievers.index.faiss_index import INDEX_EXAMPLES

        return starmap(NameLine, INDEX_EXAMPLES.items())
    pretrain, finetune, grids = _preset_and_grid_files()
    if what == "grids":
        return _list_titles(grids)
    return chain(_list_titles(pretrain, "pretrain: "), _list_titles(finetune, "finetune: "))


def show(request: ShowRequest, output: OutputOptions) -> int:
    """Print the TOML file of a name, or the JSON document of a suite or result."""
    record, text = describe(request.name)
    return print_result(output.json, record, text.strip())


def describe(name: str) -> tuple[msgspec.Struct, str]:
    """Return the record of ``name`` and its text for the terminal."""
    if name in catalogue.dataset_names():
        return catalogue.metadata_for(name), catalogue.declaration_text(name)
    if catalogue.is_suite(name):
        return catalogue.suite_for(name), as_json(catalogue.suite_for(name))
    shipped = (CARDS, *_preset_and_grid_files())
    for files in shipped:
        if name in files.names():
            return files.load(name), (files.folder / f"{name}{SUFFIX}").read_text()
    if name and (result := _load_result(name)):
        return result, as_json(result)
    if name and Path(name).is_dir():
        problem = f"{name} is a folder without a result, and show reads names, files and results"
        hint = "Run `python -m bench verify FOLDER` to check a collection, or `run` for a model."
        raise BenchError(problem, hint)
    known = [*catalogue.dataset_names(), *catalogue.suite_names()]
    known += [known_name for files in shipped for known_name in files.names()]
    hint = catalogue.unknown_name_error(name, known).hint
    raise BenchError(f"there is no model, dataset, suite, preset, grid or result {name!r}", hint)


def _load_result(name: str) -> msgspec.Struct | None:
    """Load the result in a folder or ``result.json``, or None if there is none."""
    from bench.result_store.result import RESULT_FILE, load

    where = Path(name)
    file = where if where.name == RESULT_FILE else where / RESULT_FILE
    return load(file).record if file.exists() else None
