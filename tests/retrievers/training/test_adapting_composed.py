"""Adapters on adapters, fusions, averages, and many adapters over one base that is loaded once."""

import numpy as np
import pytest
from finetuning_for_tests import TEXTS, TITLES, model
from safetensors.numpy import load_file
from test_adapting import QUICK, Tuned, run, table, vectors

from retrievers import loading
from retrievers.bases import Bases
from retrievers.errors import RetrieverError
from retrievers.model import open_encoder, resolve_model
from retrievers.training.adapting_average import average_adapters

pytest.importorskip("adapters", exc_type=ImportError)


def two_adapters(folder, **others):
    for name, seed in (("one", 1), ("two", 2)):
        run(folder, f"seed = {seed}\n{table('seq_bn')}", name, **others)
    return [folder / "one", folder / "two"]


def adapter(folder):
    return load_file(str(folder / "adapter.safetensors"))


def test_an_adapter_is_stacked_on_one_that_stays_as_it_is(tmp_path):
    domain, _ = two_adapters(tmp_path)
    tuned = Tuned(tmp_path, table("seq_bn", more=f'over = ["{domain}"]\n'))
    assert tuned.base_is_unchanged
    np.testing.assert_allclose(vectors(tmp_path / "tuned"), tuned.vectors, atol=1e-5)
    below = adapter(tmp_path / "tuned" / "adapter" / "below_1")
    for name, value in adapter(domain / "adapter").items():
        assert np.array_equal(below[name.replace("bench", "below_1")], value)
    for other in (domain, tmp_path / "start.toml"):
        assert np.abs(tuned.vectors - vectors(other)).max() > 1e-3


def test_a_training_on_another_adapter_of_the_same_path_is_another_training(tmp_path):
    domain, other = two_adapters(tmp_path)
    stacked = table("lora", more=f'over = ["{domain}"]\n')
    first = run(tmp_path, stacked)
    assert run(tmp_path, stacked) == first
    file = "adapter/adapter.safetensors"
    (domain / file).write_bytes((other / file).read_bytes())
    with pytest.raises(RetrieverError, match="it differs in below"):
        run(tmp_path, stacked)


def test_a_fusion_learns_how_much_each_adapter_counts(tmp_path):
    folders = two_adapters(tmp_path)
    over = ", ".join(f'"{folder}"' for folder in folders)
    tuned = Tuned(tmp_path, table("fusion", more=f"over = [{over}]\n"))
    assert tuned.base_is_unchanged
    np.testing.assert_allclose(vectors(tmp_path / "tuned"), tuned.vectors, atol=1e-5)
    below = adapter(tmp_path / "tuned" / "adapter" / "below_2")
    for name, value in adapter(folders[1] / "adapter").items():
        assert np.array_equal(below[name.replace("bench", "below_2")], value)


def test_an_average_has_the_mean_weights_of_its_adapters(tmp_path):
    one, two = two_adapters(tmp_path)
    base = resolve_model(str(tmp_path / "start.toml"))
    average_adapters(base, [one, two], tmp_path / "mean", weights=[3, 1])
    first, second = adapter(one / "adapter"), adapter(two / "adapter")
    for name, value in adapter(tmp_path / "mean" / "adapter").items():
        np.testing.assert_allclose(value, 0.75 * first[name] + 0.25 * second[name], atol=1e-6)
    assert vectors(tmp_path / "mean").shape == (len(TEXTS), 32)


def test_adapters_of_different_sizes_have_no_average(tmp_path):
    one, _ = two_adapters(tmp_path)
    small = '[adapter]\nmethod = "seq_bn"\noptions = { reduction_factor = 8 }\n'
    run(tmp_path, small + QUICK, "small")
    base = resolve_model(str(tmp_path / "start.toml"))
    with pytest.raises(RetrieverError, match="cannot be averaged"):
        average_adapters(base, [one, tmp_path / "small"], tmp_path / "mean")


def test_a_composition_whose_part_is_missing_is_refused(tmp_path):
    domain, _ = two_adapters(tmp_path)
    Tuned(tmp_path, table("seq_bn", more=f'over = ["{domain}"]\n'))
    (tmp_path / "tuned" / "adapter" / "below_1" / "adapter.safetensors").unlink()
    with pytest.raises(RetrieverError, match="no adapter weights"):
        resolve_model(str(tmp_path / "tuned"))


def test_many_adapters_over_one_base_load_it_once(tmp_path, monkeypatch):
    folders = two_adapters(tmp_path)
    run(tmp_path, table("lora"), "three")
    folders.append(tmp_path / "three")
    expected = [vectors(folder) for folder in folders]
    read = []
    load = loading.load_network
    monkeypatch.setattr(loading, "load_network", lambda *one: read.append(one) or load(*one))
    bases = Bases()
    encoders = [open_encoder(resolve_model(str(one)), "cpu", bases=bases) for one in folders]
    for _ in range(2):  # each is used again after the others
        for encoder, wanted in zip(encoders, expected, strict=True):
            np.testing.assert_array_equal(encoder.encode_documents(TITLES, TEXTS), wanted)
    assert len(read) == 1


def test_a_model_without_an_adapter_does_not_share_its_weights(tmp_path):
    plain = model(tmp_path)
    run(tmp_path, table("ia3"), start=plain)
    bases = Bases()
    tuned = open_encoder(resolve_model(str(tmp_path / "out")), "cpu", bases=bases)
    before = tuned.encode_queries(TEXTS)
    alone = open_encoder(plain, "cpu").encode_queries(TEXTS)
    beside = open_encoder(plain, "cpu", bases=bases).encode_queries(TEXTS)
    np.testing.assert_array_equal(beside, alone)
    np.testing.assert_array_equal(tuned.encode_queries(TEXTS), before)
