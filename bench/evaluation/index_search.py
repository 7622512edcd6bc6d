"""Search of vectors: exact within a memory budget, or in an approximate index.

An index is built once for its vectors and then loaded. Its recall is stored. The memory budget is
the peak resident set of the process, mapped file pages included.
"""

import hashlib
import logging
import os
import re
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import psutil
from tqdm import tqdm

from bench.evaluation.exact import block_bytes, exact_search
from bench.evaluation.judging import drop_excluded, search_depth
from bench.store.indexes import IndexFolder, IndexManifest
from bench.store.shards import StoredVectors, ignore_read_only
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError, format_count
from foundation.files import FileLock
from foundation.machine import format_size
from retrievers.encoders.protocol import PhaseTimer
from retrievers.encoders.views import ViewedVectors
from retrievers.index.faiss_index import FaissIndex, IndexSpec
from retrievers.index.hits import Hits, recall_at_k, sort_canonically
from retrievers.models.card import Recipe

CorpusVectors: TypeAlias = StoredVectors | ViewedVectors

RECALL_DEPTHS = (10, 100, 1000)

logger = logging.getLogger(__name__)

FREE_SHARE = 0.8  # default share of the free memory

LARGEST_TILE_ROWS = 1 << 18  # larger tiles save too few candidates
SMALLEST_TILE_ROWS = 1 << 11
THREAD_BYTES = 10 << 20  # products, candidates and merged places of one thread
LIBRARY_BYTES = 64 << 20  # buffers of FAISS and matrix products


def resident_bytes() -> int:
    """Return the current memory of this process in bytes, mapped file pages included."""
    return int(psutil.Process().memory_info().rss)


def default_budget(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes in use by this process plus ``FREE_SHARE`` of the free ones."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError, KeyError):  # no container, or no limit
        limit, used = (int((cgroup / f"memory.{name}").read_text()) for name in ("max", "current"))
        pages = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        # The system drops unused file pages before it refuses memory.
        free = min(free, limit - used + int(pages["inactive_file"]))
    return resident_bytes() + int(FREE_SHARE * max(0, free))


class SearchPlan(NamedTuple):
    """Rows of a tile with which exact search stays within a budget, and its peak memory."""

    tile_rows: int
    memory_bytes: int


def search_bytes(rows: int, dim: int, queries: int, k: int, tile_rows: int) -> int:
    """Return the maximum memory that ``exact_search`` adds to the process, in bytes.

    It holds tiles in float32 (one being searched and one being read), the top k, the queries again
    and in float64, tie ranks, and a block of candidates.
    """
    in_tiles = min(tile_rows, rows) * row_bytes(dim)
    places = queries * k * (8 + 8 + 4)
    threads = len(os.sched_getaffinity(0)) * THREAD_BYTES
    fixed = rows * 16 + block_bytes(queries, k) + threads + LIBRARY_BYTES
    return in_tiles + places + queries * dim * 12 + fixed


def row_bytes(dim: int) -> int:
    """Return the memory of one row of the tiles, in bytes, for dimension ``dim``."""
    return 2 * 4 * dim + 2 * dim + 40


def memory_option(needed: int) -> str:
    """Return the option for the ``needed`` bytes and a tenth more, since they vary between runs."""
    return f"--max-memory {format_size(needed + needed // 10)}"


def check_memory(model: str, needed: int, limit: int | None, documents: int) -> int:
    """Return the ``needed`` bytes of a search without vectors, or raise if the limit is less."""
    if limit is not None and needed > limit:
        raise BenchError(
            f"{model} needs {format_size(needed)} for {documents:,} documents; the budget is "
            f"{format_size(limit)}",
            f"Use {memory_option(needed)}, or fewer documents per query.",
        )
    return needed


def plan_search(
    budget_bytes: int,
    rows: int,
    dim: int,
    queries: int,
    k: int,
    resident: int | None = None,
    loading: int = 0,
) -> SearchPlan:
    """Choose the largest tiles with which exact search stays within a budget.

    Args:
        budget_bytes: for the whole process.
        rows: documents.
        dim: dimension of the vectors.
        queries: number of queries.
        k: depth.
        resident: bytes that the process holds already; None to measure them.
        loading: bytes that a model will add once it is loaded.

    Raises:
        BenchError: even the smallest tiles do not fit.
    """
    used = loading + (resident_bytes() if resident is None else resident)
    left = budget_bytes - used - search_bytes(rows, dim, queries, k, 0)
    tile_rows = min(left // row_bytes(dim), LARGEST_TILE_ROWS)
    if tile_rows < min(rows, SMALLEST_TILE_ROWS):
        needed = used + search_bytes(rows, dim, queries, k, SMALLEST_TILE_ROWS)
        raise BenchError(
            f"search needs at least {format_size(needed)} for "
            f"{format_count(queries, 'query', 'queries')} at depth {k:,} over {rows:,} documents, "
            f"{format_size(used)} of it "
            f"{'once the model is loaded' if loading else 'in use already'}; "
            f"the budget is {format_size(budget_bytes)}",
            f"Use {memory_option(needed)}, or fewer documents per query.",
        )
    tile_rows = max(1, tile_rows)
    return SearchPlan(tile_rows, used + search_bytes(rows, dim, queries, k, tile_rows))


def check_index_fits(
    spec: IndexSpec, rows: int, dim: int, budget_bytes: int, loading: int = 0
) -> int:
    """Return the minimum memory of the process, in bytes, once an approximate index is built.

    It counts codes, ids of inverted lists, and the links of a graph at the mean level of a row.
    Arguments are those of `plan_search`.

    Raises:
        BenchError: the index does not fit, FAISS is missing, or the specification is invalid.
    """
    needed = resident_bytes() + loading + rows * index_row_bytes(spec, dim)
    if needed > budget_bytes:
        raise BenchError(
            f"the index {spec} over {rows:,} vectors of {dim} dimensions needs at least "
            f"{format_size(needed)}, the budget is {format_size(budget_bytes)}",
            f"Use {memory_option(needed)}, a smaller index such as IVF4096,PQ64, or --index flat.",
        )
    return needed


def index_row_bytes(spec: IndexSpec, dim: int) -> int:
    """Return the bytes of one document in an index of FAISS: its code, and its id or links.

    Raises:
        BenchError: FAISS is missing, or the specification is invalid.
    """
    codes = FaissIndex(spec, dim).code_bytes
    graph = re.match(r"(?:.*,)?B?HNSW(\d+)", spec.factory)
    ids = 8 if "IVF" in spec.factory else 0
    return codes + (round(8.8 * int(graph[1])) if graph else ids)


@dataclass(frozen=True)
class ExactSearch:
    """Exact search in the documents of a collection, within a memory limit of this process."""

    dataset: Dataset
    device: str
    budget: int
    timer: PhaseTimer

    def plan(self, vectors: CorpusVectors, queries: int, depth: int) -> SearchPlan:
        """Plan a search within the budget, or raise with an estimate of the memory."""
        dim = vectors.dim + (vectors.stored.shape[1] if isinstance(vectors, ViewedVectors) else 0)
        documents = len(self.dataset.corpus)
        return plan_search(self.budget, documents, dim, queries, depth)

    def __call__(self, vectors: CorpusVectors, queries: Float32Array, depth: int) -> Hits:
        """Return the top ``depth`` documents of each query in canonical order.

        ``queries`` are float32 ``(q, dim)``.
        """
        corpus = self.dataset.corpus
        tile_rows = self.plan(vectors, len(queries), depth).tile_rows
        with progress_bar(f"{self.dataset.name}: search", len(corpus)) as bar:
            return exact_search(
                vectors,
                queries,
                depth,
                corpus.tie_rank,
                tile_rows=tile_rows,
                device=self.device,
                advance=bar.update,
                timer=self.timer,
            )


def progress_bar(title: str, documents: int) -> "tqdm[Any]":
    """Return a progress bar called ``title`` for a number of ``documents``."""
    return tqdm(desc=title, total=documents, unit=" documents", unit_scale=True)


@dataclass(frozen=True)
class CorpusIndex:
    """The index of one recipe's vectors of one corpus, on disk or to be built.

    The manifest is complete after it is built. It is not built if the user named its folder.
    """

    index_folder: IndexFolder
    manifest: IndexManifest
    exported: bool = False

    @classmethod
    def from_export(
        cls, folder: Path, dataset: Dataset, recipe: Recipe, tokens_sha256: str = ""
    ) -> "CorpusIndex":
        """Return the index in a folder that ``bench index`` wrote, to search ``dataset``.

        ``recipe`` and ``tokens_sha256`` are those of the vectors to search with.

        Raises:
            BenchError: the folder has no index, or one of a different model or corpus, or of
                library versions that tokenise differently.
        """
        index_folder = IndexFolder(folder)
        manifest = index_folder.manifest()
        wanted, indexed = recipe.side("document"), manifest.recipe.side("document")
        other_tokens = manifest.tokens_sha256 and manifest.tokens_sha256 != tokens_sha256
        if wanted.fingerprint != indexed.fingerprint or other_tokens:
            raise BenchError(
                f"{folder} is an index of {manifest.recipe.model}: its vectors differ from those "
                f"of {recipe.model} with these settings",
                f"Run `python -m bench index {dataset.name} --model {recipe.model} --index "
                f"'{manifest.spec}' --out DIR`.",
            )
        ours, theirs = recipe.compression, manifest.recipe.compression
        if (ours.dimensions, ours.precision) != (theirs.dimensions, theirs.precision):
            dim = theirs.dimensions or recipe.dim
            raise BenchError(
                f"{folder} has {dim} dimensions in {theirs.precision}, "
                f"not {ours.dimensions or recipe.dim} in {ours.precision}",
                f"Use --dimensions {dim} --precision {theirs.precision}",
            )
        if manifest.corpus_sha256 != dataset.corpus.sha256:
            raise BenchError(
                f"{folder} indexes {manifest.documents:,} documents of {manifest.collection}, "
                f"not the {len(dataset.corpus):,} of {dataset.name}",
                f"Run `python -m bench run {manifest.collection} --index {folder}`.",
            )
        return cls(index_folder, manifest, exported=True)

    def load_or_build(
        self, vectors: CorpusVectors | None, exact: ExactSearch, device: str
    ) -> FaissIndex:
        """Load the index, or build and store it.

        If several processes need it, one builds it and the others wait. ``vectors`` are None if the
        index must exist; ``exact`` plans how many of them to add at a time.

        Raises:
            BenchError: the index cannot be built, or an exported one is damaged.
        """
        if vectors is None or self.exported:
            return self.index_folder.load(device)
        folder, lock = self.index_folder.folder, None
        with ignore_read_only():
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock.acquire(folder.with_name(f"{folder.name}.lock"))
        with lock or nullcontext():
            if folder.is_dir():
                try:
                    return self.index_folder.load(device)
                except BenchError as damage:
                    logger.warning("%s: rebuilding it", damage)
            return self._build(vectors, exact.plan(vectors, 1, 1).tile_rows, device)

    def recall(self, about: str) -> dict[str, float] | None:
        """Return the stored recall under the key ``about``, or None if it was not measured."""
        try:
            return self.index_folder.manifest().recall.get(about)
        except BenchError:
            return None

    def remember(self, about: str, recall: dict[str, float]) -> None:
        """Store a measured ``recall`` under the key ``about``, unless the index was exported."""
        if not self.exported and self.index_folder.folder.is_dir():
            with ignore_read_only():
                self.index_folder.add_recall(about, recall)

    def _build(self, vectors: CorpusVectors, tile_rows: int, device: str) -> FaissIndex:
        start = time.perf_counter()
        index = FaissIndex(IndexSpec.parse(self.manifest.spec), vectors.dim, device)
        train_index(index, vectors)
        for _, tile in vectors.tiles(tile_rows):
            index.add(tile)
        spent = time.perf_counter() - start
        try:
            self.index_folder.keep(index, msgspec.structs.replace(self.manifest, build_s=spent))
        except BenchError as error:  # the index in memory can still be searched
            logger.warning("the index %s is not stored: %s", self.manifest.spec, error)
        return index


def train_index(index: FaissIndex, vectors: CorpusVectors) -> None:
    """Train an index on a sample of the ``vectors`` to add, or on the ranges of their codes."""
    ranges = vectors.ranges if isinstance(vectors, ViewedVectors) else None
    if ranges is not None and index.needs_only_ranges:
        index.train(ranges)
    elif index.needs_training:
        index.train(vectors.rows(index.training_rows(vectors.shape[0])))


@dataclass(frozen=True)
class IndexSearch:
    """A search of all queries of a collection in an index, and its comparison with exact search.

    Attributes:
        dataset: collection.
        index: index to search.
        queries: float32 ``(q, dim)``.
        depth: depth of the rankings without self-matches.
        sampled: int64, rows of the queries on which recall is measured.
        device: device of the index.
        exact: exact search, for the recall.
        vectors: vectors of the documents; None if they are not needed.
    """

    dataset: Dataset
    index: CorpusIndex
    queries: Float32Array
    depth: int
    sampled: Int64Array
    device: str
    exact: ExactSearch
    vectors: CorpusVectors | None = None

    @cached_property
    def recall_key(self) -> str:
        """Key of stored recall, which depends on the exact rankings and the comparison."""
        content = hashlib.sha256(np.ascontiguousarray(self.queries).tobytes())
        content.update(self.dataset.excluded_rows(self.dataset.queries.ids).tobytes())
        content.update(self.sampled.tobytes())
        digest = content.hexdigest()[:32]
        return f"{len(self.sampled)} queries {digest} depth {self.depth} {self.device}"

    @property
    def needs_vectors(self) -> bool:
        """False for an exported index whose recall is known or not wanted."""
        known = not len(self.sampled) or self.index.recall(self.recall_key) is not None
        return not (self.index.exported and known)

    @cached_property
    def opened(self) -> FaissIndex:
        """The index, loaded or built."""
        return self.index.load_or_build(self.vectors, self.exact, self.device)

    def find(self, queries: Float32Array, depth: int) -> Hits:
        """Return hits with the scores of the index, without self-matches."""
        k = min(depth, len(self.dataset.corpus))
        wide = search_depth(self.dataset, k)
        found = self.opened.search(queries, wide)
        ranked = sort_canonically(found, self.dataset.corpus.tie_rank, wide)
        hits = drop_excluded(self.dataset, ranked, k)
        self._warn_if_short(hits, min(k, len(self.dataset.corpus) - (wide - k)))
        return hits

    def recall(self, hits: Hits) -> dict[str, float]:
        """Return the share of the true neighbours among ``hits``, by depth, stored or measured.

        It is empty if it is neither known nor wanted, or without vectors.
        """
        known = self.index.recall(self.recall_key)
        if known is not None or not len(self.sampled) or self.vectors is None:
            return known or {}
        k = min(self.depth, len(self.dataset.corpus))
        truth = self.exact(self.vectors, self.queries[self.sampled], search_depth(self.dataset, k))
        truth = drop_excluded(self.dataset, truth, k, self.sampled)
        some = Hits(hits.scores[self.sampled], hits.rows[self.sampled])
        depths = [depth for depth in RECALL_DEPTHS if depth < self.depth]
        recall = {
            f"recall@{depth}": float(recall_at_k(some, truth, depth).mean())
            for depth in (*depths, self.depth)
        }
        self.index.remember(self.recall_key, recall)
        return recall

    def _warn_if_short(self, ranked: Hits, wanted: int) -> None:
        """Warn if the index returned fewer documents than wanted."""
        found = (ranked.rows >= 0).sum(axis=1)
        if short := int((found < wanted).sum()):
            logger.warning(
                "%s: %s returned fewer than %d documents for %d of %d queries, at least %d: "
                "raise efSearch of a graph, nprobe of inverted lists",
                *(self.dataset.name, self.index.manifest.spec, wanted),
                *(short, len(found), found.min()),
            )
