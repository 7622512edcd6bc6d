"""``check``: may this checkpoint ship? Evaluates what is missing, compares, decides."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench.cli.commands.candidate import Found, evaluate_all, own_name
from bench.cli.commands.common import (
    Contender,
    open_contender,
    open_named,
    print_json,
)
from bench.cli.commands.first_look import look
from bench.cli.commands.side_by_side import open_baseline, time_both
from bench.compare.panels import Entry
from bench.compare.statistics import Resampling
from bench.evaluate.measures import parse_measure
from bench.evaluate.suites import mean_weights
from bench.gate.check import Against, Check, Terms, blind, conclude
from bench.gate.evidence import check_against
from bench.gate.power import DetectableEffect, detectable_effects, kind_of
from bench.gate.published import check_published
from bench.gate.quick import Look, Quick, complete
from bench.results.find import Stored, find_results, results_of
from bench.results.record import Result
from datasets_cfg.catalogue import dataset_names, expand
from foundation.atomic import replacing
from foundation.errors import BenchError
from reports.check_junit import junit
from reports.check_reports import foreseen_table, markdown

PUBLISHED = "published"


def check(options: argparse.Namespace, cache_dir: Path) -> int:
    """``check``: exits with the outcome, see `bench.gate.verdicts`."""
    terms = _terms(options)
    contender = open_contender(options.checkpoint, options)
    others = _others(options)
    baseline = open_baseline(contender, others[0], options) if options.speed else None
    folders = _folders(options, cache_dir)
    weights = _weights(options.on or list(others[0][2]) or _claimed(contender), folders)
    if not weights:
        raise BenchError("nothing to check on", "name collections or suites with --on")
    if not terms.expect_same:
        terms.resampling.check_enough(len(weights), sides=2)
    name = own_name(contender, options)
    foreseen = _foresee(contender, others, weights, options, terms)
    quick: Quick | None = None
    if options.quick:
        against, quick = look(contender, name, others, folders, weights, terms, options, cache_dir)
        looks: list[Look] = []
    else:
        wanted = [one for one in weights if _comparable(one, others)]
        found = evaluate_all(contender, name, wanted, folders, options, cache_dir)
        against = [_against(one, contender, found, weights, terms) for one in others]
        looks = _earlier_looks(found, others[0][2], options)
    texts = next((row.name for row in against[0].rows if row.paired), None)
    speed = None
    if baseline is not None and texts is not None:
        speed = time_both(contender, baseline, folders.get(texts, texts), options, cache_dir)
    done = conclude(name, against, foreseen, terms, quick=quick, looks=looks, speed=speed)
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
    if options.anchor == PUBLISHED:
        raise BenchError(
            "published scores have no queries, and are no anchor",
            "--anchor names stored results; --baseline published takes published scores",
        )
    if options.quick and options.expect_same:
        raise BenchError(
            "--quick sees parts of collections, and cannot show that scores are the same",
            "leave one of --quick and --expect-same out",
        )
    return Terms(
        rule="loss" if options.quick else options.rule,
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
    named = expand(options.on, options.data_dir)
    found: dict[str, str] = {}
    for typed in (one for one in named if one not in dataset_names()):
        name = open_named(typed, options, cache_dir).name
        other = found.get(name, name if name in named else None)
        if other is not None and other != typed:
            raise BenchError(
                f"{other} and {typed} are both named {name}, and results are kept by that name",
                f'write name = "another" into the dataset.toml of {typed}',
            )
        found[name] = typed
    return found


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
) -> tuple[DetectableEffect, ...]:
    """Said before hours of encoding: what these collections can show."""
    _, _, baselines = others[0]
    if not baselines or terms.expect_same:
        return ()
    first = next(iter(baselines.values())).result
    kind = kind_of(_as_recipe_of(first, contender), first)
    foreseen = detectable_effects(
        kind, baselines, find_results(options.results), weights, terms.measure, terms.floor
    )
    print(foreseen_table(foreseen), file=sys.stderr)
    if warning := blind(foreseen, terms.margin):
        print(f"warning: {warning}", file=sys.stderr)
    return foreseen


def _as_recipe_of(result: Result, contender: Contender) -> Result:
    return msgspec.structs.replace(result, recipe=contender.model.recipe)


def _earlier_looks(
    found: Found, baselines: Mapping[str, Stored], options: argparse.Namespace
) -> list[Look]:
    """What first looks said of this candidate beside this baseline, now that it is known."""
    pairs = {
        (one.result.fingerprint, baselines[name].result.fingerprint, name)
        for name, one in found.stored.items()
        if name in baselines
    }
    past = complete(options.results, lambda: find_results(options.results))
    return [
        look
        for look in past
        if (look.candidate_fingerprint, look.baseline_fingerprint, look.collection) in pairs
    ]


def _against(
    other: Other,
    contender: Contender,
    found: Found,
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
