"""Decision whether a candidate may be released: from names to scores, then to a verdict."""

import shlex
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from attrs import evolve

from bench.comparing.changed_queries import open_evaluated_dataset
from bench.comparing.comparison import model_of
from bench.comparing.pairs import ComparisonSettings
from bench.comparing.statistics import Resampling
from bench.evaluation.collection_search import LoadedModel
from bench.evaluation.judging import mean_weights
from bench.evaluation.scoring import parse_measure
from bench.explain.question import Question
from bench.gate.check_record import ANCHOR, BASELINE, Check, StoredModel
from bench.gate.paired_tests import check_against, check_published, find_losses_elsewhere
from bench.gate.power import DetectableEffect, detectable_effects, relation_between
from bench.gate.scope import (
    Candidate,
    Scope,
    candidate_name,
    candidate_results,
    determine_scope,
    evaluate_candidate,
    explain_renaming,
    previously_checked,
    remember_checked,
)
from bench.gate.served import check_server
from bench.gate.verdicts import conclude_check
from bench.outcomes import RecordedWarnings
from bench.requests.deciding import CheckRequest
from bench.requests.fields import CARD_SETTINGS, ModelFields
from bench.result_store.find import choose_results, find_named, find_results
from bench.result_store.result import Evaluation, Protocol
from bench.runner.workspace import Workspace, load_models, open_endpoint, open_workspace
from datasets_cfg.catalogue import dataset_names, user_folder
from datasets_cfg.dataset import name_in_results
from foundation.errors import BenchError
from foundation.locations import Location
from retrievers.models.card import all_cards

PUBLISHED = "published"


class CheckProgress:
    """Receiver of what is known before a check encodes. This one ignores it."""

    def start(self, name: str, others: Sequence[StoredModel], scope: Scope) -> None:
        """Begin to check the candidate ``name`` against ``others``."""

    def expect(self, effects: Sequence[DetectableEffect]) -> None:
        """State the effects that the collections can detect."""


def check(request: CheckRequest, progress: CheckProgress | None = None) -> Check:
    """Evaluate a candidate and compare it, or compare a server with its checkpoint.

    Raises:
        BenchError: wrong input, or too few resamples.
    """
    if request.served:
        return _check_server(request)
    if not (isinstance(request.candidate, str) and isinstance(request.baseline, str)):
        return _decide(request)
    with RecordedWarnings() as recorded:
        return _compare_and_decide(request, recorded, progress or CheckProgress())


def _decide(request: CheckRequest) -> Check:
    """Decide between results that Python already has."""
    new, old = model_of(request.candidate), model_of(request.baseline)
    weights = mean_weights(request.on or dict.fromkeys([*old.results, *new.results]))
    comparing = ComparisonSettings(
        request.measure, resampling=Resampling(request.resamples, request.seed)
    )
    if not request.expect_same:
        comparing.resampling.check_enough(len(weights), sides=2)
    stored = StoredModel(BASELINE, old.name, old.results)
    model = Candidate(new.name, new.results)
    verdict = check_against(model, stored, Scope(weights=weights), request.settings, comparing)
    return conclude_check(new.name, [verdict], (), request.settings)


def _check_server(request: CheckRequest) -> Check:
    """Compare the vectors of a server with those of its checkpoint."""
    if not request.against or request.candidate or len(request.on) > 1:
        raise BenchError(
            "--served needs --against, at most one collection, and no candidate",
            "python -m bench check --served URL --against CHECKPOINT --on COLLECTION",
        )
    workspace = open_workspace(request)
    # Both describe the server; the checkpoint is loaded as its card says.
    use = evolve(request, dtype=None, endpoint_model=None)
    (model,) = load_models(workspace, (request.against,), use)
    dataset = workspace.dataset((request.on or ("stdlib-code",))[0])  # on every machine
    question = Question(model, [dataset], workspace.dataset, workspace.device)
    encoder = open_endpoint(request.served, request.endpoint_model, model)
    stated = request.dtype or model.model.recipe.precision
    return check_server(question, encoder, stated)


def _compare_and_decide(
    request: CheckRequest, recorded: RecordedWarnings, progress: CheckProgress
) -> Check:
    """Evaluate, compare with the baseline and the anchor, and conclude."""
    if not (request.candidate and request.baseline):
        missing = "--baseline" if request.candidate else "CHECKPOINT"
        usage = "python -m bench check CHECKPOINT --baseline BASELINE [OPTIONS]"
        raise BenchError(f"check needs {missing}", usage)
    _check_published(request)
    measure = None if request.measure is None else parse_measure(request.measure).name
    comparing = ComparisonSettings(measure, resampling=Resampling(request.resamples, request.seed))
    workspace = open_workspace(request)
    (model,) = load_models(workspace, (request.candidate,), request)
    folders = _own_folders(request.on, workspace)
    by_folder = {folder: name for name, folder in folders.items()}
    typed = [by_folder.get(word, word) for word in request.on]
    others = _find_references(request, typed)
    known = find_results(request.results)
    scope = _find_scope(model, others, known, typed, request.results)
    if not request.settings.expect_same:
        comparing.resampling.check_enough(len(scope.weights), sides=2)
    name = candidate_name(model, known)
    progress.start(name, others, scope)
    effects = _detectable_effects(model, others[0], known, scope, comparing, request)
    progress.expect(effects)
    candidate = evaluate_candidate(
        workspace,
        model,
        name,
        _find_collections(others, scope, folders, workspace),
        known,
        request.results,
        None if measure is None else (measure,),
        others,
    )
    stored = candidate_results(model, known)
    against = []
    for other in others:
        if other.name == PUBLISHED:
            verdict = check_published(candidate, model.model.card.expected, scope.weights)
        else:
            foreseen = effects if other.role == BASELINE else ()
            verdict = check_against(candidate, other, scope, request.settings, comparing, foreseen)
        lost = find_losses_elsewhere(stored, other, scope.left_out, request.settings, comparing)
        against.append(msgspec.structs.replace(verdict, elsewhere=lost))
    for other in others:
        checked = other.results.keys() & scope.weights.keys()
        remember_checked(request.results, other.name, checked)
    hints = [hint for other in others for hint in scope.hints(other)]
    done = conclude_check(
        *(name, against, effects, request.settings),
        left_out=scope.left_out,
        renamed=explain_renaming(model, name),
        hints=hints,
    )
    vector_warnings = [
        f"{name}: {warning}"
        for name, entry in candidate.results.items()
        for warning in entry.result.preflight.get("warnings", ())
    ]
    warnings = dict.fromkeys((*done.warnings, *recorded.texts, *vector_warnings))
    explain = _format_explain_command(done, others, model, folders, request)
    return msgspec.structs.replace(done, warnings=tuple(warnings), explain=explain)


def _format_explain_command(
    done: Check,
    others: Sequence[StoredModel],
    model: LoadedModel,
    folders: Mapping[str, str],
    request: CheckRequest,
) -> str:
    """Return the command that looks for the cause of a loss or drift, or "" if there is none.

    Only transformers have settings to vary. Of the collections that decided, the command uses the
    one with the largest difference.
    """
    if done.outcome not in ("REGRESSION", "DRIFT") or model.model.recipe.kind != "transformer":
        return ""
    verdict, other = next(
        pair for pair in zip(done.against, others, strict=True) if pair[0].outcome == done.outcome
    )
    row = max(verdict.rows, key=lambda row: (bool(row.failure), abs(row.difference or 0)))
    words = ["--on", folders.get(row.name, row.name)]
    if other.name == PUBLISHED:
        failed = [one for one in verdict.rows if one.failure and one.name == row.name]
        words += [f"--published={one.measure}={one.baseline}" for one in failed]
        return _format_explain(request.candidate, words, request)
    baseline = other.results[row.name].result
    if baseline.recipe is None or baseline.recipe.kind != "transformer":
        return ""
    reference = baseline.model if baseline.model in all_cards() else f"path/to/{baseline.model}"
    pair = [reference, request.candidate]
    if request.adapter or _card_settings(request):
        pair.reverse()  # only the first model can have these
    return _format_explain(pair[0], [*words, "--checkpoint", pair[1]], request)


def _card_settings(use: ModelFields) -> list[str]:
    """Return the settings of the card that are overridden, as ``--set`` takes them."""
    default = ModelFields()
    names = [name for name in CARD_SETTINGS if getattr(use, name) != getattr(default, name)]
    return [f"{name}={getattr(use, name)}" for name in names]


def _format_explain(model: str, words: Sequence[str], use: ModelFields) -> str:
    """Return an ``explain`` command for ``model``, with ``words`` and the model options ``use``."""
    typed = {"--like": use.like, "--adapter": use.adapter, "--dtype": use.dtype}
    words = [*words, *(word for name, value in typed.items() if value for word in (name, value))]
    words += [word for pair in _card_settings(use) for word in ("--set", pair)]
    return shlex.join(["python", "-m", "bench", "explain", model, *words])


def _check_published(request: CheckRequest) -> None:
    """Raise if published scores are given where per-query scores are needed."""
    if request.baseline == PUBLISHED and not request.settings.expect_same:
        raise BenchError(
            "published scores have no per-query scores, so they cannot be tested",
            "add --expect-same to check that this is the published checkpoint",
        )
    if request.anchor == PUBLISHED:
        raise BenchError(
            "published scores have no per-query scores, so they cannot be an anchor",
            "give --anchor the name of stored results, or use --baseline published",
        )


def _own_folders(typed: Sequence[str], workspace: Workspace) -> dict[str, str]:
    """Return the typed folder of each collection of the user, by the name in its results."""
    named = workspace.expand_names(typed)
    folders: dict[str, str] = {}
    for word in named:
        if folder := user_folder(word, workspace.data_dir):
            name = name_in_results(folder)
            other = folders.get(name, name if name in named else word)
            if other != word:
                raise BenchError(
                    f"{other} and {word} are both named {name}, the name of their results",
                    f'write name = "another" into the dataset.toml of {word}',
                )
            folders[name] = word
    return folders


def _find_references(request: CheckRequest, typed: Sequence[str]) -> list[StoredModel]:
    """Find the results of the baseline and of the anchor, one per collection.

    With ``--on``, results on other collections do not make a name ambiguous.
    """
    on = mean_weights(typed) if typed else None
    others = []
    for role, name in ((BASELINE, request.baseline), (ANCHOR, request.anchor)):
        if name:
            found = [] if name == PUBLISHED else find_named(name, request.results)
            chosen = choose_results(name, found, on)
            others.append(StoredModel(role, name, chosen, found))
    return others


def _find_scope(
    model: LoadedModel,
    others: Sequence[StoredModel],
    known: Sequence[Evaluation],
    typed: Sequence[str],
    results: Location,
) -> Scope:
    """Determine the collections of the check, see `determine_scope`."""
    baseline, *anchors = others
    if baseline.name == PUBLISHED:
        claimed = dict.fromkeys(claim.dataset for claim in model.model.card.expected)
        return determine_scope(typed, claimed, {})
    further: dict[str, Iterable[str]] = {
        f"the {other.role} was checked there before": previously_checked(results, other.name)
        for other in others
    }
    further["the candidate has one"] = [one.collection for one in candidate_results(model, known)]
    further |= {f"the {other.role} has one": other.collections for other in anchors}
    return determine_scope(typed, baseline.collections, further)


def _detectable_effects(
    model: LoadedModel,
    baseline: StoredModel,
    known: Sequence[Evaluation],
    scope: Scope,
    comparing: ComparisonSettings,
    request: CheckRequest,
) -> tuple[DetectableEffect, ...]:
    """Compute the effects that these collections can detect, before hours of encoding."""
    if not baseline.results or request.settings.expect_same:
        return ()
    first = next(iter(baseline.results.values())).result
    kind = relation_between(msgspec.structs.replace(first, recipe=model.model.recipe), first)
    stated = (scope.weights, comparing.measure, request.settings.floor)
    return detectable_effects(kind, baseline.results, known, *stated)


def _find_collections(
    others: Sequence[StoredModel], scope: Scope, folders: Mapping[str, str], workspace: Workspace
) -> dict[str, tuple[str, Protocol | None]]:
    """Return the name or folder that opens each collection, with the protocol of the reference.

    A collection without a reference result is left out: its verdict is MISSING in any case.
    Folders that were not typed are found by the content of the results.
    """
    found: dict[str, tuple[str, Protocol | None]] = {}
    for name in scope.weights:
        stored = [other.results[name] for other in others if name in other.results]
        protocols = [one.result.protocol for one in stored]
        if stored or any(other.name == PUBLISHED for other in others):
            found[name] = folders.get(name, name), protocols[0] if protocols else None
        for protocol in protocols if name not in {*folders, *dataset_names()} else ():
            dataset = open_evaluated_dataset(protocol, workspace)
            if not isinstance(dataset, str) and dataset.name == name:  # else another of its content
                found[name] = str(dataset.reader.folder), protocols[0]
    return found
