"""Files of checkpoints: found, checked and hashed without loading anything."""

import hashlib
import json
import os
import site
import sys
from pathlib import Path
from typing import Any

import pytest

from foundation.errors import BenchError
from foundation.files import resolve_inside
from retrievers.encoders.transformer import open_encoder
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.folder import ModelFolder
from retrievers.models.locate import fetch_checkpoint, locate_checkpoint
from retrievers.models.resolve import resolve_model
from tests.support import tiny_checkpoints as tiny
from tests.support.tiny_checkpoints import write_hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.write_bert(tmp_path / "bert")
    return tmp_path / "bert"


def test_the_files_that_change_a_vector_are_hashed(folder: Path) -> None:
    (folder / "README.md").write_text("not part of the model")
    (folder / "pytorch_model.bin").write_bytes(b"nor is this, beside safetensors")
    found = Checkpoint.of_network(ModelFolder(folder))
    assert {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt"} <= set(found.hashes)
    assert not {"README.md", "pytorch_model.bin"} & set(found.hashes)
    assert found.hashes["model.safetensors"] == found.weights_sha256
    for name, digest in found.hashes.items():
        assert digest == hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_what_was_read_is_what_was_hashed(folder: Path, tmp_path: Path) -> None:
    card = tiny.write_card(tmp_path / "card.toml", checkpoint=str(folder), pooling="cls")
    model = resolve_model(str(card))
    weights = folder / "model.safetensors"
    os.utime(weights)  # written to, and the same as before
    encoder = open_encoder(model, "cpu")
    encoder.encode_queries(["a"])
    tiny.write_bert(folder, seed=1)
    with pytest.raises(BenchError, match=r"model\.safetensors changed while it was used"):
        model.check_unchanged()
    with pytest.raises(BenchError, match=r"model\.safetensors changed while it was used"):
        open_encoder(model, "cpu").encode_queries(["a"])
    weights.unlink()
    model.check_unchanged()  # nothing else was read in its place


@pytest.mark.parametrize("change", ["cut", "longer", "empty", "garbage", "huge header", "list"])
def test_damaged_safetensors_are_refused(folder: Path, change: str) -> None:
    path = folder / "model.safetensors"
    good = path.read_bytes()
    bad = {
        "cut": good[:-1],
        "longer": good + b"\0",
        "empty": b"",
        "garbage": bytes(range(256)) * 8,
        "huge header": b"\xff" * 7 + b"\x7f" + good[8:],
        "list": (2).to_bytes(8, "little") + b"[]",
    }
    path.write_bytes(bad[change])
    with pytest.raises(BenchError, match="not a complete safetensors file"):
        Checkpoint.of_network(ModelFolder(folder))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_checkpoint_with_its_own_code_is_refused(folder: Path, name: str) -> None:
    content = json.loads((folder / name).read_text())
    content["auto_map"] = {"AutoModel": "modeling.Evil"}
    (folder / name).write_text(json.dumps(content))
    (folder / "modeling.py").write_text("raise SystemExit('executed')")
    with pytest.raises(BenchError, match="code of its own"):
        Checkpoint.of_network(ModelFolder(folder))


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "", "[" * 200_000, '{"a":' * 200_000, "\xff"])
def test_a_broken_config_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(BenchError, match=r"config\.json"):
        Checkpoint.of_network(ModelFolder(folder))


def test_shards_are_hashed_and_a_missing_one_is_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    tiny.write_json(folder / "model.safetensors.index.json", index)
    with pytest.raises(BenchError, match=r"model-2\.safetensors is missing"):
        Checkpoint.of_network(ModelFolder(folder))

    index["weight_map"].pop("b")
    tiny.write_json(folder / "model.safetensors.index.json", index)
    assert "model-1.safetensors" in Checkpoint.of_network(ModelFolder(folder)).hashes


@pytest.mark.parametrize(
    "content",
    [
        *("[]", "[" * 200_000, '{"weight_map": {}}', '{"weight_map": {"a": 3}}'),
        *('{"weight_map": {"a": ""}}', '{"weight_map": {"a": "a\\u0000b"}}'),
        '{"weight_map": {"a": "' + "x" * 300 + '"}}',
    ],
)
def test_a_damaged_index_of_shards_is_refused(folder: Path, content: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(BenchError) as caught:
        Checkpoint.of_network(ModelFolder(folder))
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b"])
def test_a_name_inside_a_checkpoint_cannot_lead_out_of_it(folder: Path, name: str) -> None:
    with pytest.raises(BenchError, match="leads out"):
        resolve_inside(folder, name)
    tiny.write_json(folder / "model.safetensors.index.json", {"weight_map": {"a": name}})
    (folder / "model.safetensors").unlink()
    with pytest.raises(BenchError, match="leads out"):
        Checkpoint.of_network(ModelFolder(folder))


def test_an_adapter_folder_is_not_a_model(folder: Path) -> None:
    tiny.write_json(folder / "adapter_config.json", {"peft_type": "LORA"})
    with pytest.raises(BenchError, match="holds an adapter") as caught:
        Checkpoint.of_network(ModelFolder(folder))
    assert "--adapter" in caught.value.hint


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": "x"}, 512),
        ({"model_type": "roberta", "max_position_embeddings": "514"}, None),
        ({"model_type": "t5", "n_positions": 512}, None),
        ({"model_type": "llama", "max_position_embeddings": 64, "rope_theta": 1e4}, None),
        ({"model_type": "llama", "max_position_embeddings": 64, "rope_parameters": {}}, None),
        ({"model_type": "modernbert", "max_position_embeddings": 64, "global_rope_theta": 1}, None),
        ({"model_type": "gpt_neox", "max_position_embeddings": 64, "rotary_pct": 1}, None),
        (
            {
                "model_type": "esm",
                "max_position_embeddings": 64,
                "position_embedding_type": "rotary",
            },
            None,
        ),
        ({"max_position_embeddings": 64, "position_biased_input": False}, None),
        ({"model_type": "roformer", "max_position_embeddings": 64, "rotary_value": False}, 64),
    ],
)
def test_the_position_limit_is_what_the_architecture_can_use(
    folder: Path, config: dict[str, Any], limit: int | None
) -> None:
    tiny.write_json(folder / "config.json", config)
    assert Checkpoint.of_network(ModelFolder(folder)).position_limit == limit


@pytest.mark.parametrize("key", ["hidden_size", "d_model", "dim"])
def test_the_hidden_width_is_found_under_each_architectures_name(folder: Path, key: str) -> None:
    tiny.write_json(folder / "config.json", {key: 48})
    assert Checkpoint.of_network(ModelFolder(folder)).hidden_width == 48
    for content in ({"model_type": "bert"}, {key: True}, {key: "48"}, {key: -1}, {key: [48]}):
        tiny.write_json(folder / "config.json", content)
        with pytest.raises(BenchError, match="no hidden size"):
            _ = Checkpoint.of_network(ModelFolder(folder)).hidden_width


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """A package that carries weights, and that must not be imported."""
    package = tmp_path / "site" / "carrier"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    folder.rename(package / "model")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path / "site")])
    return package / "model"


def test_a_package_carries_weights_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    sha = Checkpoint.of_network(ModelFolder(folder)).weights_sha256
    model = install(tmp_path, monkeypatch, folder)
    found = locate_checkpoint("org/name", "main", base=tmp_path, package="carrier/model", sha=sha)
    assert found.root == model
    assert "carrier" not in sys.modules


@pytest.mark.parametrize(("installed", "sha"), [(False, ""), (True, "0" * 64)])
def test_a_folder_that_is_not_installed_or_has_other_weights_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, installed: bool, sha: str
) -> None:
    tiny.write_bert(tmp_path / "other", seed=1)
    snapshot = write_hub(tmp_path, tmp_path / "other", monkeypatch)
    install(tmp_path, monkeypatch, folder)
    if not installed:  # but on sys.path
        monkeypatch.setattr(site, "getsitepackages", list)
    found = locate_checkpoint("org/name", "main", base=tmp_path, package="carrier/model", sha=sha)
    assert found.root == snapshot
    with pytest.raises(BenchError, match="leads out of"):
        locate_checkpoint("org/name", "main", base=tmp_path, package="carrier/../../model")


def test_the_cache_of_the_hub_is_used_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    snapshot = write_hub(tmp_path, folder, monkeypatch)
    found = locate_checkpoint("org/name", "main", base=tmp_path)
    assert (found.root, found.revision) == (snapshot, "c0ffee")
    with pytest.raises(BenchError, match="no folder"):
        locate_checkpoint("./missing/model", "main", base=tmp_path)
    with pytest.raises(BenchError, match="org/other@main") as caught:
        fetch_checkpoint("org/other", "main")
    assert "--like" in caught.value.hint


def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]) -> Path:
    """A repository of empty files; snapshot_download selects from it as the real one does."""
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    def snapshot_download(
        repository: str, revision: str, allow_patterns: list[str], ignore_patterns: list[str]
    ) -> str:
        for name in filter_repo_objects(
            names, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        ):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return tmp_path


TEXT_FILES = ["config.json", "vocab.txt", "spiece.model", "2_Dense/config.json"]


@pytest.mark.parametrize(
    ("weights", "fetched"),
    [
        (["model.safetensors", "pytorch_model.bin"], {"model.safetensors"}),
        (["model-1-of-2.safetensors", "onnx/model.onnx"], {"model-1-of-2.safetensors"}),
        (["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"], {"pytorch_model.bin"}),
        (
            ["model.safetensors", "pytorch_model.bin", "2_Dense/pytorch_model.bin"],
            {"model.safetensors", "2_Dense/pytorch_model.bin"},
        ),
        (["0_Transformer/pytorch_model.bin"], {"0_Transformer/pytorch_model.bin"}),
        (
            ["model.safetensors", "onnx/model.safetensors", "checkpoint-5/model.safetensors"],
            {"model.safetensors"},
        ),
    ],
)
def test_only_one_format_of_weights_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: list[str], fetched: set[str]
) -> None:
    folder = fake_hub(tmp_path, monkeypatch, TEXT_FILES + weights)
    fetch_checkpoint("org/name", "main")
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == fetched | set(TEXT_FILES)
