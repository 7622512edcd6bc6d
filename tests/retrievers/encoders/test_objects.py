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


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    tiny.write_bert(folder)
    return folder


def save(plain: Path, folder: Path, name: str = "weighted-mean", **settings: Any) -> Path:
    torch.manual_seed(1)
    settings = {"prompts": PROMPTS, **settings}
    model = sentence_transformers.SentenceTransformer(
        modules=MODULES[name](plain), device="cpu", **settings
    )
    model.save(str(folder), create_model_card=False)
    return folder


def change(path: Path, **changes: Any) -> None:
    tiny.write_json(path, {**json.loads(path.read_text()), **changes})


def oracle(folder: Path) -> tuple[Any, Any]:
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    sides = [model.encode_query(TEXTS), model.encode_document(TEXTS)]
    if model.similarity_fn_name == "cosine":
        sides = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides]
    return sides[0], sides[1]


def assert_agrees(folder: Path) -> Any:
    encoder = open_encoder(resolve_model(str(folder)), "cpu")
    queries, documents = oracle(folder)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), queries, atol=1e-6)
    found = encoder.encode_documents([""] * len(TEXTS), TEXTS)
    np.testing.assert_allclose(found, documents, atol=1e-6)
    assert encoder.dim == queries.shape[1]
    return encoder.recipe


@pytest.mark.parametrize("name", MODULES)
def test_vectors_of_other_modules_are_those_of_sentence_transformers(
    plain: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    similarity = "dot" if name in ("static", "router") else "cosine"
    folder = save(plain, tmp_path / name, name, similarity_fn_name=similarity)
    recipe = assert_agrees(folder)
    assert (recipe.kind, recipe.similarity) == ("python", similarity[:3])
    (warning,) = [line for line in caplog.messages if "encodes it, since" in line]
    assert sentence_transformers.__version__ in warning


def test_settings_that_are_not_known_here_go_to_sentence_transformers(
    plain: Path, tmp_path: Path
) -> None:
    settings = {
        "length": ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 5}}}),
        "padding": ("tokenizer_config.json", {"padding_side": "left"}),
        "new": ("config_sentence_transformers.json", {"pooled_twice": False}),
    }
    for name, (file, changes) in settings.items():
        folder = save(plain, tmp_path / name)
        change(folder / file, **changes)
        assert assert_agrees(folder).dim == WIDTH


def save_mean(plain: Path, folder: Path, *more: Any) -> Path:
    """Mean pooling, which is read here, and a similarity that does not hide lengths."""
    modules = [transformer(plain), pooling(), *more]
    model = sentence_transformers.SentenceTransformer(
        modules=modules, device="cpu", prompts=PROMPTS, similarity_fn_name="dot"
    )
    model.save(str(folder))
    return folder


def test_texts_of_a_model_with_a_chat_template_are_read_through_it(
    plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(plain, tmp_path / "chat")
    template = "{% for each in messages %}river {{ each['content'] }} stone{% endfor %}"
    change(tmp_path / "chat" / "tokenizer_config.json", chat_template=template)
    folder = save_mean(tmp_path / "chat", tmp_path / "st")
    assert assert_agrees(folder).kind == "python"
    assert "sentence_bert_config.json: unknown field 'message' in modality_config" in caplog.text


UNKNOWN: dict[str, Any] = {
    "modules.json": lambda modules: modules[1].update(kwargs=["task"]),
    "config_sentence_transformers.json": lambda settings: settings.update(pooled_twice=True),
    "sentence_bert_config.json": lambda settings: settings.update(processor_kwargs={}),
    "2_Dropout/config.json": lambda settings: settings.update(dropout="half"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_no_key_or_value_of_a_configuration_is_dropped(
    plain: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_mean(plain, tmp_path / "st", parts.Dropout())
    ordinary = resolve_model(str(folder)).recipe
    assert ordinary.kind == "transformer"
    content = json.loads((folder / name).read_text())
    UNKNOWN[name](content)
    (folder / name).write_text(json.dumps(content))
    assert resolve_model(str(folder)).recipe.kind == "python"
    assert f"encodes it, since {folder / name}" in caplog.text
    if name != "2_Dropout/config.json":  # which no version could read
        assert_agrees(folder)


NAMES: list[dict[str, str]] = [
    {"module_input_name": "token_embeddings"},
    {"module_input_name": "sentence_embedding", "module_output_name": "other"},
]


@pytest.mark.parametrize("names", NAMES, ids=str)
def test_a_normalize_that_leaves_the_sentence_embedding_changes_no_length(
    plain: Path, tmp_path: Path, names: dict[str, str]
) -> None:
    """Version 6 writes the names, and version 5 would ignore them."""
    folder, path = save_mean(plain, tmp_path / "st", parts.Normalize()), "2_Normalize/config.json"
    before = resolve_model(str(folder)).recipe
    both = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
    tiny.write_json(folder / path, both)
    assert resolve_model(str(folder)).recipe.fingerprint == before.fingerprint
    tiny.write_json(folder / path, names)
    if sentence_transformers.__version__ >= "6":
        assert assert_agrees(folder).kind == "python"
        lengths = np.linalg.norm(oracle(folder)[0], axis=1)
        assert (lengths > 2).all()
        return
    with pytest.raises(BenchError, match=r"does not read module_input_name.*2_Normalize") as caught:
        open_encoder(resolve_model(str(folder)), "cpu")
    assert "Install the version" in caught.value.hint


def test_the_transformer_is_read_in_the_folder_that_modules_name(
    plain: Path, tmp_path: Path
) -> None:
    """A folder that holds a second network in its main folder."""
    folder = save_mean(plain, tmp_path / "st")
    shutil.copytree(
        folder, folder / "0_Transformer", ignore=shutil.ignore_patterns("1_*", "modules.json")
    )
    tiny.write_bert(folder, seed=9)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    tiny.write_json(folder / "modules.json", modules)
    assert assert_agrees(folder).kind == "transformer"


def test_scores_are_those_of_the_object_in_python(plain: Path, tmp_path: Path) -> None:
    """Queries and documents with equal texts have different vectors, also in the store."""
    folder = save(plain, tmp_path / "router", "router", prompts={})
    data = write_collection(tmp_path / "sixty", *SIXTY, metadata='name = "sixty"\n')
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    cache = tmp_path / "cache"
    theirs = bench.evaluate(model, data, name="object", cache_dir=cache)
    for _ in range(2):
        ours = bench.evaluate(folder, data, cache_dir=cache, results=tmp_path / "results")
        assert ours.measures == theirs.measures
    assert ours.record.parameters is not None
    assert ours.record.recipe.options["sentence-transformers"] == sentence_transformers.__version__


def test_the_fingerprint_depends_on_all_files_and_on_the_libraries(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(plain, tmp_path / "one")
    first = resolve_model(str(folder)).recipe.fingerprint
    (folder / "README.md").write_text("no part of it")
    copy = save(plain, tmp_path / "copy")
    assert resolve_model(str(copy)).recipe.fingerprint == first
    own, whole = (
        resolve_model(str(copy), ModelSettings(query_prompt=each)).recipe
        for each in ("beta ", None)
    )
    assert own.fingerprint != first
    assert own.side("document").fingerprint == whole.side("document").fingerprint
    assert resolve_model(str(folder), ModelSettings(dtype="bfloat16")).recipe.fingerprint != first
    change(copy / "1_Pooling" / "config.json", include_prompt=False)
    assert resolve_model(str(copy)).recipe.fingerprint != first
    monkeypatch.setattr(resolve, "library_version", lambda name: "9.9")
    assert resolve_model(str(folder)).recipe.fingerprint != first


def changed_weight(model: Any) -> None:
    next(model.parameters()).data[0, 0] += 1


def changed_buffer(model: Any) -> None:
    next(model.buffers()).data += 1


def changed_prompt(model: Any) -> None:
    model.prompts = {**model.prompts, "query": "other: "}


def changed_length(model: Any) -> None:
    model.max_seq_length = 7


def changed_tokenizer(model: Any) -> None:
    model.tokenizer.backend_tokenizer.add_tokens(["zzz"])


def changed_configuration(model: Any) -> None:
    model[0].auto_model.config.layer_norm_eps = 0.1


@pytest.mark.parametrize(
    "change",
    [
        changed_weight,
        changed_buffer,
        changed_prompt,
        changed_length,
        changed_tokenizer,
        changed_configuration,
    ],
)
def test_an_object_of_the_library_is_identified_by_what_it_holds(plain, tmp_path, change):
    folder = save_mean(plain, tmp_path / "saved")
    first, second = (
        sentence_transformers.SentenceTransformer(str(folder), device="cpu") for _ in range(2)
    )

    def identity(model: Any) -> str:
        return str(wrap_encoder(model, "object")[0].recipe.options["fingerprint"])

    before = identity(first)
    assert identity(second) == before
    change(second)
    assert identity(second) not in (before, "")
    assert wrap_encoder(second, "object")[0].recipe.is_identified


def test_an_object_with_a_hook_or_a_replaced_method_is_not_identified(plain, tmp_path):
    folder = save_mean(plain, tmp_path / "saved")
    for spoil in (
        lambda model: model[0].register_forward_hook(lambda *_: None),
        lambda model: setattr(model, "encode_query", lambda texts, **_: np.ones((len(texts), 3))),
    ):
        model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
        spoil(model)
        assert not wrap_encoder(model, "object")[0].recipe.is_identified


def test_a_prompt_and_a_precision_are_used(plain: Path, tmp_path: Path) -> None:
    folder = save(plain, tmp_path / "st")
    own = open_encoder(resolve_model(str(folder), ModelSettings(query_prompt="delta ")), "cpu")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    expected = model.encode_query(TEXTS, prompt="delta ")
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(own.encode_queries(TEXTS), expected, atol=1e-6)
    half = open_encoder(resolve_model(str(folder), ModelSettings(dtype="bfloat16")), "cpu")
    assert half.recipe.dtype == "bfloat16"
    distance = np.abs(half.encode_queries(TEXTS) - oracle(folder)[0]).max()
    assert 1e-5 < distance < 0.05


def test_weights_that_are_missing_are_refused(plain: Path, tmp_path: Path) -> None:
    folder = save(plain, tmp_path / "st")
    path = folder / "model.safetensors"
    tensors = {key: value for key, value in load_file(path).items() if "layer.1.output" not in key}
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(BenchError, match="lacks weights"):
        open_encoder(resolve_model(str(folder)), "cpu")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BenchError, match=r"sentence-transformers on .* failed: SafetensorError"):
        open_encoder(resolve_model(str(folder)), "cpu")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_query_tokens": 9}, "max_query_tokens cannot be set for st"),
        ({"max_document_tokens": 9}, "max_document_tokens cannot be set for st"),
        ({"adapter": "an-adapter"}, "adapter cannot be set for st"),
        ({"dtype": "int8"}, "st is not a transformer that int8 can run"),
        ({"like": "minilm"}, "--like minilm does not apply: .*weightedmean is not supported"),
    ],
)
def test_what_has_no_effect_on_it_is_refused(
    plain: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    folder = save(plain, tmp_path / "st")
    with pytest.raises(BenchError, match=message):
        resolve_model(str(folder), ModelSettings(**settings))


@pytest.mark.parametrize("similarity", ["manhattan", "euclidean"])
def test_a_distance_does_not_rank_here(plain: Path, tmp_path: Path, similarity: str) -> None:
    folder = save(plain, tmp_path / "st", similarity_fn_name=similarity)
    with pytest.raises(BenchError, match=f"states {similarity} similarity, but"):
        resolve_model(str(folder))
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    data = write_collection(tmp_path / "sixty", *SIXTY, metadata='name = "sixty"\n')
    with pytest.raises(BenchError, match=f"states {similarity} similarity, but"):
        bench.evaluate(model, data, name="object", cache_dir=tmp_path / "cache")


def test_a_distance_of_vectors_of_length_1_ranks_as_cosine(
    plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_collection(tmp_path / "sixty", *SIXTY, metadata='name = "sixty"\n')
    folder = save_mean(plain, tmp_path / "st", parts.Normalize())
    cosine = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    change(folder / "config_sentence_transformers.json", similarity_fn_name="euclidean")
    recipe = resolve_model(str(folder)).recipe
    assert (recipe.kind, recipe.similarity) == ("transformer", "cos")
    assert "its euclidean distance ranks as cosine does" in caplog.text
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    distances = -model.similarity(model.encode_query(TEXTS[:3]), model.encode_document(TEXTS))
    encoder = open_encoder(resolve_model(str(folder)), "cpu")
    documents = encoder.encode_documents([""] * len(TEXTS), TEXTS)
    products = encoder.encode_queries(TEXTS[:3]) @ documents.T
    np.testing.assert_allclose(2 - 2 * products, distances.numpy() ** 2, atol=1e-4)
    results = [
        bench.evaluate(each, data, name="object", cache_dir=tmp_path / "cache")
        for each in (model, cosine)
    ]
    assert results[0].measures == results[1].measures
    for change_back in ({"similarity_fn_name": "manhattan"}, {"truncate_dim": 8}):
        settings = {"similarity_fn_name": "euclidean", **change_back}
        change(folder / "config_sentence_transformers.json", **settings)
        with pytest.raises(BenchError, match="similarity, but"):
            resolve_model(str(folder))


def test_a_static_model_may_give_an_empty_text_the_vector_0(plain: Path, tmp_path: Path) -> None:
    folder = save(plain, tmp_path / "st", "static", prompts={}, similarity_fn_name="dot")
    encoder = open_encoder(resolve_model(str(folder)), "cpu")
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


def test_code_of_a_folder_runs_only_with_permission(plain: Path, tmp_path: Path) -> None:
    folder = save(plain, tmp_path / "st")
    (folder / "flip.py").write_text(OWN_MODULE)
    modules = json.loads((folder / "modules.json").read_text())
    entry = {"idx": 2, "name": "2", "path": "2_Flip", "type": "flip.Flip"}
    tiny.write_json(folder / "modules.json", [*modules, entry])
    (folder / "2_Flip").mkdir()
    with pytest.raises(BenchError, match=r"st runs code of its own: .*flip\.Flip") as caught:
        resolve_model(str(folder))
    assert "--trust-code" in caught.value.hint
    model = resolve_model(str(folder), ModelSettings(trust_code=True))
    flipped = open_encoder(model, "cpu").encode_queries(TEXTS)
    assert "flip.py" in model.recipe.files
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
def test_names_of_other_code_and_files_are_found(
    plain: Path, tmp_path: Path, file: str, changes: dict[str, Any], trusted: bool, message: str
) -> None:
    folder = save(plain, tmp_path / "st")
    path = folder / file
    tiny.write_json(path, changes | (json.loads(path.read_text()) if path.exists() else {}))
    with pytest.raises(BenchError, match=message):
        resolve_model(str(folder), ModelSettings(trust_code=trusted))


def test_folders_that_only_libraries_would_enter_are_refused_or_hashed(
    plain: Path, tmp_path: Path
) -> None:
    folder = save(plain, tmp_path / "st")
    (folder / "1_Pooling").rename(folder / ".pooling")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = ".pooling"
    tiny.write_json(folder / "modules.json", modules)
    assert ".pooling/config.json" in resolve_model(str(folder)).recipe.files
    (folder / "deep.json").write_text("[" * 100_000)
    with pytest.raises(BenchError, match=r"code of its own: .*deep\.json is nested too deeply"):
        resolve_model(str(folder))
    (folder / ".pooling").rename(tmp_path / "outside")
    (folder / ".pooling").symlink_to(tmp_path / "outside")
    with pytest.raises(BenchError, match=r"\.pooling is a link to a folder"):
        resolve_model(str(folder), ModelSettings(trust_code=True))


def test_a_folder_may_not_ask_for_a_pickle(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(plain, tmp_path / "st")
    path = folder / "model.safetensors"
    seen = tmp_path / "executed"

    torch.save({**load_file(path), "evil": tiny.Trap(seen)}, folder / "pytorch_model.bin")
    path.unlink()
    change(folder / "sentence_bert_config.json", model_args={"weights_only": False})
    with pytest.raises(BenchError, match=r"sentence-transformers on .* failed"):
        open_encoder(resolve_model(str(folder)), "cpu")
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
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's file, which imports another one next to it."""
    (tmp_path / "own_letters.py").write_text('LETTERS = "aeiou"\n')
    (tmp_path / "encoder.py").write_text(ENCODERS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_letters", raising=False)
    return tmp_path / "encoder.py"


@pytest.mark.parametrize("name", ["count", "Letters", "make", "ready"])
def test_a_function_class_factory_or_object_of_a_file_encodes(file: Path, name: str) -> None:
    model = resolve_model(f"{file}:{name}", ModelSettings(trust_code=True))
    encoder: Any = open_encoder(model, "cpu")
    expected = np.array([[text.count(letter) for letter in "aeiou"] for text in ("aab", "io")])
    if name != "count":
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.encode_queries(["aab", "io"]), expected, atol=1e-6)
    found = encoder.encode_documents(["a", ""], ["ab", "io"])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (encoder.recipe.dim, encoder.recipe.encoder) == (5, f"encoder.py:{name}")
    assert {*model.recipe.files} == {"encoder.py", "own_letters"}


def test_the_source_of_a_file_and_of_its_imports_is_part_of_the_fingerprint(file: Path) -> None:
    def fingerprint() -> str:
        sys.modules.pop("own_letters", None)
        return resolve_model(f"{file}:make", ModelSettings(trust_code=True)).recipe.fingerprint

    first = fingerprint()
    assert fingerprint() == first
    assert (
        resolve_model(f"{file}:ready", ModelSettings(trust_code=True)).recipe.fingerprint != first
    )
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
def test_what_does_not_encode_has_one_clear_error(file: Path, name: str, message: str) -> None:
    with pytest.raises(BenchError, match=message) as caught:
        open_encoder(resolve_model(f"{file}:{name}", ModelSettings(trust_code=True)), "cpu")
    assert caught.value.hint


def test_a_file_needs_permission_a_name_and_working_code(file: Path) -> None:
    with pytest.raises(BenchError, match=r"runs .*encoder\.py:make") as caught:
        resolve_model(f"{file}:make")
    assert "--trust-code" in caught.value.hint
    assert str(file) not in sys.modules
    with pytest.raises(BenchError, match="is a file of Python code") as caught:
        resolve_model(str(file), ModelSettings(trust_code=True))
    assert f"{file}:NAME" in caught.value.hint
    with pytest.raises(BenchError, match="max_query_tokens cannot be set for make"):
        resolve_model(f"{file}:make", ModelSettings(trust_code=True, max_query_tokens=3))
    with pytest.raises(BenchError, match="without one"):
        resolve_model(f"{file}:make", ModelSettings(trust_code=True, like="minilm"))
    file.write_text("1 / 0")
    with pytest.raises(BenchError, match="cannot be run: ZeroDivisionError"):
        resolve_model(f"{file}:make", ModelSettings(trust_code=True))
    with pytest.raises(BenchError, match="cannot read"):
        resolve_model(f"{file.parent}/gone.py:make", ModelSettings(trust_code=True))


def test_a_device_goes_to_code_that_takes_one(file: Path) -> None:
    name = "from alphabet import Letters\nmade = []\n"
    (file.parent / "alphabet.py").write_bytes(file.read_bytes())
    (file.parent / "other.py").write_text(
        f"{name}def make(device):\n    made.append(device)\n    return Letters()\n"
    )
    open_encoder(
        resolve_model(f"{file.parent / 'other.py'}:make", ModelSettings(trust_code=True)), "cpu"
    )
    assert sys.modules[str(file.parent / "other.py")].made == ["cpu"]
    with pytest.raises(BenchError, match="Letters has no parameter device for cuda"):
        open_encoder(resolve_model(f"{file}:Letters", ModelSettings(trust_code=True)), "cuda")
    with pytest.raises(BenchError, match="ready has no parameter device for cuda"):
        open_encoder(resolve_model(f"{file}:ready", ModelSettings(trust_code=True)), "cuda")


def test_a_card_may_name_a_file_next_to_it(file: Path) -> None:
    card = file.parent / "own.toml"
    stated = 'name = "own"\ntitle = "own"\nencoder = "encoder.py:Letters"\n'
    card.write_text(stated)
    model = resolve_model(str(card), ModelSettings(trust_code=True))
    assert (model.card.name, open_encoder(model, "cpu").dim) == ("own", 5)
    assert (model.recipe.pooling, model.recipe.max_query_tokens) == ("unknown", None)
    card.write_text(f"{stated}max_query_tokens = 9\nprompts.query = 'q: '\n")
    with pytest.raises(BenchError, match="max_query_tokens cannot be set for own"):
        resolve_model(str(card), ModelSettings(trust_code=True))


def test_a_file_that_reads_other_weights_is_noticed(file: Path, tmp_path: Path) -> None:
    """Its source is the same, and all vectors are stored."""
    weights = tmp_path / "scale.txt"
    weights.write_text("1")
    powers = ENCODERS.replace("self.scale * count(texts)", "count(texts) ** self.scale")
    reads = f"def make():\n    return Letters(float(open({str(weights)!r}).read()))\n"
    file.write_text(powers + reads)
    data = write_collection(tmp_path / "sixty", *SIXTY, metadata='name = "sixty"\n')
    request: dict[str, Any] = {"trust_code": True, "cache_dir": tmp_path / "cache"}
    first = bench.evaluate(f"{file}:make", data, **request)
    assert bench.evaluate(f"{file}:make", data, **request).measures == first.measures
    weights.write_text("2")
    with pytest.raises(DriftError, match="make changed: the vector of") as caught:
        bench.evaluate(f"{file}:make", data, **request)
    assert "restore the files that its code reads" in caught.value.hint
