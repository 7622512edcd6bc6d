"""Search of vectors: exact, within the memory that there is, or in an approximate index.

An index is built once for its vectors, then loaded; its recall is kept.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from tqdm import tqdm

from bench.evaluate import search
from bench.evaluate.exact import exact_search
from bench.evaluate.memory import SearchPlan, plan_search
from bench.store import StoredVectors
from bench.store.indexes import INDEXES, IndexFolder, IndexManifest
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from foundation.locks import FileLock
from foundation.machine import library_version
from retrievers.encoders.protocol import Clock
from retrievers.encoders.views import View, Viewed
from retrievers.index.faiss_index import FaissIndex, Hits, IndexSpec
from retrievers.models.recipe import Recipe

Vectors: TypeAlias = StoredVectors | Viewed

RECALL_DEPTHS = (10, 100, 1000)

logger = logging.getLogger(__name__)


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
    clock: Clock

    def plan(self, vectors: Vectors, queries: int, depth: int) -> SearchPlan:
        """The plan of a search within the budget: tile rows and bytes of a block.

        Raises:
            BenchError: too little memory; the message has the estimate.
        """
        held = vectors.dim + (vectors.stored.shape[1] if isinstance(vectors, Viewed) else 0)
        documents = len(self.dataset.corpus)
        return plan_search(self.budget, documents, held, queries, depth, device=self.device)

    def __call__(self, vectors: Vectors, queries: Float32Array, depth: int) -> Hits:
        """The best documents of each query ``(q, dim)``, in canonical order."""
        corpus = self.dataset.corpus

        def search(advance: Callable[[int], None]) -> Hits:
            plan = self.plan(vectors, len(queries), depth)
            return exact_search(
                vectors,
                queries,
                depth,
                corpus.tie_rank,
                tile_rows=plan.tile_rows,
                block_bytes=plan.block_bytes,
                device=self.device,
                advance=advance,
                clock=self.clock,
            )

        hits: Hits = with_bar(f"{self.dataset.name}: search", len(corpus), search)
        return hits


def with_bar(title: str, total: int, work: Callable[[Callable[[int], None]], Any]) -> Any:
    """Do work that tells how many documents it is through with, and show a bar."""
    with tqdm(desc=title, total=total, unit=" documents", unit_scale=True) as bar:
        return work(bar.update)


@dataclass(frozen=True)
class IndexOfCorpus:
    """The index of one recipe's vectors of one corpus, on disk or about to be built.

    Attributes:
        kept: where it lies.
        manifest: of the index, or what it will say.
        exported: it was named by the user, and is not built here.
    """

    kept: IndexFolder
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
    ) -> "IndexOfCorpus":
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
    def exported_to(cls, folder: Path, dataset: Dataset, recipe: Recipe) -> "IndexOfCorpus":
        """The index of a folder that `index` wrote.

        Raises:
            BenchError: there is none, or it is of another model or corpus.
        """
        kept = IndexFolder(folder)
        manifest = kept.manifest()
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
        return cls(kept, manifest, exported=True)

    def opened(self, vectors: Vectors | None, exact: ExactSearch, device: str) -> FaissIndex:
        """The index, ready to be searched: loaded, or built from the vectors and kept.

        Of several processes one builds, and the others wait for it.

        Args:
            vectors: None where it must be there.
            exact: says how many vectors fit into memory at a time.

        Raises:
            BenchError: it cannot be built, or an exported one is damaged.
        """
        if vectors is None or self.exported:
            return self.kept.load(device)
        folder = self.kept.folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock.wait(folder.with_name(f"{folder.name}.lock")):
            known = self.kept.loaded_if_whole(self.manifest.key, device)
            if known is not None:
                return known
            return self._built(vectors, exact.plan(vectors, 1, 1).tile_rows, device)

    def recall(self, about: str) -> dict[str, float] | None:
        """The recall measured against some exact rankings; None where it was not."""
        try:
            return self.kept.manifest().recall.get(about)
        except BenchError:
            return None

    def remember(self, about: str, recall: dict[str, float]) -> None:
        """Keep what was found of some exact rankings, if the index itself is kept here."""
        if not self.exported and self.kept.folder.is_dir():
            self.kept.remember_recall(about, recall)

    def _built(self, vectors: Vectors, tile_rows: int, device: str) -> FaissIndex:
        start = time.perf_counter()
        index = FaissIndex(IndexSpec.parse(self.manifest.spec), vectors.dim, device)
        if index.needs_training:
            index.train(vectors.rows(index.training_rows(vectors.shape[0])))
        for _, tile in vectors.tiles(tile_rows):
            index.add(tile)
        spent = time.perf_counter() - start
        try:
            self.kept.keep(index, msgspec.structs.replace(self.manifest, build_s=spent))
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
    index: IndexOfCorpus
    queries: Float32Array
    depth: int
    sampled: Int64Array
    device: str

    @cached_property
    def own(self) -> Int64Array | None:
        """Row of each query's own document, which is left out; None where none are."""
        if not self.dataset.facts.exclude_self:
            return None
        return self.dataset.corpus.rows_of(self.dataset.queries.ids)

    @cached_property
    def about(self) -> str:
        """Key under which recall is kept: changes with the exact rankings and what is compared."""
        content = hashlib.sha256(np.ascontiguousarray(self.queries).tobytes())
        content.update(b"" if self.own is None else self.own.tobytes())
        content.update(self.sampled.tobytes())
        digest = content.hexdigest()[:32]
        return f"{len(self.sampled)} queries {digest} depth {self.depth} {self.device}"

    @property
    def needs_vectors(self) -> bool:
        """False for an exported index whose recall is known, or not asked for."""
        known = not len(self.sampled) or self.index.recall(self.about) is not None
        return not (self.index.exported and known)

    def run(self, vectors: Vectors | None, exact: ExactSearch) -> tuple[Hits, dict[str, float]]:
        """Rankings with the index's own scores, and how much of the exact ones they hold.

        Args:
            vectors: of the documents; None where none are needed.
            exact: search of queries to a depth.
        """
        own, k = self.own, min(self.depth, len(self.dataset.corpus))
        wide = k if own is None else k + 1
        opened = self.index.opened(vectors, exact, self.device)
        hits = search.approximate(opened, self.queries, wide, self.dataset.corpus.tie_rank)
        ranked = hits if own is None else search.drop_self(hits, own, k)
        recall = self.index.recall(self.about)
        if recall is None and len(self.sampled) and vectors is not None:
            truth = exact(vectors, self.queries[self.sampled], wide)
            if own is not None:  # a query's own document would count among the found ones
                truth = search.drop_self(truth, own[self.sampled], k)
            some = Hits(ranked.scores[self.sampled], ranked.rows[self.sampled])
            depths = [depth for depth in RECALL_DEPTHS if depth < self.depth]
            recall = {
                f"recall@{depth}": float(search.recall(some, truth, depth).mean())
                for depth in (*depths, self.depth)
            }
            self.index.remember(self.about, recall)
        return ranked, recall or {}


def sample_of(queries: int, wanted: int | None) -> Int64Array:
    """Rows of the queries that recall is measured on: all, or a seeded sample, rising."""
    if wanted is None or wanted >= queries:
        return np.arange(queries)
    return np.sort(np.random.default_rng(0).choice(queries, wanted, replace=False))


def faiss_version() -> str:
    """Version of FAISS, whose indexes may differ from those of another one."""
    return library_version("faiss-cpu") or library_version("faiss-gpu")
