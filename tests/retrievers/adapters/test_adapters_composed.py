"""Adapters on adapters, fusions, averages, and many adapters over one base that is loaded once."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from foundation.errors import BenchError
from retrievers.adapters.adapter import AdapterSettings, check_composition, make_configuration
from retrievers.adapters.compose import (
    average_adapters,
    find_adapter_base,
    stack_adapters,
)
from retrievers.encoders.transformer import SharedNetworks, open_encoder
from retrievers.models import loading
from retrievers.models.read_checkpoint import Composition
from retrievers.models.resolve import resolve_model
from tests.retrievers.adapters.test_adapter_tuning import QUICK, Tuned, run, table, vectors
from tests.support.small_finetuning import TEXTS, TITLES
from tests.support.tiny_checkpoints import write_bert

adapters = pytest.importorskip("adapters", exc_type=ImportError)


def two_adapters(folder, **others):
    for name, seed in (("one", 1), ("two", 2)):
        run(folder, f"seed = {seed}\n{table('seq_bn')}", name, **others)
    return [folder / "one", folder / "two"]


def adapter(folder):
    return load_file(str(folder / "adapter.safetensors"))


@pytest.mark.slow
def test_a_training_on_another_adapter_of_the_same_path_is_another_training(tmp_path):
    domain, other = two_adapters(tmp_path)
    stacked = table("lora", more=f'over = ["{domain}"]\n')
    first = run(tmp_path, stacked)
    assert run(tmp_path, stacked) == first
    file = "adapter/adapter.safetensors"
    (domain / file).write_bytes((other / file).read_bytes())
    with pytest.raises(BenchError, match="different training: below"):
        run(tmp_path, stacked)


@pytest.mark.slow
def test_a_fusion_learns_how_much_each_adapter_counts(tmp_path):
    folders = two_adapters(tmp_path)
    over = ", ".join(f'"{folder}"' for folder in folders)
    tuned = Tuned(tmp_path, table("fusion", more=f"over = [{over}]\n"))
    assert tuned.base_is_unchanged
    np.testing.assert_allclose(vectors(tmp_path / "tuned"), tuned.vectors, atol=1e-5)
    below = adapter(tmp_path / "tuned" / "adapter" / "below_2")
    for name, value in adapter(folders[1] / "adapter").items():
        assert np.array_equal(below[name.replace("bench", "below_2")], value)


METHODS = ["prefix_tuning", "compacter"]


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


def two_of(tmp_path, method, library="adapterhub"):
    for name, seed in (("one", 1), ("two", 2)):
        run(tmp_path, f"seed = {seed}\n{table(method, library)}", name)
    return tmp_path / "one", tmp_path / "two"


@pytest.mark.parametrize(
    ("library", "method"),
    [
        ("adapterhub", "seq_bn"),
        *(pytest.param("adapterhub", name, marks=pytest.mark.slow) for name in METHODS),
        pytest.param("peft", "lora", marks=pytest.mark.slow),
    ],
)
def test_an_average_has_the_mean_weights_of_its_adapters(tmp_path, library, method):
    one, two = two_of(tmp_path, method, library)
    base = find_adapter_base([one, two])
    average_adapters(base, [one, two], tmp_path / "mean")
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
    one, _ = two_adapters(tmp_path)
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
            average_adapters(base, [one, tmp_path / name], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_a_stack_is_each_adapter_on_the_one_below(tmp_path):
    """As AdapterHub gives it when the second was trained over the first."""
    domain, _ = two_adapters(tmp_path)
    tuned = Tuned(tmp_path, table("seq_bn", more=f'over = ["{domain}"]\n'))
    assert tuned.base_is_unchanged
    np.testing.assert_allclose(vectors(tmp_path / "tuned"), tuned.vectors, atol=1e-5)
    task = tmp_path / "tuned" / "adapter" / "bench"
    base = find_adapter_base([domain])
    stack_adapters(base, [domain, task], tmp_path / "stack")
    np.testing.assert_allclose(vectors(tmp_path / "stack"), tuned.vectors, atol=1e-5)
    turned = tmp_path / "turned"
    stack_adapters(base, [task, domain], turned)
    assert np.abs(vectors(turned) - tuned.vectors).max() > 1e-4
    (tmp_path / "tuned" / "adapter" / "below_1" / "adapter.safetensors").unlink()
    with pytest.raises(BenchError, match="no adapter weights"):
        resolve_model(str(tmp_path / "tuned"))


@pytest.mark.slow
def test_configurations_that_adapterhub_ignores_silently_are_refused(tmp_path):
    """It runs these only of the first adapter: on another one they would train nothing."""
    method = "seq_bn_inv"
    run(tmp_path, table("seq_bn"), "domain")
    run(tmp_path, table(method), "task")
    domain, task = tmp_path / "domain", tmp_path / "task"
    stack_adapters(find_adapter_base([task]), [task, domain], tmp_path / "stack")
    for other in (domain, task):
        assert np.abs(vectors(tmp_path / "stack") - vectors(other)).max() > 1e-4
    with pytest.raises(BenchError, match="only at the bottom of a stack"):
        stack_adapters(find_adapter_base([task]), [domain, task], tmp_path / "turned")
    with pytest.raises(BenchError, match="only at the bottom of a stack"):
        run(tmp_path, table(method, more=f'over = ["{domain}"]\n'), "over")
    assert not (tmp_path / "over").exists()


def test_incompatible_adapters_are_refused(tmp_path):
    one, _ = two_adapters(tmp_path)
    run(tmp_path, table("lora", "peft"), "peft")
    with pytest.raises(BenchError, match="adapters of PEFT are not stacked"):
        stack_adapters(find_adapter_base([one]), [one, tmp_path / "peft"], tmp_path / "both")
    with pytest.raises(BenchError, match="a single adapter cannot be composed"):
        stack_adapters(find_adapter_base([one]), [one], tmp_path / "both")
    run(tmp_path, QUICK, "whole")
    with pytest.raises(BenchError, match="is a complete model, not an adapter"):
        find_adapter_base([tmp_path / "whole"])
    (tmp_path / "bare").mkdir()
    with pytest.raises(BenchError, match="none of these adapters has a card"):
        find_adapter_base([tmp_path / "bare"])
    assert not (tmp_path / "both").exists()


@pytest.mark.slow
def test_many_adapters_over_one_base_load_it_once(tmp_path, monkeypatch):
    folders = two_adapters(tmp_path)
    run(tmp_path, table("lora"), "three")
    folders += [tmp_path / "three", tmp_path / "start.toml"]  # the last has no adapter
    expected = [vectors(folder) for folder in folders]
    read = []
    load = loading.load_network
    monkeypatch.setattr(loading, "load_network", lambda *one: read.append(one) or load(*one))
    networks = SharedNetworks()
    encoders = [open_encoder(resolve_model(str(one)), "cpu", networks=networks) for one in folders]
    for _ in range(2):  # each is used again after the others
        for encoder, wanted in zip(encoders, expected, strict=True):
            np.testing.assert_array_equal(encoder.encode_documents(TITLES, TEXTS), wanted)
    assert len(read) == 1


def test_a_stack_with_a_parallel_adapter_is_refused_since_it_drops_what_is_below(tmp_path):
    """AdapterHub 1.3: nothing of the lower adapter reaches the output."""
    network = write_bert(tmp_path / "bert").eval()
    adapters.init(network)
    for name, method in (("low", "seq_bn"), ("high", "par_bn")):
        settings = AdapterSettings(method=method, options={"reduction_factor": 4})
        network.add_adapter(name, config=make_configuration(settings))
    with pytest.raises(BenchError, match="ignores the adapters below a parallel one"):
        check_composition(network, Composition("Stack", ("low", "high")))
    check_composition(network, Composition("Fuse", ("low", "high")))
