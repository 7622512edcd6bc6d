"""The cost of an evaluation, before it starts: tokens, time, memory and disk.

Tokens come from a sample through the real tokenizer, encoding speed from a probe of the real
encoder on this machine, search time from a probe of the real search. A collection that is not on
this machine is counted by its published size and its published mean of words, or, where nobody
published that, its documents are taken as long as the recipe allows: an upper bound. Both are
marked.
"""

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias, cast

import msgspec
import numpy as np

from bench.evaluate.encode_documents import sample_documents
from bench.evaluate.exact import ArrayVectors, exact_search
from bench.evaluate.memory import plan_search, resident_bytes
from bench.store import VectorStore
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from datasets_cfg.facts import Facts
from foundation.arrays import Int64Array
from foundation.errors import BenchError
from retrievers.encoders.protocol import Encoder

PROBE_S = 20.0
SHORT_PROBE_S = 5.0  # before work that is worth an estimate
WORTH_AN_ESTIMATE = 20_000  # documents to encode
SAMPLE_DOCUMENTS = 2_000
FIRST_CHUNK = 64
SEARCH_ROWS, SEARCH_QUERIES = 1 << 16, 128
LONG_S = 3600.0
ITEM_BYTES = {"float32": 4, "float16": 2}
TOKENS_PER_WORD = 1.5  # WordPiece: 1.4 of Natural Questions, 1.5 of NFCorpus, 1.6 of SciFact


Sureness: TypeAlias = Literal["counted", "about", "at most"]  # the surest first


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one model on one collection, on this machine.

    Attributes:
        documents: of the collection.
        to_encode: distinct texts whose vectors are not stored yet.
        tokens: to encode, cut as the recipe says, special tokens included.
        sure: ``counted`` on this machine; ``about``, from published counts of documents and words;
            ``at most``, from a published count of documents, each as long as the recipe allows.
        encode_s, search_s: wall-clock seconds.
        memory_bytes: of this process at its peak, model and search included.
        disk_bytes: that vectors will add.
    """

    model: str
    collection: str
    documents: int
    to_encode: int
    tokens: int
    sure: Sureness
    encode_s: float
    search_s: float
    memory_bytes: int
    disk_bytes: int


def encoded_already(estimate: Estimate) -> Estimate:
    """The estimate for a collection whose documents another has too: they are encoded once."""
    return msgspec.structs.replace(estimate, to_encode=0, tokens=0, encode_s=0.0, disk_bytes=0)


@dataclass(frozen=True)
class Speed:
    """Speed of an encoder on this machine, and the memory that it takes.

    Attributes:
        tokens_per_s: encoded, wall clock.
        resident_bytes: of this process with the model loaded.
    """

    tokens_per_s: float
    resident_bytes: int


@dataclass(frozen=True)
class Limits:
    """Documents per query, None for the collection's, and bytes of memory that may be used."""

    depth: int | None
    memory: int


def measure_speed(encoder: Encoder, corpus: Corpus, budget_s: float = PROBE_S) -> Speed:
    """Encode a seeded sample of a corpus for about ``budget_s`` seconds.

    The weights are loaded first, and not counted. Chunks grow until one takes a second, so that a
    fast device is seen at work and not at its start.
    """
    titles, texts = sample_documents(corpus, SAMPLE_DOCUMENTS)
    order = np.random.default_rng(0).permutation(len(texts))  # the probe may see a part only
    titles, texts = [titles[i] for i in order], [texts[i] for i in order]
    lengths = _lengths(encoder, titles, texts)
    encoder.encode_documents(titles[:4], texts[:4])  # loads the weights, warms the processor up
    tokens, spent, chunk, start = 0, 0.0, FIRST_CHUNK, 0
    while spent < budget_s and start < len(texts):
        some = slice(start, start + chunk)
        before = time.perf_counter()
        encoder.encode_documents(titles[some], texts[some])
        took = time.perf_counter() - before
        tokens, spent, start = tokens + int(lengths[some].sum()), spent + took, start + chunk
        if took < 1.0:
            chunk *= 2
    return Speed(tokens / spent, resident_bytes())


def mean_tokens(encoder: Encoder, corpus: Corpus) -> float:
    """Tokens of a document as it is encoded, mean of a seeded sample; words without a tokenizer."""
    return float(_lengths(encoder, *sample_documents(corpus, SAMPLE_DOCUMENTS)).mean())


def estimate_at_hand(
    dataset: Dataset, encoder: Encoder, store: VectorStore, speed: Speed, limits: Limits
) -> Estimate:
    """The cost of a collection that is on this machine; stored vectors cost nothing.

    Raises:
        BenchError: it cannot be searched in the memory allowed.
    """
    missing = store.plan(encoder, dataset.corpus).missing_rows
    tokens = round(missing * mean_tokens(encoder, dataset.corpus)) if missing else 0
    size = _Size(
        dataset.name, len(dataset.corpus), len(dataset.queries), missing, tokens, "counted"
    )
    return _estimate(size, encoder, speed, limits.depth or dataset.facts.depth, limits.memory)


def estimate_from_counts(facts: Facts, encoder: Encoder, speed: Speed, limits: Limits) -> Estimate:
    """The cost of a collection that is not here, from its published counts.

    Raises:
        BenchError: it cannot be searched in the memory allowed.
    """
    documents, queries = facts.counts.documents or 0, facts.counts.queries or 0
    words, longest = facts.counts.mean_words, encoder.recipe.max_document_tokens
    mean = min(words * TOKENS_PER_WORD, longest) if words else longest
    sure: Sureness = "about" if words else "at most"
    size = _Size(facts.name, documents, queries, documents, round(documents * mean), sure)
    return _estimate(size, encoder, speed, limits.depth or facts.depth, limits.memory)


@dataclass(frozen=True)
class _Size:
    collection: str
    documents: int
    queries: int
    to_encode: int
    tokens: int
    sure: Sureness


def _estimate(size: _Size, encoder: Encoder, speed: Speed, depth: int, memory: int) -> Estimate:
    k = min(depth, max(1, size.documents))
    held = speed.resident_bytes
    plan = plan_search(memory, size.documents, encoder.dim, size.queries, k, held)
    return Estimate(
        model=encoder.recipe.model,
        collection=size.collection,
        documents=size.documents,
        to_encode=size.to_encode,
        tokens=size.tokens,
        sure=size.sure,
        encode_s=size.tokens / speed.tokens_per_s,
        search_s=search_seconds(size.queries, size.documents, encoder.dim, depth),
        memory_bytes=plan.memory_bytes,
        disk_bytes=size.to_encode * (encoder.dim * ITEM_BYTES[encoder.recipe.store_dtype] + 16),
    )


def search_seconds(queries: int, documents: int, dim: int, depth: int) -> float:
    """Wall-clock seconds of exact search here, from a probe with random vectors.

    Search grows with queries x documents; depth matters little beyond the first tile.
    """
    if not queries or not documents:
        return 0.0
    rng = np.random.default_rng(0)
    rows, asked = min(documents, SEARCH_ROWS), min(queries, SEARCH_QUERIES)
    vectors = rng.standard_normal((rows, dim), dtype=np.float32)
    wanted = rng.standard_normal((asked, dim), dtype=np.float32)
    start = time.perf_counter()
    exact_search(ArrayVectors(vectors), wanted, min(depth, rows), np.arange(rows))
    return (time.perf_counter() - start) * (documents / rows) * (queries / asked)


def readable(seconds: float) -> str:
    """Hours and minutes: ``2:05:00``."""
    return str(timedelta(seconds=round(seconds)))


def confirm_encoding(
    work: Iterable[tuple[Encoder, Corpus, int]], yes: bool, machines: int = 1
) -> None:
    """Say how long encoding will take, where it is long, after a probe of each encoder.

    Args:
        work: encoder, corpus, and how many of its documents are to be encoded.
        yes: ask nothing.
        machines: that share the work, each as fast as this one.

    Raises:
        BenchError: the user said no.
    """
    seconds, total = 0.0, 0
    speeds: dict[str, float] = {}  # tokens a second, by the model's name
    for encoder, corpus, documents in work:
        if documents < WORTH_AN_ESTIMATE:
            continue
        name = encoder.recipe.model
        if name not in speeds:
            speeds[name] = measure_speed(encoder, corpus, SHORT_PROBE_S).tokens_per_s
        seconds += documents * mean_tokens(encoder, corpus) / speeds[name]
        total += documents
    if total:
        confirm(seconds / machines, f"{total:,} documents", yes)


def confirm(seconds: float, what: str, yes: bool) -> None:
    """Say how long it will take; ask a terminal user about more than an hour.

    Raises:
        BenchError: the user said no.
    """
    print(f"encoding {what} will take about {readable(seconds)} on this machine", file=sys.stderr)
    if seconds < LONG_S or yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    print("what is done is kept if you stop it. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise BenchError("stopped before encoding", "add --yes to start without being asked")


def _lengths(encoder: Encoder, titles: Sequence[str], texts: Sequence[str]) -> Int64Array:
    count = getattr(encoder, "count_document_tokens", None)
    if count is None:  # an encoder without a tokenizer, such as hashing
        return np.array([len(f"{a} {b}".split()) for a, b in zip(titles, texts, strict=True)])
    lengths = np.array(cast("list[int]", count(titles, texts)), dtype=np.int64)
    return np.minimum(lengths, encoder.recipe.max_document_tokens)
