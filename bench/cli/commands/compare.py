"""``compare``: which of the models is better, by how much, and on which queries."""

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.boards.texts import at_hand, if_evaluated
from bench.cli.commands.common import check_once, resampling_of, workspace
from bench.cli.options.decide import CompareOptions
from bench.cli.printing import print_json
from bench.comparing.changed import Changes, most_changed
from bench.comparing.compare import Comparison
from bench.comparing.compare import compare as compare_entrants
from bench.comparing.panels import Choices, Entrant, Entry
from bench.evaluate.pipeline import OpenDataset, evaluate_run
from bench.evaluate.run_files import read_run_file
from bench.evaluate.suites import with_inner
from bench.exit_codes import ExitCode
from bench.results.choose import choose_results
from bench.results.find import find_named
from bench.results.location import place_of
from bench.results.result import RESULT_FILE, Protocol, Stored
from bench.workspace import Workspace
from datasets_cfg.catalogue import (
    collections_of,
    dataset_names,
    is_suite,
    own_folder,
    suite_names,
    unknown,
)
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError, MissingFileError
from reports.comparison import changes_table, comparison_table, legend


def compare(options: CompareOptions) -> int:
    """``compare``: a table for each pair of models; then the queries that changed most."""
    _check_names(options.names)
    _check_run_files(options)
    space = workspace(options.places, allow_mismatch=options.protocol.allow_mismatch)
    opened = _opened(options, space)
    dataset = opened.dataset if opened else None
    named = _named(options, dataset)
    collections = {dataset.name} if dataset else _collections(options, named, space)
    entrants = _entrants(options, opened, named, collections)
    choices = Choices(
        measure=options.measure,
        force=options.force,
        collections=collections,
        suites=with_inner(options.on) if options.on else None,
        resampling=resampling_of(options.resampling),
    )
    comparisons = compare_entrants(entrants, choices)
    changes = _changes(comparisons, entrants, dataset, options.changed, space)
    if options.output.json:
        summary = {"resampling": choices.resampling, "comparisons": comparisons}
        print_json({**summary, "changed": list(changes)})
        return ExitCode.OK
    for comparison in comparisons:
        print(comparison_table(comparison), end="\n\n")
    print(legend(choices.resampling), flush=True)
    for change in changes:
        print(f"\n{changes_table(change)}", flush=True)
    return ExitCode.OK


def _opened(options: CompareOptions, space: Workspace) -> OpenDataset | None:
    """The collection that scores run files; its documents are needed only to show texts."""
    if not options.dataset:
        return None
    opened = space.open_judgements(options.dataset, options.protocol.split)
    if options.changed:
        return replace(opened, dataset=space.dataset(options.dataset, options.protocol.split))
    return opened


def _check_names(names: Sequence[str]) -> None:
    if len(names) < 2:
        raise BenchError("one model cannot be compared", "python -m bench compare minilm bm25")
    check_once(names)


def _check_run_files(options: CompareOptions) -> None:
    given = [name for name in ("depth", "split") if getattr(options.protocol, name) is not None]
    if given and not options.dataset:
        raise BenchError(
            f"--{given[0]} says how run files are scored, and needs --dataset",
            "stored results have it already: MODEL@depth=N chooses among them",
        )


@dataclass(frozen=True)
class _Found:
    """A name as typed, a shorter one for tables, and its entries."""

    typed: str
    short: str
    entries: Mapping[str, Entry]


Named = Mapping[str, Sequence[Stored]]  # results by what was typed; run files have none


def _named(options: CompareOptions, dataset: Dataset | None) -> Named:
    return {
        name: () if _is_run_file(name, dataset) else find_named(name, *options.results)
        for name in options.names
    }


def _entrants(
    options: CompareOptions,
    opened: OpenDataset | None,
    named: Named,
    collections: Collection[str] | None,
) -> list[Entrant]:
    """The models in the order typed, under the shortest names that tell them apart."""
    models = [
        _found(name, choose_results(name, stored, collections))
        if opened is None or stored
        else _run_file(name, opened, options)
        for name, stored in named.items()
    ]
    short = [model.short for model in models]
    return [
        Entrant(model.short if short.count(model.short) == 1 else model.typed, model.entries)
        for model in models
    ]


def _run_file(name: str, opened: OpenDataset, options: CompareOptions) -> _Found:
    path = Path(name)
    short = "_".join(path.name.split(".trec")[0].split())
    return _Found(name, short, {opened.name: _scored(path, opened, options)})


def _found(name: str, stored: Mapping[str, Stored]) -> _Found:
    models = {record.result.model for record in stored.values()}
    short = models.pop() if len(models) == 1 and place_of(name).exists() else name
    return _Found(name, short, {key: Entry.of(record) for key, record in stored.items()})


def _is_run_file(name: str, dataset: Dataset | None) -> bool:
    """True for something to score: a file or a pipe."""
    path = Path(name)
    return dataset is not None and path.exists() and not path.is_dir() and path.name != RESULT_FILE


def _scored(path: Path, opened: OpenDataset, options: CompareOptions) -> Entry:
    """A run file by the collection's own protocol, as ``score`` does it."""
    wanted = None if options.measure is None else [options.measure]
    file = read_run_file(path)
    done = evaluate_run(
        *(file.run, path.name, file.sha256, opened.dataset),
        *(wanted, options.protocol.depth, opened.official),
    )
    if done.scores.unanswered:
        print(
            f"warning: {done.scores.unanswered:,} of {done.result.queries:,} queries of "
            f"{opened.name} have no document in {path}; they score 0",
            file=sys.stderr,
        )
    return Entry.computed(done)


def _collections(options: CompareOptions, named: Named, space: Workspace) -> Collection[str] | None:
    """Collections that were named; a user's own by the name in its results, or by its folder."""
    if not options.on:
        return None
    protocols = [stored.result.protocol for results in named.values() for stored in results]
    stored = {protocol.collection for protocol in protocols}
    known = {*dataset_names(), *suite_names(), *stored}
    chosen: set[str] = set()
    for name in options.on:
        if name in stored:
            chosen.add(name)
        elif is_suite(name):
            chosen.update(collections_of(name))
        elif name in known:
            chosen.add(name)
        elif own_folder(name, space.data_dir):
            chosen.add(_evaluated_in(name, protocols, space))
        else:
            raise unknown(name, known)
    return chosen


def _evaluated_in(folder: str, protocols: Sequence[Protocol], space: Workspace) -> str:
    """Name, in the results, of the collection in a folder: by its content, not by its path."""
    for split in dict.fromkeys(protocol.split for protocol in protocols):
        try:
            dataset = space.dataset(folder, split or None)
        except MissingFileError:
            continue  # the folder has no such split
        for protocol in protocols:
            if protocol.split == split and isinstance(if_evaluated(dataset, protocol), Dataset):
                return protocol.collection
    raise BenchError(
        f"none of the results is on the collection in {folder}",
        f"python -m bench run {folder} --model MODEL",
    )


def _changes(
    comparisons: Sequence[Comparison],
    entrants: Sequence[Entrant],
    dataset: Dataset | None,
    changed: int,
    space: Workspace,
) -> Iterator[Changes]:
    by_name = {entrant.name: entrant.entries for entrant in entrants}
    for comparison in comparisons if changed else ():
        for row in comparison.collections:
            if row.paired is not None:
                entries = (
                    by_name[comparison.a][row.collection],
                    by_name[comparison.b][row.collection],
                )
                opened = _at_hand(entries[0].protocol, dataset, space)
                names = (comparison.a, comparison.b)
                yield most_changed(names, entries, row.measure, changed, opened)


def _at_hand(protocol: Protocol, given: Dataset | None, space: Workspace) -> Dataset | str:
    """The collection that was evaluated; or why it is not at hand."""
    if given is not None:
        return if_evaluated(given, protocol)
    return at_hand(protocol, space)
