"""A part of a collection for a first look: judged documents, hard candidates, a random sample.

All that a model which is compared with finds down to the measure's cut-off is in the part, so that
its scores there are those of the whole, and nothing of it is encoded. A candidate is judged
unfairly well: its own false positives are mostly not there.
"""

import dataclasses
import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from bench.evaluate.runs import Run
from datasets_cfg.corpus import Corpus, Document
from datasets_cfg.dataset import Dataset
from datasets_cfg.facts import Counts
from datasets_cfg.readers import Reader
from datasets_cfg.readers.judgements import Judgements
from foundation.arrays import BoolArray, Int64Array
from foundation.atomic import replacing
from foundation.records import Record

DEEPEST = 1000  # rank from which on a candidate is not hard
HARD_SHARE = 0.75  # of the room beyond what is needed; the rest is the random sample
LISTING = "documents.txt"
BATCH = 10_000


class Subset(Record, kw_only=True):
    """Composition of a part of a collection.

    Attributes:
        documents, of: of the part, and of the collection.
        judged, hard, random: of the part; a judged document counts as judged only.
        depth: of the rankings from which hard candidates come, beyond what is needed.
        pooled: the models whose rankings they are.
    """

    collection: str
    documents: int
    of: int
    judged: int
    hard: int
    random: int
    depth: int
    pooled: tuple[str, ...]
    seed: int


@dataclass(frozen=True)
class CandidatePool:
    """Documents that a first look may or must have.

    Attributes:
        judged: bool ``(n,)``.
        compared: bool ``(n,)``, what the models that it is compared with find down to the
            measure's cut-off.
        best_rank: int64 ``(n,)``, best rank in any pooled ranking, from 0; `DEEPEST` where none.
    """

    collection: str
    judged: BoolArray
    compared: BoolArray
    best_rank: Int64Array
    pooled: tuple[str, ...]

    @property
    def needed(self) -> BoolArray:
        """Documents without which a look means nothing: those, and the first of each ranking."""
        return self.judged | self.compared | (self.best_rank < 1)

    @property
    def smallest(self) -> int:
        """Number of the documents that are needed."""
        return int(self.needed.sum())


def pool_of(
    dataset: Dataset, runs: Mapping[str, Run], compared: Collection[str], cutoff: int
) -> CandidatePool:
    """The pool of some models' rankings of a collection.

    Args:
        runs: by name.
        compared: names of those that a candidate is compared with.
        cutoff: of the measure.
    """
    corpus = dataset.corpus
    judged, retrieved = np.zeros(len(corpus), bool), np.zeros(len(corpus), bool)
    rows = corpus.rows_of(dataset.qrels.doc_ids)
    judged[rows[rows >= 0]] = True
    best = np.full(len(corpus), DEEPEST, np.int64)
    for name, run in runs.items():
        rows, ranks = _rows_and_ranks(run, corpus)
        np.minimum.at(best, rows, ranks)
        if name in compared:
            retrieved[rows[ranks < cutoff]] = True
    return CandidatePool(dataset.name, judged, retrieved, best, tuple(runs))


def _rows_and_ranks(run: Run, corpus: Corpus) -> tuple[Int64Array, Int64Array]:
    """Row and rank, at most `DEEPEST`, of each document of a run that the corpus has."""
    rows = corpus.rows_of(run.ids.to_pylist())[run.documents]
    ranks = np.arange(len(rows)) - np.repeat(run.offsets[:-1], np.diff(run.offsets))
    return rows[rows >= 0], np.minimum(ranks, DEEPEST)[rows >= 0]


def choose(pool: CandidatePool, limit: int, seed: int) -> tuple[Subset, BoolArray]:
    """The part of at most ``limit`` documents (but at least ``pool.smallest``), bool ``(n,)``."""
    needed, count = pool.needed, len(pool.judged)
    limit = max(limit, pool.smallest)
    others = np.sort(pool.best_rank[~needed])
    room = int(HARD_SHARE * (limit - pool.smallest))
    depth = DEEPEST if room >= len(others) else max(1, int(others[room]))
    kept = needed | (pool.best_rank < depth)
    hard = int((kept & ~pool.judged).sum())
    rest = np.flatnonzero(~kept)
    size = min(len(rest), limit - int(kept.sum()))
    kept[np.random.default_rng(seed).choice(rest, size, replace=False)] = True
    subset = Subset(
        collection=pool.collection,
        documents=int(kept.sum()),
        of=count,
        judged=int(pool.judged.sum()),
        hard=hard,
        random=size,
        depth=depth,
        pooled=pool.pooled,
        seed=seed,
    )
    return subset, kept


def part_of(dataset: Dataset, kept: BoolArray, cache_dir: Path) -> Dataset:
    """The collection with only some of its documents; its corpus is built in the cache."""
    content = hashlib.sha256(dataset.corpus.sha256.encode() + np.packbits(kept).tobytes())
    folder = cache_dir / "subsets" / f"{Path(dataset.name).name}-{content.hexdigest()[:16]}"
    rows = np.flatnonzero(kept)
    listing = folder / LISTING
    if not listing.is_file():
        ids = dataset.corpus.ids.take(pa.array(rows)).to_pylist()
        with replacing(listing) as file:
            file.write("".join(f"{name}\n" for name in ids).encode())
    facts = msgspec.structs.replace(dataset.facts, counts=Counts(documents=len(rows)))
    reader = _PartReader(listing, rows, dataset.corpus, dataset.reader)
    return dataclasses.replace(dataset, facts=facts, reader=reader)


@dataclass(frozen=True)
class _PartReader:
    """Some documents of a collection that is open already, with its judgements."""

    listing: Path
    rows: Int64Array
    corpus: Corpus
    whole: Reader

    @property
    def folder(self) -> Path:
        return self.listing.parent

    def corpus_files(self) -> tuple[Path, ...]:
        return (self.listing,)

    def documents(self) -> Iterator[Document]:
        for start in range(0, len(self.rows), BATCH):
            batch = self.corpus.table.take(pa.array(self.rows[start : start + BATCH]))
            columns = (batch.column(name).to_pylist() for name in ("id", "title", "text"))
            yield from map(Document, *columns)

    def judgement_files(self) -> tuple[Path, ...]:
        return self.whole.judgement_files()

    def judgements(self) -> Judgements:
        return self.whole.judgements()
