"""Does `compare --holes` know which verdicts would change, and does a short list settle them?

Judgements of real collections are removed, and the verdict of ``compare`` is compared with the one
under all judgements:

* random: 10, 30 or 50 % of the judgements, drawn anew for each removal;
* pool: all judgements but those of the first 10 or 100 documents of BM25, as if it alone had been
  pooled.

For each kind: the verdicts that changed, how many of them were flagged ("open"), and how many of
the verdicts that did not change were flagged in vain. For those that changed, the removed grades
judge documents in rounds of ten until the verdict is the true one: in the order of ``judge
export``, by rank, and in two orders that know the removed grades. "directed" takes relevant
documents that move the verdict to the true one, "impartial" those that move it at all. No list can
do better than these two.

    python -m tests.benchmarks.settle RESULTS [--on COLLECTION ...] [--pairs 20] [--removals 48]

RESULTS has results of at least two models on some collections, one of them "bm25", whose judgements
must be on this machine. Documents that the collection does not judge are judged not relevant. The
last line of stdout is one JSON document.

A last table shows whether the difference is biased while the list is judged: the mean of the
difference after some judgements minus that with all, where above 0 means that the model which is
better with all judgements looks better than it is.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations, islice, zip_longest
from pathlib import Path

import numpy as np
from tabulate import tabulate

from bench.comparing.comparison import open_evaluated_dataset
from bench.comparing.holes import BEYOND, UNJUDGED, HoleTable, tabulate_holes
from bench.comparing.settling import (
    OPEN,
    estimate_relevance,
    expected_effects,
    find_verdicts,
)
from bench.evaluation.runs import Run
from bench.requests.fields import FolderFields
from bench.result_store.find import find_results
from bench.runner.workspace import open_workspace
from datasets_cfg.readers.reader import Qrels

SHARES = (0.1, 0.3, 0.5)
POOLS = (10, 100)
ROUND, MOST = 10, 50
JUDGED = (0, 20, 50, 100, 200)  # judgements after which the bias of the difference is shown


@dataclass(frozen=True)
class Pair:
    """Two rankings on one collection with all m judgements.

    Attributes:
        collection, name: for the report.
        table: texts of both rankings with their grades.
        query, text: int64 ``(m,)``, row of the query and of the text of each judgement, or -1.
        grade: int64 ``(m,)``.
        pool_rank: int64 ``(m,)``, rank from 1 in the ranking that pools.
    """

    collection: str
    name: str
    table: HoleTable
    query: np.ndarray
    text: np.ndarray
    grade: np.ndarray
    pool_rank: np.ndarray

    @classmethod
    def of(
        cls, collection: str, name: str, runs: tuple[Run, Run], qrels: Qrels, pool: Run
    ) -> "Pair":
        """Tabulate two runs by nDCG@10."""
        table = tabulate_holes(runs, qrels, "nDCG@10")
        row_of = {query_id: row for row, query_id in enumerate(table.query_ids)}
        text_of = {
            (query, doc_id): text
            for text, (query, documents) in enumerate(
                zip(table.query.tolist(), table.documents, strict=True)
            )
            for doc_id in documents
        }
        rank_of = {
            (row_of.get(query_id), doc_id): rank
            for query_id, doc_ids, _ in pool.rankings()
            for rank, doc_id in enumerate(doc_ids, 1)
        }
        pairs = [(row_of[query_id], doc_id) for query_id, doc_id, _ in qrels]
        return cls(
            collection,
            name,
            table,
            np.array([query for query, _ in pairs]),
            np.array([text_of.get(pair, -1) for pair in pairs]),
            qrels.grades.astype(np.int64),
            np.array([rank_of.get(pair, BEYOND) for pair in pairs]),
        )

    def select(self, kept: np.ndarray) -> HoleTable:
        """Keep some judgements. Queries without any keep their place in the mean."""
        inside, below = kept & (self.text >= 0), kept & (self.text < 0)
        grade = np.full(len(self.table.grade), UNJUDGED)
        grade[self.text[inside]] = np.maximum(self.grade[inside], 0)
        counts = [
            np.bincount(
                self.query[below & (self.grade >= level)], minlength=self.table.outside.shape[1]
            )
            for level in self.table.levels
        ]
        relevant = int((self.grade[kept] > 0).sum())
        few = 2 * (int(kept.sum()) - relevant) < relevant
        return replace(self.table, grade=grade, outside=np.stack(counts), relevant_only=few)

    def pooled(self, depth: int) -> HoleTable:
        """Keep the judgements of the first documents of the pooled run."""
        return self.select(self.pool_rank <= depth)

    def judge(self, table: HoleTable, texts: np.ndarray) -> HoleTable:
        """Import the true grades of some texts."""
        grade, imported = table.grade.copy(), table.imported.copy()
        grade[texts], imported[texts] = self.truth[texts], True
        return replace(table, grade=grade, imported=imported)

    @property
    def truth(self) -> np.ndarray:
        return np.maximum(self.table.grade, 0)


def verdict(table: HoleTable) -> int:
    """Return the verdict of ``compare``."""
    return int(find_verdicts(table.differences())[0])


Order = Callable[[Pair, HoleTable, int], np.ndarray]


def by_model(pair: Pair, table: HoleTable, target: int) -> np.ndarray:
    return np.argsort(-expected_effects(table, estimate_relevance(table)[0]), kind="stable")


def by_rank(pair: Pair, table: HoleTable, target: int) -> np.ndarray:
    return np.argsort(table.rank[:, table.holes].min(axis=0), kind="stable")


def impartial(pair: Pair, table: HoleTable, target: int) -> np.ndarray:
    before, after = statistics_if_judged(pair, table)
    return np.argsort(-np.abs(after - before), kind="stable")


def directed(pair: Pair, table: HoleTable, target: int) -> np.ndarray:
    before, after = statistics_if_judged(pair, table)
    gain = target * (after - before) if target else abs(before) - np.abs(after)
    return np.argsort(-gain, kind="stable")


def statistics_if_judged(pair: Pair, table: HoleTable) -> tuple[float, np.ndarray]:
    """Return the test statistic before, and after the true grade of each hole alone, ``(u,)``."""
    holes, query = table.holes, table.query[table.holes]
    within = np.arange(len(holes)) - np.searchsorted(query, query)
    labels = np.zeros((within.max(initial=-1) + 1, len(holes)), dtype=np.int64)
    labels[within, np.arange(len(holes))] = pair.truth[holes]
    d, new = table.differences()[0], table.differences(labels)[within, query]
    total, squares = d.sum() + new - d[query], (d**2).sum() + new**2 - d[query] ** 2
    return d.sum() / max(np.linalg.norm(d), 1e-6), total / np.sqrt(np.maximum(squares, 1e-12))


def judgements_until(
    pair: Pair, table: HoleTable, target: int, order: Order, most: int = MOST
) -> int | None:
    """Return the number of judgements after which the verdict is ``target``, or None."""
    size = ROUND if order in (by_model, by_rank) else 1
    for done in range(0, most + 1, size):
        if verdict(table) == target:
            return done
        table = pair.judge(table, table.holes[order(pair, table, target)[:size]])
    return None


ORDERS = {
    "list": (by_model, MOST),
    "rank": (by_rank, 2 * MOST),
    "impartial": (impartial, MOST),
    "directed": (directed, MOST),
}


def drift(pair: Pair, table: HoleTable, order: Order) -> list[float]:
    """Return the error of the difference after each number of `JUDGED` in favour of the better."""
    final = float(pair.table.differences().mean())
    errors, done = [], 0
    for judged in JUDGED:
        while done < judged and len(table.holes):
            step = table.holes[order(pair, table, 0)[: min(2 * ROUND, judged - done)]]
            table, done = pair.judge(table, step), done + len(step)
        now = float(table.differences().mean())
        errors.append(float(np.sign(final)) * (now - final))
    return errors


def fuse(*runs: Run) -> Run:
    """Fuse rankings by reciprocal ranks (Cormack, Clarke and Büttcher, SIGIR 2009)."""
    scores: dict[tuple[str, str], float] = defaultdict(float)
    for run in runs:
        for query_id, doc_ids, _ in run.rankings():
            for rank, doc_id in enumerate(doc_ids, 1):
                scores[query_id, doc_id] += 1 / (60 + rank)
    return Run.from_rows(*zip(*scores, strict=True), list(scores.values()))


def pairs_of(results: str, on: list[str], rng: np.random.Generator) -> Iterator[Pair]:
    """Yield pairs of models and their fusions in random order, from all collections in turn."""
    workspace = open_workspace(FolderFields())
    by_collection = defaultdict(list)
    for stored in find_results(Path(results)):
        if not on or stored.dataset in on:
            by_collection[stored.dataset].append(stored)
    lists = []
    for name, several in sorted(by_collection.items()):
        several = list({each.record.model: each for each in several}.values())
        dataset = open_evaluated_dataset(several[0].record.protocol, workspace)
        pool = next(each.run for each in several if each.record.model == "bm25")
        runs = {each.record.model: each.run for each in several}
        runs |= {f"{a}+{b}": fuse(runs[a], runs[b]) for a, b in combinations(list(runs), 2)}
        shuffled = rng.permutation(np.array(list(combinations(runs, 2))))
        lists.append([(name, runs, a, b, dataset.qrels, pool) for a, b in shuffled.tolist()])
    for pairs in zip_longest(*lists):
        for name, runs, a, b, qrels, pool in filter(None, pairs):
            yield Pair.of(name, f"{a} {b}", (runs[a], runs[b]), qrels, pool)


def removals_of(
    pair: Pair, count: int, rng: np.random.Generator
) -> Iterator[tuple[str, HoleTable]]:
    """Yield the kind of each removal, and what is left."""
    for number in range(count):
        share = SHARES[number % len(SHARES)]
        yield f"random {share:.0%}", pair.select(rng.random(len(pair.grade)) >= share)
    for depth in POOLS:
        yield f"pool {depth}", pair.pooled(depth)


def chance_of_change(table: HoleTable, now: int) -> float:
    """Return the chance of another verdict as `examine_holes`, without bounds and proofs."""
    final = find_verdicts(table.differences(estimate_relevance(table)[1]))
    return float(np.mean(final != now))


def examine(pair: Pair, kind: str, table: HoleTable) -> dict[str, object]:
    """Return what one removal changes, whether it is flagged, and what restores the verdict."""
    true, now = verdict(pair.table), verdict(table)
    chance = chance_of_change(table, now)
    row = {"collection": pair.collection, "pair": pair.name, "kind": kind, "true": true, "now": now}
    row |= {"chance": chance, "flagged": chance >= OPEN}
    if now != true:
        row |= {
            name: judgements_until(pair, table, true, order, most)
            for name, (order, most) in ORDERS.items()
        }
    return row


def summarise(rows: list[dict]) -> dict[str, object]:
    """Count the outcomes of some removals."""
    changed = [row for row in rows if row["now"] != row["true"]]
    same = [row for row in rows if row["now"] == row["true"]]
    counts: dict[str, object] = {
        "removals": len(rows),
        "changed": len(changed),
        "flagged": sum(row["flagged"] for row in changed),
        "same": len(same),
        "in vain": sum(row["flagged"] for row in same),
    }
    for name in ORDERS:
        counts[name] = sum(row[name] is not None and row[name] <= MOST for row in changed)
    both = [row for row in changed if row["list"] and row["rank"]]
    counts["judgements"] = sum(row["list"] for row in both)
    counts["by rank"] = sum(row["rank"] for row in both)
    return counts


def leave_one_out(rows: list[dict], kind: str) -> Iterator[dict[str, object]]:
    """Yield what flags cost on each collection with the threshold of the others.

    It is the highest chance of another verdict from which 95 % of the verdicts that changed there
    are flagged.
    """
    some = [row for row in rows if row["kind"].startswith(kind)]
    for name in sorted({row["collection"] for row in some}):
        chances: dict[tuple[bool, bool], list[float]] = defaultdict(list)
        for row in some:
            chances[row["collection"] == name, row["now"] != row["true"]].append(row["chance"])
        if not chances[False, True]:
            continue
        threshold = float(np.quantile(chances[False, True], 0.05, method="lower"))
        yield {
            "collection": name,
            "removed": kind,
            "threshold": threshold,
            "changed": len(chances[True, True]),
            "flagged": sum(chance >= threshold for chance in chances[True, True]),
            "same": len(chances[True, False]),
            "in vain": sum(chance >= threshold for chance in chances[True, False]),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("--on", nargs="*", default=[])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--removals", type=int, default=48)
    options = parser.parse_args()
    rows: list[dict] = []
    errors = defaultdict(list)
    found = pairs_of(options.results, options.on, np.random.default_rng(1))
    for number, pair in enumerate(islice(found, options.pairs)):
        rng = np.random.default_rng(number)
        for kind, left in removals_of(pair, options.removals, rng):
            rows.append(examine(pair, kind, left))
            for name, order in (("list", by_model), ("rank", by_rank)):
                errors[kind.split()[0], name].append(drift(pair, left, order))
    groups: dict[tuple[str, str], list[dict]] = defaultdict(list)
    for row in rows:
        groups[row["collection"], row["kind"]].append(row)
        groups["all", row["kind"].split()[0]].append(row)
        groups["all", "all"].append(row)
    table = [
        {"collection": name, "removed": kind, **summarise(some)}
        for (name, kind), some in sorted(groups.items())
    ]
    print(tabulate(table, "keys", "github"))
    for kind in ("random", "pool"):
        print(tabulate(leave_one_out(rows, kind), "keys", "github"))
    biases = [(*key, *np.mean(some, axis=0)) for key, some in sorted(errors.items())]
    print(tabulate(biases, ("removed", "order", *JUDGED), "github", floatfmt="+.4f"))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
