"""The parallel adapter of He et al., ICLR 2022, against its equation in NumPy."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModel

from foundation.errors import BenchError
from retrievers.adapters.adapter import (
    AdapterSettings,
    attach,
    check_composition,
    make_configuration,
)
from retrievers.models.read_checkpoint import Composition
from tests.retrievers.adapters.test_adapter_tuning import QUICK, run
from tests.support.tiny_checkpoints import write_bert

adapters = pytest.importorskip("adapters", exc_type=ImportError)
SCALE = 4.0


def dense(x, weights, name):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


@pytest.mark.slow
@pytest.mark.parametrize("scale", [SCALE, 0.5])
def test_a_layer_adds_the_scaled_bottleneck_of_what_its_feed_forward_block_reads(tmp_path, scale):
    options = f"options = {{ reduction_factor = 4, scaling = {scale} }}\n"
    run(tmp_path, f'[adapter]\nmethod = "par_bn"\n{options}{QUICK}')
    network = AutoModel.from_pretrained(str(tmp_path / "start")).eval()
    own = {name: value.detach().double().numpy() for name, value in network.named_parameters()}
    held = load_file(str(tmp_path / "out" / "adapter" / "adapter.safetensors"))
    attached = attach(network, tmp_path / "out" / "adapter", "adapterhub")
    ids = torch.arange(5, 21).reshape(2, 8)
    with torch.inference_mode():
        states = [[], []]
        for layer in attached.encoder.layer:
            layer.attention.register_forward_hook(lambda *of: states[0].append(of[2][0]))
            layer.register_forward_hook(lambda *of: states[1].append(of[2]))
        attached(input_ids=ids, attention_mask=torch.ones_like(ids))
    for number, (read, given) in enumerate(zip(*states, strict=True)):
        x = read.double().numpy()
        prefix = f"encoder.layer.{number}"
        adapter = {
            name.removeprefix(f"{prefix}.output.adapters.bench."): value
            for name, value in held.items()
            if name.startswith(f"{prefix}.output.")
        }
        bottleneck = np.maximum(dense(x, adapter, "adapter_down.0"), 0)
        beside = scale * dense(bottleneck, adapter, "adapter_up")
        hidden = torch.nn.functional.gelu(
            torch.from_numpy(dense(x, own, f"{prefix}.intermediate.dense"))
        ).numpy()
        total = dense(hidden, own, f"{prefix}.output.dense") + x + beside
        centred = total - total.mean(-1, keepdims=True)
        normalize_rows = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        norm = f"{prefix}.output.LayerNorm"
        expected = normalize_rows * own[f"{norm}.weight"] + own[f"{norm}.bias"]
        given = given[0] if isinstance(given, tuple) else given
        np.testing.assert_allclose(given.numpy(), expected, atol=1e-5)
        assert np.abs(beside).max() > 1e-2


@pytest.mark.parametrize("other", ["par_bn", "seq_bn"])
def test_a_stack_with_a_parallel_adapter_is_refused_since_it_drops_what_is_below(tmp_path, other):
    """AdapterHub 1.3: nothing of the lower adapter reaches the output."""
    network = write_bert(tmp_path / "bert").eval()
    adapters.init(network)
    for name, method in (("low", other), ("high", "par_bn")):
        settings = AdapterSettings(method=method, options={"reduction_factor": 4})
        network.add_adapter(name, config=make_configuration(settings))
    stack = Composition("Stack", ("low", "high"))
    network.set_active_adapters(stack.block())
    ids = torch.arange(5, 13)[None]
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    with torch.inference_mode():
        before = network(input_ids=ids).last_hidden_state
        for name, weight in network.named_parameters():
            if ".low." in name:
                torch.nn.init.normal_(weight, std=1.0)
        torch.testing.assert_close(network(input_ids=ids).last_hidden_state, before)
    with pytest.raises(BenchError, match="ignores the adapters below a parallel one"):
        check_composition(network, stack)
    check_composition(network, Composition("Fuse", ("low", "high")))
