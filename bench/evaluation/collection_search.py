"""Retrievers, which find the documents of a collection for its queries: by vectors, or by BM25.

Documents are encoded, and the speed and the tokens of their encoder are measured, here as well.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np

from bench.evaluation.compressed_search import (
    bytes_per_document,
    faiss_device,
    rescore_hits,
    view_for_rescoring,
)
from bench.evaluation.exact import has_gpu
from bench.evaluation.index_search import (
    CorpusIndex,
    ExactSearch,
    IndexSearch,
    Vectors,
    apply_exclude_self,
    check_index_fits,
    default_budget,
    memory_option,
    plan_search,
    progress_bar,
    resident_bytes,
    sample_queries,
    search_depth,
)
from bench.evaluation.result_record import Timings
from bench.store.indexes import INDEXES, IndexFolder, IndexManifest
from bench.store.shards import StoredVectors
from bench.store.store import VectorStore
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from foundation.machine import format_size, library_version
from retrievers.encoders.bm25 import BM25, index_bytes
from retrievers.encoders.protocol import Encoder, PhaseTimer
from retrievers.encoders.views import View, ViewedVectors
from retrievers.index.faiss_index import IndexSpec, trained_on
from retrievers.index.hits import Hits, multiply_by_similarity, sort_canonically
from retrievers.models.card import Compression, replace_fields
from retrievers.models.read_checkpoint import COUNTING_VERSION, Parameters
from retrievers.models.resolve import Model, count_parameters, resolve_model

FLAT = IndexSpec.parse("flat")
PYTORCH_BYTES = 1 << 30  # the library, its caches and a batch
SAMPLE_DOCUMENTS = 2_000  # whose tokens are counted
FIRST_CHUNK = 64


@dataclass(frozen=True)
class EvaluationOptions:
    """Settings of an evaluation that neither the collection nor the model decides.

    Attributes:
        index: index to search; ``flat`` is exact search, and ``bm25`` multiplies BM25's scores by
            the similarities of the documents that BM25 finds.
        depth: documents per query; None for the collection's.
        measures: measures besides the main one; None for the collection's.
        view: how vectors are made from those of an encoder that stores every pooling.
        recall_queries: number of queries on which the recall of an index is measured; None for all.
        from_index: folder of an exported index to search; None for an index of the store.
    """

    index: IndexSpec = FLAT
    depth: int | None = None
    measures: tuple[str, ...] | None = None
    view: View | None = None
    recall_queries: int | None = None
    from_index: Path | None = None


@dataclass(frozen=True)
class LoadedModel:
    """A model with its encoder of queries and documents, or None for BM25."""

    model: Model
    encoder: Encoder | None

    @property
    def name(self) -> str:
        """Name of the model in results."""
        return self.model.card.name

    def with_name(self, name: str) -> "LoadedModel":
        """Return this model with another ``name`` in results, such as a training's."""
        recipe = msgspec.structs.replace(self.model.recipe, model=name)
        card = replace_fields(self.model.card, {"name": name})
        return LoadedModel(replace(self.model, card=card, recipe=recipe), self.encoder)

    def for_dataset(self, collection: str) -> "LoadedModel":
        """Return this model with the prompts of ``collection``. The weights are shared."""
        encoder = self.encoder.for_dataset(collection) if self.encoder else None
        return LoadedModel(self.model.for_dataset(collection), encoder)

    def require_encoder(self) -> Encoder:
        """Return the encoder, or raise a `BenchError` if the model has none, such as BM25."""
        if self.encoder is None:
            raise BenchError(f"{self.name} makes no vectors", "use a model that encodes texts")
        return self.encoder


@dataclass(frozen=True)
class SearchResult:
    """Hits of a search in canonical order, without self-matches, and how they were computed.

    For ``recall`` see `Result`. ``preflight`` holds the checks of the encoder on a sample, and
    ``device`` names the device that searched.
    """

    hits: Hits
    timings: Timings
    device: str = "cpu"
    recall: dict[str, float] = field(default_factory=dict)
    preflight: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BM25Retriever:
    """BM25, with the same methods as `VectorRetriever`. It has no index, and its own tokens."""

    model: Model
    max_memory: int | None = None
    index: str = ""
    tokens_sha256: str = ""
    bytes_per_document: int | None = None

    def recall_queries(self, dataset: Dataset) -> None:
        """Return None, because the search of ``dataset`` is exact."""

    def parameters(self) -> Parameters | None:
        """Return the parameters of the model, or None if they are unknown."""
        return count_parameters(self.model)

    def check(self, dataset: Dataset, depth: int) -> int:
        """Estimate the peak memory of a search in bytes, and raise if it exceeds the limit."""
        places = len(dataset.queries) * min(depth, len(dataset.corpus)) * 12
        needed = resident_bytes() + index_bytes(len(dataset.corpus)) + places
        if self.max_memory is not None and needed > self.max_memory:
            raise BenchError(
                f"BM25 needs {format_size(needed)} for {len(dataset.corpus):,} documents; the "
                f"budget is {format_size(self.max_memory)}",
                f"{memory_option(needed)}, or fewer documents per query",
            )
        return needed

    def search(self, dataset: Dataset, depth: int) -> SearchResult:
        """Search the best ``depth`` documents of each query of ``dataset``."""
        timer, k = PhaseTimer(), min(depth, len(dataset.corpus))
        with timer.phase("search_s"):
            hits = search_bm25(dataset, BM25(self.model.recipe), search_depth(dataset, k))
        return SearchResult(
            apply_exclude_self(dataset, hits, k), Timings(search_s=timer.seconds["search_s"])
        )


@dataclass(frozen=True)
class VectorRetriever:
    """An encoder with exact search, with an index, or limited to the documents that BM25 finds.

    With a view, the recipe of ``model`` is the view's. The recipe of ``encoder`` has neither a view
    nor a compression.
    """

    model: Model
    encoder: Encoder
    store: VectorStore
    options: EvaluationOptions
    device: str
    max_memory: int | None

    @property
    def compression(self) -> Compression:
        """How documents are compressed before they are searched."""
        return self.model.recipe.compression

    @cached_property
    def view(self) -> View | None:
        """View of the stored vectors to search, or None to search them unchanged."""
        chosen = self.compression
        is_cut = chosen.dimensions is not None or chosen.precision != "float32"
        return self.options.view or (View.of(self.model.recipe) if is_cut else None)

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
        return trained_on(self.spec, self._index_dim, faiss_device(self.device))

    @property
    def bytes_per_document(self) -> int:
        """Bytes that a search reads of each document, on average."""
        return bytes_per_document(self.model.recipe, self.spec)

    def recall_queries(self, dataset: Dataset) -> int | None:
        """Return the number of queries on which recall is measured, or None for all or no index."""
        wanted = self.options.recall_queries if self.spec.needs_faiss else None
        return None if wanted is None or wanted >= len(dataset.queries) else wanted

    def parameters(self) -> Parameters | None:
        """Return the parameters of the model, counted once and then read from the store."""
        recipe = self.model.recipe  # an external encoder may read files that are not hashed
        if recipe.encoder or recipe.kind in ("python", "endpoint"):
            return count_parameters(self.model)
        about = f"parameters {COUNTING_VERSION}"
        known = self.store.remember(
            self.encoder.recipe, about, lambda: msgspec.to_builtins(count_parameters(self.model))
        )
        return msgspec.convert(known, Parameters)

    @cached_property
    def tokens_sha256(self) -> str:
        """Digest of the token ids of fixed texts, as query and as document."""
        sides = [self.store.tokens_sha256(self.encoder, role) for role in ("query", "document")]
        return hashlib.sha256(" ".join(sides).encode()).hexdigest() if all(sides) else ""

    def check(self, dataset: Dataset, depth: int) -> int:
        """Estimate the peak memory of searching ``dataset`` to ``depth``, in bytes.

        Raises:
            BenchError: too little memory, or an exported index that is damaged or does not fit.
        """
        self._check_rescoring()
        if self.options.from_index:
            self.corpus_index(dataset)
        budget = self.max_memory or default_budget()
        rows, dim = len(dataset.corpus), self.encoder.dim
        queries, loading = len(dataset.queries), 0
        if self.max_memory and self.store.plan(self.encoder, dataset.corpus).missing_rows:
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

    def search(self, dataset: Dataset, depth: int) -> SearchResult:
        """Search the best ``depth`` documents of each query of ``dataset``."""
        before, timer = self._timer.copy(), PhaseTimer()
        rescore = self.compression.rescore
        candidates = rescore or depth
        k = min(candidates, len(dataset.corpus))  # no memory for ranks that stay empty
        preflight = run_preflight(dataset, self.encoder, self.store)
        after_preflight = self._timer.copy()
        with timer.phase("encode_queries_s"):
            whole = self.store.queries(self.encoder, dataset.queries.texts)
        queries, searching = whole, None
        if self.view:  # FAISS takes the signs of binary queries itself
            queries = self.view.queries(whole, rounded=not self.spec.needs_faiss)
        if self.spec.needs_faiss:
            sampled = sample_queries(len(queries), self.options.recall_queries)
            index, on = self.corpus_index(dataset), faiss_device(self.device)
            searching = IndexSearch(dataset, index, queries, candidates, sampled, on)
        stored = None
        if searching is None or searching.needs_vectors or rescore:
            with timer.phase("encode_documents_s"):
                stored = encode_documents(dataset, self.encoder, self.store)
        vectors = self._apply_view(stored) if stored else None
        tokens = self._timer.since(after_preflight).counts.get("tokens", 0)
        recall: dict[str, float] = {}
        device = "cpu" if self.spec.is_bm25 else search_device(self.device)
        with timer.phase("search_s"):
            if searching is not None:
                hits, recall, device = searching.run(vectors, self._exact(dataset))
            elif vectors is not None:
                hits = apply_exclude_self(dataset, self._rank(dataset, vectors, queries, k), k)
            if rescore and stored:
                again = view_for_rescoring(stored, self.model.recipe)
                hits = rescore_hits(hits, whole, again, dataset.corpus.tie_rank, min(k, depth))
        timings = Timings(
            encoded_documents=stored.encoded if stored else 0,
            encoded_tokens=tokens,
            busy_s=self._timer.since(before).seconds,
            **timer.seconds,
        )
        if tokens:
            self.model.check_unchanged()
        return SearchResult(hits, timings, device, recall, preflight)

    def corpus_index(self, dataset: Dataset) -> CorpusIndex:
        """Return the index to search on ``dataset``: an index of the store, or an exported one."""
        recipe, view = self.model.recipe, self.view
        tokens = self.store.tokens_sha256(self.encoder, "document")
        if self.options.from_index is not None:
            return CorpusIndex.from_export(self.options.from_index, dataset, recipe, tokens)
        manifest = IndexManifest(
            spec=str(self.spec),
            recipe=self.encoder.recipe,
            view=repr(view) if view else "",
            collection=dataset.name,
            version=dataset.facts.version,
            corpus_sha256=dataset.corpus.sha256,
            documents=len(dataset.corpus),
            dim=self._index_dim,
            faiss=library_version("faiss-cpu") or library_version("faiss-gpu"),
            build_s=0.0,
            bytes=0,
            sha256="",
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
            raise BenchError(problem, "leave out --rescore; `bench run DATASET --index DIR` has it")
        run_preflight(dataset, self.encoder, self.store)
        stored = encode_documents(dataset, self.encoder, self.store)
        index = self.corpus_index(dataset)
        device = faiss_device(self.device)
        index.load_or_build(self._apply_view(stored), self._exact(dataset), device)
        return index.index_folder

    @property
    def _index_dim(self) -> int:
        """Dimension of the vectors in an index."""
        dim, view = self.encoder.dim, self.view
        return view.width(dim) + (view.similarity == "euclidean") if view else dim

    @cached_property
    def _timer(self) -> PhaseTimer:
        return getattr(self.encoder, "timer", None) or PhaseTimer()

    @property
    def _loading_bytes(self) -> int:
        """Estimated memory to load the model, with weights in float32, in bytes."""
        checkpoints = list(filter(None, (self.model.document, self.model.query)))
        sizes = (size for each in checkpoints for size, _ in each.stamps.values())
        return PYTORCH_BYTES + 2 * sum(sizes) if checkpoints else 0

    def _apply_view(self, stored: Vectors) -> Vectors:
        """Return the documents to search. FAISS rounds them itself."""
        rounded = not self.spec.needs_faiss
        return ViewedVectors(stored, self.view, rounded) if self.view else stored

    def _check_rescoring(self) -> None:
        """Raise if rescoring would change nothing, or if candidates are not scored by vectors."""
        if self.compression.rescore is None:
            return
        if self.view is None and not self.spec.needs_faiss:
            problem = "--rescore changes nothing: the whole vectors are searched"
            raise BenchError(problem, "add --dimensions or --precision, or leave it out")
        if self.spec.is_bm25:
            raise BenchError("--index bm25 has no candidates to score again", "leave out --rescore")

    def _exact(self, dataset: Dataset) -> ExactSearch:
        budget = self.max_memory or default_budget()
        return ExactSearch(dataset, search_device(self.device), budget, self._timer)

    def _rank(self, dataset: Dataset, vectors: Vectors, queries: Float32Array, k: int) -> Hits:
        """Return hits without a vector index, with self-matches."""
        depth = search_depth(dataset, k)
        if not self.options.index.is_bm25:
            return self._exact(dataset)(vectors, queries, depth)
        # Xu et al., "LaPraDoR: Unsupervised Pretrained Dense Retriever for Zero-Shot Text
        # Retrieval", Findings of ACL 2022, https://arxiv.org/abs/2203.06169, section 3.3: its
        # "lexicon-enhanced" retrieval. A document without a word of the query is not found.
        words = search_bm25(dataset, BM25(resolve_model("bm25").recipe), depth)
        products = multiply_by_similarity(words, queries, vectors.rows)
        return sort_canonically(products, dataset.corpus.tie_rank, depth)


Retriever: TypeAlias = VectorRetriever | BM25Retriever


def search_bm25(dataset: Dataset, bm25: BM25, depth: int) -> Hits:
    """Return the best ``depth`` documents of each query by ``bm25``, self-matches included."""
    corpus = dataset.corpus
    batches = ((titles, texts) for _, titles, texts in corpus.iter_batches(10_000))
    with progress_bar(f"{dataset.name}: bm25 indexes", len(corpus)) as bar:
        bm25.index(batches, bar.update, dataset.cache_dir)
    hits = Hits.empty(len(dataset.queries), depth)
    for row, query in enumerate(dataset.queries.texts):  # hits may tie beyond the depth
        ranked = sort_canonically(bm25.search([query], depth), corpus.tie_rank, depth)
        hits.scores[row], hits.rows[row] = ranked.scores[0], ranked.rows[0]
    return hits


def search_device(device: str) -> str:
    """Return the device of exact search: with ``auto``, a GPU if there is one."""
    if device == "auto":
        return "cuda" if has_gpu() else "cpu"
    return device


PREFLIGHT_DOCUMENTS, PREFLIGHT_QUERIES = 128, 32


def run_preflight(dataset: Dataset, encoder: Encoder, store: VectorStore) -> dict[str, Any]:
    """Check an encoder on a sample of a collection, once for each, and raise if it is unusable."""
    from retrievers.encoders.preflight import preflight

    def check() -> Any:
        titles, texts = sample_documents(dataset.corpus, PREFLIGHT_DOCUMENTS)
        queries = dataset.queries.texts[:PREFLIGHT_QUERIES]
        return msgspec.to_builtins(preflight(encoder, titles, texts, queries))

    allowed = " with unknown tokens" if getattr(encoder, "allow_unknown_tokens", False) else ""
    tokens = store.tokens_sha256(encoder, "document")
    about = f"preflight {dataset.corpus.sha256} {tokens}".rstrip() + allowed
    report = store.remember(encoder.recipe, about, check)
    if report["stop"]:
        problem = f"{encoder.recipe.model} on {dataset.name}: {'; '.join(report['stop'])}"
        raise BenchError(problem, "check its card with `python -m bench show`, or its server")
    return report


def sample_documents(corpus: Corpus, count: int) -> tuple[list[str], list[str]]:
    """Return titles and texts of up to ``count`` random documents, always the same ones."""
    rng, most = np.random.default_rng(0), min(count, len(corpus))
    return corpus.documents_at(np.sort(rng.choice(len(corpus), most, replace=False)))


def encode_documents(dataset: Dataset, encoder: Encoder, store: VectorStore) -> StoredVectors:
    """Encode the missing documents of a collection and return the vectors of all."""
    plan = store.plan(encoder, dataset.corpus)
    if not plan.missing_rows:
        return store.documents(encoder, dataset.corpus, plan)
    title = f"{dataset.name}: {encoder.recipe.model} encodes"
    with progress_bar(title, plan.missing_rows) as bar:
        return store.documents(encoder, dataset.corpus, plan, bar.update)


def measure_speed(encoder: Encoder, corpus: Corpus, budget_s: float) -> float:
    """Measure the encoding speed in tokens per second of wall-clock time, on a seeded sample.

    The weights are loaded before the measurement, which ends after the batch in which ``budget_s``
    seconds have passed, or after the sample. Batches grow until one takes a second, so that a fast
    device reaches its full speed.
    """
    order = np.random.default_rng(0).permutation(len(corpus))  # the probe may use a part only
    titles, texts = corpus.documents_at(order[:SAMPLE_DOCUMENTS])
    lengths = truncated_lengths(encoder, titles, texts)
    encoder.encode_documents(titles[:4], texts[:4])  # loads the weights and warms up
    tokens, spent, chunk, start = 0, 0.0, FIRST_CHUNK, 0
    while spent < budget_s and start < len(texts):
        some = slice(start, start + chunk)
        before = time.perf_counter()
        encoder.encode_documents(titles[some], texts[some])
        took = time.perf_counter() - before
        tokens, spent, start = tokens + int(lengths[some].sum()), spent + took, start + chunk
        if took < 1.0:
            chunk *= 2
    return tokens / spent


def mean_tokens(encoder: Encoder, corpus: Corpus) -> float:
    """Return the mean number of tokens of a document, estimated on a seeded sample."""
    return float(truncated_lengths(encoder, *sample_documents(corpus, SAMPLE_DOCUMENTS)).mean())


def truncated_lengths(encoder: Encoder, titles: Sequence[str], texts: Sequence[str]) -> Int64Array:
    """Count the tokens of documents, int64 ``(n,)``, as ``encoder`` truncates them.

    Words are counted if it has no tokenizer.
    """
    count = getattr(encoder, "count_document_tokens", None)
    if count is None:  # an encoder without a tokenizer, such as hashing
        return np.array([len(f"{a} {b}".split()) for a, b in zip(titles, texts, strict=True)])
    lengths = np.array(cast("list[int]", count(titles, texts)), dtype=np.int64)
    return np.minimum(lengths, encoder.recipe.max_document_tokens or lengths)
