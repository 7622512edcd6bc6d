"""Does `compare --holes` know which verdicts would change, and does a short list settle them?

Judgements of real collections are removed, and the verdict of ``compare`` is compared with the one
under all judgements:

* random: a share of the judgements, drawn anew for each removal;
* pool: all judgements but those of the first documents of BM25, as if it alone had been pooled.

For each kind: the verdicts that changed, how many of them were flagged ("open"), and how many of
the verdicts that did not change were flagged in vain. For those that changed, the removed grades
judge the documents of ``judge export``, in rounds of ten, until the verdict is the true one; and
the same by rank.

    python -m tests.benchmarks.settle RESULTS [--removals 50] [--pairs 20]

RESULTS has results of at least two models on some collections, whose judgements must be on this
machine. Removed judgements count as judged not relevant after they are judged, if they are not in
the qrels. The last line of stdout is one JSON document.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice, zip_longest

import numpy as np
from tabulate import tabulate

from bench.comparing.comparison import open_evaluated_dataset
from bench.comparing.holes import HoleTable, tabulate_holes
from bench.comparing.settling import VerdictTest, examine_holes, order_holes
from bench.evaluation.runs import Run
from bench.requests.fields import FolderFields
from bench.result_store.find import find_results
from bench.runner.workspace import open_workspace
from datasets_cfg.readers.reader import Qrels
from foundation.files import parse_location

SHARES = (0.1, 0.3, 0.5)
ROUND, MOST = 10, 50


@dataclass(frozen=True)
class Pair:
    """Two rankings on one collection, with all judgements."""

    name: str
    runs: tuple[Run, Run]
    qrels: Qrels
    pool: Run
    measure: str = "nDCG@10"


def select(qrels: Qrels, kept: np.ndarray) -> Qrels:
    """Keep some judgements. Queries without any keep their place in the mean."""
    rows = np.flatnonzero(kept)
    query_ids = [qrels.query_ids[row] for row in rows]
    doc_ids = [qrels.doc_ids[row] for row in rows]
    lost = [query for query in qrels.queries() if query not in set(query_ids)]
    grades = [*qrels.grades[rows].tolist(), *[0] * len(lost)]
    return Qrels((*query_ids, *lost), (*doc_ids, *["-"] * len(lost)), np.array(grades, np.int32))


def pooled(pair: Pair, depth: int) -> np.ndarray:
    """Mark the judgements of the first documents of the pooled run."""
    top = {(query, doc_id) for query, ids, _ in pair.pool.rankings() for doc_id in ids[:depth]}
    pairs = zip(pair.qrels.query_ids, pair.qrels.doc_ids, strict=True)
    return np.array([each in top for each in pairs])


def verdict(pair: Pair, qrels: Qrels) -> tuple[int, float]:
    """Return the verdict of ``compare`` and the difference."""
    table = tabulate_holes(pair.runs, qrels, pair.measure)
    differences = table.differences(np.zeros((1, len(table.query)), np.int64))
    test = VerdictTest.for_queries(len(table.query_ids))
    return int(test.verdicts(differences)[0]), float(differences.mean())


def by_model(table: HoleTable, qrels: Qrels) -> np.ndarray:
    return order_holes(table, qrels)[0]


def by_rank(table: HoleTable, qrels: Qrels) -> np.ndarray:
    return np.argsort(table.traits.rank, kind="stable")


def judgements_until(pair: Pair, qrels: Qrels, target: int, order, most: int) -> int | None:
    """Return the number of judgements after which the verdict is ``target``, or None."""
    truth = {(query, doc_id): grade for query, doc_id, grade in pair.qrels}
    for done in range(0, most + 1, ROUND):
        if verdict(pair, qrels)[0] == target and done:
            return done
        table = tabulate_holes(pair.runs, qrels, pair.measure)
        chosen = order(table, qrels)[:ROUND]
        new = [
            (table.query_ids[table.query[each]], doc_id)
            for each in chosen
            for doc_id in table.documents[each]
        ]
        qrels = Qrels(
            (*qrels.query_ids, *(query for query, _ in new)),
            (*qrels.doc_ids, *(doc_id for _, doc_id in new)),
            np.array([*qrels.grades.tolist(), *(truth.get(each, 0) for each in new)], np.int32),
        )
    return None


def pairs_of(results: str, rng: np.random.Generator) -> Iterator[Pair]:
    """Yield pairs of models in random order, from all collections in turn."""
    workspace = open_workspace(FolderFields())
    by_collection = defaultdict(list)
    for stored in find_results(parse_location(results)):
        by_collection[stored.dataset].append(stored)
    lists = []
    for name, several in sorted(by_collection.items()):
        several = list({each.record.model: each for each in several}.values())
        dataset = open_evaluated_dataset(several[0].record.protocol, workspace)
        if isinstance(dataset, str):
            raise SystemExit(dataset)
        pool = next(each.run for each in several if each.model == "bm25")
        of_collection = [
            Pair(f"{name}: {a.model} {b.model}", (a.run, b.run), dataset.qrels, pool)
            for a, b in combinations(several, 2)
        ]
        lists.append([of_collection[row] for row in rng.permutation(len(of_collection))])
    for several in zip_longest(*lists):
        yield from (pair for pair in several if pair)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("--removals", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    outcomes = []
    for pair in islice(pairs_of(options.results, np.random.default_rng(1)), options.pairs):
        true, difference = verdict(pair, pair.qrels)
        kinds = [
            (f"random {share:.0%}", share) for share in SHARES for _ in range(options.removals)
        ]
        kinds += [(f"pool {depth}", depth) for depth in (10, 100)]
        for kind, amount in kinds:
            chosen = rng.random(len(pair.qrels)) >= amount
            kept = chosen if amount < 1 else pooled(pair, int(amount))
            qrels = select(pair.qrels, kept)
            now, value = verdict(pair, qrels)
            table = tabulate_holes(pair.runs, qrels, pair.measure)
            found = examine_holes(table, qrels)
            row = {
                "pair": pair.name,
                "kind": kind,
                "true": true,
                "now": now,
                "outcome": found["outcome"],
            }
            row |= {
                "difference": difference,
                "then": value,
                "needed": found.get("needed"),
                "chance": found.get("chance", 0.0),
            }
            if now != true:
                row["judged"] = judgements_until(pair, qrels, true, by_model, MOST)
                row["judged_by_rank"] = judgements_until(pair, qrels, true, by_rank, 2 * MOST)
            outcomes.append(row)
    rows = []
    for kind in dict.fromkeys(row["kind"] for row in outcomes):
        some = [row for row in outcomes if row["kind"] == kind]
        changed = [row for row in some if row["now"] != row["true"]]
        same = [row for row in some if row["now"] == row["true"]]
        open_ = sum(row["outcome"] == "open" for row in changed)
        vain = sum(row["outcome"] == "open" for row in same)
        restored = [row["judged"] for row in changed if row["judged"]]
        ranked = [row["judged_by_rank"] for row in changed if row["judged_by_rank"]]
        rows.append(
            [
                kind,
                len(some),
                len(changed),
                open_,
                len(same),
                vain,
                len(restored),
                restored and np.mean(restored),
                len(ranked),
                ranked and np.mean(ranked),
            ]
        )
    print(
        tabulate(
            rows,
            [
                "kind",
                "removals",
                "changed",
                "flagged",
                "same",
                "flagged in vain",
                "restored",
                "judgements",
                "restored by rank",
                "judgements",
            ],
            "github",
        )
    )
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
