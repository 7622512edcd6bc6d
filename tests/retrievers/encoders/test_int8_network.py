"""Int8 dense layers: close to float32, and the same bytes whatever else is in the batch."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from foundation.errors import BenchError
from retrievers.encoders import int8_network
from retrievers.encoders.int8_network import (
    Int8Linear,
    Int8Network,
    product_with,
    quantize_rows,
)
from retrievers.models.backends import has_vnni
from tests.support import tiny_checkpoints as tiny

ROOT = Path(__file__).parents[3]
LENGTHS = (17, 1, 9, 30, 2)
SIZES = {**tiny.SIZES, "initializer_range": 0.1}  # larger weights make attention all or nothing


def bert() -> nn.Module:
    return tiny.seeded(lambda: transformers.BertModel(tiny.bert_config(**SIZES)))


def roberta() -> nn.Module:
    sizes = {**SIZES, "vocab_size": 100, "max_position_embeddings": 66, "pad_token_id": 1}
    return tiny.seeded(lambda: transformers.RobertaModel(transformers.RobertaConfig(**sizes)))


@pytest.fixture(params=[bert, roberta])
def network(request):
    return request.param()


@pytest.fixture(
    params=[
        7,
        pytest.param(
            8, marks=pytest.mark.skipif(not has_vnni(), reason="8 bits need VNNI instructions")
        ),
    ]
)
def bits(request):
    return request.param


def padded(network: nn.Module, texts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    pad = network.config.pad_token_id
    ids = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=pad)
    lengths = torch.tensor([len(text) for text in texts])
    return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]) * 1}


def random_texts(lengths=LENGTHS) -> list[torch.Tensor]:
    random = np.random.default_rng(0)
    return [torch.from_numpy(random.integers(5, 50, length)) for length in lengths]


@torch.inference_mode()
@given(rows=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_linear_layer_is_that_of_its_rounded_numbers(bits, rows, seed):
    torch.manual_seed(seed)
    layers = [nn.Linear(32, 8), nn.Linear(32, 24)]
    tokens = torch.randn(rows, 32)
    weight = torch.cat([layer.weight for layer in layers])
    bias = torch.cat([layer.bias for layer in layers])
    (activations, scale), (weights, scales) = quantize_rows(tokens), quantize_rows(weight, bits)
    exact = (activations.double() * scale) @ (weights.double() * scales).T + bias
    actual = Int8Linear(*layers, weight_bits=bits)(tokens)
    torch.testing.assert_close(actual.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("vnni", [True, False])
@given(
    rows=st.integers(1, 70),
    width=st.sampled_from([1, 31, 256, 3072]),
    outputs=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    largest=st.booleans(),
)
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_products_are_summed_exactly_with_and_without_vnni(
    monkeypatch, vnni, rows, width, outputs, seed, largest
):
    flags = frozenset({"avx512_vnni"} if vnni else ())
    monkeypatch.setattr(int8_network, "instructions", lambda: flags)
    torch.manual_seed(seed)
    tokens = torch.randint(-127, 128, (rows, width), dtype=torch.int8)
    weight = torch.randint(-63, 64, (outputs, width), dtype=torch.int8)
    if largest:
        tokens, weight = tokens.sign() * 127, weight.sign() * 63
    exact = tokens.long() @ weight.long().T
    assert torch.equal(product_with(weight)(tokens), exact.to(torch.float32))


FEWER_INSTRUCTIONS = """
import torch
from foundation.errors import BenchError
from retrievers.encoders.int8_network import Int8Network, product_with
from tests.retrievers.encoders.test_int8_network import bert

for bits in (7, 8):
    try:
        Int8Network(bert(), weight_bits=bits)
        print(bits, "runs")
    except BenchError as error:
        print(bits, error.hint)
left = torch.full((3, 512), 127, dtype=torch.int8)
right = torch.full((64, 512), 63, dtype=torch.int8)
print((product_with(right)(left) == 512 * 127 * 63).all().item())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="ONEDNN_MAX_CPU_ISA is of x86-64")
def test_without_vnni_seven_bits_are_exact_and_eight_are_refused():
    done = subprocess.run(
        [sys.executable, "-c", FEWER_INSTRUCTIONS],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["7 runs", "8 use --backend int7", "True"]


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20), st.sampled_from([7, 8]))
def test_rounding_a_row_loses_at_most_half_a_step(values, bits):
    row = torch.tensor([values])
    rounded, scale = quantize_rows(row, bits)
    assert rounded.abs().max() <= {7: 63, 8: 127}[bits]
    step = scale.double()
    assert (rounded * step - row).abs().max() <= step.item() * 0.5001


def test_a_row_of_zeros_stays_zero():
    rounded, scale = quantize_rows(torch.zeros(2, 4))
    assert not rounded.any()
    assert torch.isfinite(scale).all()


@torch.inference_mode()
def test_hidden_states_point_where_those_of_the_network_do(network, bits):
    inputs = padded(network, random_texts())
    present = inputs["attention_mask"].bool()
    expected = network(**inputs).last_hidden_state[present]
    actual = Int8Network(network, bits)(**inputs).last_hidden_state[present]
    assert least_cosine(actual, expected) > {7: 0.98, 8: 0.99}[bits]
    assert not torch.equal(actual, expected)


def least_cosine(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(nn.functional.cosine_similarity(first, second).min())


@torch.inference_mode()
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_text_alone_has_the_bytes_that_it_has_in_a_batch(network, bits, threads):
    texts = random_texts()
    int8 = Int8Network(network, bits)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = int8(**padded(network, texts)).last_hidden_state
        for text, row in zip(texts, together, strict=True):
            alone = int8(**padded(network, [text])).last_hidden_state[0]
            assert torch.equal(row[: len(text)], alone)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def test_padding_is_zero(network):
    together = Int8Network(network, 7)(**padded(network, random_texts())).last_hidden_state
    assert not together[1, 1:].any()


@torch.inference_mode()
def test_token_types_are_read():
    network = bert()
    inputs = padded(network, random_texts())
    types = torch.zeros_like(inputs["input_ids"])
    types[:, 1:] = 1
    int8 = Int8Network(network, 7)
    typed = int8(**inputs, token_type_ids=types).last_hidden_state
    present = inputs["attention_mask"].bool()
    expected = network(**inputs, token_type_ids=types).last_hidden_state
    assert least_cosine(typed[present], expected[present]) > 0.98
    assert not torch.equal(typed, int8(**inputs).last_hidden_state)


def test_other_families_and_dtypes_are_refused():
    config = transformers.DistilBertConfig(dim=32, n_layers=1, n_heads=2, hidden_dim=64)
    with pytest.raises(BenchError, match="not distilbert"):
        Int8Network(transformers.DistilBertModel(config))
    with pytest.raises(BenchError, match="float32"):
        Int8Network(bert().to(torch.bfloat16))
