"""The use case ``speed``: encoding with its phases, latency, indexes, and races with other tools.

Every timing repeats the work after one pass that is not counted, and waits for GPUs before and
after. Tools that are compared alternate over the same texts and weights.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import msgspec
import numpy as np
from tqdm import tqdm

from bench import __version__
from bench.evaluation.encoding import (
    encode_documents,
    encode_queries,
    mean_tokens,
    measure_speed,
    truncated_lengths,
)
from bench.evaluation.exact import ArrayVectors, exact_search, search_device
from bench.evaluation.index_search import check_index_fits, default_budget
from bench.evaluation.pipeline import current_conditions
from bench.evaluation.vector_search import (
    build_index,
    bytes_per_document,
    rescoring_bytes,
    search_in_memory,
)
from bench.requests.evaluating import SpeedRequest
from bench.runner.workspace import Workspace, load_models, open_workspace
from bench.speed.peers import OPENVINO_HINTS, SCORES
from bench.speed.race import (
    ENCODERS,
    OPENVINO,
    OURS,
    TimedPass,
    ToolRunner,
    announce,
    check_installed,
    check_raceable,
    make_job,
    race_tools,
    sentence_transformers_tools,
    time_call,
    time_pass,
    time_tools,
)
from bench.speed.speed_report import (
    IndexCurve,
    IndexPoint,
    QueryLatency,
    SpeedReport,
    Spread,
    ToolComparison,
)
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array
from foundation.errors import BenchError
from foundation.machine import processor_name
from retrievers.encoders.protocol import Encoder
from retrievers.index.faiss_index import FaissIndex, IndexSpec
from retrievers.index.hits import Hits, recall_at_k, sort_canonically
from retrievers.models.card import Recipe
from retrievers.models.resolve import Model

SOURCE = "stdlib-code"  # embedded: its texts are on every machine
PARTS = ("encode", "latency")
DOCUMENTS = (64, 20_000)  # fewest and most of one sample
SAMPLE_S = 3.0  # about how long one sample of encoding takes
LATENCY_DOCUMENTS = 1000  # the same whatever the speed
QUERIES = 200
PROBE_S = 2.0
CONSTANT_TOKENS = (32, 128, 256)
# One token each for every tokenizer of English.
WORDS = ("the", "of", "and", "to", "in", "is", "for", "that", "with", "as", "on", "by")
# Largest absolute difference of two unit vectors of the same text and weights. In int8, vectors of
# all-MiniLM differ by up to .04 between tools; vectors of two texts, by .12 or more in 99.9 %.
TOLERANCES = {"float32": 1e-5, "unknown": 1e-5, "float16": 1e-2, "bfloat16": 5e-2, "int8": 1e-1}
NEIGHBOURS = 10  # neighbours in the comparison of indexes
LATENCY_K = 100
WARM_UP_QUERIES = 10


@dataclass(frozen=True, eq=False)
class BenchmarkedModel:
    """A model on this machine, ready to be measured.

    ``encoder`` has the prompts for ``source``, whose texts are used.
    """

    request: SpeedRequest
    model: Model
    encoder: Encoder
    device: str
    threads: int
    source: Dataset

    @cached_property
    def texts(self) -> list[str]:
        """Documents of the source in a seeded order, without titles."""
        order = np.random.default_rng(0).permutation(len(self.source.corpus))
        return self.source.corpus.documents_at(order)[1]

    @cached_property
    def tokens_per_s(self) -> float:
        """Tokens per second in a short probe, which loads weights and sets sample sizes."""
        return measure_speed(self.encoder, self.source.corpus, PROBE_S)

    def documents_in(self, tokens: float) -> int:
        """Return the number of documents with ``tokens`` tokens on average that take `SAMPLE_S`."""
        fewest, most = DOCUMENTS
        return min(max(fewest, round(self.tokens_per_s * SAMPLE_S / tokens)), most)


def speed(request: SpeedRequest) -> SpeedReport:
    """Measure one model, race it against other tools on collections, or compare indexes on one."""
    parts = request.parts or (() if request.names else PARTS)
    _check_tools(request, parts)
    workspace = open_workspace(request)
    named = [workspace.dataset(name) for name in workspace.expand_names(request.names)]
    target = _benchmarked_model(request, workspace)
    specs = tuple(map(IndexSpec.parse, dict.fromkeys(["flat", *request.index])))
    if request.index:
        _check_indexes(specs, named, target.encoder.dim)
    raced = named if SCORES.keys() & set(request.against) or not request.index else []
    report = measure(target, parts, raced, workspace.cache_dir / "speed")
    if not request.index:
        return report
    curve = _compare_indexes_on(named[0], specs, target, workspace)
    return msgspec.structs.replace(report, indexes=curve)


def _check_indexes(specs: Sequence[IndexSpec], named: Sequence[Dataset], dim: int) -> None:
    """Raise if indexes cannot be compared on the ``named`` collections."""
    if len(named) != 1:
        problem = f"indexes are measured on one collection, not on {len(named)}"
        raise BenchError(problem, "Name one collection, or leave out --index.")
    if any(spec.is_bm25 for spec in specs):
        raise BenchError("bm25 is not an index of vectors", "Leave it out of --index.")
    rows = len(named[0].corpus)
    for spec in filter(lambda spec: spec.needs_faiss, specs):
        check_index_fits(spec, rows, dim, default_budget(), loading=4 * rows * dim)


def _compare_indexes_on(
    dataset: Dataset, specs: Sequence[IndexSpec], target: BenchmarkedModel, workspace: Workspace
) -> IndexCurve:
    """Compare indexes on all vectors of a collection, which are stored."""
    encoder = target.encoder.for_dataset(dataset.name)
    stored = encode_documents(dataset, encoder, workspace.store)
    documents = stored.rows(np.arange(stored.shape[0]))
    queries = encode_queries(dataset, encoder, workspace.store)
    device, origin = search_device(target.device), f"all documents of {dataset.name}"
    return compare_indexes(
        documents, queries, specs, target.request.repeats, device, origin, target.model.recipe
    )


def _check_tools(request: SpeedRequest, parts: tuple[str, ...]) -> None:
    """Raise if a tool of ``--against`` is not installed or has nothing to do."""
    for tool in request.against:
        if tool in SCORES and not request.names:
            hint = "Run `python -m bench speed beir/nfcorpus --model minilm --against mteb beir`."
            raise BenchError(f"{tool} needs a collection to evaluate", hint)
        if tool in ENCODERS and "encode" not in parts:
            raise BenchError(f"{tool} needs the part encode", "Add --parts encode.")
    check_installed(request.against)


def _benchmarked_model(request: SpeedRequest, workspace: Workspace) -> BenchmarkedModel:
    """Load the model to benchmark and check that it encodes."""
    (loaded,) = load_models(workspace, (request.model,), request)
    if loaded.recipe.traits.reads_ids:
        problem = f"{loaded.name} {loaded.recipe.traits.title}, so it encodes nothing to be timed"
        raise BenchError(problem, "Name the model that made the vectors.")
    encoder, source = loaded.require_encoder().for_dataset(SOURCE), workspace.dataset(SOURCE)
    device, threads = "cpu", len(os.sched_getaffinity(0))
    if loaded.model.document is not None:
        import torch

        from retrievers.encoders.device import pick_device

        device, threads = str(pick_device(request.device)), torch.get_num_threads()
    if OPENVINO in request.against and device != "cpu":
        raise BenchError(f"{OPENVINO} runs on the CPU, not on {device}", "Add --device cpu.")
    if OPENVINO in request.against and loaded.recipe.dtype not in OPENVINO_HINTS:
        problem = f"{OPENVINO} does not compute in {loaded.recipe.dtype}"
        raise BenchError(problem, "Choose --dtype float32, bfloat16 or int8.")
    if request.against:
        check_raceable(loaded.model)
    return BenchmarkedModel(request, loaded.model, encoder, device, threads, source)


def measure(
    target: BenchmarkedModel, parts: Sequence[str], raced: Sequence[Dataset], scratch: Path
) -> SpeedReport:
    """Race on each collection, from process start to scores, then measure all parts.

    Writing files to the disk of ``scratch`` is part of the race.
    """
    load, request = os.getloadavg()[0], target.request
    arguments = ("--model", request.model, *request.typed_settings())
    scratch.mkdir(parents=True, exist_ok=True)
    # Race first, since other tools may fail: then no other measurement is lost.
    tools = [tool for tool in dict.fromkeys(request.against) if tool in SCORES]
    races = []
    for dataset in raced:
        announce(f"{dataset.name} from end to end: {', '.join([OURS, *tools])}")
        job = make_job(target.model.for_dataset(dataset.name), target.device, target.threads)
        races.append(race_tools(dataset, job, tools, arguments, request.rounds, scratch))
    encoding = tuple(_compare_encoding(target)) if "encode" in parts else ()
    latency = measure_latencies(target) if "latency" in parts else ()
    return SpeedReport(
        model=target.model.card.name,
        fingerprint=target.model.recipe.fingerprint,
        recipe=target.model.recipe,
        conditions=current_conditions(target.device),
        processor=processor_name(),
        torch_threads=target.threads,
        load=load,
        repeats=request.repeats,
        encoding=encoding,
        latency=latency,
        races=tuple(races),
    )


def _compare_encoding(target: BenchmarkedModel) -> Iterator[ToolComparison]:
    """Time all tools in alternation on documents of each length."""
    model = target.model.for_dataset(target.source.name)
    job = make_job(model, target.device, target.threads)
    tolerance = TOLERANCES[job.dtype]
    counts_tokens = model.document and target.encoder.count_document_tokens([], []) is not None
    against = target.request.against
    peers = {tool: load(job, target.texts) for tool, load in ENCODERS.items() if tool in against}
    for name, texts in _make_workloads(target):
        announce(f"encoding {len(texts):,} documents: {name}")
        tools = [ToolRunner(OURS, __version__, partial(encode_once, target.encoder, texts))]
        for tool, peer in peers.items():
            tools += sentence_transformers_tools(tool, peer, job.document_prompt, texts)
        lengths = truncated_lengths(target.encoder, [""] * len(texts), texts)
        yield ToolComparison(
            name=name,
            documents=len(texts),
            tokens=int(lengths.sum()),
            p95=float(np.percentile(lengths, 95)),
            counted_in="tokens" if counts_tokens else "words",
            tolerance=tolerance,
            tools=time_tools(tools, target.request.repeats, tolerance, warm_up=True),
        )


def encode_once(encoder: Encoder, texts: Sequence[str]) -> TimedPass:
    """Encode ``texts`` in memory with our ``encoder`` and return the time with its phases."""
    earlier, titles = encoder.timer.copy(), [""] * len(texts)
    done = time_pass(lambda: encoder.encode_documents(titles, texts))
    spent = encoder.timer.since(earlier).seconds
    return replace(done, phases_s={name: took for name, took in spent.items() if took})


def _make_workloads(target: BenchmarkedModel) -> Iterator[tuple[str, list[str]]]:
    """Yield named documents: of constant lengths up to the model's, then real ones."""
    encoder, source = target.encoder, target.source
    for tokens in CONSTANT_TOKENS:
        if tokens <= (encoder.recipe.max_document_tokens or tokens):
            yield f"{tokens} tokens", make_documents(encoder, target.documents_in(tokens), tokens)
    count = target.documents_in(mean_tokens(encoder, source.corpus))
    yield f"as in {source.name}", list(dict.fromkeys(target.texts[:count]))


def make_documents(encoder: Encoder, count: int, tokens: int) -> list[str]:
    """Make ``count`` documents with ``tokens`` tokens for ``encoder``, special ones included.

    Each begins with its number, since equal documents would be encoded once.
    """
    numbers = [str(number) for number in range(count)]
    missing = (tokens - truncated_lengths(encoder, [""] * count, numbers)).tolist()
    words = np.random.default_rng(0).choice(WORDS, (count, tokens)).tolist()
    return [
        " ".join([number, *drawn[:more]])
        for number, drawn, more in zip(numbers, words, missing, strict=True)
    ]


def measure_latencies(target: BenchmarkedModel) -> tuple[QueryLatency, ...]:
    """Time single queries: encoding, exact search of some documents, and both together."""
    encoder, queries = target.encoder, target.source.queries.texts[:QUERIES]
    texts = target.texts[:LATENCY_DOCUMENTS]
    documents = encoder.encode_documents([""] * len(texts), texts)
    k = min(LATENCY_K, len(documents))
    device, recipe = search_device(target.device), target.model.recipe
    searching = search_in_memory(ArrayVectors(documents), recipe, device)
    encoding, finding = [], []
    texts = [*queries[:WARM_UP_QUERIES], *queries]
    for text in tqdm(texts, desc="latency", unit=" queries", mininterval=1):
        seconds, vector = time_call(partial(encoder.encode_queries, [text]))
        encoding.append(seconds)
        finding.append(time_call(partial(searching.search, vector, k))[0])
    skipped = len(queries[:WARM_UP_QUERIES])
    by_kind = np.array([encoding[skipped:], finding[skipped:]]) * 1000
    kinds = zip(("encode", "search", "both"), [*by_kind, by_kind.sum(axis=0)], strict=True)
    return tuple(QueryLatency.of(what, len(documents), k, samples) for what, samples in kinds)


def compare_indexes(
    documents: Float32Array,
    queries: Float32Array,
    specs: Sequence[IndexSpec],
    repeats: int,
    device: str,
    origin: str,
    recipe: Recipe,
) -> IndexCurve:
    """Measure queries per second against recall at 10, with all queries in one call.

    Documents and queries are float32 ``(n, dim)``, before the compression of ``recipe``. ``origin``
    describes where documents are from. Recall is measured against exact, uncompressed search.
    """
    rows, dim = documents.shape
    ranks, k, whole = np.arange(rows), min(NEIGHBOURS, rows), ArrayVectors(documents)
    truth = exact_search(whole, queries, k, ranks, device=device)
    points = []
    for spec in tqdm(specs, desc="indexes", unit=" indexes"):
        index, build_s, size = None, 0.0, rows * bytes_per_document(recipe, spec)
        if spec.needs_faiss:
            build_s, index = time_call(partial(build_index, whole, recipe, spec, device))
            size = _measure_saved_bytes(index) + rows * rescoring_bytes(recipe)
        searching = search_in_memory(whole, recipe, device, index)
        find = partial(searching.search, queries, k)
        hits: Hits = sort_canonically(find(), ranks, k)
        rates = [len(queries) / time_call(find)[0] for _ in range(repeats)]
        points.append(
            IndexPoint(
                index=str(spec.with_precision(recipe.compression.precision)),
                recall=float(recall_at_k(hits, truth, k).mean()),
                queries_per_s=Spread.of(rates),
                build_s=build_s,
                index_bytes=size,
            )
        )
    return IndexCurve(
        rows=rows, dim=dim, k=k, queries=len(queries), vectors=origin, points=tuple(points)
    )


def _measure_saved_bytes(index: FaissIndex) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        index.save(path)
        return path.stat().st_size
