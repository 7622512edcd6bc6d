"""Averages of adapters, and many adapters over one base that is loaded once."""

import gc

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from foundation.errors import BenchError
from retrievers.adapters.compose import average_adapters, find_adapter_base, find_adapters
from retrievers.encoders.transformer import open_encoder
from retrievers.models import loading
from retrievers.models.resolve import resolve_model
from tests.retrievers.adapters.test_adapter_tuning import QUICK, run, table, vectors
from tests.support.small_finetuning import TEXTS, TITLES

adapters = pytest.importorskip("adapters", exc_type=ImportError)


def held(folder):
    """Every tensor of an adapter, whatever its file."""
    found = {}
    for path in sorted((folder / "adapter").iterdir()):
        if path.suffix == ".safetensors":
            found |= {f"{path.name} {name}": one for name, one in load_file(str(path)).items()}
        elif path.suffix == ".bin":
            read = torch.load(path, weights_only=True)
            found |= {f"{path.name} {name}": one.numpy() for name, one in read.items()}
    return found


def two_of(tmp_path, method="seq_bn", library="adapterhub"):
    for name, seed in (("one", 1), ("two", 2)):
        run(tmp_path, f"seed = {seed}\n{table(method, library)}", name)
    return tmp_path / "one", tmp_path / "two"


@pytest.mark.parametrize(
    ("library", "method"),
    [
        ("adapterhub", "seq_bn"),
        *(
            pytest.param("adapterhub", name, marks=pytest.mark.slow)
            for name in ("prefix_tuning", "compacter")
        ),
        pytest.param("peft", "lora", marks=pytest.mark.slow),
    ],
)
def test_an_average_has_the_mean_weights_of_its_adapters(tmp_path, library, method):
    one, two = two_of(tmp_path, method, library)
    base = find_adapter_base([one, two])
    average_adapters(find_adapters(base, [one, two]), tmp_path / "mean")
    first, second, found = held(one), held(two), held(tmp_path / "mean")
    assert found.keys() == first.keys() == second.keys()
    for key, value in found.items():
        expected = (first[key].astype(float) + second[key].astype(float)) / 2
        np.testing.assert_allclose(value, expected, atol=1e-7)
    assert any(np.abs(first[key] - second[key]).max() > 1e-3 for key in first)
    if method == "prefix_tuning":  # a tensor that all layers share is stored once
        name = "adapter/pytorch_adapter.bin"
        assert (tmp_path / "mean" / name).stat().st_size < 1.1 * (one / name).stat().st_size
    for name in ("one", "two"):  # and the vectors are of neither
        assert np.abs(vectors(tmp_path / "mean") - vectors(tmp_path / name)).max() > 1e-4


@pytest.mark.slow
def test_adapters_of_different_sizes_or_methods_have_no_average(tmp_path):
    one, _ = two_of(tmp_path)
    small = '[adapter]\nmethod = "seq_bn"\noptions = { reduction_factor = 8 }\n'
    run(tmp_path, small + QUICK, "small")
    run(tmp_path, table("lora"), "lora")
    run(tmp_path, table("lora", "peft"), "peft")
    base = find_adapter_base([one])
    for name, why in (
        ("small", "they differ in reduction_factor"),
        ("lora", "they differ in"),
        ("peft", "some are of AdapterHub and some of PEFT"),
    ):
        with pytest.raises(BenchError, match=f"cannot be averaged: {why}"):
            average_adapters(find_adapters(base, [one, tmp_path / name]), tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_incompatible_adapters_are_refused(tmp_path):
    one, _ = two_of(tmp_path)
    with pytest.raises(BenchError, match="a single adapter cannot be composed"):
        find_adapters(find_adapter_base([one]), [one])
    run(tmp_path, QUICK, "whole")
    with pytest.raises(BenchError, match="is a complete model, not an adapter"):
        find_adapter_base([tmp_path / "whole"])
    (tmp_path / "bare").mkdir()
    with pytest.raises(BenchError, match="none of these adapters has a card"):
        find_adapter_base([tmp_path / "bare"])
    assert not (tmp_path / "both").exists()


@pytest.mark.slow
def test_many_adapters_over_one_base_load_it_once(tmp_path, monkeypatch):
    folders = [*two_of(tmp_path)]
    run(tmp_path, table("lora"), "three")
    folders += [tmp_path / "three", tmp_path / "start.toml"]  # the last has no adapter
    expected = [vectors(folder) for folder in folders]
    gc.collect()  # the encoders of these vectors
    read = []
    load = loading.load_network
    monkeypatch.setattr(loading, "load_network", lambda *one: read.append(one) or load(*one))
    encoders = [open_encoder(resolve_model(str(one)), "cpu") for one in folders]
    for _ in range(2):  # each is used again after the others
        for encoder, wanted in zip(encoders, expected, strict=True):
            np.testing.assert_array_equal(encoder.encode_documents(TITLES, TEXTS), wanted)
    assert len(read) == 1
