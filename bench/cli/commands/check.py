"""``check``: may this checkpoint ship? Evaluates what is missing, compares, decides."""

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bench.cli.commands.candidate_results import CandidateResults, evaluate_all, own_name
from bench.cli.commands.common import load_model, resampling_of, workspace
from bench.cli.options.decide import CheckOptions
from bench.cli.printing import print_json
from bench.comparing.panels import Choices, Entry
from bench.evaluate.measures import parse_measure
from bench.evaluate.pipeline import in_domain
from bench.evaluate.retrieval import LoadedModel
from bench.evaluate.suites import mean_weights
from bench.gate.check import blind, conclude, with_texts
from bench.gate.evidence import check_against, check_published
from bench.gate.power import DetectableEffect, detectable_effects, kind_of
from bench.gate.records import (
    ANCHOR,
    BASELINE,
    Check,
    PairVerdict,
    StoredModel,
)
from bench.gate.scope import Scope, checked_before, remember_checked, scope_of
from bench.results.choose import choose_results
from bench.results.find import find_named, find_results
from bench.results.result import Stored
from bench.workspace import Workspace
from datasets_cfg.catalogue import dataset_names
from datasets_cfg.remembered import open_remembered
from foundation.errors import BenchError
from foundation.files import replacing
from reports.gate.check_report import effects_table, markdown
from reports.gate.junit import junit

logger = logging.getLogger(__name__)

PUBLISHED = "published"


def check(options: CheckOptions) -> int:
    """``check``: exits with the outcome, see `bench.gate.verdicts`."""
    _check_published(options)
    choices = _choices(options)
    space = workspace(options.places, options.hardware, options.protocol.allow_mismatch)
    candidate = load_model(space, options.checkpoint, options.use)
    named = _named(options)
    folders = _folders(options, space)
    typed = _typed(options.on, folders)
    others = _others(named, typed)
    known = find_results(options.results)
    scope = _scope(candidate, named, known, typed, options)
    folders |= _remembered_folders(others, scope, folders, space.cache_dir)
    if not options.terms.expect_same:
        choices.resampling.check_enough(len(scope.weights), sides=2)
    name = own_name(candidate, known)
    _announce(name, others, scope)
    effects = _state_effects(candidate, others[0], known, scope, options)
    wanted = [name for name in scope.weights if _comparable(name, others)]
    results = evaluate_all(space, candidate, name, wanted, folders, known, options)
    against = [_against(other, candidate, results, scope, options) for other in others]
    _remember(others, scope, options)
    done = conclude(
        name,
        against,
        effects,
        options.terms,
        left_out=scope.left_out,
        hints=[hint for other in others for hint in scope.hints(other)],
    )
    _write(done, options)
    for warning in done.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return done.exit_code


def _check_published(options: CheckOptions) -> None:
    """Refuse published scores where values of queries are needed."""
    if options.baseline == PUBLISHED and not options.terms.expect_same:
        raise BenchError(
            "published scores have no values of queries, which a test needs",
            "--expect-same asks whether this is the checkpoint that was published",
        )
    if options.anchor == PUBLISHED:
        raise BenchError(
            "published scores have no values of queries, and are no anchor",
            "--anchor names stored results; --baseline published takes published scores",
        )


def _choices(options: CheckOptions) -> Choices:
    measure = None if options.measure is None else parse_measure(options.measure).name
    return Choices(measure, resampling=resampling_of(options.resampling))


@dataclass(frozen=True)
class _Named:
    """All results that the name of a baseline or an anchor stands for."""

    role: str
    name: str
    stored: Sequence[Stored]

    @property
    def collections(self) -> set[str]:
        return {result.collection for result in self.stored}


def _named(options: CheckOptions) -> list[_Named]:
    """The baseline and, if there is one, the anchor."""
    typed = [(BASELINE, options.baseline), (ANCHOR, options.anchor)]
    return [
        _Named(role, name, [] if name == PUBLISHED else find_named(name, options.results))
        for role, name in typed
        if name
    ]


def _typed(on: Sequence[str], folders: Mapping[str, str]) -> list[str]:
    """Names typed after ``--on``, folders by the names in their results."""
    names = {folder: name for name, folder in folders.items()}
    return [names.get(word, word) for word in on]


def _others(named: Sequence[_Named], typed: Sequence[str]) -> list[StoredModel]:
    """One result for each collection; with ``--on`` the others make no name ambiguous."""
    on = mean_weights(typed) if typed else None
    return [
        StoredModel(model.role, model.name, choose_results(model.name, model.stored, on))
        for model in named
    ]


def _folders(options: CheckOptions, space: Workspace) -> dict[str, str]:
    """Folders of a user's own collections as typed, by the name in their results."""
    named = space.expand(options.on)
    folders: dict[str, str] = {}
    for typed in (word for word in named if word not in dataset_names()):
        name = space.dataset(typed, options.protocol.split).name
        other = folders.get(name, name if name in named else None)
        if other is not None and other != typed:
            raise BenchError(
                f"{other} and {typed} are both named {name}, and results are kept by that name",
                f'write name = "another" into the dataset.toml of {typed}',
            )
        folders[name] = typed
    return folders


def _scope(
    candidate: LoadedModel,
    named: Sequence[_Named],
    known: Sequence[Stored],
    typed: Sequence[str],
    options: CheckOptions,
) -> Scope:
    """The collections of the check; see `scope_of`."""
    baseline, *anchors = named
    if baseline.name == PUBLISHED:
        claimed = dict.fromkeys(claim.dataset for claim in candidate.model.card.expected)
        return scope_of(typed, claimed, {})
    further: dict[str, Iterable[str]] = {
        f"the {other.role} was checked there before": checked_before(options.results, other.name)
        for other in named
    }
    further["the candidate has one"] = _own_collections(candidate, known)
    further |= {f"the {other.role} has one": other.collections for other in anchors}
    return scope_of(typed, baseline.collections, further)


def _remembered_folders(
    others: Sequence[StoredModel], scope: Scope, folders: Mapping[str, str], cache_dir: Path
) -> dict[str, str]:
    """Folders of users' own collections that were not typed, found by the content of results."""
    where: dict[str, str] = {}
    for name in scope.weights.keys() - folders.keys() - set(dataset_names()):
        for protocol in (
            other.results[name].result.protocol for other in others if name in other.results
        ):
            hashes = (protocol.queries_sha256, protocol.qrels_sha256)
            dataset = open_remembered(*hashes, protocol.split, cache_dir)
            if dataset and dataset.name == name:  # another folder may hold the same
                where[name] = str(dataset.reader.folder)
    return where


def _own_collections(candidate: LoadedModel, known: Sequence[Stored]) -> list[str]:
    """Collections on which the candidate has stored results, under whatever name."""
    recipe = candidate.model.recipe
    fingerprints = {
        name: recipe.for_dataset(name).fingerprint
        for name in {stored.collection for stored in known}
    }
    own = [
        stored for stored in known if stored.result.fingerprint == fingerprints[stored.collection]
    ]
    return [stored.collection for stored in own]


def _announce(name: str, others: Sequence[StoredModel], scope: Scope) -> None:
    """Print what is checked against what, before hours of encoding."""
    against = " and ".join(f"the {other.role}, {other.name}" for other in others)
    print(f"{name} against {against}, on {', '.join(scope.weights)}", file=sys.stderr)
    if scope.left_out:
        print(f"left out by --on: {', '.join(scope.left_out)}", file=sys.stderr)


def _remember(others: Sequence[StoredModel], scope: Scope, options: CheckOptions) -> None:
    """A result of a baseline that is gone at the next check is missed then."""
    try:
        for other in others:
            remember_checked(
                options.results, other.name, other.results.keys() & scope.weights.keys()
            )
    except (BenchError, OSError) as error:
        logger.warning("what the baseline was checked on cannot be remembered: %s", error)


def _comparable(collection: str, others: Sequence[StoredModel]) -> bool:
    """True where there is a result to compare with; else it is MISSING whatever is encoded."""
    return any(other.name == PUBLISHED or collection in other.results for other in others)


def _state_effects(
    candidate: LoadedModel,
    baseline: StoredModel,
    known: Sequence[Stored],
    scope: Scope,
    options: CheckOptions,
) -> tuple[DetectableEffect, ...]:
    """Said before hours of encoding: what these collections can show."""
    results = baseline.results
    if not results or options.terms.expect_same:
        return ()
    first = next(iter(results.values())).result
    own = msgspec.structs.replace(first, recipe=candidate.model.recipe)
    kind = kind_of(own, first)
    effects = detectable_effects(
        kind, results, known, scope.weights, _choices(options).measure, options.terms.floor
    )
    print(effects_table(effects), file=sys.stderr)
    if warning := blind(effects, options.terms.margin):
        print(f"warning: {warning}", file=sys.stderr)
    return effects


def _against(
    other: StoredModel,
    candidate: LoadedModel,
    results: CandidateResults,
    scope: Scope,
    options: CheckOptions,
) -> PairVerdict:
    card, weights = candidate.model.card, scope.weights
    seen = [name for name in weights if in_domain(card, name)]
    if other.name == PUBLISHED:
        measured = {key: stored.result.measures for key, stored in results.stored.items()}
        return check_published(measured, card.expected, results.failed, list(weights), seen)
    entries = {
        key: replace(entry, in_domain=entry.in_domain or key in seen)
        for key, entry in ((key, Entry.of(stored)) for key, stored in results.stored.items())
    }
    baseline = {key: Entry.of(stored) for key, stored in other.results.items()}
    gaps = {**results.failed, **scope.gaps(other)}
    verdict = check_against(
        other.role, other.name, entries, baseline, gaps, weights, options.terms, _choices(options)
    )
    return with_texts(verdict, results.queries)


def _write(done: Check, options: CheckOptions) -> None:
    text = markdown(done)
    for path, content in ((options.markdown, text), (options.junit, junit(done))):
        if path is not None:
            with replacing(path) as file:
                file.write(content.encode())
    if options.output.json:
        print_json(done)
    else:
        print(text, end="")
