"""The model in training: vectors of its folder, the part that is trained, and what is refused."""

import json

import msgspec
import numpy as np
import pytest
import torch

from foundation.errors import BenchError
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from retrievers.training.engine.run_folder import save_checkpoint
from retrievers.training.finetune.finetune import finetune
from retrievers.training.finetune.student import (
    TextInputs,
    build_student,
    trained_card,
    training_recipe,
)
from tests.support.small_finetuning import (
    MINED,
    QUERIES,
    TEXTS,
    TITLES,
    examples,
    model,
    preset,
    tiny,
)
from tests.support.small_starts import on_cpu, weights
from tests.support.tiny_checkpoints import write_roberta

LONG = " ".join(TEXTS[:6])
CARDS = {
    "cls, dot": {},
    "mean, cosine": {"pooling": "mean", "normalize": True, "similarity": "cos"},
    "last token, prompts": {"pooling": "last", "prompts": {"query": "alpha ", "document": "beta "}},
    "title as a pair": {"title_join": "pair"},
    "title as a pair of one segment": {"title_join": "pair", "segment_ids": False},
    "title before a separator": {"title_join": "sep"},
    "no title, short": {"title_join": "none", "max_query_tokens": 5, "max_document_tokens": 9},
}


@pytest.mark.parametrize("name", CARDS)
def test_vectors_in_training_are_those_of_the_saved_folder(tmp_path, name):
    start, settings = model(tmp_path, **CARDS[name]), preset()
    card = trained_card(start, settings, ("toy",))
    recipe = training_recipe(start, card, settings)
    trained = build_student(start, recipe).eval()
    inputs = TextInputs(trained[0].processor, trained[0].model, recipe)
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
    start = model(tmp_path, trained_on=["first", "toy"], warning="only begun", licence="MIT")
    finetune(preset(use, steps=1), start, examples(), on_cpu(tmp_path / "out"))
    found = resolve_model(str(tmp_path / "out"))
    recipe = found.recipe
    assert (recipe.pooling, recipe.normalize, recipe.similarity) == ("mean", True, "cos")
    assert (recipe.max_query_tokens, recipe.max_document_tokens) == (7, 32)
    assert found.card.trained_on == ("first", "toy")  # the start model's stay
    assert (found.card.warning, found.card.licence, found.card.expected) == ("", "MIT", ())


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

    recipe = training_recipe(start, trained_card(start, settings, ()), settings)
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
    card = trained_card(start, settings, ())
    recipe = training_recipe(start, card, settings)
    assert (recipe.max_query_tokens, recipe.max_document_tokens) == (4, 6)
    assert (card.max_query_tokens, card.max_document_tokens) == (32, 32)


NESTED = '[loss]\nname = "contrastive"\nmatryoshka = [{}]\n'


def test_trained_dimensions_are_on_the_card_and_in_the_record(tmp_path):
    settings, start = preset(NESTED.format("8, 4"), steps=1), model(tmp_path, normalize=True)
    width = start.recipe.dim
    done = finetune(settings, start, examples(), on_cpu(tmp_path / "out"))
    assert done.dimensions == (width, 8, 4)
    again = finetune(settings, start, examples(), on_cpu(tmp_path / "out"))
    assert again == msgspec.structs.replace(done, found=True)
    assert json.loads((tmp_path / "out/trained.json").read_text())["dimensions"] == [width, 8, 4]
    title = resolve_model(str(tmp_path / "out")).card.title
    assert title.endswith(f"(contrastive loss at {width}, 8, 4 dimensions)")
    plain = finetune(preset(steps=1), start, examples(), on_cpu(tmp_path / "plain"))
    assert plain.dimensions == (width,)


@pytest.mark.parametrize(
    ("card", "table", "problem"),
    [
        ({"pooling": "pooler"}, "", "pooling 'pooler' cannot be"),
        ({}, "[use]\nmax_document_tokens = 65\n", "have up to 65"),
        ({}, "max_query_tokens = 80\n", "have up to 80"),
        ({}, '[use]\nsimilarity = "cos"\n', "cos needs normalize"),
        ({"query_checkpoint": "start"}, "", "it has two encoders"),
        ({}, 'part = { name = "last-layers", layers = 3 }\n', "is 3, but the encoder has 2"),
        ({}, NESTED.format("32, 4"), "32 dimensions, and vectors of start have 32"),
        ({}, NESTED.format("8, 4"), "needs unit vectors, and start does not normalize"),
    ],
)
def test_an_unsuitable_start_model_is_refused(tmp_path, card, table, problem):
    with pytest.raises(BenchError, match=problem):
        finetune(preset(table), model(tmp_path, **card), examples(), on_cpu(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_preset_that_mines_needs_a_search(tmp_path):
    with pytest.raises(BenchError, match="no search was passed"):
        finetune(preset(MINED), model(tmp_path), examples(), on_cpu(tmp_path / "out"))


LAYER = "encoder.layer.1."
EVERY_WEIGHT = "[optimizer]\nlr = 3e-3\nwarmup = 0.0\nweight_decay = 0.1\n"


def trained(folder, part, name="out"):
    start = model(folder)
    out = folder / name
    done = finetune(preset(part + EVERY_WEIGHT, steps=3), start, examples(), on_cpu(out))
    return weights(start.document.root), weights(out), done.size


def changed(before, after):
    return {name for name in after if not np.array_equal(before[name], after[name])}


def used(names):
    """Without the pooler, which no vector depends on."""
    return {name for name in names if not name.startswith("pooler.")}


@pytest.mark.parametrize(
    ("part", "belongs"),
    [
        ('part = { name = "biases" }\n', lambda name: name.endswith(".bias")),
        ('part = { name = "last-layers", layers = 1 }\n', lambda name: name.startswith(LAYER)),
    ],
)
def test_exactly_the_weights_of_the_part_change_and_are_counted(tmp_path, part, belongs):
    before, after, size = trained(tmp_path, part)
    wanted = {name for name in used(before) if belongs(name)}
    # The gradient of the bias of keys is 0: softmax does not see what is added to all its inputs.
    exempt = {name for name in wanted if name.endswith("key.bias")}
    assert wanted - exempt <= used(changed(before, after)) <= wanted
    assert size.trained == sum(before[name].numel() for name in before if belongs(name))
    assert size.parameters == sum(value.numel() for value in before.values())


def test_a_part_has_a_learning_rate_of_its_own(tmp_path):
    text = 'part = { name = "biases", lr = 0.5 }\n' + EVERY_WEIGHT
    settings = preset(text)
    assert (settings.effective_optimizer().lr, settings.effective_optimizer().weight_decay) == (
        0.5,
        0.1,
    )
    assert preset(text.replace(", lr = 0.5", "")).effective_optimizer() == settings.optimizer
