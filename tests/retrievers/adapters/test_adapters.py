"""Adapters made and saved by their own libraries, attached to the encoder that they are for."""

import json
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from foundation.errors import BenchError
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import Model, resolve_model
from retrievers.models.settings import ModelSettings
from tests.support import tiny_checkpoints as tiny

TEXTS = ["What is a heat pump?", "Rivers carve valleys.", "Ribosomes make proteins."]
Save = Callable[[str, str], tuple[Path, Any]]


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A card of a tiny encoder."""
    folder = tmp_path_factory.mktemp("base")
    tiny.write_bert(folder / "bert")
    use = {"pooling": "mean", "normalize": True, "similarity": "cos"}
    return str(tiny.write_card(folder / "tiny.toml", checkpoint="bert", **use))


@pytest.fixture(scope="module")
def save(tmp_path_factory: pytest.TempPathFactory) -> Save:
    """Save an adapter of a kind for a model, once; its folder, and the network that it is in."""

    @cache
    def saved(model: str, kind: str) -> tuple[Path, Any]:
        base, folder = resolve_model(model), tmp_path_factory.mktemp("saved") / "adapter"
        assert base.document is not None
        network = transformers.AutoModel.from_pretrained(str(base.document.folder)).eval()
        write = peft_adapter if kind in ("LORA", "IA3") else hub_adapter
        return folder, write(network, folder, kind)

    return saved


def peft_adapter(network: Any, folder: Path, kind: str) -> Any:
    peft = pytest.importorskip("peft")
    if kind == "LORA":
        config = peft.LoraConfig(r=4, target_modules=["query", "value"])
    else:
        modules = ["key", "value", "output.dense"]
        config = peft.IA3Config(target_modules=modules, feedforward_modules=["output.dense"])
    network = peft.get_peft_model(network, config)
    randomise(network)
    network.save_pretrained(str(folder))
    return network.eval()


def hub_adapter(network: Any, folder: Path, config: str) -> Any:
    adapters = pytest.importorskip("adapters")
    adapters.init(network)
    network.add_adapter("demo", config=config)
    network.train_adapter("demo")
    randomise(network)
    network.save_adapter(str(folder), "demo")
    network.set_active_adapters("demo")
    return network.eval()


def randomise(network: Any) -> None:
    """Adapters start as the identity; real ones were trained."""
    torch.manual_seed(11)
    for parameter in network.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter.data, std=0.05)


def with_adapter(model: str, folder: Path) -> Model:
    return resolve_model(model, ModelSettings(adapter=str(folder)))


def vectors_of(model: Model) -> Any:
    return open_encoder(model, "cpu").encode_queries(TEXTS)


def mean_vectors(network: Any, base: Model) -> Any:
    """Mean pooling and unit length, written out here, one text at a time."""
    assert base.document is not None
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(base.document.folder))
    rows = []
    with torch.inference_mode():
        for text in TEXTS:
            states = network(**tokenizer(text, return_tensors="pt")).last_hidden_state
            vector = states.mean(dim=1).squeeze(0)
            rows.append((vector / vector.norm()).numpy())
    return np.stack(rows)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        *(("minilm", kind) for kind in ("LORA", "seq_bn")),
        *(("", kind) for kind in ("IA3", "lora", "ia3", "prefix_tuning")),
    ],
)
def test_an_adapter_gives_the_vectors_that_it_was_saved_with(
    model: str, kind: str, save: Save, card: str
) -> None:
    folder, network = save(model or card, kind)
    base, adapted = resolve_model(model or card), with_adapter(model or card, folder)
    vectors = vectors_of(adapted)
    np.testing.assert_allclose(vectors, mean_vectors(network, base), atol=1e-5)
    assert np.abs(vectors - vectors_of(base)).max() > 1e-3
    np.testing.assert_array_equal(vectors, vectors_of(adapted))


@pytest.fixture
def lora(save: Save, card: str, tmp_path: Path) -> Path:
    """A folder with an adapter of PEFT for the tiny encoder, to be changed."""
    return shutil.copytree(save(card, "LORA")[0], tmp_path / "lora")


def test_the_adapter_is_part_of_the_fingerprint(card: str, lora: Path, tmp_path: Path) -> None:
    first = with_adapter(card, lora).recipe
    moved = with_adapter(card, lora.rename(tmp_path / "moved")).recipe
    weights = tmp_path / "moved" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    changed = with_adapter(card, tmp_path / "moved").recipe
    assert first.adapter is not None
    assert first.adapter.kind == "peft"
    assert first.fingerprint == moved.fingerprint
    base = resolve_model(card).recipe
    assert len({base.fingerprint, first.fingerprint, changed.fingerprint}) == 3


@pytest.mark.parametrize(
    ("folder", "name"), [("lora", "lora"), ("my lora", "my_lora"), ("run-1/adapter", "run-1")]
)
def test_a_model_with_an_adapter_has_a_name_of_its_own_and_no_published_scores(
    folder: str, name: str, lora: Path, tmp_path: Path
) -> None:
    base, place = resolve_model("minilm"), tmp_path / "other" / folder
    model = with_adapter("minilm", shutil.copytree(lora, place))
    assert model.card.name == model.recipe.model == f"minilm+{name}"
    assert base.card.expected
    assert model.card.expected == ()
    assert model.card.trained_on == base.card.trained_on


def test_a_card_may_name_its_adapter(card: str, lora: Path) -> None:
    own = tiny.write_card(
        lora.with_name("tuned.toml"),
        checkpoint=str(Path(card).with_name("bert")),
        pooling="mean",
        normalize=True,
        adapter={"path": "lora", "kind": "peft"},
    )
    vectors = vectors_of(resolve_model(str(own)))
    assert np.abs(vectors - vectors_of(resolve_model(card))).max() > 1e-3
    own.write_text(own.read_text().replace('"peft"', '"adapterhub"'))
    with pytest.raises(BenchError, match="holds an adapter of peft"):
        resolve_model(str(own))


def configured(**changes: Any) -> Callable[[Path], None]:
    """Change the configuration of an adapter of PEFT."""

    def write(folder: Path) -> None:
        path = folder / "adapter_config.json"
        tiny.write_json(path, json.loads(path.read_bytes()) | changes)

    return write


def without_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


def with_a_trap(name: str) -> Callable[[Path], None]:
    """Replace the weights by a pickle that creates a folder."""

    def write(folder: Path) -> None:
        (folder / "adapter_model.safetensors").unlink(missing_ok=True)
        payload = pickle.dumps({"weight": tiny.Trap(folder.with_name("trapped"))}, protocol=2)
        (folder / name).write_bytes(payload)

    return write


def without_a_tensor(folder: Path) -> None:
    weights = folder / "pytorch_adapter.bin"
    state = torch.load(weights, weights_only=True)
    state.pop(sorted(state)[0])
    torch.save(state, weights)


OWN_CODE = {"megatron_config": {"x": 1}, "megatron_core": "trap_of_peft"}
UNSUPPORTED = "broken is not supported: it is ReFT"


@pytest.mark.parametrize(
    ("kind", "harm", "problem"),
    [
        ("LORA", configured(target_modules=[1]), "broken cannot be attached"),
        ("LORA", configured(alpha_pattern="x"), "broken cannot be attached"),
        ("LORA", configured(alora_invocation_tokens=[5]), "invocation tokens"),
        ("LORA", configured(**OWN_CODE), "code that arrives is not run"),
        ("LORA", configured(peft_type="MULTITASK_PROMPT_TUNING"), "_TUNING is not supported"),
        ("LORA", without_weights, "no adapter weights"),
        ("LORA", shutil.rmtree, "no adapter folder"),
        ("LORA", with_a_trap("adapter_model.bin"), "cannot be attached"),
        ("seq_bn", with_a_trap("pytorch_adapter.bin"), "cannot be attached"),
        ("seq_bn", without_a_tensor, "does not fit this base model: missing"),
        *((kind, Path.exists, UNSUPPORTED) for kind in ("loreft", "vera", "unipelt")),
        ("prompt_tuning", Path.exists, UNSUPPORTED),
    ],
)
def test_an_adapter_that_cannot_be_used_safely_is_refused(
    kind: str,
    harm: Callable[[Path], object],
    problem: str,
    save: Save,
    card: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "trap_of_peft.py").write_text("raise SystemExit('executed')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    harm(shutil.copytree(save(card, kind)[0], tmp_path / "broken"))
    with pytest.raises(BenchError, match=problem) as caught:
        vectors_of(with_adapter(card, tmp_path / "broken"))
    assert problem != UNSUPPORTED or "Train with another method" in caught.value.hint
    assert not (tmp_path / "trapped").exists()


def test_an_adapter_of_another_base_is_refused(lora: Path) -> None:
    with pytest.raises(BenchError, match="does not fit this base model"):
        vectors_of(with_adapter("minilm", lora))


def test_the_folder_of_a_training_is_no_adapter_and_names_the_one_inside(
    card: str, lora: Path, tmp_path: Path
) -> None:
    inner = shutil.copytree(lora, tmp_path / "trained" / "adapter")
    with pytest.raises(BenchError, match="a folder of `finetune`") as caught:
        with_adapter(card, tmp_path / "trained")
    assert f"--adapter {inner}" in caught.value.hint
    assert with_adapter(card, inner).adapter


def test_a_real_adapterhub_adapter_is_refused_for_another_base(bench_data: Path) -> None:
    folder = bench_data / "adapters" / "adapterhub-bigbird-rotten-tomatoes"
    if not folder.is_dir():
        pytest.skip("needs the adapter in BENCH_DATA/adapters")
    with pytest.raises(BenchError, match="made for google/bigbird-roberta-base"):
        with_adapter("minilm", folder)


def test_a_library_that_is_not_installed_is_named(
    card: str, lora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_adapter(card, lora)
    # None in sys.modules makes an import fail as if the library were not there.
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(BenchError, match="cannot be imported") as caught:
        vectors_of(model)
    assert caught.value.hint == "Run `pip install 'retrieval-bench[peft]'`."


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
