"""Vectors of sentence-transformers folders beside those of sentence-transformers itself.

The oracle is a real `SentenceTransformer` of the same folder, asked by ``encode_query`` and
``encode_document`` as a user would.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from foundation.errors import BenchError
from retrievers.encoders.transformer import open_encoder
from retrievers.encoders.views import View
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from tests.support import tiny_checkpoints as tiny
from tests.support.tiny_checkpoints import write_ance

sentence_transformers = pytest.importorskip("sentence_transformers")
parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

LONG = [
    "the river of stone " * 9 + "cloud alpha",
    "beta gamma " * 20 + "river",
    "delta",
    "Alpha BETA gamma [SEP] Delta " * 5,
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that version 5.7 saved."""
    folder = tmp_path_factory.mktemp("saved")
    tiny.write_bert(folder / "plain")
    transformer = parts.Transformer(str(folder / "plain"))
    whole = [transformer, parts.Pooling(32, pooling_mode="mean")]
    sentence_transformers.SentenceTransformer(modules=whole, device="cpu").save(str(folder / "st"))
    return folder / "st"


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return shutil.copytree(saved, tmp_path / "st")


def state(folder: Path, **settings: Any) -> None:
    """Let a folder have other settings than it was saved with."""
    tiny.write_json(folder / "config_sentence_transformers.json", settings)


def change(path: Path, **changes: Any) -> None:
    tiny.write_json(path, {**json.loads(path.read_text()), **changes})


def assert_agrees(folder: Path, texts: list[str]) -> None:
    """Cosines, so that a folder without normalisation may be normalised here, and both sides."""
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    ours = open_encoder(resolve_model(str(folder)), "cpu")
    pairs = [
        (theirs.encode_query(texts), ours.encode_queries(texts)),
        (theirs.encode_document(texts), ours.encode_documents([""] * len(texts), texts)),
    ]
    for expected, vectors in pairs:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


PROMPTS: list[dict[str, Any]] = [
    {},
    {"prompts": {"query": "alpha ", "document": "beta "}},
    {"prompts": {"query": "alpha ", "passage": "beta "}},
    {"prompts": {"query": "", "passage": "beta ", "corpus": "beta "}},
    {"prompts": {"query": None, "document": None}},
    {"prompts": {"document": "beta "}, "default_prompt_name": "document"},
    {"prompts": {"other": "gamma "}, "default_prompt_name": "other"},
    {"prompts": {"query": "", "document": "", "other": "gamma "}, "default_prompt_name": "other"},
    {"prompts": {}, "default_prompt_name": "query"},
]


@pytest.mark.parametrize("settings", PROMPTS, ids=str)
def test_prompts_are_those_of_encode_query_and_encode_document(
    folder: Path, settings: dict[str, Any]
) -> None:
    if settings:
        state(folder, **settings)
    assert_agrees(folder, tiny.SENTENCES)


@pytest.mark.parametrize("where", ["tokenizer_config.json", "tokenizer.json", "both"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_that_are_too_long_are_cut_on_the_tokenizers_side(
    folder: Path, side: str, where: str
) -> None:
    if where != "tokenizer_config.json":  # if both differ, the other one decides
        stated = {"left": "Right", "right": "Left"}[side] if where == "both" else side.title()
        cut = {"direction": stated, "max_length": 16, "strategy": "LongestFirst", "stride": 0}
        change(folder / "tokenizer.json", truncation=cut)
    if where != "tokenizer.json":
        change(folder / "tokenizer_config.json", truncation_side=side)
    change(folder / "tokenizer_config.json", model_max_length=16)
    assert_agrees(folder, LONG)
    recipe = resolve_model(str(folder)).recipe
    assert (recipe.truncation_side, recipe.max_document_tokens) == (side, 16)


def test_a_card_overrides_the_folder_and_differences_are_reported(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state(folder, truncate_dim=16, prompts={"passage": "beta "})
    found = resolve_model(str(folder)).recipe
    assert (found.kind, found.compression.dimensions) == ("transformer", 16)
    assert "truncate_dim = 16, so 16 dimensions are searched by default" in caplog.text
    change(folder / "tokenizer_config.json", truncation_side="left")
    card = tiny.write_card(tmp_path / "own.toml", checkpoint=str(folder), pooling="mean")
    recipe = resolve_model(str(card)).recipe
    assert (recipe.truncation_side, recipe.dim) == ("right", 32)
    assert "states truncation_side left, but right is used" in caplog.text
    assert "states dimensions 16, but None is used" in caplog.text


def test_truncated_vectors_are_those_of_sentence_transformers(folder: Path) -> None:
    state(folder, truncate_dim=16)
    model = resolve_model(str(folder))
    stored = open_encoder(model).encode_documents([""] * 3, tiny.SENTENCES[:3])
    ours = View.of(model.recipe).transform_documents(stored)
    library = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    theirs = library.encode_document(list(tiny.SENTENCES[:3]), normalize_embeddings=True)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert (
        resolve_model(str(folder), ModelSettings(dimensions=8)).recipe.compression.dimensions == 8
    )


def test_lengths_are_the_tokenizers_within_the_positions(folder: Path) -> None:
    for length in (16, 40, 10**30):
        change(folder / "tokenizer_config.json", model_max_length=length)
        assert_agrees(folder, LONG)
    change(folder / "sentence_bert_config.json", max_seq_length=9)
    assert_agrees(folder, LONG)


@pytest.mark.parametrize("own", [True, False])
def test_do_lower_case_of_a_folder_applies_with_any_tokenizer(folder: Path, own: bool) -> None:
    state(folder, prompts={"query": "ALPHA "})
    normalizer = json.loads((folder / "tokenizer.json").read_text())["normalizer"]
    change(folder / "tokenizer.json", normalizer={**normalizer, "lowercase": own})
    change(folder / "tokenizer_config.json", do_lower_case=own)
    change(folder / "sentence_bert_config.json", do_lower_case=True)
    texts = [*LONG, "THE RIVER", "The [SEP] Stone", "\u039f\u03a3 \u0130 \u1e9e"]
    assert_agrees(folder, texts)
    assert resolve_model(str(folder)).recipe.lower_case == (not own)


def test_the_layout_of_ance(tmp_path: Path) -> None:
    folder = write_ance(tmp_path)
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    assert theirs.tokenizer.tokenize("ABC") == theirs.tokenizer.tokenize("abc")
    assert_agrees(folder, [*LONG, "THE RIVER OF STONE", "the river of stone", "\u00c4\u00d6 <s> X"])
    assert resolve_model(str(folder)).recipe.lower_case


@pytest.mark.parametrize("broken", ["folder", "link to nothing"])
@pytest.mark.parametrize(
    "name",
    ["config_sentence_transformers.json", "sentence_bert_config.json", "tokenizer_config.json"],
)
def test_unreadable_settings_are_not_treated_as_absent(
    folder: Path, name: str, broken: str
) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    if broken == "folder":
        path.mkdir()
    else:
        path.symlink_to(folder / "gone")
    with pytest.raises(BenchError, match=f"cannot read .*{name}"):
        resolve_model(str(folder))


def test_rotary_positions_do_not_end_where_the_configuration_does(tmp_path: Path) -> None:
    sizes = {**tiny.SIZES, "vocab_size": len(tiny.VOCABULARY), "max_position_embeddings": 64}
    config = transformers.LlamaConfig(**sizes, pad_token_id=0, bos_token_id=2, eos_token_id=3)
    model = tiny.seeded(lambda: transformers.LlamaModel(config))
    folder = tiny.write_st_folder(tmp_path / "llama")
    pooling = {"embedding_dimension": 32, "pooling_mode": "mean"}
    tiny.write_json(folder / "1_Pooling" / "config.json", pooling)
    model.save_pretrained(str(folder))
    tiny.write_tokenizer(folder)
    tiny.write_json(folder / "sentence_bert_config.json", {"max_seq_length": 128})
    assert_agrees(folder, ["the river of stone " * 25, *LONG])
    longer = resolve_model(str(folder), ModelSettings(max_document_tokens=256))
    assert longer.recipe.max_document_tokens == 256
