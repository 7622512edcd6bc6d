"""How fast texts become vectors in the store, and how near that is to the GPU's own limit.

Passages of the same lengths with the same weights:

- ``tokenise``: texts to token ids, nothing else;
- ``forward``: token ids to vectors on the host, nothing else;
- ``store``: texts to vectors on disk, as an evaluation encodes a corpus, in several shards: the
  first of these passages are those of the other ways;
- ``st``: sentence-transformers' ``encode`` in float16, vectors in memory, nothing written;
- ``st_unpadded``: the same with FlashAttention 2 and without padding, where that is installed.

The limit is measured: the matrix products of the model's own dense layers, at the batch that the
encoder uses and in its dtype, and nothing else. ``of_limit`` is a speed over the tokens/s of a GPU
that did only these products; attention and everything between is on top.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.speed.race import as_sentence_transformers
from bench.speed.timing import peak_bytes, timed
from bench.store import VectorStore
from datasets_cfg.corpus import Corpus
from datasets_cfg.records import Document
from retrievers.encoders.transformer import CUDA_TOKENS, TransformerEncoder
from retrievers.models.recipe import Dtype
from tests.benchmarks.gpu_proof import agreement
from tests.benchmarks.gpu_proof.machine import median_seconds
from tests.benchmarks.gpu_proof.report import Outcome, Part
from tests.benchmarks.gpu_proof.setup import TITLES, Setup

SECTION = "encoding"
DTYPE: Dtype = "bfloat16"
PEER_BATCH = 256
WARM = 5_120  # passages: enough that every process that tokenises has started
COMPARED = 1_000  # passages whose vectors are compared
GEMM_REPEATS = 20
MEAN_LENGTH = 82  # tokens of the passages with lengths of MS MARCO


class Gemm(NamedTuple):
    """One matrix product ``(rows, inner) @ (inner, columns)``, done ``times`` times a batch."""

    rows: int
    inner: int
    columns: int
    times: int

    @property
    def flops(self) -> float:
        """Of one product."""
        return 2.0 * self.rows * self.inner * self.columns


def parts(setup: Setup, kind: str) -> Iterator[Part]:
    """One network at each length of text."""
    for length in setup.sizes.lengths:
        name = f"{TITLES[kind]}, {f'{length} tokens' if length else 'lengths of MS MARCO'}"
        yield Part(SECTION, name, 30, partial(rates, setup, kind, length))


def gemms_of(config: Mapping[str, Any], tokens: int) -> list[Gemm]:
    """Matrix products of all dense layers of a BERT for a batch of ``tokens``."""
    layers = config["num_hidden_layers"]
    width, wide = config["hidden_size"], config["intermediate_size"]
    return [
        Gemm(tokens, width, width, 4 * layers),
        Gemm(tokens, width, wide, layers),
        Gemm(tokens, wide, width, layers),
    ]


def gemm_seconds(gemm: Gemm, dtype: str, device: str) -> float:
    """Median seconds of one product."""
    kind = getattr(torch, dtype)
    left = torch.randn(gemm.rows, gemm.inner, device=device).to(kind)
    weight = torch.randn(gemm.columns, gemm.inner, device=device).to(kind)
    return median_seconds(lambda: torch.nn.functional.linear(left, weight), GEMM_REPEATS)


def limit_of(config: Mapping[str, Any], tokens: int, dtype: str, device: str) -> dict[str, Any]:
    """Tokens/s of a model that were only its dense layers, and TFLOP/s of each product."""
    gemms = gemms_of(config, tokens)
    pairs = [(gemm, gemm_seconds(gemm, dtype, device)) for gemm in gemms]
    return {
        "tokens_per_batch": tokens,
        "tokens_per_s": tokens / sum(gemm.times * spent for gemm, spent in pairs),
        "products": [
            {"shape": gemm[:3], "times": gemm.times, "tflops": gemm.flops / spent / 1e12}
            for gemm, spent in pairs
        ],
    }


def rates(setup: Setup, kind: str, length: int) -> Outcome:
    """Every way in turn; vectors of the store beside sentence-transformers'."""
    count = max(64, setup.sizes.tokens // (length or MEAN_LENGTH))
    corpus = setup.passages(length, max(count, setup.sizes.stored))
    passages, titles = corpus[:count], [""] * count
    encoder = setup.encoder(kind, DTYPE)
    encoder.encode_documents(titles[:WARM], passages[:WARM])
    if setup.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds: dict[str, float] = {}
    seconds["tokenise"], encode = timed(lambda: encoder.prepare_documents(titles, passages))
    earlier = encoder.clock.copy()
    seconds["forward"] = min(timed(lambda: encode(None))[0] for _ in range(2))
    tokens = encoder.clock.since(earlier).counts["tokens"] // 2
    earlier = encoder.clock.copy()
    seconds["store"], vectors = through_the_store(setup, encoder, corpus)
    stored = encoder.clock.since(earlier).counts["tokens"]
    busy_s = kernel_seconds(lambda: encode(None)) if setup.on_gpu else None
    peak = torch.cuda.max_memory_allocated() if setup.on_gpu else 0
    seconds["st"], theirs = peer(setup, kind, passages)
    unpadded = "needs a GPU"
    if setup.on_gpu:
        unpadded = add_unpadded_peer(seconds, setup, kind, passages)
    batch = CUDA_TOKENS if setup.on_gpu else 256
    limit = limit_of(encoder_config(setup, kind), batch, DTYPE, setup.device)
    speeds = {
        name: (stored if name == "store" else tokens) / spent for name, spent in seconds.items()
    }
    of_limit = {name: speed / limit["tokens_per_s"] for name, speed in speeds.items()}
    figures = {
        "passages": {"store": len(corpus), "others": count},
        "tokens": {"store": stored, "others": tokens},
        "seconds": seconds,
        "tokens_per_s": speeds,
        "of_limit": of_limit,
        "store_over_st": speeds["store"] / speeds["st"],
        "st_unpadded": unpadded,
        "kernel_seconds": busy_s,
        "idle_share_of_store": busy_s and 1 - busy_s / tokens * speeds["store"],
        "peak_gpu_bytes": peak,
        "peak_host_bytes": peak_bytes(),
        "limit": limit,
    }
    headline = (
        f"store {speeds['store']:,.0f} tokens/s = {of_limit['store']:.0%} of the limit "
        f"(forward {of_limit['forward']:.0%}), {figures['store_over_st']:.2f} x st"
    )
    return Outcome(headline, figures, agreement.checks(vectors[: len(theirs)], theirs, DTYPE))


def encoder_config(setup: Setup, kind: str) -> Mapping[str, Any]:
    """``config.json`` of the checkpoint."""
    checkpoint = setup.model(kind, DTYPE).document
    if checkpoint is None:
        raise ValueError(f"{kind} has no checkpoint")
    return checkpoint.config


def through_the_store(
    setup: Setup, encoder: TransformerEncoder, passages: Sequence[str]
) -> tuple[float, agreement.Floats]:
    """Seconds from a corpus to its stored vectors, and the first of these."""
    folder = setup.folder / "store"
    shutil.rmtree(folder, ignore_errors=True)
    documents = (Document(str(row), "", text) for row, text in enumerate(passages))
    corpus = Corpus.build(documents, folder / "corpus")

    def encode() -> Any:
        store = VectorStore(folder / "vectors")
        return store.documents(encoder, corpus, store.plan(encoder, corpus))

    seconds, stored = timed(encode)
    return seconds, stored.rows(np.arange(min(COMPARED, len(passages))))


def peer(
    setup: Setup, kind: str, passages: Sequence[str], **options: Any
) -> tuple[float, agreement.Floats]:
    """Seconds of sentence-transformers over the same weights, and its first vectors."""
    from sentence_transformers import SentenceTransformer

    with as_sentence_transformers(setup.model(kind, DTYPE), setup.folder) as folder:
        model = SentenceTransformer(
            str(folder),
            device=setup.device,
            model_kwargs={"torch_dtype": setup.peer_dtype, **options},
            local_files_only=True,
        )
    model.max_seq_length = setup.sizes.positions

    def encode(texts: Sequence[str]) -> Any:
        return model.encode(list(texts), batch_size=PEER_BATCH, show_progress_bar=False)

    encode(passages[:PEER_BATCH])
    seconds, vectors = timed(lambda: encode(passages))
    return seconds, np.asarray(vectors[:COMPARED], dtype=np.float32)


def add_unpadded_peer(
    seconds: dict[str, float], setup: Setup, kind: str, passages: Sequence[str]
) -> str:
    """Time sentence-transformers without padding, where that can be; how it went."""
    if find_spec("flash_attn") is None and find_spec("kernels") is None:
        return "not installed: flash_attn or kernels"
    try:
        seconds["st_unpadded"], _ = peer(
            setup, kind, passages, attn_implementation="flash_attention_2"
        )
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        return f"not usable: {error}"
    return "measured"


def kernel_seconds(work: Callable[[], Any]) -> float | None:
    """Seconds in which the GPU computes or copies for some work; None where none can be had."""
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            timed(work)
        spent = sum(event.self_device_time_total for event in profiled.key_averages()) / 1e6
    except RuntimeError:  # a machine may not let its counters be read
        return None
    return spent or None
