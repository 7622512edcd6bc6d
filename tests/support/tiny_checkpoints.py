"""Tiny checkpoints with random weights in the file layouts of real ones and of the Hub's cache."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from tests.support.collections import WORDS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *WORDS,
    *(letter for letter in LETTERS if letter != "a"),
    *(f"##{letter}" for letter in LETTERS),
    *(".", ",", "?"),
]
SENTENCES = [
    "the river of stone",
    "alpha beta gamma delta alpha beta gamma delta alpha beta gamma delta",
    "cloud",
    "Stone and the river, of a cloud?",
    "unknown wordpieces",
]
TITLES = ["alpha", "", "the cloud", "beta gamma", ""]
ST = "sentence_transformers.models."
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.5,
}


def bert_config(**changes: Any) -> Any:
    sizes = {**SIZES, "vocab_size": len(VOCABULARY), "max_position_embeddings": 64}
    return transformers.BertConfig(**{**sizes, **changes})


def write_tokenizer(folder: Path) -> Any:
    """A genuine WordPiece tokenizer over the vocabulary above."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    tokenizer = transformers.BertTokenizerFast(
        str(folder / "vocab.txt"), do_lower_case=True, model_max_length=64
    )
    tokenizer.save_pretrained(str(folder))
    return tokenizer


def word_ids(text: str) -> list[int]:
    """Ids of a text whose words are all in the vocabulary, without special tokens."""
    return [VOCABULARY.index(word) for word in text.split()]


def save_config(config: Any, folder: Path, architecture: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config.architectures = [architecture]
    config.save_pretrained(str(folder))


def write_pickle(model: Any, folder: Path, architecture: str) -> None:
    """``config.json`` and ``pytorch_model.bin``, as most research checkpoints are published."""
    save_config(model.config, folder, architecture)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def seeded(make: Callable[[], Any], seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return make().eval()


def write_bert(folder: Path, *, seed: int = 0, **changes: Any) -> Any:
    """A BERT with safetensors and a tokenizer; returns the model in memory."""
    model = seeded(lambda: transformers.BertModel(bert_config(**changes)), seed)
    model.save_pretrained(str(folder))
    write_tokenizer(folder)
    return model


def write_mlm_pickle(folder: Path, seed: int = 0) -> Any:
    """The layout of RetroMAE and Condenser: a pickle with an MLM head and no pooler."""
    model = seeded(lambda: transformers.BertForMaskedLM(bert_config()), seed)
    write_pickle(model, folder, "BertForMaskedLM")
    write_tokenizer(folder)
    return model


def write_st_files(folder: Path, modules: list[tuple[str, str]], **settings: Any) -> None:
    """``modules.json`` of (path, type) entries, and ``config_sentence_transformers.json``."""
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (path, kind) in enumerate(modules)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(entries), encoding="utf-8")
    if settings:
        text = json.dumps(settings)
        (folder / "config_sentence_transformers.json").write_text(text, encoding="utf-8")


def write_st_folder(folder: Path, *extra: str | tuple[str, str], **settings: Any) -> Path:
    """Files of version 2: a transformer, mean pooling and more modules; no weights.

    Args:
        extra: a class of sentence-transformers, or a path and a type.
    """
    named = [
        one if isinstance(one, tuple) else (f"{place}_{one}", f"{ST}{one}")
        for place, one in enumerate(extra, start=2)
    ]
    standard = [("", f"{ST}Transformer"), ("1_Pooling", f"{ST}Pooling")]
    write_st_files(folder, standard + named, **settings)
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    return folder


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_card(path: Path, **fields: Any) -> Path:
    """A strict TOML card; JSON values are TOML values, and tables are written inline."""
    content = {"name": path.stem, "title": "tiny", "max_query_tokens": 32} | fields
    content = {"max_document_tokens": 32} | content
    lines = [f"{key} = {_toml(value)}" for key, value in content.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{k}" = {_toml(v)}' for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def write_roberta(folder: Path) -> Path:
    """A plain checkpoint with random weights, and a tokenizer of bytes without merges."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: row for row, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    config = transformers.RobertaConfig(
        **SIZES, vocab_size=len(vocabulary), max_position_embeddings=66, pad_token_id=1
    )
    network = seeded(lambda: transformers.RobertaModel(config))
    network.save_pretrained(str(folder))
    transformers.RobertaTokenizerFast(
        tokenizer_object=tokenizer, do_lower_case=False, model_max_length=64
    ).save_pretrained(str(folder))
    return folder


def write_ance(folder: Path) -> Path:
    """The files of ``msmarco-roberta-base-ance-firstp``: RoBERTa, two stages, lower-casing."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    plain, st = write_roberta(folder / "plain"), folder / "st"
    torch.manual_seed(1)
    whole = [
        modules.Transformer(str(plain)),
        modules.Pooling(32, pooling_mode="cls"),
        modules.Dense(32, 32, activation_function=torch.nn.Identity()),
        modules.LayerNorm(32),
    ]
    SentenceTransformer(modules=whole, device="cpu").save(str(st))
    write_json(st / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": True})
    return st


def write_hub(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str = "name",
    commit: str = "c0ffee",
) -> Path:
    """Move a folder into the cache, as a commit of org/name; returns where it lies."""
    from huggingface_hub import constants

    cache = tmp_path / "hub" / f"models--org--{name}"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(commit)
    (cache / "snapshots").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return folder.rename(cache / "snapshots" / commit)


class Trap:
    """Unpickling this creates a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)
