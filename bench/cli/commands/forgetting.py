"""``forgetting``: what checkpoints of successive trainings keep, lose and gain."""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.cli.commands.common import Contender, open_contender, print_json
from bench.cli.commands.opening import check_once, open_collections, pipeline_options
from bench.cli.early_checks import check_out
from bench.compare.panels import Entrant, Entry
from bench.compare.statistics import Resampling
from bench.compare.transfer import Forgetting, Sequenced, forgetting_of
from bench.evaluate.pipeline import Options
from bench.exit_codes import ExitCode
from bench.monitor.collections import Opened, one_measure
from bench.monitor.evaluating import renamed, stored_or_new
from bench.results.find import collections_named, find_results, named_results, one_each
from bench.results.location import Place
from bench.store import VectorStore
from datasets_cfg.catalogue import expand
from foundation.errors import BenchError
from reports.figures import can_plot
from reports.forgetting_plots import draw
from reports.forgetting_tables import comma_separated, markdown
from retrievers.models.card import card_names


def forgetting(options: argparse.Namespace, cache_dir: Path) -> int:
    """``forgetting``: the matrix, then transfer; a heat map with --plot."""
    _check(options)
    sequence, measure = _stored(options) if options.stored else _evaluated(options, cache_dir)
    found = forgetting_of(sequence, measure, Resampling(options.resamples, options.seed))
    if options.plot is not None:
        draw(found, options.plot)
    _print(found, options)
    return ExitCode.OK


def _print(found: Forgetting, options: argparse.Namespace) -> None:
    if options.json:
        print_json(found)
    else:
        print((comma_separated if options.format == "csv" else markdown)(found), end="")


def _check(options: argparse.Namespace) -> None:
    """Bad input stops before anything is opened."""
    _check_once([*options.checkpoints, *([options.base] if options.base else [])])
    if options.plot is not None and not can_plot():
        raise BenchError("--plot needs matplotlib", "pip install 'retrieval-bench[plots]'")
    if not options.stored:
        check_out(options.results)


def _check_once(checkpoints: Iterable[str]) -> None:
    for name, times in Counter(checkpoints).items():
        if times > 1:
            raise BenchError(f"{name} is named {times} times", "each checkpoint is named once")


def _check_collections(checkpoints: int, trained: Sequence[str], also: Sequence[str]) -> None:
    if len(trained) != checkpoints:
        raise BenchError(
            f"{checkpoints} checkpoints and {len(trained)} collections: each checkpoint was "
            "trained on one collection",
            "name them in the same order; collections that none was trained on go after --also",
        )
    check_once([*trained, *also])


def _stored(options: argparse.Namespace) -> tuple[Sequenced, str]:
    """From stored results; a collection of one's own is known by its name in them."""

    typed = [*options.checkpoints, *([options.base] if options.base else [])]
    named = {name: named_results(name, options.results) for name in typed}
    stored = [one for results in named.values() for one in results]
    trained, also = (collections_named(names, stored) for names in (options.on, options.also))
    _check_collections(len(options.checkpoints), trained, also)

    def entrant(name: str) -> Entrant:
        entries = one_each(name, named[name], {*trained, *also})
        return Entrant(name, {key: Entry.of(one) for key, one in entries.items()})

    checkpoints = [entrant(name) for name in options.checkpoints]
    base = entrant(options.base) if options.base else None
    found = [entry for one in checkpoints for entry in one.entries.values()]
    mains = sorted({entry.main_measure for entry in found})
    if options.measure is None and len(mains) > 1:
        raise BenchError(
            f"the main measures of the collections differ: {', '.join(mains)}",
            "choose one with --measure",
        )
    return Sequenced(checkpoints, trained, also, base), options.measure or "".join(mains)


def _evaluated(options: argparse.Namespace, cache_dir: Path) -> tuple[Sequenced, str]:
    """Every checkpoint on every collection; stored results are used again."""
    count = len(options.checkpoints)
    trained = expand(options.on, options.data_dir)
    also = expand(options.also, options.data_dir)
    _check_collections(count, trained, also)
    opened = open_collections([*options.on, *options.also], options, cache_dir)
    measure = one_measure(list(opened.values()), options.measure, options.depth)
    names = [*([options.base] if options.base else []), *options.checkpoints]
    labelled = labels(names)
    _check_once(labelled.values())
    opening = [_opened(typed, label, options) for typed, label in labelled.items()]
    choices, store = pipeline_options(options, (measure,)), VectorStore(cache_dir / "vectors")
    entrants = [
        _entrant(contender, list(opened.values()), store, choices, options.results)
        for contender in opening
    ]
    base = entrants.pop(0) if options.base else None
    named = {name: one.dataset.name for name, one in opened.items()}
    learnt, others = [named[name] for name in trained], [named[name] for name in also]
    return Sequenced(entrants, learnt, others, base), measure


def labels(typed: Sequence[str]) -> dict[str, str]:
    """A name for each checkpoint: as many of the last parts of its path as tell it apart."""
    parts = {name: _parts(name) for name in typed}
    return {name: _label(parts[name], list(parts.values())) for name in typed}


def _parts(name: str) -> tuple[str, ...]:
    """Of the path of a folder; a name that is none is one part."""
    path = Path(name).expanduser()
    return path.resolve().parts[1:] if path.is_dir() else (name,)


def _label(own: tuple[str, ...], every: Sequence[tuple[str, ...]]) -> str:
    counts = range(1, len(own) + 1)
    alone = (n for n in counts if sum(one[-n:] == own[-n:] for one in every) == 1)
    return "_".join("/".join(own[-next(alone, len(own)) :]).split())


def _opened(typed: str, label: str, options: argparse.Namespace) -> Contender:
    """A checkpoint used as ``--like`` says; a card says that itself."""
    own = typed in card_names() or typed.endswith(".toml")
    like = None if own else options.like
    found = open_contender(typed, argparse.Namespace(**{**vars(options), "like": like}))
    return found if own else Contender(renamed(found.model, label), found.encoder)


def _entrant(
    contender: Contender,
    opened: Sequence[Opened],
    store: VectorStore,
    choices: Options,
    results: Place,
) -> Entrant:
    name, entries = contender.model.card.name, {}
    known = find_results(results, name)
    for one in opened:
        mine = contender.on(one.dataset.name)
        stored = stored_or_new(one, mine.model, mine.encoder, known, store, choices, results)
        entries[one.dataset.name] = Entry.of(stored)
    return Entrant(name, entries)
