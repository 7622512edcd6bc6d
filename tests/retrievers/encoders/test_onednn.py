"""Dense layers through oneDNN against the Hugging Face network that they were taken from."""

import copy

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from retrievers.encoders.int8 import OneDNNLinear, replace_linear, usable
from tests.support import tiny_checkpoints as tiny


def roberta() -> nn.Module:
    sizes = {**tiny.SIZES, "vocab_size": 100, "max_position_embeddings": 66, "pad_token_id": 1}
    return tiny.seeded(lambda: transformers.RobertaModel(transformers.RobertaConfig(**sizes)))


def bert(**changes) -> nn.Module:
    return tiny.seeded(lambda: transformers.BertModel(tiny.bert_config(**changes)))


@pytest.fixture(params=["bert", "bert with tanh-GELU", "roberta"])
def network(request) -> nn.Module:
    found = {
        "bert": bert,
        "bert with tanh-GELU": lambda: bert(hidden_act="gelu_new"),
        "roberta": roberta,
    }[request.param]()
    if not usable(found):
        pytest.skip("this build of PyTorch offers no oneDNN operators here")
    return found


@torch.inference_mode()
def test_hidden_states_are_those_of_the_network(network):
    ids = torch.from_numpy(np.random.default_rng(0).integers(5, 50, (4, 20)))
    mask = torch.ones_like(ids)
    mask[1:, 13:] = 0
    replaced = copy.deepcopy(network)
    replace_linear(replaced)
    expected = network(input_ids=ids, attention_mask=mask)
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
