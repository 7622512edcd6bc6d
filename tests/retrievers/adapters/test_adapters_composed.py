"""Averages of adapters, and many adapters over one base that is loaded once."""

import gc
from functools import cache

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
from tests.support.small_finetuning import TEXTS, TITLES, model

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


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Train an adapter over the same start once for each method and seed; its folder."""
    place = tmp_path_factory.mktemp("adapters")
    start = model(place)

    @cache
    def trained(method, seed=1, library="adapterhub"):
        name = f"{library}-{method}-{seed}"
        run(place, f"seed = {seed}\n{table(method, library)}", name, start=start)
        return place / name

    return trained


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
def test_an_average_has_the_mean_weights_of_its_adapters(train, tmp_path, library, method):
    one, two = (train(method, seed, library) for seed in (1, 2))
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
    for folder in (one, two):  # and the vectors are of neither
        assert np.abs(vectors(tmp_path / "mean") - vectors(folder)).max() > 1e-4


@pytest.mark.slow
def test_adapters_of_different_sizes_or_methods_have_no_average(train, tmp_path):
    one = train("seq_bn")
    small = '[adapter]\nmethod = "seq_bn"\noptions = { reduction_factor = 8 }\n'
    run(one.parent, small + QUICK, "small", start=resolve_model(str(one.parent / "start.toml")))
    base = find_adapter_base([one])
    for other, why in (
        (one.with_name("small"), "they differ in reduction_factor"),
        (train("lora"), "they differ in"),
        (train("lora", library="peft"), "some are of AdapterHub and some of PEFT"),
    ):
        with pytest.raises(BenchError, match=f"cannot be averaged: {why}"):
            average_adapters(find_adapters(base, [one, other]), tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_incompatible_adapters_are_refused(train, tmp_path):
    one = train("seq_bn")
    with pytest.raises(BenchError, match="a single adapter cannot be composed"):
        find_adapters(find_adapter_base([one]), [one])
    run(tmp_path, QUICK, "whole")
    with pytest.raises(BenchError, match="is a complete model, not an adapter"):
        find_adapter_base([tmp_path / "whole"])
    (tmp_path / "bare").mkdir()
    with pytest.raises(BenchError, match="none of these adapters has a card"):
        find_adapter_base([tmp_path / "bare"])


@pytest.mark.slow
def test_many_adapters_over_one_base_load_it_once(train, monkeypatch):
    folders = [train("seq_bn", 1), train("seq_bn", 2), train("lora")]
    folders.append(folders[0].with_name("start.toml"))  # which has no adapter
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
