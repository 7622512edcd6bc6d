"""``forgetting``: what checkpoints of successive trainings keep, lose and gain."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.cli.commands.common import (
    check_can_plot,
    check_once,
    load_model,
    resampling_of,
    workspace,
)
from bench.cli.early_checks import check_out
from bench.cli.options.shared import ModelUse
from bench.cli.options.study import ForgettingOptions
from bench.cli.printing import print_json
from bench.comparing.panels import Entrant, Entry
from bench.comparing.transfer import Forgetting, Sequenced, forgetting_of
from bench.evaluate.judging import common_measure
from bench.evaluate.pipeline import Options
from bench.exit_codes import ExitCode
from bench.results.choose import choose_results
from bench.results.find import expand_collections, find_named, find_results
from bench.results.location import Place
from bench.workspace import LoadedModel, OpenDataset, Workspace
from foundation.errors import BenchError
from reports.plots.training import draw_forgetting
from reports.training.forgetting import figures, markdown
from retrievers.models.card import card_names


def forgetting(options: ForgettingOptions) -> int:
    """``forgetting``: the matrix, then transfer; a heat map with --plot."""
    _check(options)
    sequence, measure = _stored(options) if options.stored else _evaluated(options)
    sequence = replace(sequence, separate=options.separate)
    matrix = forgetting_of(sequence, measure, resampling_of(options.resampling))
    if options.plot is not None:
        draw_forgetting({options.plot: matrix})
    _print(matrix, options)
    return ExitCode.OK


def _print(matrix: Forgetting, options: ForgettingOptions) -> None:
    if options.output.json:
        print_json(matrix)
    else:
        print(figures(matrix).csv() if options.format == "csv" else markdown(matrix), end="")


def _check(options: ForgettingOptions) -> None:
    """Bad input stops before anything is opened."""
    check_once([*options.checkpoints, *([options.base] if options.base else [])])
    if options.plot is not None:
        check_can_plot("--plot")
    if not options.stored:
        check_out(options.results.results)


def _check_collections(checkpoints: int, trained: Sequence[str], also: Sequence[str]) -> None:
    if len(trained) != checkpoints:
        raise BenchError(
            f"{checkpoints} checkpoints and {len(trained)} collections: each checkpoint was "
            "trained on one collection",
            "name them in the same order; collections that none was trained on go after --also",
        )
    check_once([*trained, *also])


def _stored(options: ForgettingOptions) -> tuple[Sequenced, str]:
    """From stored results; a collection of one's own is known by its name in them."""

    typed = [*options.checkpoints, *([options.base] if options.base else [])]
    named = {name: find_named(name, options.results.results) for name in typed}
    stored = [result for results in named.values() for result in results]
    own = {each.collection for each in stored}
    trained, also = (expand_collections(names, own) for names in (options.on, options.also))
    _check_collections(len(options.checkpoints), trained, also)

    def entrant(name: str) -> Entrant:
        entries = choose_results(name, named[name], {*trained, *also})
        return Entrant(name, {key: Entry.of(record) for key, record in entries.items()})

    checkpoints = [entrant(name) for name in options.checkpoints]
    base = entrant(options.base) if options.base else None
    all_entries = [entry for checkpoint in checkpoints for entry in checkpoint.entries.values()]
    mains = sorted({entry.main_measure for entry in all_entries})
    if options.measure is None and len(mains) > 1:
        raise BenchError(
            f"the main measures of the collections differ: {', '.join(mains)}",
            "choose one with --measure",
        )
    return Sequenced(checkpoints, trained, also, base), options.measure or "".join(mains)


def _evaluated(options: ForgettingOptions) -> tuple[Sequenced, str]:
    """Every checkpoint on every collection; stored results are used again."""
    count = len(options.checkpoints)
    space = workspace(options.places, options.hardware, options.protocol.allow_mismatch)
    trained, also = space.expand(options.on), space.expand(options.also)
    _check_collections(count, trained, also)
    opened = space.open_all([*options.on, *options.also], options.protocol.split)
    measure = common_measure(
        [each.dataset for each in opened.values()], options.measure, options.protocol.depth
    )
    names = [*([options.base] if options.base else []), *options.checkpoints]
    labelled = labels(names)
    check_once(labelled.values())
    models = [_loaded(space, typed, label, options.use) for typed, label in labelled.items()]
    choices = Options(depth=options.protocol.depth, measures=(measure,))
    results = options.results.results
    entrants = [_entrant(space, model, list(opened.values()), choices, results) for model in models]
    base = entrants.pop(0) if options.base else None
    named = {typed: each.name for typed, each in opened.items()}
    learnt, others = [named[name] for name in trained], [named[name] for name in also]
    return Sequenced(entrants, learnt, others, base), measure


def labels(typed: Sequence[str]) -> dict[str, str]:
    """A name for each checkpoint: as many of the last parts of its path as tell it apart."""
    parts = {name: _parts(name) for name in typed}
    return {name: _label(parts[name], list(parts.values())) for name in typed}


def _parts(name: str) -> tuple[str, ...]:
    """Parts of the path of a folder; a name that is no path is one part."""
    path = Path(name).expanduser()
    return path.resolve().parts[1:] if path.is_dir() else (name,)


def _label(own: tuple[str, ...], every: Sequence[tuple[str, ...]]) -> str:
    counts = range(1, len(own) + 1)
    alone = (n for n in counts if sum(parts[-n:] == own[-n:] for parts in every) == 1)
    return "_".join("/".join(own[-next(alone, len(own)) :]).split())


def _loaded(space: Workspace, typed: str, label: str, use: ModelUse) -> LoadedModel:
    """A checkpoint used as ``--like`` says; a card says that itself."""
    own = typed in card_names() or typed.endswith(".toml")
    loaded = load_model(space, typed, replace(use, like=None) if own else use)
    return loaded if own else loaded.renamed(label)


def _entrant(
    space: Workspace,
    model: LoadedModel,
    opened: Sequence[OpenDataset],
    choices: Options,
    results: Place,
) -> Entrant:
    known = find_results(results, model.name)
    entries = {
        dataset.name: Entry.of(space.stored_or_new(dataset, model, choices, known, results))
        for dataset in opened
    }
    return Entrant(model.name, entries)
