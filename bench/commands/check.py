"""``check``: may this checkpoint ship? Evaluates what is missing, compares, decides."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.atomic import replacing
from bench.budget import parse_size
from bench.commands.common import (
    Contender,
    check_out,
    is_official,
    open_contender,
    open_named,
    print_json,
)
from bench.decisions.check import (
    Against,
    Check,
    Terms,
    blind,
    check_against,
    check_published,
    conclude,
    mean_weights,
)
from bench.decisions.foresight import Foreseen, foresee, kind_of
from bench.decisions.panels import Entry
from bench.decisions.statistics import Resampling
from bench.decisions.stored import Stored, find_results, results_of
from bench.errors import BenchError
from bench.judging import protocol_of
from bench.measures import parse_measure
from bench.pipeline import Options, check_memory, evaluate
from bench.results import Result, save
from bench.store import VectorStore
from datasets_cfg.catalogue import dataset_names, expand
from datasets_cfg.dataset import Dataset, count_mismatches
from datasets_cfg.errors import DatasetError
from reports.check_reports import foreseen_table, junit, markdown
from retrievers.errors import RetrieverError
from retrievers.index import IndexSpec

PUBLISHED = "published"


def check(options: argparse.Namespace, cache_dir: Path) -> int:
    """``check``: exits with the outcome, see `bench.decisions.verdicts`."""
    terms = _terms(options)
    check_out(options.results)
    contender = open_contender(options.checkpoint, options)
    others = _others(options)
    folders = _folders(options, cache_dir)
    weights = _weights(options.on or list(others[0][2]) or _claimed(contender), folders)
    if not weights:
        raise BenchError("nothing to check on", "name collections or suites with --on")
    foreseen = _foresee(contender, others, weights, options, terms)
    wanted = [one for one in weights if _comparable(one, others)]
    found = _evaluate_all(contender, wanted, folders, options, cache_dir)
    against = [_against(one, contender, found, weights, terms) for one in others]
    done = conclude(contender.model.card.name, against, foreseen, terms)
    _write(done, options)
    for warning in done.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return done.exit_code


def _terms(options: argparse.Namespace) -> Terms:
    if options.baseline == PUBLISHED and not options.expect_same:
        raise BenchError(
            "published scores have no queries, which a test needs",
            "--expect-same asks whether this is the checkpoint that was published",
        )
    return Terms(
        rule=options.rule,
        margin=options.margin,
        floor=options.floor,
        expect_same=options.expect_same,
        tolerance=options.tolerance,
        measure=None if options.measure is None else parse_measure(options.measure).name,
        resampling=Resampling(options.resamples, options.seed),
    )


Other = tuple[str, str, dict[str, Stored]]  # role, name, results by collection


def _others(options: argparse.Namespace) -> list[Other]:
    """The baseline and, if there is one, the anchor."""
    named = [("baseline", options.baseline), ("anchor", options.anchor)]
    return [
        (role, name, {} if name == PUBLISHED else results_of(name, options.results))
        for role, name in named
        if name
    ]


def _folders(options: argparse.Namespace, cache_dir: Path) -> dict[str, str]:
    """What was typed for each collection of a user's own, by the name in its results."""
    own = [name for name in expand(options.on) if name not in dataset_names()]
    return {open_named(name, options, cache_dir).name: name for name in own}


def _weights(typed: Sequence[str], folders: Mapping[str, str]) -> dict[str, float]:
    names = {folder: name for name, folder in folders.items()}
    return {names.get(one, one): weight for one, weight in mean_weights(typed).items()}


def _comparable(collection: str, others: Sequence[Other]) -> bool:
    """Whether somebody has a result to compare with; else it is MISSING whatever is encoded."""
    return any(name == PUBLISHED or collection in stored for _, name, stored in others)


def _claimed(contender: Contender) -> list[str]:
    return list(dict.fromkeys(one.dataset for one in contender.model.card.expected))


def _foresee(
    contender: Contender,
    others: Sequence[Other],
    weights: Mapping[str, float],
    options: argparse.Namespace,
    terms: Terms,
) -> tuple[Foreseen, ...]:
    """Said before hours of encoding: what these collections can show."""
    _, _, baselines = others[0]
    if not baselines or terms.expect_same:
        return ()
    first = next(iter(baselines.values())).result
    kind = kind_of(_as_recipe_of(first, contender), first)
    foreseen = foresee(kind, baselines, find_results(options.results), weights)
    print(foreseen_table(foreseen), file=sys.stderr)
    if warning := blind(foreseen, terms.margin):
        print(f"warning: {warning}", file=sys.stderr)
    return foreseen


def _as_recipe_of(result: Result, contender: Contender) -> Result:
    return msgspec.structs.replace(result, recipe=contender.model.recipe)


@dataclass
class _Found:
    """The candidate's results, and why others are missing."""

    stored: dict[str, Stored] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def _evaluate_all(
    contender: Contender,
    names: Sequence[str],
    folders: Mapping[str, str],
    options: argparse.Namespace,
    cache_dir: Path,
) -> _Found:
    """A collection that fails is missing; the others are still evaluated."""
    found = _Found()
    store = VectorStore(cache_dir / "vectors")
    known = find_results(options.results, contender.model.card.name)
    for name in names:
        try:
            dataset = open_named(folders.get(name, name), options, cache_dir)
            found.stored[name] = _evaluated(dataset, contender.on(name), known, store, options)
        except (BenchError, DatasetError, RetrieverError, OSError) as error:
            found.failed[name] = f"not evaluated: {error}"
            print(f"warning: {name}: {error}", file=sys.stderr)
    return found


def _evaluated(
    dataset: Dataset,
    contender: Contender,
    known: Sequence[Stored],
    store: VectorStore,
    options: argparse.Namespace,
) -> Stored:
    """The stored result of this evaluation; made where there is none."""
    official = is_official(dataset, count_mismatches(dataset), options.allow_mismatch)
    depth = options.depth or dataset.facts.depth
    protocol = protocol_of(dataset, depth, dataset.corpus.sha256, official)
    index = "flat" if contender.encoder else ""
    asked = (contender.model.recipe.fingerprint, protocol, index)
    for one in known:
        same = (one.result.fingerprint, one.result.protocol, one.result.index) == asked
        if same and (options.measure is None or options.measure in one.result.measures):
            print(f"{dataset.name}: stored in {one.folder}", file=sys.stderr)
            return one
    choices = Options(
        index=IndexSpec.parse("flat"),
        depth=options.depth,
        measures=None if options.measure is None else (options.measure,),
        device=options.device,
        max_memory=None if options.max_memory is None else parse_size(options.max_memory),
    )
    if contender.encoder:
        check_memory(dataset, contender.encoder.dim, choices)
    done = evaluate(dataset, contender.model, contender.encoder, store, choices, official)
    return Stored(save(done.result, done.scores, done.run, options.results), done.result)


def _against(
    other: Other,
    contender: Contender,
    found: _Found,
    weights: Mapping[str, float],
    terms: Terms,
) -> Against:
    role, name, stored = other
    if name == PUBLISHED:
        measured = {key: one.result.measures for key, one in found.stored.items()}
        expected = contender.model.card.expected
        return check_published(measured, expected, found.failed, list(weights))
    candidate = {key: Entry.of(one) for key, one in found.stored.items()}
    baseline = {key: Entry.of(one) for key, one in stored.items()}
    return check_against(role, name, candidate, baseline, found.failed, weights, terms)


def _write(done: Check, options: argparse.Namespace) -> None:
    text = markdown(done)
    for path, content in ((options.markdown, text), (options.junit, junit(done))):
        if path is not None:
            with replacing(path) as file:
                file.write(content.encode())
    if options.json:
        print_json(done)
    else:
        print(text, end="")
