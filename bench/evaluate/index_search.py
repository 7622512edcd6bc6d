"""Search of vectors: exact, within the memory that there is, or in an approximate index.

An index is built once for its vectors, then loaded; its recall is kept. A budget of memory is the
peak resident set of the process: everything it holds, mapped file pages included.
"""

import hashlib
import logging
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import psutil
from tqdm import tqdm

from bench.evaluate import search
from bench.evaluate.exact import exact_search
from bench.evaluate.exact.search import block_bytes
from bench.store import StoredVectors
from bench.store.indexes import INDEXES, IndexFolder, IndexManifest
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from foundation.files import FileLock
from foundation.machine import library_version
from foundation.printable import format_count
from retrievers.encoders.protocol import PhaseTimer
from retrievers.encoders.views import View, ViewedVectors
from retrievers.index.faiss_index import FaissIndex, Hits, IndexSpec, import_faiss
from retrievers.models.recipe import Recipe

Vectors: TypeAlias = StoredVectors | ViewedVectors

RECALL_DEPTHS = (10, 100, 1000)

logger = logging.getLogger(__name__)

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
FREE_SHARE = 0.8  # of the free memory, without being asked: others need some too

LARGEST_TILE_ROWS = 1 << 18  # beyond it fewer candidates no longer pay for the memory
SMALLEST_TILE_ROWS = 1 << 11
THREAD_BYTES = 10 << 20  # products, candidates and merged places of one thread
LIBRARY_BYTES = 64 << 20  # what FAISS and the matrix product keep for themselves


def parse_size(text: str) -> int:
    """Bytes: ``2GB`` (10^9), ``1.5GiB`` (2^30), ``800MB``, or a plain number of bytes.

    Raises:
        BenchError: it is not a size, or less than a byte.
    """
    match = re.fullmatch(r"([0-9]{0,18}\.?[0-9]{0,9})\s*([A-Za-z]*)", text.strip())
    factor = UNITS.get(match[2].upper()) if match else None
    has_number = match and match[1].strip(".")
    size = int(Decimal(match[1]) * factor) if match and has_number and factor else 0
    if size < 1:
        raise BenchError(
            f"cannot read the size {text!r}", "write 2GB, 1.5GiB, 800MB or a number of bytes"
        )
    return size


def format_size(size: int) -> str:
    """Bytes as people type them, rounded up: what is shown is enough when it is typed."""
    unit = next((unit for unit in ("TB", "GB", "MB", "KB") if size >= UNITS[unit]), "B")
    whole, tenth = divmod(-(-size * 10 // UNITS[unit]), 10)
    return f"{whole}.{tenth}{unit}" if tenth else f"{whole}{unit}"


def resident_bytes() -> int:
    """Memory of this process now, mapped file pages included."""
    return int(psutil.Process().memory_info().rss)


def default_budget(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process holds, plus ``FREE_SHARE`` of those free in machine or container."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError, KeyError):  # no container, or one without a limit
        limit, used = (int((cgroup / f"memory.{name}").read_text()) for name in ("max", "current"))
        pages = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        # The system drops file pages that nobody uses before it refuses memory.
        free = min(free, limit - used + int(pages["inactive_file"]))
    return resident_bytes() + int(FREE_SHARE * max(0, free))


@dataclass(frozen=True)
class SearchPlan:
    """Sizes with which exact search keeps to a budget of memory.

    Attributes:
        tile_rows: argument of ``exact_search``.
        memory_bytes: of the process at its peak, by estimate.
    """

    tile_rows: int
    memory_bytes: int


def search_bytes(rows: int, dim: int, queries: int, k: int, tile_rows: int) -> int:
    """Most memory that ``exact_search`` takes, beyond what the process holds before.

    Tiles in float32 (one is searched while the next is read, from float16 at the most), the
    places of the ranking, the queries once more and in float64, the tie ranks and the rows of
    each, a block.
    """
    in_tiles = min(tile_rows, rows) * row_bytes(dim)
    places = queries * k * (8 + 8 + 4)
    threads = len(os.sched_getaffinity(0)) * THREAD_BYTES
    fixed = rows * 16 + block_bytes(queries, k) + threads + LIBRARY_BYTES
    return in_tiles + places + queries * dim * 12 + fixed


def row_bytes(dim: int) -> int:
    """Memory of a row of the tiles."""
    return 2 * 4 * dim + 2 * dim + 40


def memory_option(needed: int) -> str:
    """Return the option that gives enough instead of a budget that was refused.

    Args:
        needed: bytes, with those that the process holds now. They vary from run to run: hence a
            tenth more.
    """
    return f"--max-memory {format_size(needed + needed // 10)}"


def plan_search(
    budget_bytes: int,
    rows: int,
    dim: int,
    queries: int,
    k: int,
    resident: int | None = None,
    loading: int = 0,
) -> SearchPlan:
    """The largest tiles with which exact search stays within a budget.

    Args:
        budget_bytes: for the whole process.
        rows: documents.
        resident: bytes that the process holds already; by default what it holds now.
        loading: bytes that it will hold in addition once a model is loaded.

    Raises:
        BenchError: not even the smallest tiles fit.
    """
    held = loading + (resident_bytes() if resident is None else resident)
    left = budget_bytes - held - search_bytes(rows, dim, queries, k, 0)
    tile_rows = min(left // row_bytes(dim), LARGEST_TILE_ROWS)
    if tile_rows < min(rows, SMALLEST_TILE_ROWS):
        needed = held + search_bytes(rows, dim, queries, k, SMALLEST_TILE_ROWS)
        raise BenchError(
            f"search needs at least {format_size(needed)} for "
            f"{format_count(queries, 'query', 'queries')} at depth {k:,} over {rows:,} documents, "
            f"{format_size(held)} of it "
            f"{'once the model is loaded' if loading else 'held already'}; "
            f"the budget is {format_size(budget_bytes)}",
            f"{memory_option(needed)}, or a smaller --depth",
        )
    tile_rows = max(1, tile_rows)
    return SearchPlan(tile_rows, held + search_bytes(rows, dim, queries, k, tile_rows))


def check_index_fits(
    spec: IndexSpec, rows: int, dim: int, budget_bytes: int, loading: int = 0
) -> int:
    """Bytes that this process holds at least once an approximate index is built.

    Counted: codes, ids of inverted lists, and links of a graph, on the levels that a row reaches
    on average.

    Raises:
        BenchError: it does not fit; FAISS is missing, or does not know the index.
    """
    FaissIndex(spec, dim)  # says what is wrong with a spec
    faiss = import_faiss()
    owner = faiss.index_factory(dim, spec.factory)  # it owns what is inside it
    index = faiss.downcast_index(owner)
    codes = int(faiss.downcast_index(getattr(index, "storage", None) or index).sa_code_size())
    graph = re.match(r"(?:.*,)?HNSW(\d+)", spec.factory)
    row = codes + (round(8.8 * int(graph[1])) if graph else 8)
    needed = resident_bytes() + loading + rows * row
    if needed > budget_bytes:
        raise BenchError(
            f"the index {spec} over {rows:,} vectors of {dim} dimensions needs at least "
            f"{format_size(needed)}, the budget is {format_size(budget_bytes)}",
            f"{memory_option(needed)}, a smaller index such as IVF4096,PQ64?nprobe=64, "
            "or --index flat, which reads the vectors in pieces",
        )
    return needed


@dataclass(frozen=True)
class ExactSearch:
    """Exact search in the documents of a collection.

    Attributes:
        device: where candidates are found; the ranking is the same everywhere.
        budget: bytes that this process may hold.
        clock: told how long kinds of work take.
    """

    dataset: Dataset
    device: str
    budget: int
    timer: PhaseTimer

    def plan(self, vectors: Vectors, queries: int, depth: int) -> SearchPlan:
        """The plan of a search within the budget.

        Raises:
            BenchError: too little memory; the message has the estimate.
        """
        held = vectors.dim + (vectors.stored.shape[1] if isinstance(vectors, ViewedVectors) else 0)
        documents = len(self.dataset.corpus)
        return plan_search(self.budget, documents, held, queries, depth)

    def __call__(self, vectors: Vectors, queries: Float32Array, depth: int) -> Hits:
        """The best documents of each query ``(q, dim)``, in canonical order."""
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
    """A bar of documents."""
    return tqdm(desc=title, total=documents, unit=" documents", unit_scale=True)


@dataclass(frozen=True)
class CorpusIndex:
    """The index of one recipe's vectors of one corpus, on disk or about to be built.

    Attributes:
        index_folder: where it lies.
        manifest: of the index, or what it will say.
        exported: it was named by the user, and is not built here.
    """

    index_folder: IndexFolder
    manifest: IndexManifest
    exported: bool = False

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        recipe: Recipe,
        dim: int,
        spec: IndexSpec,
        view: View | None,
        folder: Path,
    ) -> "CorpusIndex":
        """The index in the store; ``folder`` is that of the vectors."""
        manifest = IndexManifest(
            spec=str(spec),
            recipe=recipe,
            view="" if view is None else repr(view),
            collection=dataset.name,
            version=dataset.facts.version,
            corpus_sha256=dataset.corpus.sha256,
            documents=len(dataset.corpus),
            dim=dim,
            faiss=faiss_version(),
            build_s=0.0,
            bytes=0,
            sha256="",
        )
        return cls(IndexFolder(folder / INDEXES / manifest.key), manifest)

    @classmethod
    def from_export(cls, folder: Path, dataset: Dataset, recipe: Recipe) -> "CorpusIndex":
        """The index of a folder that `index` wrote.

        Raises:
            BenchError: there is none, or it is of another model or corpus.
        """
        index_folder = IndexFolder(folder)
        manifest = index_folder.manifest()
        asked, held = recipe.side("document"), manifest.recipe.side("document")
        if asked.fingerprint != held.fingerprint:
            raise BenchError(
                f"{folder} is the index of {manifest.recipe.model}, and its vectors are not those "
                f"of {recipe.model} with these settings",
                f"python -m bench index {dataset.name} --model {recipe.model} --index "
                f"'{manifest.spec}' --out DIR",
            )
        if manifest.corpus_sha256 != dataset.corpus.sha256:
            raise BenchError(
                f"{folder} is an index of {manifest.collection}, {manifest.documents:,} documents, "
                f"and not of these {len(dataset.corpus):,} of {dataset.name}",
                f"python -m bench run {manifest.collection} --index {folder}",
            )
        return cls(index_folder, manifest, exported=True)

    def load_or_build(self, vectors: Vectors | None, exact: ExactSearch, device: str) -> FaissIndex:
        """The index, ready to be searched: loaded, or built from the vectors and kept.

        Of several processes one builds, and the others wait for it.

        Args:
            vectors: None if it must be there.
            exact: says how many vectors fit into memory at a time.

        Raises:
            BenchError: it cannot be built, or an exported one is damaged.
        """
        if vectors is None or self.exported:
            return self.index_folder.load(device)
        folder = self.index_folder.folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock.acquire(folder.with_name(f"{folder.name}.lock")):
            known = self.index_folder.load_if_intact(device)
            if known is not None:
                return known
            return self._build(vectors, exact.plan(vectors, 1, 1).tile_rows, device)

    def recall(self, about: str) -> dict[str, float] | None:
        """The recall measured against some exact rankings; None if it was not."""
        try:
            return self.index_folder.manifest().recall.get(about)
        except BenchError:
            return None

    def remember(self, about: str, recall: dict[str, float]) -> None:
        """Keep what was found of some exact rankings, if the index itself is kept here."""
        if not self.exported and self.index_folder.folder.is_dir():
            self.index_folder.add_recall(about, recall)

    def _build(self, vectors: Vectors, tile_rows: int, device: str) -> FaissIndex:
        start = time.perf_counter()
        index = FaissIndex(IndexSpec.parse(self.manifest.spec), vectors.dim, device)
        if index.needs_training:
            index.train(vectors.rows(index.training_rows(vectors.shape[0])))
        for _, tile in vectors.tiles(tile_rows):
            index.add(tile)
        spent = time.perf_counter() - start
        try:
            self.index_folder.keep(index, msgspec.structs.replace(self.manifest, build_s=spent))
        except BenchError as error:  # what is searched now lies in memory
            logger.warning("the index %s is not kept: %s", self.manifest.spec, error)
        return index


@dataclass(frozen=True)
class IndexSearch:
    """A search of all queries of a collection in an index, and what it is compared with.

    Attributes:
        queries: float32 ``(q, dim)``.
        depth: of the rankings, without self-matches; more than the collection has is all of it.
        sampled: int64, rows of the queries whose exact rankings recall is measured on.
        device: where the index is searched.
    """

    dataset: Dataset
    index: CorpusIndex
    queries: Float32Array
    depth: int
    sampled: Int64Array
    device: str

    @cached_property
    def self_rows(self) -> Int64Array | None:
        """Row of each query's own document, which is left out; None if none are."""
        if not self.dataset.facts.exclude_self:
            return None
        return self.dataset.corpus.rows_of(self.dataset.queries.ids)

    @cached_property
    def recall_key(self) -> str:
        """Key under which recall is kept: changes with the exact rankings and what is compared."""
        content = hashlib.sha256(np.ascontiguousarray(self.queries).tobytes())
        content.update(b"" if self.self_rows is None else self.self_rows.tobytes())
        content.update(self.sampled.tobytes())
        digest = content.hexdigest()[:32]
        return f"{len(self.sampled)} queries {digest} depth {self.depth} {self.device}"

    @property
    def needs_vectors(self) -> bool:
        """False for an exported index whose recall is known, or not asked for."""
        known = not len(self.sampled) or self.index.recall(self.recall_key) is not None
        return not (self.index.exported and known)

    def run(self, vectors: Vectors | None, exact: ExactSearch) -> tuple[Hits, dict[str, float]]:
        """Rankings with the index's own scores, and how much of the exact ones they hold.

        Args:
            vectors: of the documents; None if none are needed.
            exact: search of queries to a depth.
        """
        self_rows, k = self.self_rows, min(self.depth, len(self.dataset.corpus))
        wide = k if self_rows is None else k + 1
        opened = self.index.load_or_build(vectors, exact, self.device)
        found = opened.search(self.queries, wide)
        hits = search.sort_canonically(found, self.dataset.corpus.tie_rank, wide)
        ranked = hits if self_rows is None else search.exclude_self_matches(hits, self_rows, k)
        self._warn_if_short(ranked, min(k, len(self.dataset.corpus) - (self_rows is not None)))
        recall = self.index.recall(self.recall_key)
        if recall is None and len(self.sampled) and vectors is not None:
            truth = exact(vectors, self.queries[self.sampled], wide)
            if self_rows is not None:  # a query's own document would count among the found ones
                truth = search.exclude_self_matches(truth, self_rows[self.sampled], k)
            some = Hits(ranked.scores[self.sampled], ranked.rows[self.sampled])
            depths = [depth for depth in RECALL_DEPTHS if depth < self.depth]
            recall = {
                f"recall@{depth}": float(search.recall_at_k(some, truth, depth).mean())
                for depth in (*depths, self.depth)
            }
            self.index.remember(self.recall_key, recall)
        return ranked, recall or {}

    def _warn_if_short(self, ranked: Hits, wanted: int) -> None:
        """Warn if the index returned fewer documents than were wanted."""
        found = (ranked.rows >= 0).sum(axis=1)
        if short := int((found < wanted).sum()):
            logger.warning(
                "%s: %s returned fewer than %d documents for %d of %d queries, at least %d: "
                "raise efSearch of a graph, nprobe of inverted lists",
                *(self.dataset.name, self.index.manifest.spec, wanted),
                *(short, len(found), found.min()),
            )


def sample_queries(queries: int, wanted: int | None) -> Int64Array:
    """Rows of the queries that recall is measured on: all, or a seeded sample, rising."""
    if wanted is None or wanted >= queries:
        return np.arange(queries)
    return np.sort(np.random.default_rng(0).choice(queries, wanted, replace=False))


def faiss_version() -> str:
    """Version of FAISS, whose indexes may differ from those of another one."""
    return library_version("faiss-cpu") or library_version("faiss-gpu")
