"""Lengths at which texts are cut, for all architectures of transformers.

The oracle is the transformer module of sentence-transformers, without its weights.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from retrievers.models.positions import ENDS_OF_BIASES, OFFSET_POSITIONS
from retrievers.models.read_settings import read_st_folder
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
        config: dict[str, Any] = json.loads(transformers.CONFIG_MAPPING[name]().to_json_string())
    except Exception:
        return None
    return config


@pytest.mark.slow
@pytest.mark.usefixtures("without_weights")
@pytest.mark.parametrize("tokens", [None, 100])
def test_the_length_is_that_of_sentence_transformers_for_every_architecture(
    tmp_path: Path, tokens: int | None
) -> None:
    folder, seen = write_folder(tmp_path, tokens), 0
    for name in transformers.CONFIG_MAPPING:
        if (config := default_config(name)) is None:
            continue
        tiny.write_json(folder / "config.json", config)
        try:
            theirs = base.Transformer.load(str(folder)).max_seq_length
        except Exception:  # not a model of texts
            continue
        seen += 1
        found = read_st_folder(folder).max_document_tokens
        if name in (*OFFSET_POSITIONS, *ENDS_OF_BIASES):  # it would fail on the longest texts
            theirs = min(theirs, found)
        assert found == min(theirs, 1_000_000), name
    assert seen > 300
