"""A part of a collection for a first look: judged documents, hard candidates, a random sample.

A candidate is judged unfairly well on it: the hard candidates are those of other models, and its
own false positives are mostly not there. The baseline's ranking of the part is its stored ranking
of the whole, without the documents left out: exact to the depth that every pooled run is kept to.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.atomic import replacing
from bench.runs import Run
from datasets_cfg.corpus import Corpus, Document
from datasets_cfg.dataset import Dataset
from datasets_cfg.facts import Counts
from datasets_cfg.readers import Reader
from datasets_cfg.readers.judgements import Judgements

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

DEEPEST = 1000  # rank from which on a candidate is not hard
HARD_SHARE = 0.75  # of the room beyond what is needed; the rest is the random sample
LISTING = "documents.txt"
BATCH = 10_000


class Subset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a part of a collection is made of.

    Attributes:
        documents, of: of the part, and of the collection.
        judged, hard, random: of the part; a judged document counts as judged only.
        depth: of the rankings from which hard candidates come.
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
class Pool:
    """Documents that a first look may or must have.

    Attributes:
        judged: bool ``(n,)``.
        best_rank: int64 ``(n,)``, best rank in any pooled ranking, from 0; `DEEPEST` where none.
        cutoff: of the measure: so many documents of each ranking are needed.
    """

    collection: str
    judged: Bools
    best_rank: Ints
    cutoff: int
    pooled: tuple[str, ...]

    @property
    def smallest(self) -> int:
        """Documents without which a look means nothing."""
        return int((self.judged | (self.best_rank < self.cutoff)).sum())


def pool_of(dataset: Dataset, runs: Mapping[str, Run], cutoff: int) -> Pool:
    """The pool of some models' rankings of a collection."""
    corpus = dataset.corpus
    judged = np.zeros(len(corpus), bool)
    rows = corpus.rows_of(dataset.qrels.doc_ids)
    judged[rows[rows >= 0]] = True
    best = np.full(len(corpus), DEEPEST, np.int64)
    for run in runs.values():
        rows = _rows(run, corpus)
        starts = np.repeat(run.offsets[:-1], np.diff(run.offsets))
        ranks = np.minimum(np.arange(len(rows)) - starts, DEEPEST)
        np.minimum.at(best, rows[rows >= 0], ranks[rows >= 0])
    return Pool(dataset.name, judged, best, cutoff, tuple(runs))


def choose(pool: Pool, limit: int, seed: int) -> tuple[Subset, Bools]:
    """The part of at most ``limit`` documents (but at least ``pool.smallest``), bool ``(n,)``."""
    count = len(pool.judged)
    limit = max(limit, pool.smallest)
    room = pool.smallest + int(HARD_SHARE * (limit - pool.smallest))
    others = np.sort(pool.best_rank[~pool.judged])
    fitting = room - int(pool.judged.sum())
    depth = DEEPEST if fitting >= len(others) else int(others[fitting])
    depth = min(max(depth, pool.cutoff), DEEPEST)
    hard = ~pool.judged & (pool.best_rank < depth)
    kept = pool.judged | hard
    rest = np.flatnonzero(~kept)
    size = min(len(rest), limit - int(kept.sum()))
    drawn = np.random.default_rng(seed).choice(rest, size, replace=False)
    kept[drawn] = True
    subset = Subset(
        collection=pool.collection,
        documents=int(kept.sum()),
        of=count,
        judged=int(pool.judged.sum()),
        hard=int(hard.sum()),
        random=size,
        depth=depth,
        pooled=pool.pooled,
        seed=seed,
    )
    return subset, kept


def restricted(run: Run, corpus: Corpus, kept: Bools) -> Run:
    """A ranking of a part: the ranking of the whole without the other documents."""
    rows = _rows(run, corpus)
    stays = (rows >= 0) & kept[rows]
    before = np.concatenate([[0], np.cumsum(stays)])
    return Run(
        run.query_ids, before[run.offsets], run.doc_ids.filter(pa.array(stays)), run.scores[stays]
    )


def part_of(dataset: Dataset, kept: Bools, cache_dir: Path) -> Dataset:
    """The collection with only some of its documents; its corpus is built in the cache."""
    content = hashlib.sha256(dataset.corpus.sha256.encode() + np.packbits(kept).tobytes())
    folder = cache_dir / "subsets" / f"{Path(dataset.name).name}-{content.hexdigest()[:16]}"
    rows = np.flatnonzero(kept)
    listing = folder / LISTING
    if not listing.is_file():
        ids = dataset.corpus.ids.take(pa.array(rows)).to_pylist()
        with replacing(listing) as file:
            file.write("".join(f"{one}\n" for one in ids).encode())
    facts = msgspec.structs.replace(dataset.facts, counts=Counts(documents=len(rows)))
    reader = _PartReader(listing, rows, dataset.corpus, dataset.reader)
    return dataclasses.replace(dataset, facts=facts, reader=reader)


@dataclass(frozen=True)
class _PartReader:
    """Some documents of a collection that is open already, with its judgements."""

    listing: Path
    rows: Ints
    corpus: Corpus
    whole: Reader

    def corpus_files(self) -> tuple[Path, ...]:
        return (self.listing,)

    def documents(self) -> Iterator[Document]:
        for start in range(0, len(self.rows), BATCH):
            batch = self.corpus.table.take(pa.array(self.rows[start : start + BATCH]))
            columns = (batch.column(name).to_pylist() for name in ("id", "title", "text"))
            yield from map(Document, *columns)

    def judgements(self) -> Judgements:
        return self.whole.judgements()


def _rows(run: Run, corpus: Corpus) -> Ints:
    return corpus.rows_of(run.doc_ids.to_pylist())
