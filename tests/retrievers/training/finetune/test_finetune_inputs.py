"""The model in training gives the vectors with which its folder is evaluated."""

import numpy as np
import pytest
import torch

from foundation.errors import BenchError
from retrievers.encoders.routed import open_encoder
from retrievers.models.model import resolve_model
from retrievers.training.engine.save import save_checkpoint
from retrievers.training.finetune.finetune import finetune
from retrievers.training.finetune.student import (
    Inputs,
    build_student,
    finished_card,
    training_recipe,
)
from tests.support.small_finetuning import (
    MINED,
    QUERIES,
    TEXTS,
    TITLES,
    examples,
    model,
    on_cpu,
    preset,
    tiny,
)
from tests.support.tiny_roberta import write_roberta

LONG = " ".join(TEXTS[:6])
CARDS = {
    "cls, dot": {},
    "mean, cosine": {"pooling": "mean", "normalize": True, "similarity": "cos"},
    "last token, prompts": {
        "pooling": "last",
        "prompts": {"query": "alpha ", "document": "beta "},
    },
    "title as a pair": {"title_join": "pair"},
    "title as a pair of one segment": {"title_join": "pair", "segment_ids": False},
    "title before a separator": {"title_join": "sep"},
    "no title, short": {"title_join": "none", "max_query_tokens": 5, "max_document_tokens": 9},
}


@pytest.mark.parametrize("name", CARDS)
def test_vectors_in_training_are_those_of_the_saved_folder(tmp_path, name):
    start, settings = model(tmp_path, **CARDS[name]), preset()
    card = finished_card(start, settings, ("toy",))
    recipe = training_recipe(start, card, settings)
    trained = build_student(start, recipe).eval()
    inputs = Inputs(trained[0].processor, trained[0].model, recipe)
    texts = [*TEXTS[:5], LONG]
    with torch.no_grad():
        queries = trained(inputs.queries([*QUERIES, LONG]))["sentence_embedding"].numpy()
        documents = trained(inputs.documents(TITLES[:6], texts))["sentence_embedding"].numpy()
    save_checkpoint(trained[0].model, trained[0].processor, tmp_path / "out", card)
    evaluated = resolve_model(str(tmp_path / "out"))
    encoder = open_encoder(evaluated, "cpu")
    assert evaluated.recipe.prompts == start.recipe.prompts
    np.testing.assert_allclose(queries, encoder.encode_queries([*QUERIES, LONG]), atol=1e-5)
    np.testing.assert_allclose(documents, encoder.encode_documents(TITLES[:6], texts), atol=1e-5)


def test_the_preset_decides_how_the_finished_folder_is_used(tmp_path):
    use = '[use]\npooling = "mean"\nnormalize = true\nsimilarity = "cos"\nmax_query_tokens = 7\n'
    finetune(preset(use, steps=1), model(tmp_path), examples(), on_cpu(tmp_path / "out"))
    found = resolve_model(str(tmp_path / "out"))
    recipe = found.recipe
    assert (recipe.pooling, recipe.normalize, recipe.similarity) == ("mean", True, "cos")
    assert (recipe.max_query_tokens, recipe.max_document_tokens) == (7, 32)
    assert found.card.trained_on == ("toy",)


def test_a_preset_lower_cases_for_a_tokenizer_that_does_not(tmp_path):
    """In training, in the card, and in sentence-transformers, which does not read the card."""
    from sentence_transformers import SentenceTransformer

    write_roberta(tmp_path / "start")
    start = resolve_model(
        str(tiny.write_card(tmp_path / "start.toml", checkpoint="start", pooling="cls"))
    )
    settings = preset("[use]\nlower_case = true\n", steps=1)
    finetune(settings, start, examples(), on_cpu(tmp_path / "out"))
    found = resolve_model(str(tmp_path / "out"))
    assert (start.recipe.lower_case, found.recipe.lower_case) == (False, True)
    assert "lower_case = true" in (tmp_path / "out" / "card.toml").read_text()

    recipe = training_recipe(start, finished_card(start, settings, ()), settings)
    tokenizer = build_student(start, recipe)[0].processor
    assert tokenizer("ABC Ä").input_ids == tokenizer("abc ä").input_ids
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    trained = [theirs.encode, open_encoder(found, "cpu").encode_queries]
    for encode in (*trained, open_encoder(start, "cpu").encode_queries):
        capital, small = encode(["ABC", "abc"])
        assert np.allclose(capital, small, atol=1e-4) == (encode in trained)
    np.testing.assert_allclose(*(encode(["A river", "ABC"]) for encode in trained), atol=1e-5)


def test_texts_may_be_shorter_in_training_than_afterwards(tmp_path):
    start, settings = model(tmp_path), preset("max_query_tokens = 4\nmax_document_tokens = 6\n")
    card = finished_card(start, settings, ())
    recipe = training_recipe(start, card, settings)
    assert (recipe.max_query_tokens, recipe.max_document_tokens) == (4, 6)
    assert (card.max_query_tokens, card.max_document_tokens) == (32, 32)


def test_what_the_start_was_trained_on_stays_on_the_card(tmp_path):
    start = model(tmp_path, trained_on=["first"], warning="pre-trained only", licence="MIT")
    card = finished_card(start, preset(), ("second", "first"))
    assert card.trained_on == ("first", "second")
    assert (card.warning, card.licence, card.expected) == ("", "MIT", ())


@pytest.mark.parametrize(
    ("card", "table", "problem"),
    [
        ({"pooling": "pooler"}, "", "pooling by 'pooler' is not trained"),
        ({}, "[use]\nmax_document_tokens = 65\n", "65 tokens do not fit"),
        ({}, "max_query_tokens = 80\n", "80 tokens do not fit"),
        ({}, '[use]\nsimilarity = "cos"\n', "cos needs normalize"),
    ],
)
def test_a_start_that_cannot_be_trained_so_is_refused(tmp_path, card, table, problem):
    with pytest.raises(BenchError, match=problem):
        finished_card(model(tmp_path, **card), preset(table), ())


def test_a_model_without_a_checkpoint_cannot_be_trained():
    with pytest.raises(BenchError, match="bm25 cannot be fine-tuned: it is no transformer"):
        finished_card(resolve_model("bm25"), preset(), ())


def test_two_encoders_are_refused(tmp_path):
    for name in ("one", "two"):
        tiny.write_bert(tmp_path / name)
    card = tiny.write_card(
        tmp_path / "untied.toml", checkpoint="one", query_checkpoint="two", pooling="cls"
    )
    with pytest.raises(BenchError, match="it has two encoders"):
        finished_card(resolve_model(str(card)), preset(), ())


def test_a_preset_that_mines_needs_a_search(tmp_path):
    with pytest.raises(BenchError, match="no search was handed in"):
        finetune(preset(MINED), model(tmp_path), examples(), on_cpu(tmp_path / "out"))
