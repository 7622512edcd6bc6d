"""``check --quick``: subsets of collections within a time, compared, and put into the ledger."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from bench.cli.commands.subset_plans import QuickCheck, SubsetPlan, limits, plan_subsets
from bench.cli.options.decide import CheckOptions
from bench.comparing.panels import Entry
from bench.evaluate.judging import score_run
from bench.evaluate.pipeline import Options
from bench.gate.check import (
    CANDIDATE,
    PairVerdict,
    StoredModel,
    Terms,
    first_look,
    with_texts,
)
from bench.gate.evidence import check_against
from bench.gate.quick import Look, Quick, complete, digest, relation, remember
from bench.gate.scope import Scope
from bench.gate.subset import Subset, choose, part_of
from bench.results.facts import recipe_facts
from bench.results.find import find_results
from bench.results.result import Protocol, Stored
from bench.workspace import LoadedModel, OpenDataset
from foundation.errors import BenchError
from foundation.failures import as_bad_input


def check_quickly(
    check: QuickCheck,
    name: str,
    others: Sequence[StoredModel],
    folders: Mapping[str, str],
    scope: Scope,
    terms: Terms,
) -> tuple[list[PairVerdict], Quick]:
    """Compare on subsets of the collections.

    Raises:
        BenchError: too few stored rankings, or a budget that is too small: before encoding.
    """
    if check.model.encoder is None:
        raise BenchError(f"{name} encodes nothing: a full check takes no longer")
    options = check.options
    wanted = [
        collection
        for collection in scope.weights
        if all(collection in other.results for other in others)
    ]
    plans = list(plan_subsets(check, wanted, folders, others))
    sizes = limits(plans, options.look.budget)
    subsets: list[Subset] = []
    entries: dict[str, dict[str, Entry]] = {CANDIDATE: {}}
    failed: dict[str, str] = {}
    for plan, limit in zip(plans, sizes, strict=True):
        subset, by_role = evaluate_subset(plan, limit, check, failed)
        subsets.append(subset)
        for role, entry in by_role.items():
            entries.setdefault(role, {})[plan.dataset.name] = entry
    queries = {plan.dataset.name: plan.dataset.queries for plan in plans}
    verdicts = [
        check_against(
            other.role,
            other.name,
            entries[CANDIDATE],
            entries.get(other.role, {}),
            {**failed, **scope.gaps(other)},
            scope.weights,
            terms,
        )
        for other in others
    ]
    _write_down(verdicts[0], name, check.model, plans, subsets, others[0], options)
    past = complete(options.results.results, lambda: find_results(options.results.results))
    quick = Quick(options.look.budget, tuple(subsets), tuple(past), relation(past))
    return [first_look(with_texts(verdict, queries)) for verdict in verdicts], quick


def evaluate_subset(
    plan: SubsetPlan, limit: int, check: QuickCheck, failed: dict[str, str]
) -> tuple[Subset, dict[str, Entry]]:
    """Evaluate on a subset of one collection: entries by role; why there are none in ``failed``."""
    subset, kept = choose(plan.pool, limit, check.options.resampling.seed)
    if subset.documents == subset.of:
        print(f"{subset.collection}: all of it fits; leave --quick out", file=sys.stderr)
    smaller = part_of(plan.dataset, kept, check.space.cache_dir)
    entries: dict[str, Entry] = {}
    try:
        options = Options(depth=plan.cutoff, measures=plan.names[1:])
        done = check.space.evaluate(OpenDataset(smaller, official=False), check.model, options)
    except Exception as error:
        problem = as_bad_input(error)
        if problem is None:
            raise
        failed[plan.dataset.name] = f"not evaluated: {problem}"
        return subset, entries
    entries[CANDIDATE] = Entry.computed(done)
    for role, stored in plan.others.items():
        entries[role] = _entry(stored, plan, done.result.protocol)
    return subset, entries


def _entry(stored: Stored, plan: SubsetPlan, protocol: Protocol) -> Entry:
    """A stored ranking, whose first documents are all in the plan."""
    run = stored.run()
    scores, _ = score_run(plan.dataset, run, plan.names, plan.cutoff)
    values = scores.query_ids, scores.values
    return Entry(
        protocol,
        plan.names[0],
        stored.result.in_domain,
        recipe_facts(stored.result),
        scores=lambda: values,
        run=lambda: run,
    )


def _write_down(
    verdict: PairVerdict,
    name: str,
    candidate: LoadedModel,
    plans: Sequence[SubsetPlan],
    subsets: Sequence[Subset],
    baseline: StoredModel,
    options: CheckOptions,
) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    compared = {row.name: (row.measure, row.paired) for row in verdict.rows if row.paired}
    looks = []
    for plan, subset in zip(plans, subsets, strict=True):
        collection = subset.collection
        if collection in compared:
            measure, paired = compared[collection]
            looks.append(
                Look(
                    time=now,
                    candidate=name,
                    baseline=baseline.name,
                    candidate_fingerprint=candidate.on(collection).model.recipe.fingerprint,
                    baseline_fingerprint=baseline.results[collection].result.fingerprint,
                    collection=collection,
                    protocol=digest(plan.protocol),
                    measure=measure,
                    documents=subset.documents,
                    of=subset.of,
                    seed=subset.seed,
                    difference=paired.difference,
                    low=paired.low,
                    high=paired.high,
                )
            )
    remember(options.results.results, looks)
