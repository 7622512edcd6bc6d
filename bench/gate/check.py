"""The use case ``check``: from names to scores, then from scores to a decision.

The candidate is evaluated (`bench.gate.candidate`), or Python already has its evaluations. Then
`bench.gate.decision.decide` compares it with the baseline.
"""

import math
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
from attrs import evolve

from bench.comparing.comparison import (
    check_scores_against_rankings,
    find_comparison_holes,
    find_run_file,
    model_of,
    open_evaluated_dataset,
    score_run_file,
    tested_pairs,
    try_open_evaluated,
)
from bench.comparing.pairs import (
    ComparedModel,
    ComparisonSettings,
    compare_models,
    differing_recipes,
    read_scores,
)
from bench.comparing.settling import Holes
from bench.comparing.slices import Grouping, Slicing, find_groups, find_slices, read_slices
from bench.comparing.statistics import SAME_SCORE, Resampling, ScorePair, detectable_effect
from bench.evaluation.judging import mean_weights
from bench.evaluation.result_record import Evaluation, Protocol
from bench.evaluation.retriever import EvaluationOptions, Retriever
from bench.evaluation.scoring import parse_measure
from bench.gate.candidate import (
    PUBLISHED,
    Candidate,
    candidate_name,
    check_protocol,
    check_published,
    evaluate_candidate,
    evaluate_unnamed,
    is_unnamed,
)
from bench.gate.check_record import Check, LostQuery
from bench.gate.decision import decide, decide_slices, draw_means, upper_bound
from bench.gate.server import check_server
from bench.gate.stack import check_stack
from bench.requests.deciding import (
    CheckRequest,
    GateSettings,
    ScoreCheckRequest,
    ServerCheckRequest,
    StackCheckRequest,
)
from bench.requests.fields import SystemFields, typed_options
from bench.requests.outcomes import RecordedWarnings
from bench.result_store.find import choose_results, find_named
from bench.runner.workspace import Workspace, load_models, open_workspace
from datasets_cfg.catalogue import dataset_names
from datasets_cfg.dataset import name_of_user
from datasets_cfg.download import folder_of_table
from foundation.errors import BenchError, UnavailableError, format_names
from retrievers.models.card import ExpectedScore, all_cards
from retrievers.models.names import is_card, is_url

CANDIDATE = "the candidate"  # its name in messages, which the baseline may share
SUSPICIOUS_GAIN = 0.1  # gain on a collection that hardly any new model brings
WORST_SHOWN = 3  # queries that lost most
DEVIATION = 0.2  # of the differences of different checkpoints; siblings have .1, other models .5


@dataclass(frozen=True)
class Scope:
    """Baseline and collections of a check, with their weights in the mean.

    ``opened_by`` has the name or folder that opens each collection, by the name in its results, and
    ``groups`` the group of each query for collections whose groups are tested.
    """

    workspace: Workspace
    baseline: ComparedModel
    weights: Mapping[str, float]
    left_out: tuple[str, ...]
    opened_by: Mapping[str, str]
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def count_queries(self) -> dict[str, int]:
        """Return the number of independent queries of the baseline's results, by collection."""
        return {
            name: len(set(self.groups[name].values()))
            if name in self.groups
            else one.record.queries
            for name, one in self.baseline.results.items()
        }

    def protocols(self) -> dict[str, Protocol | None]:
        """Return the protocol of the baseline, if it has a result, by what opens a collection."""
        return {self.opened_by[name]: self.baseline.protocol(name) for name in self.weights}


def check(request: CheckRequest) -> Check:
    """Check scores, a server (with ``served``) or another environment (with ``stack``).

    Raises:
        BenchError: wrong input, another protocol, or too few resamples.
    """
    if request.served:
        if request.candidate:
            raise BenchError("CANDIDATE has no effect with --served", "Leave CANDIDATE out.")
        request.require_fields_of(ServerCheckRequest, "with --served")
        return check_server(request)
    if request.stack:
        request.require_fields_of(StackCheckRequest, "with --stack")
        return check_stack(request, request.stack)
    request.require_fields_of(ScoreCheckRequest, "without --served")
    return check_scores(request)


def check_scores(request: ScoreCheckRequest) -> Check:
    """Evaluate a candidate where needed, and compare its scores with the baseline's."""
    _refuse_contradictions(request)
    measure = request.measure and parse_measure(request.measure).name
    resampling = Resampling(request.resamples, request.seed)
    comparing = ComparisonSettings(measure, resampling=resampling)
    with RecordedWarnings() as recorded:
        workspace = open_workspace(request)
        if is_unnamed(request.baseline):
            request = evolve(request, baseline=_evaluate_baseline(request, workspace))
        options = typed_options(request.values_of(SystemFields))
        settings_of_models = [*request.typed_settings(), *options]
        run_file = find_run_file(request.candidate, settings_of_models)
        scored = () if run_file else _find_scored(request)
        model = None
        if isinstance(request.candidate, str | Path) and not (run_file or scored):
            model = _load_candidate(request, measure, workspace)
        claims = model.card.expected if model else ()
        scope = _find_scope(request, workspace, claims)
        grouping, slicing = _split_queries(request, scope)
        scope = replace(scope, groups=grouping.groups)
        comparing = replace(comparing, groups=grouping.groups)
        if run_file:
            request = evolve(request, candidate=_score_run_file(run_file, measure, scope))
        elif model is None and is_unnamed(request.candidate):
            evaluated = evaluate_unnamed(request.candidate, request, scope.protocols())
            request = evolve(request, candidate=evaluated)
        elif scored:
            chosen = _choose_scored(str(request.candidate), scored, scope)
            request = evolve(request, candidate=chosen)
        candidate = _find_candidate(request, measure, model, scope)
        done = (
            check_published(candidate, claims, scope.weights)
            if scope.baseline.name == PUBLISHED
            else check_against(
                candidate, scope.baseline, scope.weights, request, comparing, slicing
            )
        )
    warnings = [*_hints_for_gaps(scope), *recorded.texts, *_preflight_warnings(candidate)]
    holes: Iterable[Holes] = ()
    if not request.expect_same:
        told = slicing.warnings if slicing else ()
        warnings = [*_warnings(done), *grouping.warnings, *told, *warnings]
        holes = _find_holes(candidate, done, scope, comparing)
    return msgspec.structs.replace(
        done,
        warnings=tuple(dict.fromkeys(warnings)),
        left_out=scope.left_out,
        renamed=candidate.renamed,
        explain=_explain_command(done, model, scope, request) if model else "",
        holes=tuple(map(str, holes)),
    )


def _refuse_contradictions(request: ScoreCheckRequest) -> None:
    """Raise if a side is missing, or options exclude each other."""
    if not (request.candidate and request.baseline):
        missing = "--baseline" if request.candidate else "CANDIDATE"
        usage = "Run `python -m bench check CANDIDATE --baseline BASELINE [OPTIONS]`."
        raise BenchError(f"check needs {missing}", usage)
    if request.baseline == PUBLISHED and not request.expect_same:
        raise BenchError(
            "published scores have no per-query scores, so they cannot be tested",
            "Add --expect-same to check that this is the published checkpoint.",
        )
    for name, many in (("group", "groups"), ("by", "slices")):
        if getattr(request, name) and request.expect_same:
            raise BenchError(f"--expect-same compares queries, not {many}", f"Leave out --{name}.")


def _evaluate_baseline(request: ScoreCheckRequest, workspace: Workspace) -> list[Evaluation]:
    """Evaluate a baseline that has no stored name."""
    if not request.on:
        problem = "the collections of this baseline, which has no stored name, are unknown"
        raise BenchError(problem, "Name them with --on.")
    names = dict.fromkeys(workspace.expand_names(request.on))
    return evaluate_unnamed(request.baseline, request, names)


def _load_candidate(
    request: ScoreCheckRequest, measure: str | None, workspace: Workspace
) -> Retriever:
    """Load the candidate with its options."""
    (model,) = load_models(workspace, (request.candidate,), request)
    measures = (measure,) if measure else None
    options = EvaluationOptions(measures=measures, **request.values_of(SystemFields))
    return model.configured(options, workspace.resources)


def _split_queries(request: ScoreCheckRequest, scope: Scope) -> tuple[Grouping, Slicing | None]:
    """Find groups and slices in the collections of the baseline's results."""
    if request.expect_same:
        return Grouping({}, ()), None
    stored = scope.baseline.results
    opened = {
        n: try_open_evaluated(stored[n], scope.workspace) for n in scope.weights if n in stored
    }
    slicing = find_slices(request.by, opened) if request.by else None
    return find_groups(request.group, opened), slicing


def _find_scored(request: ScoreCheckRequest) -> Sequence[Evaluation]:
    """Return the results of a candidate that names results of `score`, which have no recipe."""
    name = request.candidate
    if not isinstance(name, str | Path) or is_card(str(name)) or is_url(str(name)):
        return ()
    try:
        found = find_named(str(name), request.results)
    except BenchError:  # a checkpoint, or a name that is unknown
        return ()
    if any(one.record.recipe for one in found):
        return ()
    if ignored := request.typed_settings():
        problem = f"{shlex.join(ignored)} has no effect on the scored run {name}"
        raise BenchError(problem, "Leave it out.")
    return found


def _choose_scored(name: str, scored: Sequence[Evaluation], scope: Scope) -> list[Evaluation]:
    """Return one result of a scored run for each collection of the check that it has."""
    chosen = choose_results(name, scored, scope.weights)
    if not chosen:
        problem = f"{name} has no result on {format_names([*scope.weights])}"
        hint = "Score it there with `python -m bench score RUN --dataset COLLECTION`."
        raise BenchError(problem, hint)
    return list(chosen.values())


def _score_run_file(path: Path, measure: str | None, scope: Scope) -> Evaluation:
    """Score a candidate's run file under the protocol of the baseline."""
    if len(scope.weights) > 1:
        others = f"the baseline has results on {format_names([*scope.weights])}"
        raise BenchError(f"{path} is a run of one collection, and {others}", "Name it with --on.")
    (name,) = scope.weights
    protocol = scope.baseline.protocol(name)
    split, depth = (protocol.split, protocol.depth) if protocol else ("", None)
    opened = scope.workspace.open(scope.opened_by[name], split or None, with_corpus=False)
    return score_run_file(path, opened, measure, depth)


def _find_scope(
    request: ScoreCheckRequest, workspace: Workspace, claims: Sequence[ExpectedScore]
) -> Scope:
    """Find the results of the baseline, one per collection, and the collections.

    With ``on``, results on other collections do not make a name ambiguous.
    """
    found: Sequence[Evaluation]
    if isinstance(request.baseline, str | Path):
        name = str(request.baseline)
        found = [] if name == PUBLISHED else find_named(name, request.results)
    else:
        given = model_of(request.baseline)
        name, found = given.name, list(given.results.values())
    own = {c.dataset for c in claims} if name == PUBLISHED else {one.dataset for one in found}
    on = [word if word in own else folder_of_table(word) for word in request.on]
    folders = _own_folders([word for word in on if word not in own], workspace)
    names = {folder: collection for collection, folder in folders.items()}
    weights = mean_weights([names.get(word, word) for word in on] or sorted(own))
    if not weights:
        raise BenchError("there are no collections to check on", "Name them with --on.")
    chosen = choose_results(name, found, weights if on else None)
    left_out = tuple(sorted(own - weights.keys()))
    opened_by = {n: folders.get(n) or _find_folder(n, chosen, workspace) for n in weights}
    return Scope(workspace, ComparedModel(name, chosen), weights, left_out, opened_by)


def _own_folders(typed: Sequence[str], workspace: Workspace) -> dict[str, str]:
    """Return the typed folder of each collection of the user, by the name in its results."""
    named = workspace.expand_names(typed)
    folders: dict[str, str] = {}
    for word in named:
        if name := name_of_user(word, workspace.data_dir):
            other = folders.get(name, name if name in named else word)
            if other != word:
                raise BenchError(
                    f"{other} and {word} are both named {name}, the name of their results",
                    f'Write name = "another" into the dataset.toml of {word}',
                )
            folders[name] = word
    return folders


def _find_folder(name: str, results: Mapping[str, Evaluation], workspace: Workspace) -> str:
    """Return the folder with the content of a collection's result, or else the name."""
    if name in results and name not in dataset_names():
        with suppress(UnavailableError):
            dataset = open_evaluated_dataset(results[name].record.protocol, workspace)
            if dataset.name == name:  # else another of its content
                return str(dataset.reader.folder)
    return name


def _find_candidate(
    request: ScoreCheckRequest, measure: str | None, model: Retriever | None, scope: Scope
) -> Candidate:
    """Evaluate the candidate, or take the evaluations that Python already has."""
    if model is None:
        given = model_of(request.candidate)
        every = [*scope.baseline.results.values(), *given.results.values()]
        stored = [one for one in every if one.folder]
        check_scores_against_rankings(stored, scope.workspace)
        return Candidate(given.name, given.results)
    name = candidate_name(model, request.results)
    announce(name, scope, request.expect_same, measure)
    # Without a result of the baseline, the verdict is MISSING in any case.
    decisive = scope.weights if scope.baseline.name == PUBLISHED else scope.baseline.results
    opens = {n: opens for n, opens in scope.opened_by.items() if n in decisive}
    sides = (model, name, scope.baseline)
    return evaluate_candidate(scope.workspace, *sides, opens, request.results)


def announce(candidate: str, scope: Scope, expect_same: bool, measure: str | None) -> None:
    """Print models and collections, and what the queries can show, before hours of encoding."""
    baseline, collections = scope.baseline.name, ", ".join(scope.weights)
    print(f"{candidate} against the baseline, {baseline}, on {collections}", file=sys.stderr)
    sizes = scope.count_queries()
    if expect_same or not sizes.keys() >= scope.weights.keys():
        return
    measures = {scope.baseline.results[name].record.main_measure for name in scope.weights}
    if measure is None and len(measures) > 1:  # each collection is tested on its own
        effects = [expected_effects(sizes, {name: 1.0}) for name in scope.weights]
        detectable, provable = (max(figures) for figures in zip(*effects, strict=True))
        what = "on each collection a loss"
        print(describe_mixed_measures(sorted(measures)), file=sys.stderr)
    else:
        detectable, provable = expected_effects(sizes, scope.weights)
        what = "a mean loss"
    print(
        f"{sum(sizes[name] for name in scope.weights):,} queries: if scores differ with a "
        f"standard deviation of {DEVIATION}, {what} of {detectable:.4f} is found with "
        f"80 % power. No margin below {provable:.4f} can be passed, even if no score changes",
        file=sys.stderr,
    )


def describe_mixed_measures(measures: Sequence[str]) -> str:
    """Return why there is no mean if the main ``measures`` of collections differ."""
    chosen = "nDCG@10" if "nDCG@10" in measures else measures[0]
    return (
        f"the main measures differ ({', '.join(measures)}), so there is no mean, and the margin "
        f"must hold on each collection. Add --measure {chosen} to decide by the mean of one measure"
    )


def expected_effects(sizes: Mapping[str, int], weights: Mapping[str, float]) -> tuple[float, float]:
    """Return the mean loss that is found with 80 % power, and the smallest margin to pass.

    ``sizes`` are numbers of queries, or of groups. The first figure assumes differences with a
    standard deviation of `DEVIATION`, the second none.
    """
    errors = [weight * DEVIATION / math.sqrt(sizes[name]) for name, weight in weights.items()]
    total = sum(sizes[name] for name in weights)
    ordered = sorted(weights, key=lambda name: (sizes[name], weights[name]))
    unchanged = [draw_means(np.zeros(sizes[name])) for name in ordered]
    detectable = detectable_effect(math.hypot(*errors), max(1, total - len(weights)))
    return detectable, upper_bound(unchanged, [weights[name] for name in ordered])


def check_against(
    candidate: Candidate,
    baseline: ComparedModel,
    weights: Mapping[str, float],
    settings: GateSettings,
    comparing: ComparisonSettings,
    slicing: Slicing | None = None,
) -> Check:
    """Compare the candidate with stored results of the same protocol and decide."""
    ours, theirs = candidate.results, baseline.results
    gaps = {name: "no result" for name in weights if name not in ours}
    gaps |= {name: f"{baseline.name} has no result" for name in weights if name not in theirs}
    gaps |= {name: why for name, why in candidate.failures.items() if name in weights}
    models = (ComparedModel(CANDIDATE, ours), baseline)
    pairs = list[ScorePair]()
    for name in (name for name in weights if name not in gaps):
        check_protocol(name, ours[name].record.protocol, baseline)
        matrix = read_scores(name, models, comparing)
        if matrix.gaps:
            gaps[name] = ", ".join(f"{who}: {why}" for who, why in matrix.gaps.items())
        else:
            pairs.append(matrix.pair(*(model.name for model in models)))
    compared = [pair.on for pair in pairs]
    decision = decide(pairs, weights, settings, comparing.resampling, gaps)
    if slicing and pairs:
        named = {name: labels for name, labels in slicing.labels.items() if name in compared}
        sliced = read_slices(models, comparing, replace(slicing, labels=named))
        decision = decide_slices(decision, *sliced, settings, comparing.resampling)
    rows = [
        msgspec.structs.replace(
            row,
            in_domain_a=candidate.is_in_domain(row.on),
            in_domain_b=row.on in theirs and theirs[row.on].record.in_domain,
        )
        for row in decision.rows
    ]
    same = settings.expect_same
    decision = msgspec.structs.replace(decision, rows=tuple(rows))
    return Check(
        **msgspec.structs.asdict(decision),
        candidate=candidate.name,
        baseline=baseline.name,
        margin=None if same else settings.margin,
        floor=None if same else settings.floor,
        tolerance=settings.tolerance if same else None,
        worst=_worst_queries(pairs, candidate),
        recipes=differing_recipes(models[::-1], compared),
        same_model=bool(pairs) and all(_is_same_model(ours[n], theirs[n]) for n in compared),
        by=slicing.field if slicing else "",
    )


def _find_holes(
    candidate: Candidate, done: Check, scope: Scope, comparing: ComparisonSettings
) -> Iterable[Holes]:
    """Return what unjudged documents can change, for each collection shared with the baseline."""
    shared = [row.on for row in done.rows if row.paired and row.on not in scope.groups]
    if not shared:
        return ()
    label = CANDIDATE if candidate.name == scope.baseline.name else candidate.name
    models = [ComparedModel(label, candidate.results), scope.baseline]
    comparisons = compare_models(models, replace(comparing, collections=shared))
    return find_comparison_holes(tested_pairs(comparisons, models), False, scope.workspace)


def _is_same_model(a: Evaluation, b: Evaluation) -> bool:
    """Return True for one recipe with the same files and index."""
    first, second = a.record, b.record
    same = (first.fingerprint, first.index) == (second.fingerprint, second.index)
    return same and bool(first.recipe and first.recipe.files)


def _worst_queries(pairs: Sequence[ScorePair], candidate: Candidate) -> tuple[LostQuery, ...]:
    """Return the queries that lost most over all collections, ties sorted by name."""
    lost = []
    for pair in pairs:
        for row in np.argsort(pair.differences, kind="stable")[:WORST_SHOWN]:
            new, old = float(pair.a[row]), float(pair.b[row])
            lost.append(LostQuery(pair.on, pair.queries[row], candidate=new, baseline=old))
    lost = [query for query in lost if query.baseline - query.candidate > SAME_SCORE]
    worst = sorted(lost, key=lambda query: query.candidate - query.baseline)[:WORST_SHOWN]
    return tuple(
        msgspec.structs.replace(query, text=candidate.text(query.collection, query.query_id))
        for query in worst
    )


def _warnings(done: Check) -> Iterator[str]:
    """Yield warnings about the evidence."""
    measures = sorted({row.measure for row in done.rows if row.measure})
    if len(measures) > 1:
        yield describe_mixed_measures(measures)
    ours, other = f"the candidate, {done.candidate},", f"the baseline, {done.baseline},"
    if done.same_model:
        yield (
            f"{done.candidate} and {other} are the same model: settings and files are equal. "
            "To check that nothing changed, use --expect-same"
        )
    for who, names in (
        (ours, [row.on for row in done.rows if row.in_domain_a]),
        (other, [row.on for row in done.rows if row.in_domain_b]),
    ):
        if names:
            yield (
                f"{who} was trained on {', '.join(names)}, so the difference there says little "
                "about other collections"
            )
    for row in done.rows:
        if row.difference is not None and row.difference > SUSPICIOUS_GAIN:
            yield (
                f"{row.on}: a gain of {row.difference:.4f} is suspiciously large; look for test "
                "queries in the training data (python -m bench verify)"
            )


def _preflight_warnings(candidate: Candidate) -> Iterator[str]:
    """Yield the warnings about the candidate's vectors on each collection."""
    for name, entry in candidate.results.items():
        yield from (f"{name}: {text}" for text in entry.record.preflight.get("warnings", ()))


def _hints_for_gaps(scope: Scope) -> Iterator[str]:
    """Yield the command to type if the baseline lacks results."""
    baseline = scope.baseline
    gaps = [scope.opened_by[n] for n in scope.weights if n not in baseline.results]
    if gaps and baseline.name != PUBLISHED:
        models = [one.record.model for one in baseline.results.values()] or [baseline.name]
        command = shlex.join(["python", "-m", "bench", "run", *gaps, "--model", models[0]])
        yield f"Run `{command}`, or name the collections to check with --on."


def _explain_command(
    done: Check, model: Retriever, scope: Scope, request: ScoreCheckRequest
) -> str:
    """Return the command that looks for the cause of the difference, or "" if there is none.

    Only transformers have settings to vary. Of the collections that decided, the command uses the
    one with the largest difference.
    """
    if done.outcome in ("OK", "MISSING") or not model.recipe.traits.is_network:
        return ""
    row = max(done.rows, key=lambda row: (bool(row.failure), abs(row.difference or 0)))
    settings, on = request.typed_settings(), scope.opened_by[row.on]
    models = [str(request.candidate)]
    if scope.baseline.name == PUBLISHED:
        failed = [one for one in done.rows if one.failure and one.on == row.on]
        evidence = [f"--published={one.measure}={one.mean_b}" for one in failed]
    else:
        baseline = scope.baseline.results[row.on].record
        unchanged = row.paired and not row.paired.changed
        if unchanged or baseline.recipe is None or not baseline.recipe.traits.is_network:
            return ""
        known = baseline.model in all_cards()
        models.insert(0, baseline.model if known else f"path/to/{baseline.model}")
        if request.adapter or "--set" in settings:
            models.reverse()  # only the first model can have these
        evidence = ["--checkpoint", models[1]]
    words = ["python", "-m", "bench", "explain", models[0], "--on", on, *evidence, *settings]
    return shlex.join(words)
