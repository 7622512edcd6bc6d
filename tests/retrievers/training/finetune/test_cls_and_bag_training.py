"""Fine-tuning of `[CLS]` beside a bag of words: the head is trained, saved, and searched with."""

import numpy as np
import pytest
import torch
import transformers

from foundation.errors import BenchError
from retrievers.encoders.opening import open_encoder
from retrievers.models.model import resolve_model
from retrievers.training.engine.save import save_heads
from retrievers.training.finetune.finetune import finetune
from retrievers.training.finetune.inputs import Inputs
from retrievers.training.finetune.student import build_student, training_recipe
from retrievers.training.objectives.dupmae import DupMAE
from tests.support import tiny_checkpoints as tiny
from tests.support import tiny_encoders
from tests.support.kills import KilledError, killed_at
from tests.support.small_finetuning import (
    QUERIES,
    TEXTS,
    TITLES,
    Search,
    examples,
    first_words_found,
    on_cpu,
    preset,
    same_weights,
    weights,
)

JOINT = """
[loss]
name = "contrastive"
temperature = 20.0
[optimizer]
lr = 3e-3
warmup = 0.0
[use]
pooling = "cls+bow"
"""
ROUNDS = 'hard_negatives = 1\n[[rounds]]\nsources = ["model"]\ndepth = 12\n'
WORDS = 500  # more than a document keeps


def start(folder):
    config = tiny.bert_config(vocab_size=WORDS, initializer_range=0.1)
    whole = tiny.seeded(lambda: transformers.BertForMaskedLM(config))
    torch.nn.init.normal_(whole.cls.predictions.decoder.bias, std=0.5)
    whole.save_pretrained(str(folder / "start"))
    tiny.write_tokenizer(folder / "start")
    fields = {"checkpoint": "start", "pooling": "cls", "title_join": "none"}
    return resolve_model(str(tiny.write_card(folder / "start.toml", **fields)))


def run(folder, name="out", steps=8, **options):
    settings = preset(ROUNDS + ROUNDS.partition("\n")[2] + JOINT, steps=steps)
    context = on_cpu(folder / name, **options)
    finetune(settings, start(folder), examples(), context, mine=Search())
    return folder / name


def test_the_finished_folder_has_the_vectors_and_the_head_that_were_trained(tmp_path):
    out = run(tmp_path)
    before, after = (weights(folder) for folder in (tmp_path / "start", out))
    assert before.keys() == after.keys()
    head = [name for name in after if name.startswith("cls.")]
    assert head
    assert all(np.abs(before[name] - after[name]).max() > 1e-4 for name in head)
    model = resolve_model(str(out))
    assert model.recipe.pooling == "cls+bow"
    assert model.recipe.dim == 32 + WORDS
    assert not (out / "modules.json").exists()  # whose vectors would be others
    student = build_student(model, model.recipe).eval()
    inputs = Inputs(student[0].processor, student[0].model, model.recipe)
    encoder = open_encoder(model, "cpu")
    with torch.no_grad():
        documents = student(inputs.documents(TITLES, TEXTS))["sentence_embedding"].numpy()
        queries = student(inputs.queries(QUERIES))["sentence_embedding"].numpy()
    np.testing.assert_allclose(encoder.encode_documents(TITLES, TEXTS), documents, atol=1e-4)
    np.testing.assert_allclose(encoder.encode_queries(QUERIES), queries, atol=1e-4)
    assert (documents[:, 32:] == 0).sum() == len(TEXTS) * (WORDS - 384)
    assert (queries != 0).all()


def test_gradients_reach_the_words_that_a_document_keeps_and_no_others(tmp_path):
    model = start(tmp_path)
    settings = preset(JOINT)
    card = settings.use.of(model.card)
    recipe = training_recipe(model, card, settings)
    student = build_student(model, recipe)
    inputs = Inputs(student[0].processor, student[0].model, recipe)
    bias = student[1].head.predictions.decoder.bias
    vectors = student.train()(inputs.documents(TITLES[:3], TEXTS[:3]))["sentence_embedding"]
    vectors[:, 32:].square().sum().backward()
    kept = (vectors[:, 32:] != 0).any(dim=0)
    assert kept.sum() < WORDS
    assert ((bias.grad != 0) == kept).all()


def test_training_finds_the_relevant_documents_and_goes_on_where_it_was_killed(tmp_path):
    whole = run(tmp_path, "whole", steps=80, save_every=20)
    with pytest.raises(KilledError):
        run(tmp_path, steps=80, save_every=20, progress=killed_at(50, "round 2"))
    assert same_weights(run(tmp_path, steps=80, save_every=20), whole)
    assert first_words_found(whole) > 0.8


def test_another_head_that_lies_apart_is_another_training(tmp_path):
    masked = tiny_encoders.encoder(vocab_size=WORDS).float()
    module = DupMAE().build_module(masked)
    masked.encoder.save_pretrained(str(tmp_path / "start"))
    tiny_encoders.tokenizer(tmp_path).save_pretrained(str(tmp_path / "start"))
    card = tiny.write_card(tmp_path / "start.toml", checkpoint="start", pooling="cls")
    settings = preset(JOINT, steps=2)

    def train():
        save_heads(module, masked.encoder, tmp_path / "start", DupMAE())
        finetune(settings, resolve_model(str(card)), examples(), on_cpu(tmp_path / "out"))

    train()
    train()  # finished, and not repeated
    torch.nn.init.ones_(masked.head.predictions.decoder.bias)
    with pytest.raises(BenchError, match="another"):
        train()


def test_adapters_and_parts_are_refused(tmp_path):
    for table in ("[adapter]\nmethod = 'lora'\n", "[part]\nname = 'biases'\n"):
        with pytest.raises(BenchError, match="trained with its language-model head"):
            finetune(preset(JOINT + table), start(tmp_path), examples(), on_cpu(tmp_path / "out"))
