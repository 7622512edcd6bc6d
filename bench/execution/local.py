"""The engine of one process."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.evaluate.exact import exact_search
from bench.evaluate.memory import default_budget, plan_search
from bench.execution.protocol import Advance, Encoded, TreeMerge
from bench.store import VectorStore
from datasets_cfg.corpus import Corpus
from foundation.arrays import Float32Array
from foundation.errors import BenchError
from retrievers.encoders.clock import Clock
from retrievers.encoders.protocol import Encoder
from retrievers.index.faiss_index import Hits


@dataclass(frozen=True)
class LocalEngine:
    """Encodes and searches in this process.

    Attributes:
        device: where candidates of exact search are found.
        budget: bytes that this process may hold while it searches; None for most of what is free.
    """

    corpus: Corpus
    encoder: Encoder
    store: VectorStore
    device: str = "cpu"
    budget: int | None = None

    def encode(self, shards: Sequence[str], advance: Advance) -> Encoded:
        """Write shards into the store, but for those that another process is at work on."""
        plan = self.store.plan(self.encoder, self.corpus)
        missing = {batch.name: batch for batch in plan.missing}
        wanted = [missing[name] for name in shards if name in missing]
        clock: Clock = getattr(self.encoder, "clock", None) or Clock()
        before = clock.copy()
        texts, _ = self.store.encode_free(
            self.encoder, self.corpus, replace(plan, missing=tuple(wanted)), advance
        )
        recipe = self.encoder.recipe
        done = frozenset(name for name in shards if self.store.has(recipe, "document", name))
        if unknown := [name for name in shards if name not in done and name not in missing]:
            raise BenchError(
                f"{len(unknown):,} of {len(shards):,} shards are of other texts than this corpus "
                f"of {len(self.corpus):,} documents has",
                "let all workers read the same collection, with the same version of this program",
            )
        spent = clock.since(before)
        return Encoded(done, texts, spent.seconds, spent.counts)

    def tiles(self, rows: int) -> list[range]:
        """The whole corpus."""
        return [range(rows)]

    def search(
        self, tiles: Sequence[range], queries: Float32Array, k: int, advance: Advance
    ) -> Hits:
        """The best documents of the tiles, one tile after the other."""
        merged = TreeMerge(self.corpus.tie_rank, k)
        for tile in tiles:
            merged.add(self._search(tile, queries, k, advance))
        return merged.hits(len(queries))

    def _search(self, tile: range, queries: Float32Array, k: int, advance: Advance) -> Hits:
        rows = slice(tile.start, tile.stop)
        plan = self.store.plan(self.encoder, self.corpus, rows)
        if plan.vectors is None:
            raise BenchError(
                f"{plan.missing_rows:,} vectors of rows {tile.start:,} to {tile.stop:,} are not "
                f"in {self.store.folder}",
                "type the same command again: what is missing is encoded",
            )
        budget, dim = self.budget or default_budget(), plan.vectors.dim
        size = plan_search(budget, len(tile), dim, len(queries), k, device=self.device)
        hits = exact_search(
            plan.vectors,
            queries,
            k,
            self.corpus.tie_rank[rows],
            tile_rows=size.tile_rows,
            block_bytes=size.block_bytes,
            device=self.device,
            advance=advance,
        )
        hits.rows[hits.rows >= 0] += tile.start
        return hits
