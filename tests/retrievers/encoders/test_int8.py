"""Dense layers through oneDNN, in float32 and int8: near the network's, and free of the batch."""

import copy

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from foundation.errors import BenchError
from retrievers.encoders.int8 import (
    Int8Linear,
    Int8Network,
    OneDNNLinear,
    product_with,
    quantize_rows,
    replace_linear,
    usable,
)
from retrievers.models.model import has_vnni
from tests.support import tiny_checkpoints as tiny

LENGTHS = (17, 1, 9, 30, 2)
SIZES = {**tiny.SIZES, "initializer_range": 0.1}  # larger weights make attention all or nothing


def bert(**changes) -> nn.Module:
    return tiny.seeded(lambda: transformers.BertModel(tiny.bert_config(**SIZES | changes)))


def roberta() -> nn.Module:
    sizes = {**SIZES, "vocab_size": 100, "max_position_embeddings": 66, "pad_token_id": 1}
    return tiny.seeded(lambda: transformers.RobertaModel(transformers.RobertaConfig(**sizes)))


@pytest.fixture(params=[bert, roberta])
def network(request):
    return request.param()


needs_vnni = pytest.mark.skipif(not has_vnni(), reason="int8 needs VNNI instructions")


def padded(network: nn.Module, texts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    pad = network.config.pad_token_id
    ids = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=pad)
    lengths = torch.tensor([len(text) for text in texts])
    return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]) * 1}


def random_texts(lengths=LENGTHS) -> list[torch.Tensor]:
    random = np.random.default_rng(0)
    return [torch.from_numpy(random.integers(5, 50, length)) for length in lengths]


@needs_vnni
@torch.inference_mode()
@given(rows=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_a_linear_layer_is_that_of_its_rounded_numbers(rows, seed):
    torch.manual_seed(seed)
    layers = [nn.Linear(32, 8), nn.Linear(32, 24)]
    tokens = torch.randn(rows, 32)
    weight = torch.cat([layer.weight for layer in layers])
    bias = torch.cat([layer.bias for layer in layers])
    (activations, scale), (weights, scales) = quantize_rows(tokens), quantize_rows(weight)
    exact = (activations.double() * scale) @ (weights.double() * scales).T + bias
    torch.testing.assert_close(Int8Linear(*layers)(tokens).double(), exact, atol=1e-5, rtol=1e-5)


@needs_vnni
@given(
    rows=st.integers(1, 70),
    width=st.sampled_from([1, 2, 31, 256, 1536]),  # 1 is wrong with torch._int_mm
    outputs=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    largest=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_products_are_summed_exactly(rows, width, outputs, seed, largest):
    torch.manual_seed(seed)
    tokens = torch.randint(-127, 128, (rows, width), dtype=torch.int8)
    weight = torch.randint(-127, 128, (outputs, width), dtype=torch.int8)
    if largest:
        tokens, weight = tokens.sign() * 127, weight.sign() * 127
    exact = tokens.long() @ weight.long().T
    assert exact.abs().max() <= 2**25  # float32 holds it, or the nearest even number
    assert torch.equal(product_with(weight)(tokens), exact.to(torch.float32))


@needs_vnni
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20))
def test_rounding_a_row_loses_at_most_half_a_step(values):
    row = torch.tensor([values])
    rounded, scale = quantize_rows(row)
    assert rounded.abs().max() <= 127
    step = scale.double()
    assert (rounded * step - row).abs().max() <= step.item() * 0.5001


@needs_vnni
def test_a_row_of_zeros_stays_zero():
    rounded, scale = quantize_rows(torch.zeros(2, 4))
    assert not rounded.any()
    assert torch.isfinite(scale).all()


@needs_vnni
@torch.inference_mode()
def test_hidden_states_point_where_those_of_the_network_do(network):
    inputs = padded(network, random_texts())
    present = inputs["attention_mask"].bool()
    expected = network(**inputs).last_hidden_state[present]
    actual = Int8Network(network)(**inputs).last_hidden_state[present]
    assert least_cosine(actual, expected) > 0.99
    assert not torch.equal(actual, expected)


def least_cosine(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(nn.functional.cosine_similarity(first, second).min())


@needs_vnni
@torch.inference_mode()
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_text_alone_has_the_bytes_that_it_has_in_a_batch(network, threads):
    texts = random_texts()
    int8 = Int8Network(network)
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


@needs_vnni
@torch.inference_mode()
def test_padding_is_zero(network):
    together = Int8Network(network)(**padded(network, random_texts())).last_hidden_state
    assert not together[1, 1:].any()


@needs_vnni
@torch.inference_mode()
def test_token_types_are_read():
    network = bert()
    inputs = padded(network, random_texts())
    types = torch.zeros_like(inputs["input_ids"])
    types[:, 1:] = 1
    int8 = Int8Network(network)
    typed = int8(**inputs, token_type_ids=types).last_hidden_state
    present = inputs["attention_mask"].bool()
    expected = network(**inputs, token_type_ids=types).last_hidden_state
    assert least_cosine(typed[present], expected[present]) > 0.98
    assert not torch.equal(typed, int8(**inputs).last_hidden_state)


@needs_vnni
def test_other_families_and_dtypes_are_refused():
    config = transformers.DistilBertConfig(dim=32, n_layers=1, n_heads=2, hidden_dim=64)
    with pytest.raises(BenchError, match="not distilbert"):
        Int8Network(transformers.DistilBertModel(config))
    with pytest.raises(BenchError, match="float32"):
        Int8Network(bert().to(torch.bfloat16))


@pytest.fixture(params=["bert", "bert with tanh-GELU", "roberta"])
def float_network(request) -> nn.Module:
    found = {
        "bert": bert,
        "bert with tanh-GELU": lambda: bert(hidden_act="gelu_new"),
        "roberta": roberta,
    }[request.param]()
    if not usable(found):
        pytest.skip("this build of PyTorch offers no oneDNN operators here")
    return found


@torch.inference_mode()
def test_hidden_states_are_in_float32_are_those_of_the_network(float_network):
    ids = torch.from_numpy(np.random.default_rng(0).integers(5, 50, (4, 20)))
    mask = torch.ones_like(ids)
    mask[1:, 13:] = 0
    replaced = copy.deepcopy(float_network)
    replace_linear(replaced)
    expected = float_network(input_ids=ids, attention_mask=mask)
    found = replaced(input_ids=ids, attention_mask=mask)
    assert any(isinstance(module, OneDNNLinear) for module in replaced.modules())
    assert not any(type(module) is nn.Linear for module in replaced.modules())
    tokens = mask.bool()
    torch.testing.assert_close(
        found.last_hidden_state[tokens], expected.last_hidden_state[tokens], atol=1e-5, rtol=0
    )
    torch.testing.assert_close(found.pooler_output, expected.pooler_output, atol=1e-5, rtol=0)


def test_the_exact_gelu_goes_into_the_product_and_others_stay():
    exact, other = bert(), bert(hidden_act="gelu_new")
    if not usable(exact):
        pytest.skip("this build of PyTorch offers no oneDNN operators here")
    replace_linear(exact)
    replace_linear(other)
    assert isinstance(exact.encoder.layer[0].intermediate.intermediate_act_fn, nn.Identity)
    assert not isinstance(other.encoder.layer[0].intermediate.intermediate_act_fn, nn.Identity)


def test_other_families_and_dtypes_are_left_alone():
    assert not usable(bert().to(torch.bfloat16))
    config = transformers.DistilBertConfig(dim=32, n_layers=1, n_heads=2, hidden_dim=64)
    assert not usable(transformers.DistilBertModel(config))
