"""Lengths at which texts are cut, for all architectures of transformers.

The oracle is the transformer module of sentence-transformers, without its weights.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from foundation.errors import BenchError
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.folder import ModelFolder
from retrievers.models.positions import ENDS_OF_BIASES, OFFSET_POSITIONS
from tests.support import tiny_checkpoints as tiny

base = pytest.importorskip("sentence_transformers.base.modules")


class NoNetwork(torch.nn.Module):
    """A network that has a configuration alone."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def forward(self, input_ids: torch.Tensor) -> None: ...


@pytest.fixture
def without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sentence-transformers open a folder of any architecture as one of texts."""
    kind = base.Transformer
    monkeypatch.setattr(
        kind, "_load_model", lambda self, path, task, config, *a, **k: NoNetwork(config)
    )
    from sentence_transformers.base.modules import transformer as module

    tokenizers = transformers.AutoTokenizer
    monkeypatch.setattr(module, "AutoProcessor", tokenizers)


def write_folder(folder: Path, model_max_length: int | None) -> Path:
    """A folder of sentence-transformers without weights."""
    tiny.write_st_folder(folder)
    tiny.write_tokenizer(folder)
    path = folder / "tokenizer_config.json"
    changes = {"model_max_length": model_max_length or 10**30}
    tiny.write_json(path, json.loads(path.read_text()) | changes)
    return folder


def default_config(name: str) -> dict[str, Any] | None:
    """The configuration of an architecture, or None if it needs others."""
    try:
        config: dict[str, Any] = json.loads(
            transformers.CONFIG_MAPPING[name].from_dict({}).to_json_string()
        )
    except Exception:
        return None
    return config


@pytest.mark.slow
@pytest.mark.usefixtures("without_weights")
@pytest.mark.parametrize("tokens", [None, 100])
def test_the_length_is_that_of_sentence_transformers_for_every_architecture(
    tmp_path: Path, tokens: int | None
) -> None:
    folder, seen, names = write_folder(tmp_path, tokens), 0, sorted(transformers.CONFIG_MAPPING)
    for name in names[:: 8 if tokens else 1]:  # a tokenizer limits all alike
        if (config := default_config(name)) is None:
            continue
        tiny.write_json(folder / "config.json", config)
        try:
            theirs = base.Transformer.load(str(folder)).max_seq_length
        except Exception:  # not a model of texts
            continue
        seen += 1
        found = ModelFolder(folder).read_st_card().max_document_tokens
        if name in (*OFFSET_POSITIONS, *ENDS_OF_BIASES):  # it would fail on the longest texts
            theirs = min(theirs, found)
        assert found == min(theirs, 1_000_000), name
    assert seen > (30 if tokens else 300)


KINDS = ["relative", "Absolute", "rotary", "alibi", ""]


@pytest.mark.parametrize("kind", KINDS)
def test_positions_of_an_unknown_kind_are_refused(tmp_path: Path, kind: str) -> None:
    """transformers would read no positions at all."""
    tiny.write_bert(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    tiny.write_json(path, config | {"position_embedding_type": "absolute"})
    Checkpoint.of_network(ModelFolder(tmp_path))
    tiny.write_json(path, config | {"position_embedding_type": kind})
    with pytest.raises(BenchError, match=f"unknown position_embedding_type '{kind}'") as caught:
        Checkpoint.of_network(ModelFolder(tmp_path))
    assert "Write one of absolute" in caught.value.hint


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_relative_positions_need_a_version_that_reads_them(tmp_path: Path, kind: str) -> None:
    tiny.write_bert(tmp_path)
    path = tmp_path / "config.json"
    tiny.write_json(path, json.loads(path.read_text()) | {"position_embedding_type": kind})
    if transformers.__version__ < "5":
        assert Checkpoint.of_network(ModelFolder(tmp_path)).position_limit == 64
        return
    with pytest.raises(BenchError, match=f"ignores position_embedding_type '{kind}'"):
        Checkpoint.of_network(ModelFolder(tmp_path))


LENGTHS: list[tuple[dict[str, Any], int]] = [
    ({"model_type": "gpt2", "n_positions": 96}, 96),
    ({"model_type": "gpt2"}, 1024),
    ({"model_type": "ctrl", "n_positions": 96}, 96),
    ({"model_type": "t5", "n_positions": 96}, 1_000_000),
    ({"model_type": "bloom", "seq_length": 96}, 1_000_000),
    ({"model_type": "xlnet"}, 1_000_000),
    ({"model_type": "mpt", "max_seq_len": 96}, 96),
    ({"model_type": "ibert", "max_position_embeddings": 96, "pad_token_id": 1}, 94),
    ({"model_type": "no-such-model"}, 1_000_000),
]


@pytest.mark.parametrize(("config", "length"), LENGTHS, ids=str)
def test_the_length_is_found_under_each_architectures_name(
    tmp_path: Path, config: dict[str, Any], length: int
) -> None:
    folder = write_folder(tmp_path, None)
    tiny.write_json(folder / "config.json", config)
    found = ModelFolder(folder).read_st_card()
    assert (found.max_query_tokens, found.max_document_tokens) == (length, length)
    assert ("texts are never cut" in found.warning) == (length == 1_000_000)
    tiny.write_json(folder / "sentence_bert_config.json", {"max_seq_length": 128})
    found, fits = ModelFolder(folder).read_st_card(), length >= 128
    assert found.max_document_tokens == (128 if fits else length)
    assert (f"reads at most {length} tokens" in found.warning) == (not fits)
