"""Subject of a check: the candidate with its results, and the collections to compare on.

A missing result never narrows a check silently. Without ``--on``, a check covers every collection
on which the baseline or the candidate has a result, or on which the baseline was checked before. If
one side has no result, the outcome is MISSING, with the reason why the collection is included. With
``--on``, it covers the named collections, and the report lists the others.

History of the format of ``checked.json``: 1, the first.
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from bench.evaluation.collection_search import EvaluationOptions, LoadedModel
from bench.evaluation.judging import mean_weights
from bench.gate.check_record import StoredModel
from bench.outcomes import MissingEvaluations
from bench.result_store.result import Evaluation, Protocol
from bench.result_store.reuse import check_stored_values, reuse_or_evaluate, warn_unchecked
from bench.runner.workspace import Workspace
from datasets_cfg.readers import Queries
from foundation.errors import BenchError
from foundation.locations import Location, files_below, write_location
from foundation.records import Record, read_json

DIGITS = 8  # number of digits of a fingerprint in a name


@dataclass(frozen=True)
class Candidate:
    """Checkpoint under test, with its results by collection.

    Attributes:
        name: name in results.
        results: evaluations by collection.
        failures: reason for each collection without a result.
        queries: queries of each collection that was opened.
    """

    name: str
    results: Mapping[str, Evaluation]
    failures: Mapping[str, str] = field(default_factory=dict)
    queries: Mapping[str, Queries] = field(default_factory=dict)

    def is_in_domain(self, collection: str) -> bool:
        """Return True if the candidate was trained on ``collection``."""
        return collection in self.results and self.results[collection].result.in_domain

    def text(self, collection: str, query_id: str) -> str:
        """Return the text of ``query_id`` in ``collection``, or "" if it is not available."""
        if collection not in self.queries:
            return ""
        queries = self.queries[collection]
        return dict(zip(queries.ids, queries.texts, strict=True)).get(query_id, "")


def candidate_name(model: LoadedModel, known: Sequence[Evaluation]) -> str:
    """Return the name of the candidate's results.

    This is its own name, unless different weights or settings have results of that name. Then the
    fingerprint is appended, so that the name of a baseline never stands for two models.

    Args:
        model: the candidate.
        known: all stored results.
    """
    named = [stored for stored in known if stored.result.model == model.name]
    if len(candidate_results(model, named)) == len(named):
        return model.name
    return f"{model.name}-{model.model.recipe.fingerprint[:DIGITS]}"


def explain_renaming(model: LoadedModel, name: str) -> str:
    """Explain why results of ``model`` are called ``name``, or "" if that is its own."""
    if name == model.name:
        return ""
    return (
        f"The candidate is called {name} here, because other weights or settings have results "
        f"named {model.name}"
    )


def candidate_results(model: LoadedModel, known: Sequence[Evaluation]) -> list[Evaluation]:
    """Select the stored results of the candidate, under any name.

    Args:
        model: the candidate.
        known: all stored results.
    """
    recipe = model.model.recipe
    fingerprints = {
        name: recipe.for_dataset(name).fingerprint
        for name in {stored.collection for stored in known}
    }
    return [
        stored for stored in known if stored.result.fingerprint == fingerprints[stored.collection]
    ]


def evaluate_candidate(
    workspace: Workspace,
    model: LoadedModel,
    name: str,
    collections: Mapping[str, tuple[str, Protocol | None]],
    known: Sequence[Evaluation],
    out: Location,
    measures: tuple[str, ...] | None = None,
    others: Sequence[StoredModel] = (),
) -> Candidate:
    """Evaluate the candidate on each collection without a stored result.

    A collection that fails becomes a gap, and the others are still evaluated. A warning names the
    stored results whose scores cannot be computed again.

    Args:
        workspace: folders and device.
        model: the candidate.
        name: name in results, see `candidate_name`.
        collections: for each collection, the name or folder that opens it, and the protocol of the
            result to compare with, which determines split and depth.
        known: stored results, which may include the candidate's.
        out: folder for new results.
        measures: measures to compute; None for the collection's own.
        others: models to compare with, whose stored scores must agree with their rankings.
    """
    gaps = MissingEvaluations()
    stored: dict[str, Evaluation] = {}
    queries: dict[str, Queries] = {}
    unchecked: list[str] = []
    own_results = [one for one in known if one.result.model in (name, model.name)]
    for collection, (opens, protocol) in collections.items():
        with gaps.catch(collection):
            opened = workspace.open(opens, (protocol.split or None) if protocol else None)
            depth = protocol.depth if protocol else None
            options = EvaluationOptions(depth=depth, measures=measures)
            queries[collection] = opened.dataset.queries
            for other in others:
                if collection in other.results:
                    unchecked.append(check_stored_values(other.results[collection], opened.dataset))
            job = workspace.prepare(opened, model.with_name(name), options, known=own_results)
            stored[collection] = reuse_or_evaluate(job, out)
    warn_unchecked(unchecked)
    return Candidate(
        name,
        results=stored,
        failures={key: f"not evaluated: {reason}" for key, reason in gaps.reasons.items()},
        queries=queries,
    )


logger = logging.getLogger(__name__)

LEDGER, CHECKED_FILE = "checked-baselines", "checked.json"
FORMAT = 1


class CheckedBaseline(Record, kw_only=True):
    """Record that a baseline or anchor had a result on a collection when a candidate was checked.

    Attributes:
        format: version of this record.
        baseline: name as typed.
        collection: name of the collection.
    """

    format: int = FORMAT
    baseline: str
    collection: str


class Scope(Record, kw_only=True):
    """Collections of a check.

    Attributes:
        weights: weight of each collection in the mean, in the order of the report.
        reasons: reason why a collection is included although neither ``--on`` nor a result of the
            baseline names it.
        left_out: collections with results, or on which the baseline was checked before, that
            ``--on`` does not name.
    """

    weights: dict[str, float]
    reasons: dict[str, str] = {}
    left_out: tuple[str, ...] = ()

    def gaps(self, other: StoredModel) -> dict[str, str]:
        """Return the reason for each included collection on which ``other`` has no result."""
        return {
            name: f"{other.name} has no result, but {reason}"
            for name, reason in self.reasons.items()
            if name not in other.results
        }

    def hints(self, other: StoredModel) -> list[str]:
        """Return the commands to type if ``other`` lacks results."""
        models = [stored.result.model for stored in other.results.values()]
        if not (gaps := self.gaps(other)):
            return []
        command = f"python -m bench run {' '.join(gaps)} --model {models[0]}"
        return [f"run `{command}`, or name the collections to check with --on"]


def determine_scope(
    typed: Sequence[str], baseline: Collection[str], further: Mapping[str, Iterable[str]]
) -> Scope:
    """Determine the collections of a check.

    Args:
        typed: collections and suites of ``--on``; empty without it.
        baseline: collections on which the baseline has results.
        further: collections included for other reasons, by reason.

    Raises:
        BenchError: there are no collections.
    """
    reasons: dict[str, str] = {}
    for reason, collections in further.items():
        for name in collections:
            if name not in baseline:
                reasons.setdefault(name, reason)
    known = (*sorted(baseline), *sorted(reasons))
    weights = mean_weights(typed or known)
    if not weights:
        raise BenchError("there are no collections to check on", "Name them with --on.")
    if not typed:
        return Scope(weights=weights, reasons=reasons)
    left_out = tuple(name for name in known if name not in weights)
    return Scope(weights=weights, left_out=left_out)


def previously_checked(results: Location, baseline: str) -> list[str]:
    """Return the collections on which ``baseline`` was checked before, as recorded in ``results``.

    A damaged record is logged and skipped.
    """
    folder = results / LEDGER / _digest(baseline)
    names = set()
    for path in files_below(folder, CHECKED_FILE) if folder.is_dir() else ():
        try:
            record = read_json(path, CheckedBaseline)
        except BenchError as error:
            logger.warning("ignoring %s: %s", path, error)
        else:
            names.add(record.collection if record.baseline == baseline else "")
    return sorted(names - {""})


def remember_checked(results: Location, baseline: str, collections: Iterable[str]) -> None:
    """Record in ``results`` that ``baseline`` was checked on ``collections``."""
    try:
        for collection in collections:
            path = results / LEDGER / _digest(baseline) / _digest(collection) / CHECKED_FILE
            if not path.exists():
                record = CheckedBaseline(baseline=baseline, collection=collection)
                with write_location(path) as file:
                    file.write(msgspec.json.format(msgspec.json.encode(record), indent=1))
    except (BenchError, OSError) as error:
        logger.warning("cannot record the collections of this check: %s", error)


def _digest(name: str) -> str:
    """Return a folder name for any ``name``: 16 hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode((name,))).hexdigest()[:16]
