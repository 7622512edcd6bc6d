"""Texts become vectors, vectors become a ranking, a ranking becomes scores.

Reads in that order: `evaluate` is the main job. No stage calls back, none changes its input.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.evaluate import search
from bench.evaluate.budgeted_search import ExactSearch, Vectors, with_bar
from bench.evaluate.encode_documents import check_encoder, encode_documents
from bench.evaluate.exact.choose_engine import sees_gpu
from bench.evaluate.index_search import IndexOfCorpus, IndexSearch, sample_of
from bench.evaluate.judging import check_relevant, measure_names, protocol_of, score_run
from bench.evaluate.memory import check_index_fits, default_budget, plan_search
from bench.evaluate.runs import Run
from bench.evaluate.scoring import Scores
from bench.results.conditions import conditions
from bench.results.result import Conditions, Result, Timings
from bench.store import StoredVectors, VectorStore
from bench.store.indexes import IndexFolder
from bench.store.store import folder_name
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array
from foundation.machine import InBackground
from retrievers.encoders.bm25 import BM25
from retrievers.encoders.clock import Clock
from retrievers.encoders.protocol import Encoder
from retrievers.encoders.views import View, Viewed
from retrievers.index.faiss_index import Hits, IndexSpec
from retrievers.index.library import import_faiss
from retrievers.models.card import Card
from retrievers.models.model import Model, resolve_model
from retrievers.models.parameters import COUNTING, Parameters, count_parameters

FLAT = IndexSpec.parse("flat")


@dataclass(frozen=True)
class Options:
    """Choices of an evaluation that the collection's and the model's own facts leave open.

    Attributes:
        index: ``flat`` is exact search; ``bm25`` scores what BM25 finds, see `_search_both`.
        depth: documents per query; None for the collection's.
        measures: besides the main one; None for the collection's.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        max_memory: bytes that this process may hold while it searches; None for most of what is
            free.
        view: what is made of the vectors of an encoder that stores every pooling; None for any
            other encoder.
        recall_queries: on how many queries the recall of an approximate index is measured; None
            for all.
        from_index: folder that `index` wrote, whose index is searched; None for that of the store.
    """

    index: IndexSpec = FLAT
    depth: int | None = None
    measures: tuple[str, ...] | None = None
    device: str = "auto"
    max_memory: int | None = None
    view: View | None = None
    recall_queries: int | None = None
    from_index: Path | None = None

    @property
    def index_name(self) -> str:
        """The index in a result: one that the user brought is known by its content, too.

        Raises:
            BenchError: there is no such index.
        """
        if self.from_index is None:
            return str(self.index)
        return f"{self.index} (file {IndexFolder(self.from_index).manifest().sha256[:12]})"

    def sampled(self, queries: int) -> int | None:
        """On how many of the queries recall is measured; None for all, and without an index."""
        wanted = self.recall_queries if self.index.needs_faiss else None
        return None if wanted is None or wanted >= queries else wanted


@dataclass(frozen=True)
class Evaluation:
    """A result with what it was computed from."""

    result: Result
    scores: Scores
    run: Run


def evaluate(
    dataset: Dataset,
    model: Model,
    encoder: Encoder | None,
    store: VectorStore,
    options: Options,
    official: bool = True,
) -> Evaluation:
    """Evaluate one model on one collection.

    Args:
        dataset: an open collection.
        model: resolved for this collection (``model.for_dataset``).
        encoder: of that model; None for BM25, which makes no vectors.
        store: where vectors are kept.
        official: whether this is the published collection; see `datasets_cfg.published`.

    Raises:
        BenchError: bad input, before or during the work.
    """
    depth = options.depth or dataset.facts.depth
    names = measure_names(dataset, options.measures, depth)
    check_relevant(dataset)
    checking = InBackground(dataset.corpus.check)
    clock = getattr(encoder, "clock", None) or Clock()
    earlier, stages = clock.copy(), Clock()
    parameters = parameters_of(model, encoder, store)  # before hours, lest it fail after them
    searched = _search(dataset, model, encoder, store, options, depth, stages, clock)
    corpus = dataset.corpus
    run = Run.from_hits(searched.hits, dataset.queries.ids, corpus.ids, corpus.tie_rank)
    with stages.phase("score_s"):
        scores, quality = score_run(dataset, run, names, depth)
    checking.finish()
    result = Result(
        model=model.card.name,
        main_measure=names[0],
        measures={name: scores.mean(name) for name in names},
        queries=len(scores.query_ids),
        documents=len(dataset.corpus),
        unanswered=scores.unanswered,
        ignored=scores.ignored,
        index=options.index_name if encoder else "",
        index_recall=searched.recall,
        recall_queries=options.sampled(len(dataset.queries)) if encoder else None,
        in_domain=in_domain(model.card, dataset.name),
        protocol=protocol_of(dataset, depth, dataset.corpus.sha256, official),
        recipe=model.recipe,
        fingerprint=model.recipe.fingerprint,
        preflight=searched.preflight,
        timings=_timings(searched, stages, clock.since(earlier)),
        conditions=conditions_here(options.device),
        parameters=parameters,
        **msgspec.structs.asdict(quality),
    )
    return Evaluation(result, scores, run)


@dataclass(frozen=True)
class _Searched:
    """Hits in canonical order without self-matches, and how they came about."""

    hits: Hits
    recall: dict[str, float]
    encoded: int = 0
    tokens: int = 0
    preflight: dict[str, Any] = field(default_factory=dict)


def _timings(searched: _Searched, stages: Clock, busy: Clock) -> Timings:
    return Timings(
        encoded_documents=searched.encoded,
        encoded_tokens=searched.tokens,
        busy_s=busy.seconds,
        **stages.seconds,
    )


def _search(
    dataset: Dataset,
    model: Model,
    encoder: Encoder | None,
    store: VectorStore,
    options: Options,
    depth: int,
    stages: Clock,
    clock: Clock,
) -> _Searched:
    k = min(depth, len(dataset.corpus))  # no memory for places that cannot be filled
    k_with_self = k + 1 if dataset.facts.exclude_self else k
    if encoder is None:
        with stages.phase("search_s"):
            hits = _search_words(dataset, BM25(model.recipe), k_with_self)
        return _Searched(without_self(dataset, hits, k), {})
    plan = store.plan(encoder, dataset.corpus)
    checks = check_encoder(dataset, encoder, store)
    checked = clock.copy()  # its tokens are no work of the two stages that follow
    with stages.phase("encode_queries_s"):
        queries = store.queries(encoder, dataset.queries.texts)
    if options.view:
        queries = options.view.queries(queries)
    searching = None
    if options.index.needs_faiss:
        searching = _index_search(dataset, encoder, store, options, queries)
    encoded, vectors = 0, None
    if searching is None or searching.needs_vectors:
        with stages.phase("encode_documents_s"):
            stored = encode_documents(dataset, encoder, store, plan, clock)
        encoded, vectors = stored.encoded, _viewed(stored, options.view)
    tokens = clock.since(checked).counts.get("tokens", 0)
    exact = _exactly(dataset, options, clock)
    recall: dict[str, float] = {}
    with stages.phase("search_s"):
        if searching:
            ranked, recall = searching.run(vectors, exact)
        elif vectors is not None and options.index.is_bm25:
            ranked = without_self(dataset, _search_both(dataset, vectors, queries, k_with_self), k)
        elif vectors is not None:
            ranked = without_self(dataset, exact(vectors, queries, k_with_self), k)
    return _Searched(ranked, recall, encoded, tokens, checks)


def _exactly(dataset: Dataset, options: Options, clock: Clock) -> ExactSearch:
    budget = options.max_memory or default_budget()
    return ExactSearch(dataset, search_device(options.device), budget, clock)


def _viewed(stored: StoredVectors, view: View | None) -> Vectors:
    return Viewed(stored, view) if view else stored


def check_memory(dataset: Dataset, dim: int, options: Options) -> None:
    """Refuse, before it is encoded, what cannot be searched in the memory that is there.

    Raises:
        BenchError: it does not fit; the message has the estimate.
    """
    budget = options.max_memory or default_budget()
    depth = min(options.depth or dataset.facts.depth, len(dataset.corpus))
    device = search_device(options.device)
    plan_search(budget, len(dataset.corpus), dim, len(dataset.queries), depth, device=device)
    if options.index.needs_faiss:
        check_index_fits(options.index, len(dataset.corpus), dim, budget)


def parameters_of(model: Model, encoder: Encoder | None, store: VectorStore) -> Parameters | None:
    """The parameters of a model: counted once for an encoder, then read from the store."""
    if encoder is None or model.recipe.encoder:
        return count_parameters(model)

    def count() -> dict[str, Any]:
        counted: dict[str, Any] = msgspec.to_builtins(count_parameters(model))
        return counted

    return msgspec.convert(store.remember(encoder, f"parameters {COUNTING}", count), Parameters)


def build_index(
    dataset: Dataset, encoder: Encoder, store: VectorStore, options: Options
) -> IndexFolder:
    """The index of a collection in the store; what is missing is encoded, built and kept.

    Raises:
        BenchError: as `evaluate`.
    """
    check_encoder(dataset, encoder, store)
    clock: Clock = getattr(encoder, "clock", None) or Clock()
    plan = store.plan(encoder, dataset.corpus)
    stored = encode_documents(dataset, encoder, store, plan, clock)
    vectors = _viewed(stored, options.view)
    index = index_of(dataset, encoder, store, options)
    index.opened(vectors, _exactly(dataset, options, clock), "cpu")
    return index.kept


def documents_to_encode(
    dataset: Dataset, encoder: Encoder, store: VectorStore, options: Options
) -> int:
    """Number of documents that an evaluation encodes: those without a stored vector.

    There are none where an exported index is searched whose recall is known, or not asked for.

    Raises:
        BenchError: as `index_of`.
    """
    missing = store.plan(encoder, dataset.corpus).missing_rows
    if options.from_index is None or not missing:
        return missing
    queries = store.queries(encoder, dataset.queries.texts)
    searching = _index_search(dataset, encoder, store, options, queries)
    return missing if searching.needs_vectors else 0


def _index_search(
    dataset: Dataset,
    encoder: Encoder,
    store: VectorStore,
    options: Options,
    queries: Float32Array,
) -> IndexSearch:
    return IndexSearch(
        dataset,
        index_of(dataset, encoder, store, options),
        queries,
        options.depth or dataset.facts.depth,
        sample_of(len(queries), options.recall_queries),
        faiss_device(options.device),
    )


def index_of(
    dataset: Dataset, encoder: Encoder, store: VectorStore, options: Options
) -> IndexOfCorpus:
    """The index that an evaluation searches: that of the store, or of a folder.

    Raises:
        BenchError: a folder that holds none, or one of another model or corpus.
    """
    recipe, view = encoder.recipe, options.view
    if options.from_index is not None:
        return IndexOfCorpus.exported_to(options.from_index, dataset, recipe)
    dim = view.width(encoder.dim) + (view.similarity == "euclidean") if view else encoder.dim
    folder = store.folder / folder_name(recipe.side("document"))
    return IndexOfCorpus.of(dataset, recipe, dim, options.index, view, folder)


def _search_words(dataset: Dataset, bm25: BM25, depth: int) -> Hits:
    corpus = dataset.corpus
    batches = ((titles, texts) for _, titles, texts in corpus.iter_batches(10_000))
    with_bar(
        f"{dataset.name}: bm25 indexes",
        len(corpus),
        lambda advance: bm25.index(batches, advance, dataset.cache_dir),
    )
    return search.by_query(bm25, dataset.queries.texts, depth, corpus.tie_rank)


def _search_both(dataset: Dataset, vectors: Vectors, queries: Float32Array, depth: int) -> Hits:
    """The best documents of BM25, by the product of its score and the similarity.

    Xu et al., "LaPraDoR: Unsupervised Pretrained Dense Retriever for Zero-Shot Text Retrieval",
    Findings of ACL 2022, https://arxiv.org/abs/2203.06169, section 3.3: its "lexicon-enhanced"
    retrieval. A document without a word of the query is not found.
    """
    words = _search_words(dataset, BM25(resolve_model("bm25").recipe), depth)
    products = search.times_similarity(words, queries, vectors.rows)
    return search.canonical(products, dataset.corpus.tie_rank, depth)


def without_self(dataset: Dataset, hits: Hits, depth: int) -> Hits:
    """Rule of the collection: its own document is no answer to a query that is a document."""
    if not dataset.facts.exclude_self:
        return hits
    return search.drop_self(hits, dataset.corpus.rows_of(dataset.queries.ids), depth)


def in_domain(card: Card, collection: str) -> bool:
    """True where the model was trained on the collection, or on the family that it belongs to."""
    return any(f"{collection}/".startswith(f"{name}/") for name in card.trained_on)


def conditions_here(device: str) -> Conditions:
    """Conditions with the threads that this process may use."""
    return conditions(device, search_device(device), len(os.sched_getaffinity(0)))


def search_device(device: str) -> str:
    """Where exact search runs; the ranking is the same everywhere. ``auto``: on a GPU if any."""
    if device == "auto":
        return "cuda" if sees_gpu() else "cpu"
    return device


def faiss_device(device: str) -> str:
    """Where FAISS has an index: on the GPU asked for, if this FAISS has one; else on the CPU."""
    if device == "cpu" or not getattr(import_faiss(), "get_num_gpus", lambda: 0)():
        return "cpu"
    return "cuda" if device == "auto" else device
