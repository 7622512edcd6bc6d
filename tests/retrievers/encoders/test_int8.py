"""Dense layers through oneDNN, in float32 and int8: near the network's, and free of the batch."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.activations import GELUActivation

from foundation.errors import BenchError
from retrievers.encoders.int8 import (
    Int8Encoder,
    Int8Linear,
    OneDNNLinear,
    has_onednn,
    make_int8_product,
    quantize_rows,
)
from retrievers.encoders.packed import PackedEncoder
from retrievers.encoders.tokens import Tokens
from retrievers.models.model import has_vnni
from tests.support import tiny_checkpoints as tiny

LENGTHS = (17, 1, 9, 30, 2, 9, 9)
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


def random_texts(lengths=LENGTHS) -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(5, 50, length).tolist() for length in lengths]


def hidden(encoder: PackedEncoder, texts: list[list[int]], types=None) -> torch.Tensor:
    return encoder(encoder.pack_batch(Tokens.of(texts, types)))


def of_network(network: nn.Module, texts: list[list[int]], types=None) -> torch.Tensor:
    """The network's own hidden states, text after text."""
    types = types or [[0] * len(text) for text in texts]
    outputs = [
        network(torch.tensor([text]), token_type_ids=torch.tensor([own]))
        for text, own in zip(texts, types, strict=True)
    ]
    return torch.cat([output.last_hidden_state[0] for output in outputs])


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
    torch.testing.assert_close(Int8Linear(layers)(tokens).double(), exact, atol=1e-5, rtol=1e-5)


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
    assert torch.equal(
        make_int8_product(weight, torch.ones(outputs))(tokens), exact.to(torch.float32)
    )


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
@given(
    rows=st.integers(2, 70),
    width=st.sampled_from([1, 7, 33, 64, 384]),
    outputs=st.sampled_from([3, 17, 47, 64]),
    after=st.sampled_from([None, GELUActivation()]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=40, deadline=None)
@torch.inference_mode()
def test_a_token_alone_has_the_bytes_that_it_has_among_others(rows, width, outputs, after, seed):
    torch.manual_seed(seed)
    layer = Int8Linear([nn.Linear(width, outputs)], after)
    tokens = torch.randn(rows, width)
    assert torch.equal(layer(tokens), torch.cat([layer(token[None]) for token in tokens]))


def least_cosine(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(nn.functional.cosine_similarity(first, second).min())


@needs_vnni
@torch.inference_mode()
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_text_alone_has_the_bytes_that_it_has_in_a_batch(network, threads):
    texts = random_texts()
    int8 = Int8Encoder(network)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = hidden(int8, texts).split(LENGTHS)
        pooled = int8.encode_batch("mean", int8.pack_batch(Tokens.of(texts)))
        for row, text in enumerate(texts):
            assert torch.equal(together[row], hidden(int8, [text]))
            alone = int8.encode_batch("mean", int8.pack_batch(Tokens.of([text])))
            assert torch.equal(pooled[row], alone[0])
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@needs_vnni
@torch.inference_mode()
@pytest.mark.parametrize("typed", [False, True])
def test_hidden_states_in_int8_point_where_those_of_the_network_do(network, typed):
    if typed and network.config.type_vocab_size < 2:
        pytest.skip("it has one token type")
    texts = random_texts()
    types = [[0] + [1] * (len(text) - 1) for text in texts] if typed else None
    expected = of_network(network, texts, types)
    int8 = Int8Encoder(network)
    found = hidden(int8, texts, types)
    assert least_cosine(found, expected) > 0.98
    assert not torch.equal(found, expected)
    assert torch.equal(found, hidden(int8, texts)) != typed


@needs_vnni
def test_networks_of_other_families_are_refused():
    config = transformers.DistilBertConfig(dim=32, n_layers=1, n_heads=2, hidden_dim=64)
    with pytest.raises(BenchError, match="not this DistilBertModel"):
        Int8Encoder(transformers.DistilBertModel(config))


@pytest.mark.skipif(not has_onednn(), reason="PyTorch offers no oneDNN operators here")
@pytest.mark.parametrize("name", ["bert", "bert with tanh-GELU", "roberta"])
@torch.inference_mode()
def test_hidden_states_through_onednn_in_float32_are_those_of_the_network(name):
    make = {"bert": bert, "bert with tanh-GELU": lambda: bert(hidden_act="gelu_new")}
    network = make.get(name, roberta)()
    encoder = PackedEncoder(network, product=OneDNNLinear)
    texts = random_texts()
    torch.testing.assert_close(
        hidden(encoder, texts), of_network(network, texts), atol=1e-5, rtol=0
    )
    layers = list(encoder._network.modules())
    assert not any(
        type(layer) is nn.Linear for layer in layers if layer is not network.pooler.dense
    )
    fuse_layers = {layer._fused for layer in layers if isinstance(layer, OneDNNLinear)}
    assert fuse_layers == ({"none"} if "tanh" in name else {"none", "gelu"})
