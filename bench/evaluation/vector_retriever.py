"""Encoders and ready vectors as retrievers: exact search of vectors, or search in an index."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self, cast

import msgspec

from bench.evaluation.encoding import encode_documents, encode_queries, run_preflight
from bench.evaluation.exact import search_device
from bench.evaluation.index_search import (
    CorpusIndex,
    CorpusVectors,
    ExactSearch,
    IndexSearch,
    check_index_fits,
    default_budget,
    plan_search,
)
from bench.evaluation.judging import drop_excluded, search_depth
from bench.evaluation.result_record import Timings
from bench.evaluation.retriever import EvaluationOptions, Resources, Retriever, SearchStatistics
from bench.evaluation.runs import Run
from bench.evaluation.vector_search import (
    VectorSearch,
    bytes_per_document,
    search_bm25,
    transform_queries,
)
from bench.store.indexes import INDEXES, IndexFolder, IndexManifest
from bench.store.store import VectorStore
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array
from foundation.errors import BenchError, format_names
from foundation.machine import library_version
from retrievers.encoders.bm25 import BM25
from retrievers.encoders.protocol import Encoder, PhaseTimer
from retrievers.encoders.ready_vectors import ReadyVectors
from retrievers.encoders.transformer import open_encoder
from retrievers.encoders.views import View, ViewedVectors, compress, sample_rows
from retrievers.index.faiss_index import IndexSpec, faiss_device, trained_on
from retrievers.index.hits import Hits, multiply_by_similarity, sort_canonically
from retrievers.models.card import Compression, Role
from retrievers.models.checkpoint import COUNTING_VERSION, Parameters
from retrievers.models.resolve import Model, count_parameters, resolve_model

PYTORCH_BYTES = 1 << 30  # the library, its caches and a batch
ROLES: tuple[Role, ...] = ("query", "document")


@dataclass(frozen=True, kw_only=True)
class VectorRetriever(Retriever):
    """An encoder with exact search, with an index, or limited to the documents that BM25 finds.

    With a view, the recipe of ``model`` is the view's. The recipe of ``encoder`` has neither a view
    nor a compression.
    """

    encoder: Encoder

    @classmethod
    def open(cls, model: Model, resources: Resources) -> Self:
        """Return the retriever of a resolved model, whose recipe gets its dimension."""
        encoder = open_encoder(model, resources.device)
        return cls.of(model, encoder, resources)

    @classmethod
    def of(cls, model: Model, encoder: Encoder, resources: Resources) -> Self:
        """Return the retriever of an open ``encoder``, whose recipe has a dimension."""
        recipe = compress(encoder.recipe, model.recipe.compression)
        return cls(model=replace(model, recipe=recipe), encoder=encoder, resources=resources)

    def configured(self, options: EvaluationOptions, resources: Resources) -> Self:
        """Return this model with other options. An exported index decides what is not chosen."""
        chosen, ours = super().configured(options, resources), self.compression
        is_default = ours.precision == "float32" and ours.dimensions in (None, self.card.dimensions)
        if options.from_index is None or not is_default:
            return chosen
        stored = IndexFolder(options.from_index).manifest().recipe.compression
        again = {"rescore": ours.rescore, "rescore_by": ours.rescore_by}
        recipe = compress(self.recipe, msgspec.structs.replace(stored, **again))
        return replace(chosen, model=replace(self.model, recipe=recipe))

    def for_dataset(self, collection: str) -> Self:
        """Return this model with the prompts of ``collection``. Loaded weights are shared."""
        encoder = self.encoder.for_dataset(collection)
        return replace(super().for_dataset(collection), encoder=encoder)

    def require_encoder(self) -> Encoder:
        """Return the encoder."""
        return self.encoder

    @property
    def encoders(self) -> tuple[Retriever, ...]:
        """This model alone."""
        return (self,)

    def with_encoders(self, change: Callable[[Retriever], Retriever]) -> Retriever:
        """Return this model changed."""
        return change(self)

    def identified(self, dataset: Dataset, depth: int) -> Self:
        """Raise if code of the user makes other vectors: it may read files that are not hashed."""
        if not self.recipe.traits.is_stated and self.recipe.files:
            for role in ROLES:
                self.store.check_drift(self.encoder, role)
        return self

    @property
    def store(self) -> VectorStore:
        """Vector store."""
        return self.resources.store

    @property
    def compression(self) -> Compression:
        """How documents are compressed before they are searched."""
        return self.recipe.compression

    @cached_property
    def view(self) -> View | None:
        """View of the stored vectors to search, or None to search them unchanged."""
        chosen = self.compression
        is_cut = chosen.dimensions is not None or chosen.precision != "float32"
        return self.options.view or (View.of(self.recipe) if is_cut else None)

    @cached_property
    def spec(self) -> IndexSpec:
        """Index that stores documents in the precision of the compression."""
        return self.options.index.with_precision(self.compression.precision)

    @cached_property
    def index(self) -> str:
        """Index in results. An exported index is also identified by its content."""
        if self.options.from_index is None:
            return str(self.spec) + f" (trained on {self.trained_on})" * bool(self.trained_on)
        manifest = IndexFolder(self.options.from_index).manifest()
        return f"{self.spec} (file {manifest.sha256[:12]})"

    @cached_property
    def trained_on(self) -> str:
        """``cuda`` if an index of the store is trained on a GPU, else ""."""
        if not self.spec.needs_faiss:
            return ""
        return trained_on(self.spec, self._index_dim, faiss_device(self.resources.device))

    @property
    def is_cuttable(self) -> bool:
        """True if search is exact. An index may search more of itself for more documents."""
        return not self.spec.needs_faiss

    @property
    def bytes_per_document(self) -> int:
        """Bytes that a search reads of each document, on average."""
        return bytes_per_document(self.recipe, self.spec)

    def recall_queries(self, dataset: Dataset) -> int | None:
        """Return the number of queries on which recall is measured, or None for all or no index."""
        wanted = self.options.recall_queries if self.spec.needs_faiss else None
        return None if wanted is None or wanted >= len(dataset.queries) else wanted

    def parameters(self) -> Parameters | None:
        """Return the parameters of the model, counted once and then read from the store."""
        recipe = self.recipe  # an external encoder may read files that are not hashed
        if recipe.encoder or recipe.traits.is_opaque:
            return count_parameters(self.model)
        about = f"parameters {COUNTING_VERSION}"
        known = self.store.remember(
            self.encoder.recipe, about, lambda: msgspec.to_builtins(count_parameters(self.model))
        )
        return msgspec.convert(known, Parameters)

    @cached_property
    def tokens_sha256(self) -> str:
        """Digest of the token ids of fixed texts, as query and as document."""
        sides = [self.store.tokens_sha256(self.encoder, role) for role in ROLES]
        return hashlib.sha256(" ".join(sides).encode()).hexdigest() if all(sides) else ""

    def check(self, dataset: Dataset, depth: int) -> int:
        """Estimate the peak memory of searching ``dataset`` to ``depth``, in bytes.

        Raises:
            BenchError: too little memory, or an exported index that is damaged or does not fit.
        """
        self._check_rescoring()
        if self.options.from_index:
            self.corpus_index(dataset)
        budget = self.resources.max_memory or default_budget()
        rows, dim = len(dataset.corpus), self.encoder.dim
        queries, loading = len(dataset.queries), 0
        if self.resources.max_memory and self.store.plan(self.encoder, dataset.corpus).missing_rows:
            loading = self._loading_bytes
        depth = self.compression.rescore or depth
        plan = plan_search(budget, rows, dim, queries, min(depth, rows), loading=loading)
        if self.spec.needs_faiss:
            dim = self.view.width(dim) if self.view else dim
            return check_index_fits(self.spec, rows, dim, budget, loading)
        return plan.memory_bytes

    def missing(self, dataset: Dataset) -> int:
        """Return the number of documents of ``dataset`` without a stored vector.

        It is 0 if an exported index is searched without measuring its recall.
        """
        measured = self.options.recall_queries != 0 or self.compression.rescore
        if self.options.from_index and not measured:
            return 0
        return self.store.plan(self.encoder, dataset.corpus).missing_rows

    def search(self, dataset: Dataset, depth: int) -> tuple[Run, SearchStatistics]:
        """Rank the best ``depth`` documents of each query of ``dataset``."""
        hits, statistics = self.find(dataset, depth)
        corpus = dataset.corpus
        return Run.from_hits(hits, dataset.queries.ids, corpus.ids, corpus.tie_rank), statistics

    def find(self, dataset: Dataset, depth: int) -> tuple[Hits, SearchStatistics]:
        """Return hits in canonical order, without documents that the protocol excludes."""
        before, timer = self.encoder.timer.copy(), PhaseTimer()
        preflight = run_preflight(dataset, self.encoder, self.store)
        after_preflight = self.encoder.timer.copy()
        with timer.phase("encode_queries_s"):
            queries = encode_queries(dataset, self.encoder, self.store)
        index = self._index_search(dataset, queries, depth) if self.spec.needs_faiss else None
        stored = vectors = None
        if index is None or index.needs_vectors or self.compression.rescore:
            with timer.phase("encode_documents_s"):
                stored = encode_documents(dataset, self.encoder, self.store)
            vectors = self._apply_view(stored)
        tokens = self.encoder.timer.since(after_preflight).counts.get("tokens", 0)
        if index is not None:
            index = replace(index, vectors=vectors)
        find = index.find if index else partial(self._rank, dataset, cast(CorpusVectors, vectors))
        ranks, in_faiss = dataset.corpus.tie_rank, index is not None
        searching = VectorSearch(self.recipe, self.view, find, ranks, stored, in_faiss)
        with timer.phase("search_s"):
            candidates = searching.candidates(queries, depth)
            recall = index.recall(candidates) if index else {}
            hits = searching.rescore(candidates, queries, depth)
        if tokens:
            self.model.check_unchanged()
        timings = Timings(
            encoded_documents=stored.encoded if stored else 0,
            encoded_tokens=tokens,
            busy_s=self.encoder.timer.since(before).seconds,
            **timer.seconds,
        )
        device = "cpu" if self.spec.is_bm25 else search_device(self.resources.device)
        device = index.opened.device if index else device
        return hits, SearchStatistics(timings, device, recall, preflight)

    def _index_search(self, dataset: Dataset, queries: Float32Array, depth: int) -> IndexSearch:
        return IndexSearch(
            dataset,
            self.corpus_index(dataset),
            transform_queries(queries, self.view, in_faiss=True),
            self.compression.rescore or depth,
            sample_rows(len(queries), self.options.recall_queries),
            faiss_device(self.resources.device),
            self._exact(dataset),
        )

    def corpus_index(self, dataset: Dataset) -> CorpusIndex:
        """Return the index to search on ``dataset``: an index of the store, or an exported one."""
        recipe, view = self.recipe, self.view
        tokens = self.store.tokens_sha256(self.encoder, "document")
        if self.options.from_index is not None:
            return CorpusIndex.from_export(self.options.from_index, dataset, recipe, tokens)
        manifest = IndexManifest(
            spec=str(self.spec),
            recipe=self.encoder.recipe,
            view=repr(view) if view else "",
            collection=dataset.name,
            version=dataset.metadata.version,
            corpus_sha256=dataset.corpus.sha256,
            documents=len(dataset.corpus),
            dim=self._index_dim,
            faiss=library_version("faiss-cpu") or library_version("faiss-gpu"),
            tokens_sha256=tokens,
            trained_on=self.trained_on,
        )
        side = self.encoder.recipe.side("document")
        folder = self.store.folder_of(side) / INDEXES / manifest.key
        return CorpusIndex(IndexFolder(folder), manifest)

    def build_index(self, dataset: Dataset) -> IndexFolder:
        """Build and store the index of ``dataset``, after encoding missing documents."""
        if self.compression.rescore:
            problem = "an index has no vectors to score candidates again with"
            raise BenchError(
                problem, "Leave out --rescore; `bench run DATASET --index DIR` has it."
            )
        run_preflight(dataset, self.encoder, self.store)
        stored = encode_documents(dataset, self.encoder, self.store)
        index = self.corpus_index(dataset)
        device = faiss_device(self.resources.device)
        index.load_or_build(self._apply_view(stored), self._exact(dataset), device)
        return index.index_folder

    @property
    def _index_dim(self) -> int:
        """Dimension of the vectors in an index."""
        dim, view = self.encoder.dim, self.view
        return view.width(dim) + (view.similarity == "euclidean") if view else dim

    @property
    def _loading_bytes(self) -> int:
        """Estimated memory to load the model, with weights in float32, in bytes."""
        checkpoints = list(filter(None, (self.model.document, self.model.query)))
        sizes = (each.size for each in checkpoints)
        return PYTORCH_BYTES + 2 * sum(sizes) if checkpoints else 0

    def _apply_view(self, stored: CorpusVectors) -> CorpusVectors:
        """Return the documents to search. FAISS rounds them itself."""
        rounded = not self.spec.needs_faiss
        return ViewedVectors(stored, self.view, rounded) if self.view else stored

    def _check_rescoring(self) -> None:
        """Raise if rescoring would change nothing, or if candidates are not scored by vectors."""
        if self.compression.rescore is None:
            return
        if self.view is None and not self.spec.needs_faiss:
            problem = "--rescore changes nothing: the whole vectors are searched"
            raise BenchError(problem, "Add --dimensions or --precision, or leave it out.")
        if self.spec.is_bm25:
            raise BenchError(
                "--index bm25 has no candidates to score again", "Leave out --rescore."
            )

    def _exact(self, dataset: Dataset) -> ExactSearch:
        budget = self.resources.max_memory or default_budget()
        return ExactSearch(
            dataset, search_device(self.resources.device), budget, self.encoder.timer
        )

    def _rank(
        self, dataset: Dataset, vectors: CorpusVectors, queries: Float32Array, depth: int
    ) -> Hits:
        """Return hits without a vector index, and without self-matches."""
        k = min(depth, len(dataset.corpus))  # no memory for ranks that stay empty
        wide = search_depth(dataset, k)
        if not self.options.index.is_bm25:
            return drop_excluded(dataset, self._exact(dataset)(vectors, queries, wide), k)
        # Xu et al., "LaPraDoR: Unsupervised Pretrained Dense Retriever for Zero-Shot Text
        # Retrieval", Findings of ACL 2022, https://arxiv.org/abs/2203.06169, section 3.3: its
        # "lexicon-enhanced" retrieval. A document without a word of the query is not found.
        words = search_bm25(dataset, BM25(resolve_model("bm25").recipe), wide)
        products = multiply_by_similarity(words, queries, vectors.rows)
        return drop_excluded(dataset, sort_canonically(products, dataset.corpus.tie_rank, wide), k)


@dataclass(frozen=True, kw_only=True)
class ReadyVectorsRetriever(VectorRetriever):
    """Vectors of a folder with exact search, or with an index."""

    def check(self, dataset: Dataset, depth: int) -> int:
        """Estimate the peak memory of a search in bytes.

        Raises:
            BenchError: a document or query has no vector, or too little memory.
        """
        for role, ids in self._ids_of(dataset).items():
            vectors = self._vectors.vectors[role]
            if missing := vectors.find_missing(ids):
                raise vectors.lacks(missing, len(ids))
        return super().check(dataset, depth)

    def find(self, dataset: Dataset, depth: int) -> tuple[Hits, SearchStatistics]:
        """Return hits, and warn of vectors of documents that the collection lacks."""
        hits, statistics = super().find(dataset, depth)
        self.model.check_unchanged()
        ids = self._vectors.vectors["document"].ids
        extra = ids.difference(self._ids_of(dataset)["document"], sort=False)
        if not len(extra):
            return hits, statistics
        names = format_names([*extra[:3]])
        about = f"{len(extra):,} of {len(ids):,} document vectors are ignored: {dataset.name} does "
        warnings = [*statistics.preflight["warnings"], f"{about}not contain their ids ({names})"]
        return hits, replace(statistics, preflight={**statistics.preflight, "warnings": warnings})

    def _ids_of(self, dataset: Dataset) -> dict[Role, list[str]]:
        return {"document": dataset.corpus.ids.to_pylist(), "query": [*dataset.queries.ids]}

    @property
    def _vectors(self) -> ReadyVectors:
        return cast(ReadyVectors, self.encoder)

    @property
    def _loading_bytes(self) -> int:
        """Size of the files, in bytes."""
        return self.model.checkpoint.size
