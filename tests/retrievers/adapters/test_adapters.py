"""Adapters made and saved by their own libraries, attached to the real all-MiniLM-L6-v2."""

import json
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foundation.errors import BenchError
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import Model, resolve_model
from retrievers.models.settings import ModelSettings
from tests.support import tiny_checkpoints as tiny

TEXTS = ["What is a heat pump?", "Rivers carve valleys.", "Ribosomes make proteins."]


@pytest.fixture(scope="module")
def base() -> Model:
    return resolve_model("minilm")


@pytest.fixture(scope="module")
def base_vectors(base: Model) -> Any:
    return open_encoder(base, "cpu").encode_queries(TEXTS)


def fresh_network(base: Model) -> Any:
    import transformers

    assert base.document is not None
    return transformers.AutoModel.from_pretrained(str(base.document.folder)).eval()


def randomise(parameters: Any) -> None:
    """Adapters start as the identity; real ones were trained."""
    torch.manual_seed(11)
    for parameter in parameters:
        torch.nn.init.normal_(parameter.data, std=0.05)


def mean_vectors(network: Any, base: Model) -> Any:
    """Mean pooling and unit length, written out here, one text at a time."""
    import transformers

    assert base.document is not None
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(base.document.folder))
    rows = []
    with torch.inference_mode():
        for text in TEXTS:
            states = network(**tokenizer(text, return_tensors="pt")).last_hidden_state
            vector = states.mean(dim=1).squeeze(0)
            rows.append((vector / vector.norm()).numpy())
    return np.stack(rows)


def peft_adapter(base: Model, folder: Path, kind: str) -> Any:
    peft = pytest.importorskip("peft")
    if kind == "LORA":
        config = peft.LoraConfig(r=4, target_modules=["query", "value"])
    else:
        modules = ["key", "value", "output.dense"]
        config = peft.IA3Config(target_modules=modules, feedforward_modules=["output.dense"])
    network = peft.get_peft_model(fresh_network(base), config)
    randomise(p for name, p in network.named_parameters() if p.requires_grad)
    network.save_pretrained(str(folder))
    return network.eval()


def hub_adapter(base: Model, folder: Path, config: str) -> Any:
    adapters = pytest.importorskip("adapters")
    network = fresh_network(base)
    adapters.init(network)
    network.add_adapter("demo", config=config)
    network.train_adapter("demo")
    randomise(p for name, p in network.named_parameters() if p.requires_grad)
    network.save_adapter(str(folder), "demo")
    network.set_active_adapters("demo")
    return network.eval()


@pytest.mark.parametrize(
    ("save", "kind"),
    [
        (peft_adapter, "LORA"),
        (hub_adapter, "seq_bn"),
        pytest.param(peft_adapter, "IA3", marks=pytest.mark.slow),
        pytest.param(hub_adapter, "lora", marks=pytest.mark.slow),
        pytest.param(hub_adapter, "ia3", marks=pytest.mark.slow),
        pytest.param(hub_adapter, "prefix_tuning", marks=pytest.mark.slow),
    ],
)
def test_an_adapter_gives_the_vectors_that_it_was_saved_with(
    base: Model, base_vectors: Any, tmp_path: Path, save: Callable[..., Any], kind: str
) -> None:
    network = save(base, tmp_path / "adapter", kind)
    model = resolve_model("minilm", ModelSettings(adapter=str(tmp_path / "adapter")))
    vectors = open_encoder(model, "cpu").encode_queries(TEXTS)

    np.testing.assert_allclose(vectors, mean_vectors(network, base), atol=1e-5)
    assert np.abs(vectors - base_vectors).max() > 1e-3
    again = open_encoder(model, "cpu").encode_queries(TEXTS)
    np.testing.assert_array_equal(vectors, again)


def test_the_adapter_is_part_of_the_fingerprint(base: Model, tmp_path: Path) -> None:
    peft_adapter(base, tmp_path / "adapter", "LORA")
    first = resolve_model("minilm", ModelSettings(adapter=str(tmp_path / "adapter"))).recipe
    (tmp_path / "adapter").rename(tmp_path / "moved")
    moved = resolve_model("minilm", ModelSettings(adapter=str(tmp_path / "moved"))).recipe
    weights = tmp_path / "moved" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    changed = resolve_model("minilm", ModelSettings(adapter=str(tmp_path / "moved"))).recipe

    assert first.adapter is not None
    assert first.adapter.kind == "peft"
    assert first.fingerprint == moved.fingerprint
    assert len({base.recipe.fingerprint, first.fingerprint, changed.fingerprint}) == 3


@pytest.mark.parametrize(
    ("folder", "name"), [("lora", "lora"), ("my lora", "my_lora"), ("run-1/adapter", "run-1")]
)
def test_a_model_with_an_adapter_has_a_name_of_its_own_and_no_published_scores(
    folder: str, name: str, base: Model, tmp_path: Path
) -> None:
    peft_adapter(base, tmp_path / folder, "LORA")
    model = resolve_model("minilm", ModelSettings(adapter=str(tmp_path / folder)))
    assert model.card.name == model.recipe.model == f"minilm+{name}"
    assert base.card.expected
    assert model.card.expected == ()
    assert model.card.trained_on == base.card.trained_on


def test_a_card_may_name_its_adapter(base: Model, base_vectors: Any, tmp_path: Path) -> None:
    peft_adapter(base, tmp_path / "lora", "LORA")
    assert base.document is not None
    card = tiny.write_card(
        tmp_path / "tuned.toml",
        checkpoint=str(base.document.folder),
        pooling="mean",
        normalize=True,
        adapter={"path": "lora", "kind": "peft"},
    )
    vectors = open_encoder(resolve_model(str(card)), "cpu").encode_queries(TEXTS)
    assert np.abs(vectors - base_vectors).max() > 1e-3

    text = card.read_text().replace('"peft"', '"adapterhub"')
    card.write_text(text)
    with pytest.raises(BenchError, match="holds an adapter of peft"):
        resolve_model(str(card))


def test_a_peft_adapter_of_another_base_is_refused(base: Model, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    network = tiny.write_bert(tmp_path / "small")
    config = peft.LoraConfig(r=2, target_modules=["query"])
    peft.get_peft_model(network, config).save_pretrained(str(tmp_path / "lora"))
    model = resolve_model("minilm", ModelSettings(adapter=str(tmp_path / "lora")))

    with pytest.raises(BenchError, match="does not fit this base model"):
        open_encoder(model, "cpu").encode_queries(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ({"target_modules": [1]}, "lora cannot be attached"),
        ({"alpha_pattern": "x"}, "lora cannot be attached"),
        ({"alora_invocation_tokens": [5]}, "invocation tokens"),
        (
            {"megatron_config": {"x": 1}, "megatron_core": "trap_of_peft"},
            "code that arrives is not run",
        ),
        ({"peft_type": "MULTITASK_PROMPT_TUNING"}, "MULTITASK_PROMPT_TUNING is not supported"),
    ],
    ids=str,
)
def test_an_unsupported_configuration_is_refused(
    base: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: dict[str, Any],
    problem: str,
) -> None:
    peft_adapter(base, tmp_path / "lora", "LORA")
    (tmp_path / "trap_of_peft.py").write_text("raise SystemExit('executed')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "lora" / "adapter_config.json"
    tiny.write_json(path, json.loads(path.read_bytes()) | damage)
    with pytest.raises(BenchError, match=problem):
        open_encoder(
            resolve_model("minilm", ModelSettings(adapter=str(tmp_path / "lora"))), "cpu"
        ).encode_queries(["x"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["loreft", "vera", "prompt_tuning", "unipelt"])
def test_an_adapter_of_adapterhub_that_needs_more_than_it_saves_is_refused_by_name(
    base: Model, tmp_path: Path, method: str
) -> None:
    hub_adapter(base, tmp_path / "old", method)
    model = resolve_model("minilm", ModelSettings(adapter=str(tmp_path / "old")))
    with pytest.raises(BenchError, match="old is not supported: it is ReFT") as caught:
        open_encoder(model, "cpu").encode_queries(["x"])
    assert "Train with another method" in caught.value.hint


def test_an_adapter_without_its_weights_is_refused(base: Model, tmp_path: Path) -> None:
    peft_adapter(base, tmp_path / "lora", "LORA")
    (tmp_path / "lora" / "adapter_model.safetensors").unlink()
    with pytest.raises(BenchError, match="no adapter weights"):
        resolve_model("minilm", ModelSettings(adapter=str(tmp_path / "lora")))
    with pytest.raises(BenchError, match="no adapter folder"):
        resolve_model("minilm", ModelSettings(adapter=str(tmp_path / "nowhere")))


def test_the_folder_of_a_training_is_no_adapter_and_names_the_one_inside(
    base: Model, tmp_path: Path
) -> None:
    peft_adapter(base, tmp_path / "trained" / "adapter", "LORA")
    with pytest.raises(BenchError, match="a folder of `finetune`") as caught:
        resolve_model("minilm", ModelSettings(adapter=str(tmp_path / "trained")))
    inner = tmp_path / "trained" / "adapter"
    assert f"--adapter {inner}" in caught.value.hint
    assert resolve_model("minilm", ModelSettings(adapter=str(inner))).adapter


@pytest.mark.parametrize(
    ("save", "kind", "name"),
    [
        (peft_adapter, "LORA", "adapter_model.bin"),
        (hub_adapter, "seq_bn", "pytorch_adapter.bin"),
    ],
)
def test_a_malicious_pickle_is_not_executed(
    base: Model, tmp_path: Path, save: Callable[..., Any], kind: str, name: str
) -> None:
    save(base, tmp_path / "evil", kind)
    (tmp_path / "evil" / "adapter_model.safetensors").unlink(missing_ok=True)
    payload = pickle.dumps({"weight": tiny.Trap(tmp_path / "trapped")}, protocol=2)
    (tmp_path / "evil" / name).write_bytes(payload)
    model = resolve_model("minilm", ModelSettings(adapter=str(tmp_path / "evil")))

    with pytest.raises(BenchError, match="cannot be attached"):
        open_encoder(model, "cpu").encode_queries(TEXTS)
    assert not (tmp_path / "trapped").exists()


def test_an_adapterhub_adapter_with_missing_weights_is_refused(base: Model, tmp_path: Path) -> None:
    hub_adapter(base, tmp_path / "hub", "seq_bn")
    weights = tmp_path / "hub" / "pytorch_adapter.bin"
    state = torch.load(weights, weights_only=True)
    state.pop(sorted(state)[0])
    torch.save(state, weights)
    model = resolve_model("minilm", ModelSettings(adapter=str(tmp_path / "hub")))

    with pytest.raises(BenchError, match="does not fit this base model: missing"):
        open_encoder(model, "cpu").encode_queries(TEXTS)


def test_a_real_adapterhub_adapter_is_refused_for_another_base(bench_data: Path) -> None:
    folder = bench_data / "adapters" / "adapterhub-bigbird-rotten-tomatoes"
    if not folder.is_dir():
        pytest.skip("needs the adapter in BENCH_DATA/adapters")
    with pytest.raises(BenchError, match="made for google/bigbird-roberta-base"):
        resolve_model("minilm", ModelSettings(adapter=str(folder)))


def test_a_library_that_is_not_installed_is_named(
    base: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peft_adapter(base, tmp_path / "lora", "LORA")
    model = resolve_model("minilm", ModelSettings(adapter=str(tmp_path / "lora")))
    # None in sys.modules makes an import fail as if the library were not there.
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(BenchError, match="cannot be imported") as caught:
        open_encoder(model, "cpu").encode_queries(TEXTS)
    assert caught.value.hint == "Run `pip install 'retrieval-bench[peft]'`."


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
