"""ONNX Runtime against the Hugging Face network that the graph was exported from."""

import sys

import numpy as np
import pytest
import torch
import transformers

from foundation.errors import BenchError
from retrievers.encoders.onnx_network import OnnxNetwork
from tests.support import tiny_checkpoints as tiny

SIZES = {**tiny.SIZES, "vocab_size": 100}
NETWORKS = {
    "bert": lambda: transformers.BertModel(tiny.bert_config()),
    "roberta": lambda: transformers.RobertaModel(
        transformers.RobertaConfig(**{**SIZES, "max_position_embeddings": 66, "pad_token_id": 1})
    ),
    "deberta": lambda: transformers.DebertaV2Model(
        transformers.DebertaV2Config(
            **{**SIZES, "max_position_embeddings": 64, "position_buckets": 16},
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
        )
    ),
    "t5": lambda: transformers.T5EncoderModel(
        transformers.T5Config(
            d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=100
        )
    ),
}


def needs_onnx():
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package, reason=f"back end onnx needs {package}")


@pytest.fixture(params=NETWORKS)
def network(request):
    needs_onnx()
    return tiny.seeded(NETWORKS[request.param])


def inputs_of(network, texts: int, tokens: int) -> dict[str, torch.Tensor]:
    ids = torch.from_numpy(np.random.default_rng(0).integers(5, 50, (texts, tokens)))
    mask = torch.ones_like(ids)
    mask[1:, tokens // 2 + 1 :] = 0
    ids[mask == 0] = network.config.pad_token_id
    return {"input_ids": ids, "attention_mask": mask}


@torch.inference_mode()
def test_hidden_states_are_those_of_the_network_at_any_shape(network):
    exported = OnnxNetwork(network)
    for shape in ((1, 1), (1, 20), (5, 40), (7, 3)):
        inputs = inputs_of(network, *shape)
        present = inputs["attention_mask"].bool()
        expected = network(**inputs).last_hidden_state[present]
        found = exported(**inputs).last_hidden_state
        assert (found.dtype, found.shape[:2]) == (torch.float32, shape)
        torch.testing.assert_close(found[present], expected, atol=5e-5, rtol=1e-4)


@torch.inference_mode()
def test_a_text_alone_has_the_vector_that_it_has_in_a_batch(network):
    exported = OnnxNetwork(network)
    inputs = inputs_of(network, 5, 40)
    together = exported(**inputs).last_hidden_state
    for row, mask in enumerate(inputs["attention_mask"]):
        length = int(mask.sum())
        alone = exported(**{name: t[row : row + 1, :length] for name, t in inputs.items()})
        first, second = together[row, :length].mean(dim=0), alone.last_hidden_state[0].mean(dim=0)
        cosine_free = first / first.norm() - second / second.norm()
        assert cosine_free.abs().max() <= 1e-6


@torch.inference_mode()
def test_token_types_are_read():
    needs_onnx()
    network = tiny.seeded(NETWORKS["bert"])
    exported = OnnxNetwork(network)
    inputs = inputs_of(network, 2, 12)
    types = torch.ones_like(inputs["input_ids"])
    expected = network(**inputs, token_type_ids=types).last_hidden_state
    found = exported(**inputs, token_type_ids=types).last_hidden_state
    present = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[present], expected[present], atol=5e-5, rtol=1e-4)
    assert not torch.allclose(found, exported(**inputs).last_hidden_state, atol=1e-2)


class _Frozen(torch.nn.Module):
    """A network that adds the number of tokens it was traced with, as a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = transformers.BertModel(tiny.bert_config())
        self.config = self.inner.config

    def forward(self, input_ids, attention_mask):
        found = self.inner(input_ids=input_ids, attention_mask=attention_mask)
        found.last_hidden_state = found.last_hidden_state + float(int(input_ids.shape[1]))
        return found


def test_a_graph_that_froze_a_shape_is_refused():
    needs_onnx()
    with pytest.raises(BenchError, match="differs from the network"):
        OnnxNetwork(tiny.seeded(_Frozen))


def test_a_network_without_hidden_states_is_refused():
    needs_onnx()
    config = transformers.DPRConfig(**{**SIZES, "max_position_embeddings": 64})
    with pytest.raises(BenchError, match="last hidden states"):
        OnnxNetwork(tiny.seeded(lambda: transformers.DPRContextEncoder(config)))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named(monkeypatch, package):
    if package == "onnxruntime":
        pytest.importorskip("onnx", reason="back end onnx needs onnx")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BenchError, match=f"needs {package}") as caught:
        OnnxNetwork(tiny.seeded(NETWORKS["bert"]))
    assert caught.value.hint == "pip install onnx onnxruntime"
