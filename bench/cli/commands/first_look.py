"""``check --quick``: parts of collections within a time, compared, and written into the ledger."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.cli.commands.common import Contender
from bench.cli.commands.look_parts import Looker, Other, Part, limits, parts_of
from bench.cli.commands.opening import pipeline_options
from bench.compare.panels import Entry
from bench.compare.statistics import Paired
from bench.evaluate.judging import score_run
from bench.gate.check import Against, Row, Terms, first_look
from bench.gate.evidence import check_against
from bench.gate.quick import Look, Quick, complete, digest, relation, remember
from bench.gate.subset import Subset, choose, part_of
from bench.monitor.collections import Opened
from bench.monitor.evaluating import evaluated
from bench.results.find import Stored, find_results, recipe_facts
from bench.results.record import Protocol
from bench.store import VectorStore
from foundation.errors import BenchError
from foundation.failures import as_bad_input


def look(
    contender: Contender,
    name: str,
    others: Sequence[Other],
    folders: Mapping[str, str],
    weights: Mapping[str, float],
    terms: Terms,
    options: argparse.Namespace,
    cache_dir: Path,
) -> tuple[list[Against], Quick]:
    """Compare on parts of the collections.

    Raises:
        BenchError: too few stored rankings, or a budget that is too small: before encoding.
    """
    if contender.encoder is None:
        raise BenchError(f"{name} encodes nothing: a full check takes no longer")
    store = VectorStore(cache_dir / "vectors")
    looker = Looker(contender, contender.encoder, options, cache_dir, store)
    wanted = [one for one in weights if all(one in stored for _, _, stored in others)]
    parts = list(parts_of(looker, wanted, folders, others))
    sizes = limits(parts, options.budget)
    subsets: list[Subset] = []
    entries: dict[str, dict[str, Entry]] = {"": {}}
    failed: dict[str, str] = {}
    for part, limit in zip(parts, sizes, strict=True):
        subset, found = _look_at(part, limit, looker, failed)
        subsets.append(subset)
        for role, entry in found.items():
            entries.setdefault(role, {})[part.dataset.name] = entry
    against = [
        check_against(role, other, entries[""], entries.get(role, {}), failed, weights, terms)
        for role, other, _ in others
    ]
    _write_down(against[0], name, contender, parts, subsets, others[0], options)
    past = complete(options.results, lambda: find_results(options.results))
    quick = Quick(options.budget, tuple(subsets), tuple(past), relation(past))
    return [first_look(one) for one in against], quick


def _look_at(
    part: Part, limit: int, looker: Looker, failed: dict[str, str]
) -> tuple[Subset, dict[str, Entry]]:
    """Entries by role on a part of one collection; the candidate's role is empty."""
    subset, kept = choose(part.pool, limit, looker.options.seed)
    if subset.documents == subset.of:
        print(f"{subset.collection}: all of it fits; leave --quick out", file=sys.stderr)
    smaller = part_of(part.dataset, kept, looker.cache_dir)
    entries: dict[str, Entry] = {}
    try:
        mine = looker.contender.on(part.dataset.name)
        choices = pipeline_options(looker.options, part.names[1:], part.cutoff)
        done = evaluated(
            Opened(smaller, official=False), mine.model, mine.encoder, looker.store, choices
        )
    except Exception as error:
        problem = as_bad_input(error)
        if problem is None:
            raise
        failed[part.dataset.name] = f"not evaluated: {problem}"
        return subset, entries
    result = done.result
    entries[""] = Entry(
        protocol=result.protocol,
        main_measure=result.main_measure,
        in_domain=result.in_domain,
        recipe=recipe_facts(result),
        scores=lambda: (done.scores.query_ids, done.scores.values),
        run=lambda: done.run,
    )
    for role, stored in part.others.items():
        entries[role] = _entry(stored, part, result.protocol)
    return subset, entries


def _entry(stored: Stored, part: Part, protocol: Protocol) -> Entry:
    """A stored ranking, whose first documents are all in the part."""
    run = stored.run()
    scores, _ = score_run(part.dataset, run, part.names, part.cutoff)
    return Entry(
        protocol=protocol,
        main_measure=part.names[0],
        in_domain=stored.result.in_domain,
        recipe=recipe_facts(stored.result),
        scores=lambda: (scores.query_ids, scores.values),
        run=lambda: run,
    )


def _write_down(
    against: Against,
    name: str,
    contender: Contender,
    parts: Sequence[Part],
    subsets: Sequence[Subset],
    baseline: Other,
    options: argparse.Namespace,
) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    found = {row.name: (row, row.paired) for row in against.rows if row.paired}
    looks = [
        _as_look(*found[subset.collection], now, name, contender, part, subset, baseline)
        for part, subset in zip(parts, subsets, strict=True)
        if subset.collection in found
    ]
    remember(options.results, looks)


def _as_look(
    row: Row,
    paired: Paired,
    now: str,
    name: str,
    contender: Contender,
    part: Part,
    subset: Subset,
    baseline: Other,
) -> Look:
    _, other, stored = baseline
    return Look(
        time=now,
        candidate=name,
        baseline=other,
        candidate_fingerprint=contender.on(row.name).model.recipe.fingerprint,
        baseline_fingerprint=stored[row.name].result.fingerprint,
        collection=row.name,
        protocol=digest(part.protocol),
        measure=row.measure,
        documents=subset.documents,
        of=subset.of,
        seed=subset.seed,
        difference=paired.difference,
        low=paired.low,
        high=paired.high,
    )
