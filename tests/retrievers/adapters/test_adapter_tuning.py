"""Adapters that are trained on a frozen encoder, and what their folders give back."""

import hashlib
import importlib

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from foundation.errors import BenchError
from retrievers.adapters.adapter import add_adapter
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from retrievers.training.finetune.finetune import finetune
from retrievers.training.finetune.student import (
    TextInputs,
    build_student,
    trained_card,
    training_recipe,
)
from tests.support.small_finetuning import TEXTS, TITLES, examples, model, preset
from tests.support.small_starts import on_cpu
from tests.support.small_starts import weights as weights_of

QUICK = "[optimizer]\nlr = 3e-2\nwarmup = 0.0\n"
SMALL = {
    "prefix_tuning": "{ bottleneck_size = 8, prefix_length = 3 }",
    "prefix_tuning_flat": "{ prefix_length = 3 }",
    "compacter": "{ reduction_factor = 4, phm_dim = 2 }",
    "compacter++": "{ reduction_factor = 4, phm_dim = 2 }",
    "oft": "{ oft_block_size = 0, r = 2 }",
    "hra": '{ target_modules = ["query", "value"] }',
    "loha": '{ target_modules = ["query", "value"] }',
    "lokr": '{ target_modules = ["query", "value"] }',
    "fourierft": "{ n_frequency = 20 }",
    "ln_tuning": '{ target_modules = ["LayerNorm"] }',
}


def problem(library):
    try:
        importlib.import_module(library)
    except ImportError as error:
        return f"{library} cannot be imported: {error}"
    return ""


NO_HUB, NO_PEFT = problem("adapters"), problem("peft")
hub = pytest.mark.skipif(bool(NO_HUB), reason=NO_HUB)
peft = pytest.mark.skipif(bool(NO_PEFT), reason=NO_PEFT)
HUB_METHODS = (
    *("seq_bn", "double_seq_bn", "par_bn", "scaled_par_bn", "seq_bn_inv", "double_seq_bn_inv"),
    *("compacter", "compacter++", "prefix_tuning", "prefix_tuning_flat"),
    *("lora", "dora", "ia3", "mam"),
)
PEFT_METHODS = ("lora", "ia3", "loha", "lokr", "oft", "hra", "vera", "fourierft", "ln_tuning")
FAST_METHODS = ("seq_bn", "prefix_tuning", "lora", "ln_tuning")  # one of each kind
EACH = [
    pytest.param(library, name, marks=[mark] if name in FAST_METHODS else [mark, pytest.mark.slow])
    for library, mark, methods in (("adapterhub", hub, HUB_METHODS), ("peft", peft, PEFT_METHODS))
    for name in methods
]


def table(method, library="adapterhub", more=""):
    options = SMALL.get(method, "{}")
    head = f'[adapter]\nlibrary = "{library}"\nmethod = "{method}"\noptions = {options}\n'
    return f"{head}{more}{QUICK}"


def run(folder, text, name="out", steps=2, start=None, **others):
    settings = preset(text, steps=steps)
    start = start or model(folder)
    search = others.pop("search", None)
    return finetune(settings, start, examples(), on_cpu(folder / name, **others), search=search)


def vectors(folder):
    return open_encoder(resolve_model(str(folder)), "cpu").encode_documents(TITLES, TEXTS)


def sha256(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A tiny encoder."""
    return model(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def plain(start):
    """Its vectors of documents without an adapter."""
    return open_encoder(start, "cpu").encode_documents(TITLES, TEXTS)


class Tuned:
    """A tiny encoder with an adapter, two steps of AdamW, and the folder that was written."""

    def __init__(self, folder, text, start):
        settings = preset(text)
        card = trained_card(start, settings, ())
        recipe = training_recipe(start, card, settings)
        self.model = build_student(start, recipe)
        network = self.model[0].model
        base = list(network.parameters())
        before = sha256(base)
        adapted = add_adapter(network, settings.adapter, start, 0)
        inputs = TextInputs(self.model[0].processor, network, recipe)
        used = settings.effective_optimizer()
        trained = [one for one in network.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=used.lr, weight_decay=used.weight_decay)
        self.model.train()
        for _ in range(2):
            self.model(inputs.documents(TITLES, TEXTS))[
                "sentence_embedding"
            ].square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        self.base_is_unchanged = sha256(base) == before
        self.model.eval()
        adapted.save(folder, card)
        with torch.no_grad():
            rows = [
                self.model(inputs.documents([title], [text]))["sentence_embedding"]
                for title, text in zip(TITLES, TEXTS, strict=True)
            ]
        self.vectors = torch.cat(rows).numpy()


@pytest.mark.parametrize(("library", "method"), EACH)
def test_every_method_trains_on_a_frozen_encoder_and_gives_its_vectors_back(
    start, plain, tmp_path, library, method
):
    tuned = Tuned(tmp_path, table(method, library), start)
    assert tuned.base_is_unchanged
    np.testing.assert_allclose(vectors(tmp_path), tuned.vectors, atol=1e-5)
    assert np.abs(tuned.vectors - plain).max() > 1e-3
    half = open_encoder(resolve_model(str(tmp_path), ModelSettings(dtype="bfloat16")), "cpu")
    np.testing.assert_allclose(half.encode_documents(TITLES, TEXTS), tuned.vectors, atol=0.05)


class Broken(torch.autograd.Function):
    """A step of a network whose gradient cannot be computed."""

    @staticmethod
    def forward(ctx, states):
        return states.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no gradient here")


@peft
def test_a_method_that_fails_only_in_the_backward_pass_is_refused(tmp_path, monkeypatch):
    from peft.tuners.ln_tuning.layer import LNTuningLayer

    forward = LNTuningLayer.forward
    monkeypatch.setattr(
        LNTuningLayer, "forward", lambda self, *all_: Broken.apply(forward(self, *all_))
    )
    with pytest.raises(BenchError, match="cannot be put into start: RuntimeError: no gradient"):
        run(tmp_path, table("ln_tuning", "peft"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("library", "method", "name"),
    [
        pytest.param("peft", "lora", "adapter_model", marks=peft),
        pytest.param("adapterhub", "seq_bn", "adapter", marks=hub),
    ],
)
def test_an_adapter_has_the_size_of_its_matrices_and_the_base_is_not_copied(
    tmp_path, library, method, name
):
    trained = run(tmp_path, table(method, library))
    file = tmp_path / "out" / "adapter" / f"{name}.safetensors"
    own = sum(one.size for one in load_file(str(file)).values())
    base = sum(one.numel() for one in weights_of(tmp_path / "start").values())
    size = trained.size
    assert (size.trained, size.parameters) == (own, base + own)
    assert size.saved_bytes == file.stat().st_size
    assert not (tmp_path / "out" / "model.safetensors").exists()
    if method == "seq_bn":
        assert own == 2 * (32 * 2 + 2 + 2 * 32 + 32)  # two layers, 32 wide, reduced 16 times


@hub
def test_an_adapter_for_another_base_is_refused(tmp_path):
    run(tmp_path, table("seq_bn"))
    (tmp_path / "other").mkdir()
    model(tmp_path / "other", seed=5)
    other = str(tmp_path / "other" / "start.toml")
    with pytest.raises(BenchError, match="is for another base: it was trained on start"):
        resolve_model(other, ModelSettings(adapter=str(tmp_path / "out" / "adapter")))
    model(tmp_path, seed=5)  # the base itself was trained on
    with pytest.raises(BenchError, match="is for another base"):
        resolve_model(str(tmp_path / "out"))


WRONG = [
    (hub, 'method = "sqe_bn"', "no adapter method 'sqe_bn'", "seq_bn"),
    (hub, 'method = "unipelt"', "no adapter method 'unipelt'", ""),
    (
        hub,
        'method = "lora"\noptions = { use_gating = true }',
        "lora is not supported: it is ReFT, VeRA or prompt tuning, or has gates",
        "mam",
    ),
    (hub, 'method = "seq_bn"\noptions = { factor = 2 }', "argument 'factor'", "adapter.options"),
    (hub, 'method = "mam"\noptions = { adapter = { r = 2 } }', "argument 'adapter'", ""),
    (hub, 'method = "seq_bn"\noptions = { reduction_factor = "two" }', "cannot be put", ""),
    (peft, 'method = "lora"\noptions = { rank = 2 }', "argument 'rank'", "adapter.options"),
    (peft, 'method = "prompt_tuning"', "no adapter method 'prompt_tuning'", "ln_tuning"),
    (peft, 'method = "lora"\noptions = { target_modules = ["nothing"] }', "cannot be put", ""),
    # PEFT takes it, and fails in the forward pass.
    (
        peft,
        'method = "trainable_tokens"\noptions = { token_indices = [1.5] }',
        "Expected a long",
        "",
    ),
]


@pytest.mark.parametrize(
    ("library", "adapter", "message", "hint"),
    [
        pytest.param("peft" if mark is peft else "adapterhub", *others, marks=mark)
        for mark, *others in WRONG
    ],
)
def test_a_wrong_adapter_is_refused_before_anything_is_mined(
    tmp_path, library, adapter, message, hint
):
    def search(*_):
        raise AssertionError("mined")

    mined = 'hard_negatives = 1\n[[rounds]]\nsources = ["bm25"]\n'
    with pytest.raises(BenchError, match=message) as caught:
        run(tmp_path, f'{mined}[adapter]\nlibrary = "{library}"\n{adapter}\n', search=search)
    assert hint in caught.value.hint
    assert not (tmp_path / "out").exists()


HOULSBY = "init_scale = 0.001\nnorms = true\n"


@hub
def test_houlsbys_adapter_begins_close_to_nothing_and_trains_the_norms(start):
    """modeling.py of adapter-bert: a normal distribution of 0.001, cut at two deviations."""
    settings = preset(table("double_seq_bn", more=HOULSBY)).adapter
    card = trained_card(start, preset(table("double_seq_bn", more=HOULSBY)), ())
    student = build_student(start, training_recipe(start, card, preset()))
    network = student[0].model
    add_adapter(network, settings, start, 0)
    trained = {name: one for name, one in network.named_parameters() if one.requires_grad}
    norms = {name for name in trained if "LayerNorm" in name}
    assert norms == {name for name, _ in network.named_parameters() if "LayerNorm" in name}
    assert len(norms) == 2 * (1 + 2 * network.config.num_hidden_layers)
    drawn = [one for name, one in trained.items() if name not in norms]
    weights = torch.cat([one.detach().ravel() for one in drawn if one.dim() > 1])
    assert float(weights.abs().max()) <= 0.002
    assert float(weights.std()) == pytest.approx(0.00088, rel=0.1)  # of what is cut at two
    assert not any(one.detach().any() for one in drawn if one.dim() == 1)


@hub
def test_norms_that_were_trained_are_kept_with_the_adapter_and_leave_the_shared_base(
    start, plain, tmp_path
):
    folders = [tmp_path / name for name in ("one", "two")]
    for seed, folder in enumerate(folders):
        run(tmp_path, f"seed = {seed}\n{table('seq_bn', more=HOULSBY)}", folder.name, start=start)
    alone = [vectors(folder) for folder in folders]
    assert all(np.abs(found - plain).max() > 1e-2 for found in alone)
    held = load_file(str(folders[0] / "adapter" / "norms.safetensors"))
    original = weights_of(start.document.root)
    assert held.keys() == {name for name in original if "LayerNorm" in name}
    assert any(not np.array_equal(held[name], original[name]) for name in held)
    encoders = [open_encoder(resolve_model(str(folder)), "cpu") for folder in folders]
    for encoder in encoders:
        encoder.encode_documents(TITLES, TEXTS)  # attaches its adapter
    for encoder, expected in zip(encoders, alone, strict=True):
        np.testing.assert_array_equal(encoder.encode_documents(TITLES, TEXTS), expected)
    identity = resolve_model(str(folders[0])).recipe.adapter
    assert "norms.safetensors" in identity.files  # they change vectors, and the fingerprint
    (folders[0] / "adapter" / "norms.safetensors").unlink()
    assert np.abs(vectors(folders[0]) - alone[0]).max() > 1e-4
