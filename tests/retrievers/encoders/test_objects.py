"""Folders that sentence-transformers encodes, and encoders of a user's file.

The oracle is a `SentenceTransformer` of the same folder, asked by ``encode_query`` and
``encode_document``. All folders are saved by sentence-transformers itself.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import bench
from foundation.errors import BenchError, DriftError
from retrievers.encoders.objects import wrap_encoder
from retrievers.encoders.preflight import preflight
from retrievers.encoders.transformer import open_encoder
from retrievers.models import resolve
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import SIXTY, write_collection

sentence_transformers = pytest.importorskip("sentence_transformers")
parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
base = pytest.importorskip("sentence_transformers.base.modules")

TEXTS = [*tiny.SENTENCES, "the river of stone " * 30, "x"]
PROMPTS = {"query": "alpha beta ", "document": "gamma "}
WIDTH = tiny.SIZES["hidden_size"]
SETTINGS = "config_sentence_transformers.json"


def transformer(plain: Path) -> Any:
    return base.Transformer(str(plain))


def pooling(mode: Any = "mean", **settings: Any) -> Any:
    return parts.Pooling(WIDTH, pooling_mode=mode, **settings)


def static(plain: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(plain / "tokenizer.json"))
    return parts.StaticEmbedding(tokenizer, embedding_dim=WIDTH)


def route(plain: Path) -> list[Any]:
    documents = [transformer(plain), pooling()]
    return [base.Router.for_query_document([static(plain)], documents), parts.Normalize()]


MODULES: dict[str, Callable[[Path], list[Any]]] = {
    "static": lambda plain: [static(plain)],
    "router": route,
    "weighted-mean": lambda plain: [transformer(plain), pooling("weightedmean")],
    "prompt-left-out": lambda plain: [transformer(plain), pooling(include_prompt=False)],
    "convolution": lambda plain: [transformer(plain), parts.CNN(WIDTH, 8), parts.Pooling(24)],
}
# Mean pooling is read here, and does not go to the library.
READ: dict[str, Callable[[Path], list[Any]]] = {
    "mean": lambda plain: [transformer(plain), pooling()],
    "dropout": lambda plain: [transformer(plain), pooling(), parts.Dropout()],
    "unit": lambda plain: [transformer(plain), pooling(), parts.Normalize()],
}


def save(plain: Path, folder: Path, name: str, **settings: Any) -> Path:
    """Save modules; a similarity of products does not hide lengths."""
    torch.manual_seed(1)
    settings = {"prompts": PROMPTS, "similarity_fn_name": "dot", **settings}
    modules = (MODULES | READ)[name](plain)
    model = sentence_transformers.SentenceTransformer(modules=modules, device="cpu", **settings)
    model.save(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    tiny.write_bert(folder)
    return folder


@pytest.fixture(scope="module")
def saved(plain, tmp_path_factory):
    """Folders of all modules; only weighted means are compared by cosine."""
    place = tmp_path_factory.mktemp("saved")
    for name in MODULES | READ:
        similarity = "cosine" if name == "weighted-mean" else "dot"
        save(plain, place / name, name, similarity_fn_name=similarity)
    return place


@pytest.fixture
def copied(saved, tmp_path):
    return lambda name: shutil.copytree(saved / name, tmp_path / name)


@pytest.fixture
def folder(copied):
    """A copy of a folder that the library encodes."""
    return copied("weighted-mean")


@pytest.fixture(scope="module")
def sixty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collections") / "sixty"
    return write_collection(folder, *SIXTY, metadata='name = "sixty"\n')


def change(path: Path, **changes: Any) -> None:
    tiny.write_json(path, {**json.loads(path.read_text()), **changes})


def resolved(name: object, **settings: Any) -> Any:
    return resolve_model(str(name), ModelSettings(**settings))


def opened(name: object, **settings: Any) -> Any:
    return open_encoder(resolved(name, **settings), "cpu")


def loaded(folder: Path) -> Any:
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu")


def oracle(folder: Path) -> tuple[Any, Any]:
    model = loaded(folder)
    sides = [model.encode_query(TEXTS), model.encode_document(TEXTS)]
    if model.similarity_fn_name == "cosine":
        sides = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides]
    return sides[0], sides[1]


def assert_agrees(folder: Path) -> Any:
    encoder = opened(folder)
    queries, documents = oracle(folder)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), queries, atol=1e-6)
    found = encoder.encode_documents([""] * len(TEXTS), TEXTS)
    np.testing.assert_allclose(found, documents, atol=1e-6)
    assert encoder.dim == queries.shape[1]
    return encoder.recipe


@pytest.mark.parametrize("name", MODULES)
def test_vectors_of_other_modules_are_those_of_sentence_transformers(saved, name, caplog):
    recipe = assert_agrees(saved / name)
    similarity = "cos" if name == "weighted-mean" else "dot"
    assert (recipe.kind, recipe.similarity) == ("python", similarity)
    (warning,) = [line for line in caplog.messages if "encodes it, since" in line]
    assert sentence_transformers.__version__ in warning


def test_texts_of_a_model_with_a_chat_template_are_read_through_it(plain, tmp_path, caplog):
    shutil.copytree(plain, tmp_path / "chat")
    template = "{% for each in messages %}river {{ each['content'] }} stone{% endfor %}"
    change(tmp_path / "chat" / "tokenizer_config.json", chat_template=template)
    folder = save(tmp_path / "chat", tmp_path / "st", "mean")
    assert assert_agrees(folder).kind == "python"
    assert "sentence_bert_config.json: unknown field 'message' in modality_config" in caplog.text


TEXT_LENGTH = {"processing_kwargs": {"text": {"max_length": 5}}}
UNKNOWN: dict[str, Callable[[Any], None]] = {
    "modules.json": lambda modules: modules[1].update(kwargs=["task"]),
    SETTINGS: lambda settings: settings.update(pooled_twice=True),
    "sentence_bert_config.json": lambda settings: settings.update(TEXT_LENGTH),
    "2_Dropout/config.json": lambda settings: settings.update(dropout="half"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_no_key_or_value_of_a_configuration_is_dropped(copied, name, caplog):
    folder = copied("dropout")
    assert resolved(folder).recipe.kind == "transformer"
    content = json.loads((folder / name).read_text())
    UNKNOWN[name](content)
    (folder / name).write_text(json.dumps(content))
    assert resolved(folder).recipe.kind == "python"
    assert f"encodes it, since {folder / name}" in caplog.text
    if name != "2_Dropout/config.json":  # which no version could read
        assert_agrees(folder)


NAMES: list[dict[str, str]] = [
    {"module_input_name": "token_embeddings"},
    {"module_input_name": "sentence_embedding", "module_output_name": "other"},
]


@pytest.mark.parametrize("names", NAMES, ids=str)
def test_a_normalize_that_leaves_the_sentence_embedding_changes_no_length(copied, names):
    """Version 6 writes the names, and version 5 would ignore them."""
    folder = copied("unit")
    before = resolved(folder).recipe
    both = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
    tiny.write_json(folder / "2_Normalize/config.json", both)
    assert resolved(folder).recipe.fingerprint == before.fingerprint
    tiny.write_json(folder / "2_Normalize/config.json", names)
    if sentence_transformers.__version__ >= "6":
        assert assert_agrees(folder).kind == "python"
        lengths = np.linalg.norm(oracle(folder)[0], axis=1)
        assert (lengths > 2).all()
        return
    with pytest.raises(BenchError, match=r"does not read module_input_name.*2_Normalize") as caught:
        opened(folder)
    assert "Install the version" in caught.value.hint


def test_the_transformer_is_read_in_the_folder_that_modules_name(copied):
    """A folder that holds a second network in its main folder."""
    folder = copied("mean")
    shutil.copytree(
        folder, folder / "0_Transformer", ignore=shutil.ignore_patterns("1_*", "modules.json")
    )
    tiny.write_bert(folder, seed=9)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    tiny.write_json(folder / "modules.json", modules)
    assert assert_agrees(folder).kind == "transformer"


def test_scores_are_those_of_the_object_in_python(plain, sixty, tmp_path):
    """Queries and documents with equal texts have different vectors, also in the store."""
    folder, cache = save(plain, tmp_path / "router", "router", prompts={}), tmp_path / "cache"
    theirs = bench.evaluate(loaded(folder), sixty, name="object", cache_dir=cache)
    for _ in range(2):
        ours = bench.evaluate(folder, sixty, cache_dir=cache, results=tmp_path / "results")
        assert ours.measures == theirs.measures
    assert ours.record.parameters is not None
    assert ours.record.recipe.options["sentence-transformers"] == sentence_transformers.__version__


def test_the_fingerprint_depends_on_all_files_and_on_the_libraries(
    saved, folder, copied, tmp_path, monkeypatch
):
    first = resolved(saved / "weighted-mean").recipe
    (folder / "README.md").write_text("no part of it")
    assert resolved(folder).recipe.fingerprint == first.fingerprint
    own = resolved(folder, query_prompt="beta ").recipe
    assert own.fingerprint != first.fingerprint
    assert own.side("document").fingerprint == first.side("document").fingerprint
    assert resolved(folder, dtype="bfloat16").recipe.fingerprint != first.fingerprint
    change(folder / "1_Pooling" / "config.json", include_prompt=False)
    assert resolved(folder).recipe.fingerprint != first.fingerprint
    monkeypatch.setattr(resolve, "library_version", lambda name: "9.9")
    assert resolved(saved / "weighted-mean").recipe.fingerprint != first.fingerprint


HELD: dict[str, Callable[[Any], object]] = {
    "weight": lambda model: next(model.parameters()).data.add_(1),
    "buffer": lambda model: next(model.buffers()).data.add_(1),
    "prompt": lambda model: model.prompts.update(query="other: "),
    "length": lambda model: setattr(model, "max_seq_length", 7),
    "tokenizer": lambda model: model.tokenizer.backend_tokenizer.add_tokens(["zzz"]),
    "configuration": lambda model: setattr(model[0].auto_model.config, "layer_norm_eps", 0.1),
}
NOT_HELD: dict[str, Callable[[Any], object]] = {
    "hook": lambda model: model[0].register_forward_hook(lambda *_: None),
    "method": lambda model: setattr(
        model, "encode_query", lambda texts, **_: np.ones((len(texts), 3))
    ),
}


def test_an_object_of_the_library_is_identified_by_what_it_holds_unless_code_is_replaced(saved):
    def recipe_of(change: Callable[[Any], object]) -> Any:
        model = loaded(saved / "mean")
        change(model)
        return wrap_encoder(model, "object")[0].recipe

    same = [recipe_of(lambda model: None) for _ in range(2)]
    assert same[0].options["fingerprint"] == same[1].options["fingerprint"]
    changed = {name: recipe_of(change) for name, change in HELD.items()}
    assert all(recipe.is_identified for recipe in (*same, *changed.values()))
    assert len({each.options["fingerprint"] for each in (*same, *changed.values())}) == 7
    for name, change in NOT_HELD.items():
        assert not recipe_of(change).is_identified, name


def test_a_prompt_and_a_precision_are_used(folder):
    expected = loaded(folder).encode_query(TEXTS, prompt="delta ")
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = opened(folder, query_prompt="delta ").encode_queries(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    half = opened(folder, dtype="bfloat16")
    assert half.recipe.dtype == "bfloat16"
    distance = np.abs(half.encode_queries(TEXTS) - oracle(folder)[0]).max()
    assert 1e-5 < distance < 0.05


def test_weights_that_are_missing_are_refused(folder):
    path = folder / "model.safetensors"
    tensors = {key: value for key, value in load_file(path).items() if "layer.1.output" not in key}
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(BenchError, match="lacks weights"):
        opened(folder)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BenchError, match=r"sentence-transformers on .* failed: SafetensorError"):
        opened(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_query_tokens": 9}, "max_query_tokens cannot be set for weighted-mean"),
        ({"max_document_tokens": 9}, "max_document_tokens cannot be set for weighted-mean"),
        ({"adapter": "an-adapter"}, "adapter cannot be set for weighted-mean"),
        ({"dtype": "int8"}, "weighted-mean is not a transformer that int8 can run"),
        ({"like": "minilm"}, "--like minilm does not apply: .*weightedmean is not supported"),
    ],
)
def test_what_has_no_effect_on_it_is_refused(saved, settings, message):
    with pytest.raises(BenchError, match=message):
        resolved(saved / "weighted-mean", **settings)


@pytest.mark.parametrize("similarity", ["manhattan", "euclidean"])
def test_a_distance_does_not_rank_here(folder, sixty, tmp_path, similarity):
    change(folder / SETTINGS, similarity_fn_name=similarity)
    with pytest.raises(BenchError, match=f"states {similarity} similarity, but"):
        resolved(folder)
    with pytest.raises(BenchError, match=f"states {similarity} similarity, but"):
        bench.evaluate(loaded(folder), sixty, name="object", cache_dir=tmp_path / "cache")


def test_a_distance_of_vectors_of_length_1_ranks_as_cosine(copied, sixty, tmp_path, caplog):
    folder = copied("unit")
    cosine = loaded(folder)
    change(folder / SETTINGS, similarity_fn_name="euclidean")
    encoder, model = opened(folder), loaded(folder)
    assert (encoder.recipe.kind, encoder.recipe.similarity) == ("transformer", "cos")
    assert "its euclidean distance ranks as cosine does" in caplog.text
    distances = -model.similarity(model.encode_query(TEXTS[:3]), model.encode_document(TEXTS))
    documents = encoder.encode_documents([""] * len(TEXTS), TEXTS)
    products = encoder.encode_queries(TEXTS[:3]) @ documents.T
    np.testing.assert_allclose(2 - 2 * products, distances.numpy() ** 2, atol=1e-4)
    results = [
        bench.evaluate(each, sixty, name="object", cache_dir=tmp_path / "cache")
        for each in (model, cosine)
    ]
    assert results[0].measures == results[1].measures
    change(folder / SETTINGS, truncate_dim=8)
    with pytest.raises(BenchError, match="similarity, but"):
        resolved(folder)


def test_a_static_model_may_give_an_empty_text_the_vector_0(plain, tmp_path):
    encoder = opened(save(plain, tmp_path / "st", "static", prompts={}))
    texts = [*tiny.SENTENCES, "", " "]
    found = preflight(encoder, [""] * len(texts), texts, ["", *tiny.SENTENCES])
    assert (found.stop, found.documents.zero, found.queries.zero) == ((), 2, 1)
    assert any("documents: 2 empty texts have the vector 0" in line for line in found.warnings)
    assert any("queries: 1 empty texts" in line for line in found.warnings)
    assert preflight(encoder, ["river"], [""], tiny.SENTENCES).stop == ()


OWN_MODULE = """
import torch
from sentence_transformers.sentence_transformer.modules import Normalize

class Flip(Normalize):
    def forward(self, features):
        features["sentence_embedding"] = features["sentence_embedding"].flip(1)
        return features
"""


def test_code_of_a_folder_runs_only_with_permission(folder):
    (folder / "flip.py").write_text(OWN_MODULE)
    modules = json.loads((folder / "modules.json").read_text())
    entry = {"idx": 2, "name": "2", "path": "2_Flip", "type": "flip.Flip"}
    tiny.write_json(folder / "modules.json", [*modules, entry])
    (folder / "2_Flip").mkdir()
    with pytest.raises(BenchError, match=r"runs code of its own: .*flip\.Flip") as caught:
        resolved(folder)
    assert "--trust-code" in caught.value.hint
    encoder = opened(folder, trust_code=True)
    flipped = encoder.encode_queries(TEXTS)
    assert "flip.py" in encoder.recipe.files
    tiny.write_json(folder / "modules.json", modules)
    np.testing.assert_allclose(flipped[:, ::-1], oracle(folder)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("file", "changes", "trusted", "message"),
    [
        ("config.json", {"auto_map": {"AutoModel": "own.Model"}}, False, "auto_map"),
        ("config.json", {"auto_map": {"AutoModel": "a/b--own.Model"}}, True, "outside of its"),
        ("sentence_bert_config.json", {"tokenizer_name_or_path": "x"}, True, "outside of its"),
        ("2_Dense/config.json", {"activation_function": "os.getcwd"}, False, r"os\.getcwd"),
        ("2_Dense/router_config.json", {"types": {"a": "os.path"}}, False, r"os\.path"),
        ("adapter_config.json", {}, True, "is an adapter"),
    ],
)
def test_names_of_other_code_and_files_are_found(folder, file, changes, trusted, message):
    path = folder / file
    tiny.write_json(path, changes | (json.loads(path.read_text()) if path.exists() else {}))
    with pytest.raises(BenchError, match=message):
        resolved(folder, trust_code=trusted)


def test_folders_that_only_libraries_would_enter_are_refused_or_hashed(folder, tmp_path):
    (folder / "1_Pooling").rename(folder / ".pooling")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = ".pooling"
    tiny.write_json(folder / "modules.json", modules)
    assert ".pooling/config.json" in resolved(folder).recipe.files
    (folder / "deep.json").write_text("[" * 100_000)
    with pytest.raises(BenchError, match=r"code of its own: .*deep\.json is nested too deeply"):
        resolved(folder)
    (folder / ".pooling").rename(tmp_path / "outside")
    (folder / ".pooling").symlink_to(tmp_path / "outside")
    with pytest.raises(BenchError, match=r"\.pooling is a link to a folder"):
        resolved(folder, trust_code=True)


def test_a_folder_may_not_ask_for_a_pickle(folder, tmp_path):
    path, seen = folder / "model.safetensors", tmp_path / "executed"
    torch.save({**load_file(path), "evil": tiny.Trap(seen)}, folder / "pytorch_model.bin")
    path.unlink()
    change(folder / "sentence_bert_config.json", model_args={"weights_only": False})
    with pytest.raises(BenchError, match=r"sentence-transformers on .* failed"):
        opened(folder)
    assert not seen.exists()


ENCODERS = """
import numpy as np
from own_letters import LETTERS

def count(texts):
    return np.array([[text.count(letter) for letter in LETTERS] for text in texts], float)

class Letters:
    similarity_fn_name = "cosine"

    def __init__(self, scale=1):
        self.scale = scale

    def encode_queries(self, texts):
        return self.scale * count(texts)

    def encode_documents(self, titles, texts):
        return count([title + text for title, text in zip(titles, texts)])

def make(device="none"):
    encoder = Letters()
    encoder.device = device
    return encoder

ready = make()
needs = lambda first, second: None
class Needs:
    def __init__(self, path): pass
class Cos(Letters):
    similarity_fn_name = "cos"
class Signed(Letters):
    __signature__ = 3
def leaves(): raise SystemExit(0)
def fails(): raise RuntimeError("no weights")
def flat(texts): return np.zeros(len(texts))
def number(): return 3
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A user's file, which imports another one next to it."""
    (tmp_path / "own_letters.py").write_text('LETTERS = "aeiou"\n')
    (tmp_path / "encoder.py").write_text(ENCODERS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_letters", raising=False)
    return tmp_path / "encoder.py"


@pytest.mark.parametrize("name", ["count", "Letters", "make", "ready"])
def test_a_function_class_factory_or_object_of_a_file_encodes(file, name):
    encoder = opened(f"{file}:{name}", trust_code=True)
    expected = np.array([[text.count(letter) for letter in "aeiou"] for text in ("aab", "io")])
    if name != "count":
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.encode_queries(["aab", "io"]), expected, atol=1e-6)
    found = encoder.encode_documents(["a", ""], ["ab", "io"])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (encoder.recipe.dim, encoder.recipe.encoder) == (5, f"encoder.py:{name}")
    assert {*encoder.recipe.files} == {"encoder.py", "own_letters"}


def test_the_source_of_a_file_and_of_its_imports_is_part_of_the_fingerprint(file):
    def fingerprint(name: str = "make") -> str:
        sys.modules.pop("own_letters", None)
        return resolved(f"{file}:{name}", trust_code=True).recipe.fingerprint

    first = fingerprint()
    assert fingerprint() == first != fingerprint("ready")
    (file.parent / "own_letters.py").write_text('LETTERS = "xyz"\n')
    second = fingerprint()
    file.write_text(f"{ENCODERS}\n# changed\n")
    assert len({first, second, fingerprint()}) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Leters", "does not define Leters"),
        ("Needs", "Needs failed: TypeError: .*missing 1 required positional argument: 'path'"),
        ("needs", "needs .* failed: TypeError"),
        ("fails", "fails failed: RuntimeError: no weights"),
        ("leaves", "leaves failed: SystemExit: 0"),
        ("Signed", "Signed failed: TypeError"),
        ("Cos", "Cos states cos similarity, but"),
        ("flat", r"flat .* returned an array of shape \(1,\) for one text"),
        ("number", "int does not encode"),
    ],
)
def test_what_does_not_encode_has_one_clear_error(file, name, message):
    with pytest.raises(BenchError, match=message) as caught:
        opened(f"{file}:{name}", trust_code=True)
    assert caught.value.hint


def test_a_file_needs_permission_a_name_and_working_code(file):
    def refused(name: str, message: str, **settings: Any) -> str:
        with pytest.raises(BenchError, match=message) as caught:
            resolved(name, **settings)
        return caught.value.hint

    make = f"{file}:make"
    assert "--trust-code" in refused(make, r"runs .*encoder\.py:make")
    assert str(file) not in sys.modules
    assert f"{file}:NAME" in refused(str(file), "is a file of Python code", trust_code=True)
    refused(make, "max_query_tokens cannot be set", trust_code=True, max_query_tokens=3)
    refused(make, "without one", trust_code=True, like="minilm")
    file.write_text("1 / 0")
    refused(make, "cannot be run: ZeroDivisionError", trust_code=True)
    refused(f"{file.parent}/gone.py:make", "cannot read", trust_code=True)


def test_a_device_goes_to_code_that_takes_one(file):
    other = file.parent / "other.py"
    code = "made.append(device)\n    return lambda texts: [[1.0]] * len(texts)\n"
    other.write_text(f"made = []\ndef make(device):\n    {code}")
    opened(f"{other}:make", trust_code=True)
    assert sys.modules[str(other)].made == ["cpu"]
    for name in ("Letters", "ready"):
        with pytest.raises(BenchError, match=f"{name} has no parameter device for cuda"):
            open_encoder(resolved(f"{file}:{name}", trust_code=True), "cuda")


def test_a_card_may_name_a_file_next_to_it(file):
    card = file.parent / "own.toml"
    stated = 'name = "own"\ntitle = "own"\nencoder = "encoder.py:Letters"\n'
    card.write_text(stated)
    recipe = opened(card, trust_code=True).recipe
    assert (recipe.model, recipe.dim) == ("own", 5)
    assert (recipe.pooling, recipe.max_query_tokens) == ("unknown", None)
    card.write_text(f"{stated}max_query_tokens = 9\nprompts.query = 'q: '\n")
    with pytest.raises(BenchError, match="max_query_tokens cannot be set for own"):
        resolved(card, trust_code=True)


def test_a_file_that_reads_other_weights_is_noticed(file, sixty, tmp_path):
    """Its source is the same, and all vectors are stored."""
    weights = tmp_path / "scale.txt"
    weights.write_text("1")
    powers = ENCODERS.replace("self.scale * count(texts)", "count(texts) ** self.scale")
    reads = f"def make():\n    return Letters(float(open({str(weights)!r}).read()))\n"
    file.write_text(powers + reads)
    request: dict[str, Any] = {"trust_code": True, "cache_dir": tmp_path / "cache"}
    first = bench.evaluate(f"{file}:make", sixty, **request)
    assert bench.evaluate(f"{file}:make", sixty, **request).measures == first.measures
    weights.write_text("2")
    with pytest.raises(DriftError, match="make changed: the vector of") as caught:
        bench.evaluate(f"{file}:make", sixty, **request)
    assert "restore the files that its code reads" in caught.value.hint
