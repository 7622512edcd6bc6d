"""The loaded tokenizer is the one in ``tokenizer.json``, whatever the version of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from foundation.errors import BenchError
from retrievers.encoders.tokens import load_tokenizer
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.folder import ModelFolder
from tests.support import tiny_checkpoints as tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.write_bert(tmp_path / "bert")
    return tmp_path / "bert"


def unigram() -> Any:
    pieces = [("[UNK]", 0.0), *((f"▁{word}", -1.0) for word in tiny.WORDS)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def test_a_tokenizer_of_another_kind_is_an_error_that_names_both(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers 5 builds the tokenizer of the model's class from any vocabulary."""
    unigram().save(str(folder / "tokenizer.json"))
    bert = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: bert)
    with pytest.raises(BenchError, match=r"BertTokenizer\w* \(WordPiece, .*is a Unigram") as error:
        load_tokenizer(Checkpoint.of_network(ModelFolder(folder)))
    assert "PreTrainedTokenizerFast" in error.value.hint


def test_a_vocabulary_in_another_order_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "vocab.txt").write_text("\n".join(reversed(tiny.VOCABULARY)), encoding="utf-8")
    other = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: other)
    with pytest.raises(BenchError, match="fixed texts have other token ids"):
        load_tokenizer(Checkpoint.of_network(ModelFolder(folder)))


@pytest.mark.parametrize("option", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
@pytest.mark.parametrize("value", [True, False])
def test_options_of_the_configuration_explain_a_difference(
    folder: Path, option: str, value: bool
) -> None:
    path = folder / "tokenizer_config.json"
    tiny.write_json(path, {**json.loads(path.read_text()), option: value})
    load_tokenizer(Checkpoint.of_network(ModelFolder(folder)))


@pytest.mark.skipif(transformers.__version__ < "5", reason="version 4 adds what is missing")
def test_a_class_that_cannot_be_built_from_the_vocabulary_is_an_error(folder: Path) -> None:
    tiny.write_json(folder / "tokenizer_config.json", {"tokenizer_class": "GemmaTokenizer"})
    with pytest.raises(BenchError, match="cannot be loaded: Unk token `<unk>` not found") as error:
        load_tokenizer(Checkpoint.of_network(ModelFolder(folder)))
    assert "PreTrainedTokenizerFast" in error.value.hint


def test_a_class_of_its_own_kind_loads_any_tokenizer(folder: Path) -> None:
    unigram().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    tiny.write_json(folder / "tokenizer_config.json", settings)
    loaded = load_tokenizer(Checkpoint.of_network(ModelFolder(folder))).backend_tokenizer
    assert loaded.get_vocab_size(with_added_tokens=False) == 1 + len(tiny.WORDS)
