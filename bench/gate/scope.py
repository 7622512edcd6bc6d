"""Subject of a check: the candidate with its results, and the collections it is checked on.

A missing result must never narrow a check in silence. Without ``--on``, it is on every collection
that the baseline or the candidate has a result on, or that the baseline was checked on before.
Where one side has no result the outcome is MISSING, and says what asked for the collection. With
``--on`` it is on what was typed; what that leaves out is stated.

History of the format of what is remembered: 1, the first.
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from bench.evaluate.judging import mean_weights
from bench.evaluate.retrieval import EvaluationOptions, LoadedModel
from bench.gate.records import StoredModel
from bench.outcomes import MissingEvaluations
from bench.results.result import Evaluation, Protocol
from bench.results.reuse import check_stored_values, reuse_or_evaluate
from bench.workspace import Workspace
from datasets_cfg.readers import Queries
from foundation.errors import BenchError
from foundation.locations import Location, files_below, write_location
from foundation.records import Record, read_json

DIGITS = 8  # of a fingerprint in a name


@dataclass(frozen=True)
class Candidate:
    """A checkpoint with its results, by collection.

    Attributes:
        failures: why there is no result.
        queries: of the collections that were opened.
    """

    name: str
    results: Mapping[str, Evaluation]
    failures: Mapping[str, str] = field(default_factory=dict)
    queries: Mapping[str, Queries] = field(default_factory=dict)

    def is_in_domain(self, collection: str) -> bool:
        """True if it was trained on the collection."""
        return collection in self.results and self.results[collection].result.in_domain

    def text(self, collection: str, query_id: str) -> str:
        """Text of a query; "" if the collection is not at hand."""
        if collection not in self.queries:
            return ""
        queries = self.queries[collection]
        return dict(zip(queries.ids, queries.texts, strict=True)).get(query_id, "")


def candidate_name(model: LoadedModel, known: Sequence[Evaluation]) -> str:
    """The name that the candidate's results have.

    Its own, unless another recipe or other weights have results of that name: then the fingerprint
    is part of it, so that the name of a baseline never stands for two models.
    """
    named = [stored for stored in known if stored.result.model == model.name]
    if len(candidate_results(model, named)) == len(named):
        return model.name
    return f"{model.name}-{model.model.recipe.fingerprint[:DIGITS]}"


def explain_renaming(model: LoadedModel, name: str) -> str:
    """Say why the results have another name than the candidate; "" if they have its own."""
    if name == model.name:
        return ""
    return (
        f"The candidate is called {name} here, because other weights or settings have results "
        f"named {model.name}"
    )


def candidate_results(model: LoadedModel, known: Sequence[Evaluation]) -> list[Evaluation]:
    """Stored results of the candidate, under whatever name."""
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
    """Evaluate what is missing; a collection that fails is a gap, the others are still evaluated.

    Args:
        name: of the results, see `candidate_name`.
        collections: what opens each of them, and the protocol of what it is compared with, whose
            split and depth are used.
        known: stored results, among which the candidate's are looked for.
        out: where new results are kept.
        measures: None for those of each collection.
        others: that it is compared with, whose results must agree with themselves.
    """
    gaps = MissingEvaluations()
    stored: dict[str, Evaluation] = {}
    queries: dict[str, Queries] = {}
    own = [one for one in known if one.result.model in (name, model.name)]
    for collection, (opens, protocol) in collections.items():
        with gaps.catch(collection):
            opened = workspace.open(opens, (protocol.split or None) if protocol else None)
            options = EvaluationOptions(
                depth=protocol.depth if protocol else None, measures=measures
            )
            queries[collection] = opened.dataset.queries
            for other in others:
                if collection in other.results:
                    check_stored_values(other.results[collection], opened.dataset)
            job = workspace.prepare(opened, model.with_name(name), options, known=own)
            stored[collection] = reuse_or_evaluate(job, out)
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
    """A baseline, or an anchor, had a result on a collection when a candidate was checked.

    Attributes:
        baseline: as it was typed.
    """

    format: int = FORMAT
    baseline: str
    collection: str


class Scope(Record, kw_only=True):
    """The collections of a check.

    Attributes:
        weights: of the collections in the mean, in the order of the report.
        reasons: why a collection belongs to the check, where neither ``--on`` nor a result of the
            baseline says so.
        left_out: collections with results, or that the baseline was checked on before, which
            ``--on`` does not name.
    """

    weights: dict[str, float]
    reasons: dict[str, str] = {}
    left_out: tuple[str, ...] = ()

    def gaps(self, other: StoredModel) -> dict[str, str]:
        """Why a collection belongs to the check that another model has no result on."""
        return {
            name: f"{other.name} has no result, but {reason}"
            for name, reason in self.reasons.items()
            if name not in other.results
        }

    def hints(self, other: StoredModel) -> list[str]:
        """Say what to type where another model has no result."""
        models = [stored.result.model for stored in other.results.values()]
        if not (gaps := self.gaps(other)):
            return []
        command = f"python -m bench run {' '.join(gaps)} --model {models[0]}"
        return [f"evaluate the {other.role} ({command}), or name with --on what to check on"]


def determine_scope(
    typed: Sequence[str], baseline: Collection[str], further: Mapping[str, Iterable[str]]
) -> Scope:
    """The scope of a check.

    Args:
        typed: collections and suites of ``--on``; empty if it was not typed.
        baseline: collections on which the baseline has results.
        further: collections that belong to the check for another reason, by this reason.

    Raises:
        BenchError: there is no collection.
    """
    reasons: dict[str, str] = {}
    for reason, collections in further.items():
        for name in collections:
            if name not in baseline:
                reasons.setdefault(name, reason)
    known = (*sorted(baseline), *sorted(reasons))
    weights = mean_weights(typed or known)
    if not weights:
        raise BenchError("nothing to check on", "name collections or suites with --on")
    if not typed:
        return Scope(weights=weights, reasons=reasons)
    left_out = tuple(name for name in known if name not in weights)
    return Scope(weights=weights, left_out=left_out)


def previously_checked(results: Location, baseline: str) -> list[str]:
    """Collections that a baseline was checked on before; a damaged file is reported and skipped."""
    folder = results / LEDGER / _folder_name(baseline)
    names = set()
    for path in files_below(folder, CHECKED_FILE) if folder.is_dir() else ():
        try:
            record = read_json(path, CheckedBaseline)
        except BenchError as error:
            logger.warning("%s is left out: %s", path, error)
        else:
            names.add(record.collection if record.baseline == baseline else "")
    return sorted(names - {""})


def remember_checked(results: Location, baseline: str, collections: Iterable[str]) -> None:
    """Write down that a baseline has results on these collections and was checked there."""
    try:
        for collection in collections:
            path = (
                results / LEDGER / _folder_name(baseline) / _folder_name(collection) / CHECKED_FILE
            )
            if not path.exists():
                record = CheckedBaseline(baseline=baseline, collection=collection)
                with write_location(path) as file:
                    file.write(msgspec.json.format(msgspec.json.encode(record), indent=1))
    except (BenchError, OSError) as error:
        logger.warning("what the baseline was checked on cannot be remembered: %s", error)


def _folder_name(name: str) -> str:
    """A name of a folder for any name: 16 hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode((name,))).hexdigest()[:16]
