"""Dense layers through oneDNN in every dtype, compared with the network's own layers."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers.activations import GELUActivation

from foundation.errors import BenchError
from foundation.machine import has_vnni
from retrievers.encoders.packed import (
    Int8Encoder,
    Int8Linear,
    OneDNNLinear,
    PackedEncoder,
    has_bfloat16,
    has_onednn,
)
from retrievers.encoders.tokens import Tokens
from tests.support import tiny_checkpoints as tiny
from tests.support.examples import with_examples

LENGTHS = (17, 1, 9, 30, 2, 9, 9)
# With AMX, oneDNN has a different kernel for products of at most 256 values, and for one token of
# width 256. Larger weights make attention all or nothing.
SIZES = {**tiny.SIZES, "hidden_size": 288, "intermediate_size": 576, "initializer_range": 0.03}


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
@given(
    rows=st.integers(1, 70),
    width=st.sampled_from([1, 2, 31, 256, 1536]),
    outputs=st.integers(1, 40),
    zero=st.integers(0, 255),
    seed=st.integers(0, 2**32 - 1),
    largest=st.booleans(),
)
@with_examples(20)
def test_products_are_summed_exactly(rows, width, outputs, zero, seed, largest):
    torch.manual_seed(seed)
    linear = nn.Linear(width, outputs)
    weight = torch.randint(-127, 128, (outputs, width))
    weight[:, 0] = 127  # so that a step of a weight is 1
    linear.weight.copy_(weight.sign() * 127 if largest else weight)
    linear.bias.zero_()
    layer = Int8Linear([linear])
    layer.is_smooth = False
    layer(torch.tensor([[-float(zero)], [255.0 - zero]]).expand(2, width))  # a step is 1
    tokens = torch.randint(0, 256, (rows, width), dtype=torch.uint8)
    tokens = tokens // 128 * 255 if largest else tokens
    exact = (tokens.long() - zero) @ linear.weight.long().T
    # float32 holds 24 bits of a sum in int32
    torch.testing.assert_close(layer(tokens).double(), exact.double(), atol=0, rtol=2**-23)


@needs_vnni
@torch.inference_mode()
@given(rows=st.integers(2, 40), seed=st.integers(0, 2**32 - 1), is_smooth=st.booleans())
@with_examples(10)
def test_a_linear_layer_is_the_one_of_its_rounded_numbers(rows, seed, is_smooth):
    torch.manual_seed(seed)
    layers = [nn.Linear(32, 8), nn.Linear(32, 24)]
    tokens = torch.randn(rows, 32) * torch.logspace(-1, 1, 32)
    layer = Int8Linear(layers)
    layer.is_smooth = is_smooth
    output = layer(tokens).double()
    weight = torch.cat([each.weight for each in layers]).double()
    bias = torch.cat([each.bias for each in layers]).double()
    factors = torch.ones(32, dtype=torch.double)
    if is_smooth:
        ranges = torch.maximum(tokens.amax(0).clamp_min(0), -tokens.amin(0).clamp_max(0))
        ranges = ranges.double().clamp_min(0.01 * ranges.max())
        factors = ranges**0.7 / weight.abs().amax(0) ** 0.3
    divided = tokens / factors
    step = (divided.max() - divided.min()) / 255
    steps = layer._round(tokens).double() - layer.zero
    # Half a step; at the ends another half, since 0 is a whole number of steps.
    assert (steps - divided / step).abs().max() <= 1.001
    rounded = steps * step
    scales = (weight * factors).abs().amax(1, keepdim=True) / 127
    exact = rounded @ ((weight * factors / scales).round() * scales).T + bias
    # A weight halfway between two steps may be rounded either way.
    assert (output - exact).abs().max() <= 1e-4 + (rounded.abs().amax() * scales.max())


@needs_vnni
@torch.inference_mode()
@pytest.mark.parametrize("after", [GELUActivation(), nn.Tanh()])
def test_the_result_for_the_following_layer_is_rounded_as_its_inputs_are(after):
    torch.manual_seed(0)
    tokens = torch.randn(50, 16)
    wide, narrow = Int8Linear([nn.Linear(16, 64)], after), Int8Linear([nn.Linear(64, 16)])
    wide.following, narrow.is_smooth = narrow, False
    expected = narrow(wide(tokens))  # the first call calibrates
    widened = wide(tokens)
    assert widened.dtype == (torch.uint8 if isinstance(after, GELUActivation) else torch.float32)
    wide.following = None
    bytes_ = widened if widened.dtype == torch.uint8 else narrow._round(widened)
    assert (bytes_.int() - narrow._round(wide(tokens)).int()).abs().max() <= 1
    torch.testing.assert_close(narrow(widened), expected, atol=0.02, rtol=0.02)


def least_cosine(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(nn.functional.cosine_similarity(first, second).min())


@needs_vnni
@torch.inference_mode()
def test_neither_batching_nor_threads_change_a_byte(network):
    texts, before = random_texts(), torch.get_num_threads()
    int8 = Int8Encoder(network, Tokens.of(texts))
    alone = torch.cat([hidden(int8, [text]) for text in texts])
    pooled = [int8.encode_batch("mean", int8.pack_batch(Tokens.of([text]))) for text in texts]
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(hidden(int8, texts), alone)
            together = int8.encode_batch("mean", int8.pack_batch(Tokens.of(texts)))
            assert torch.equal(together, torch.cat(pooled))
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
    int8 = Int8Encoder(network, Tokens.of(texts))
    found = hidden(int8, texts, types)
    assert least_cosine(found, expected) > 0.98
    assert not torch.equal(found, expected)
    assert torch.equal(found, hidden(int8, texts)) != typed
    pooled = int8.encode_batch("pooler", int8.pack_batch(Tokens.of(texts, types)))
    starts = np.cumsum([0, *LENGTHS[:-1]])
    torch.testing.assert_close(pooled, network.pooler(found[starts].unsqueeze(1)))


@needs_vnni
def test_networks_of_other_families_are_refused():
    config = transformers.DistilBertConfig(dim=32, n_layers=1, n_heads=2, hidden_dim=64)
    with pytest.raises(BenchError, match="not this DistilBertModel"):
        Int8Encoder(transformers.DistilBertModel(config), Tokens.of(random_texts()))


@pytest.mark.skipif(not has_bfloat16(), reason="oneDNN has no bfloat16 instructions here")
@torch.inference_mode()
def test_hidden_states_in_bfloat16_are_close_to_the_network_in_any_batch(network):
    texts = random_texts()
    expected = of_network(network, texts)
    encoder = PackedEncoder(network.to(torch.bfloat16), product=OneDNNLinear)
    states = hidden(encoder, texts)
    assert states.dtype == torch.bfloat16
    assert least_cosine(states.float(), expected) > 0.999
    alone = torch.cat([hidden(encoder, [text]) for text in texts])
    # With AMX, oneDNN adds in an order that depends on the number of tokens.
    torch.testing.assert_close(states, alone, atol=0.04, rtol=0.02)


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
    fused = {layer._fused for layer in layers if isinstance(layer, OneDNNLinear)}
    within = OneDNNLinear.fuses() and "tanh" not in name
    assert fused == ({"none", "gelu"} if within else {"none"})


@pytest.mark.skipif(not has_onednn(), reason="PyTorch offers no oneDNN operators here")
@pytest.mark.parametrize("make", [bert, roberta])
def test_a_processor_with_avx2_alone_gives_the_same_bits_by_separate_operators(make, monkeypatch):
    texts, states = random_texts(), []
    for capability in ("AVX512", "AVX2"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda it=capability: it)
        encoder = PackedEncoder(make(), product=OneDNNLinear)
        assert (encoder._network.layers[0].widen.after is None) == (capability == "AVX512")
        states.append(hidden(encoder, texts))
    assert torch.equal(*states)
