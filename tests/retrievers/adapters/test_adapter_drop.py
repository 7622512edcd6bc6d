"""AdapterDrop at inference: layers without adapter against an adapter that does nothing there."""

import re
import shutil

import msgspec
import numpy as np
import pytest

from bench.experiments.evaluate_stage import EvaluateSettings, _resolved
from foundation.errors import BenchError
from retrievers.encoders.routed import open_encoder
from retrievers.models.model import resolve_model
from retrievers.training.finetune.finetune import finetune
from tests.support.small_finetuning import TEXTS, TITLES, examples, model, on_cpu, preset

pytest.importorskip("adapters", exc_type=ImportError)
# Of each method, the tensors without which a layer's adapter gives what it gets.
LAST = {"seq_bn": "adapter_up", "lora": "lora_B"}


def trained(folder, method, library="adapterhub"):
    table = f'[adapter]\nlibrary = "{library}"\nmethod = "{method}"\nlr = 0.05\n'
    finetune(preset(table, steps=3), model(folder), examples(), on_cpu(folder / "out"))
    return folder / "out"


def vectors(name, dropped=0):
    chosen = EvaluateSettings(on=("c",), adapter_drop=dropped)
    encoder = open_encoder(_resolved(str(name), chosen, None), "cpu")
    return encoder.encode_documents(TITLES, TEXTS)


def without(folder, method, dropped, out):
    """A copy whose adapter does nothing in its first layers."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, out)
    for path in (out / "adapter").iterdir():
        if path.suffix not in (".safetensors", ".bin"):
            continue
        in_torch = path.suffix == ".bin"
        tensors = torch.load(path, weights_only=True) if in_torch else load_file(path)
        for name, value in tensors.items():
            layer = re.search(r"layer\.(\d+)\.", name)
            if layer and int(layer[1]) < dropped and LAST[method] in name:
                value.zero_()
        torch.save(tensors, path) if in_torch else save_file(tensors, path)
    return out


@pytest.mark.parametrize("method", LAST)
def test_dropped_layers_are_those_of_an_adapter_that_does_nothing_there(tmp_path, method):
    folder = trained(tmp_path, method)
    whole = vectors(folder)
    for dropped in (1, 2):
        expected = vectors(without(folder, method, dropped, tmp_path / f"without-{dropped}"))
        np.testing.assert_allclose(vectors(folder, dropped), expected, atol=1e-5)
        assert np.abs(expected - whole).max() > 1e-3
    np.testing.assert_allclose(vectors(folder, 2), vectors(tmp_path / "start.toml"), atol=1e-5)


def test_what_is_dropped_is_part_of_the_fingerprint_and_nothing_of_it_at_0(tmp_path):
    folder = trained(tmp_path, "seq_bn")
    resolved = [
        _resolved(str(folder), EvaluateSettings(on=("c",), adapter_drop=n), None) for n in (0, 1)
    ]
    assert resolved[0].recipe.fingerprint == resolve_model(str(folder)).recipe.fingerprint
    assert resolved[1].recipe.fingerprint != resolved[0].recipe.fingerprint
    assert "dropped" not in msgspec.to_builtins(resolved[0].recipe.adapter)


def test_layers_or_adapters_that_are_not_there_are_one_error(tmp_path):
    folder = trained(tmp_path, "seq_bn")
    with pytest.raises(BenchError, match=r"adapter_drop is 3, and .* has 2 layers"):
        vectors(folder, 3)
    with pytest.raises(BenchError, match="has no adapter"):
        vectors(tmp_path / "start.toml", 1)
