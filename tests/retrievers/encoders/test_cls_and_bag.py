"""`[CLS]` beside a bag of words: against loops over every token and word, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from foundation.errors import BenchError
from retrievers.encoders.opening import open_encoder
from retrievers.encoders.views import every_pooling
from retrievers.models.model import Model, resolve_model
from retrievers.training.engine.save import save_heads
from retrievers.training.objectives.dupmae import DupMAE
from tests.support import slow_transformer as slow
from tests.support import tiny_checkpoints as checkpoints
from tests.support import tiny_encoders as tiny

WIDTH, WORDS = 16, 600  # more words than a document keeps
POOLING = {"checkpoint": "model", "pooling": "cls+bow", "title_join": "none"}


def write(folder: Path, architecture: str = "bert", *, head: bool = True) -> Any:
    """A checkpoint with its head, or without; the model in float64."""
    masked = tiny.encoder(architecture, vocab_size=WORDS)
    torch.nn.init.normal_(masked.head.get_parameter(BIAS[architecture]), std=2.0)
    whole = masked.model.eval()
    (whole if head else whole.base_model).save_pretrained(str(folder / "model"))
    tiny.tokenizer(folder).save_pretrained(str(folder / "model"))
    return masked


BIAS = {"bert": "predictions.decoder.bias", "roberta": "bias"}


def resolved(folder: Path, **fields: Any) -> Model:
    return resolve_model(str(checkpoints.write_card(folder / "tiny.toml", **POOLING, **fields)))


def vectors_by_hand(masked: Any, texts: list[str], folder: Path) -> list[list[float]]:
    """[h_0; v] of one text at a time, one logit at a time."""
    tokenizer, vectors = tiny.tokenizer(folder), []
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            first, *others = masked(ids, torch.ones_like(ids))[-1][0].tolist()
        logits = [slow.logits(masked.model, state) for state in others]
        vectors.append([*first, *(max(column) for column in zip(*logits, strict=True))])
    return vectors


def of_document(vector: list[float]) -> list[float]:
    """A document's vector from its text's: zeros for all but the 384 largest numbers of v."""
    first, bag = vector[:WIDTH], vector[WIDTH:]
    largest = set(sorted(range(len(bag)), key=lambda place: -bag[place])[:384])
    return [*first, *(number if place in largest else 0.0 for place, number in enumerate(bag))]


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_vectors_are_those_of_the_formula(architecture: str, tmp_path: Path) -> None:
    masked = write(tmp_path, architecture)
    model = resolved(tmp_path)
    encoder = open_encoder(model, "cpu")
    texts = [*tiny.TEXTS, "stone"]  # of several lengths, so that batches are padded
    expected = vectors_by_hand(masked, texts, tmp_path)
    queries = encoder.encode_queries(texts)
    documents = encoder.encode_documents([""] * len(texts), texts)
    assert model.recipe.dim == encoder.dim == WIDTH + WORDS
    np.testing.assert_allclose(queries, expected, atol=2e-4)
    np.testing.assert_allclose(documents, [of_document(one) for one in expected], atol=2e-4)
    assert ((documents[:, WIDTH:] != 0).sum(axis=1) == 384).all()
    for query, vector in zip(expected, queries, strict=True):
        for document, row in zip(expected, documents, strict=True):
            kept = sorted(range(WORDS), key=lambda i: -document[WIDTH + i])[:384]
            score = sum(query[i] * document[i] for i in range(WIDTH))
            score += sum(query[WIDTH + i] * document[WIDTH + i] for i in kept)
            assert vector.astype(float) @ row.astype(float) == pytest.approx(score, rel=1e-4)


def test_a_head_that_lies_apart_is_read_and_is_a_part_of_the_fingerprint(tmp_path: Path) -> None:
    masked = write(tmp_path / "whole")
    write(tmp_path / "apart", head=False)
    module = DupMAE().build_module(masked)
    save_heads(module, masked.encoder, tmp_path / "apart" / "model", DupMAE())
    whole, apart = resolved(tmp_path / "whole"), resolved(tmp_path / "apart")
    both = [open_encoder(model, "cpu").encode_queries(tiny.TEXTS) for model in (whole, apart)]
    np.testing.assert_allclose(*both, atol=1e-6)
    torch.nn.init.zeros_(module.get_parameter("encoder.model.cls.predictions.decoder.bias"))
    save_heads(module, masked.encoder, tmp_path / "apart" / "model", DupMAE())
    changed = resolved(tmp_path / "apart")
    assert changed.recipe.fingerprint != apart.recipe.fingerprint
    assert np.abs(open_encoder(changed, "cpu").encode_queries(tiny.TEXTS) - both[0]).max() > 0.1


def test_a_head_that_is_nowhere_is_not_made_up(tmp_path: Path) -> None:
    write(tmp_path, head=False)
    with pytest.raises(BenchError, match=r"lacks .* language-model head"):
        open_encoder(resolved(tmp_path), "cpu").encode_queries(["stone"])


@pytest.mark.parametrize("stated", ["many", True, 0, None])
def test_a_configuration_must_state_how_many_words_there_are(tmp_path: Path, stated: Any) -> None:
    write(tmp_path)
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"vocab_size": stated}
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(BenchError, match=r"config\.json states no size of its vocabulary"):
        resolved(tmp_path)


def test_an_architecture_whose_head_is_not_known_is_refused(tmp_path: Path) -> None:
    sizes = {"dim": 16, "n_heads": 2, "hidden_dim": 24, "n_layers": 1, "vocab_size": WORDS}
    config = transformers.DistilBertConfig(**sizes)
    transformers.DistilBertForMaskedLM(config).save_pretrained(str(tmp_path / "model"))
    tiny.tokenizer(tmp_path).save_pretrained(str(tmp_path / "model"))
    with pytest.raises(BenchError, match="the head of a distilbert is not known") as error:
        open_encoder(resolved(tmp_path), "cpu").encode_queries(["stone"])
    assert "bert, roberta" in str(error.value.hint)


def test_what_gives_hidden_states_alone_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    card = str(checkpoints.write_card(tmp_path / "tiny.toml", **POOLING))
    with pytest.raises(BenchError, match=r"is pooled by 'cls\+bow'"):
        resolve_model(card, backend="onnx")
    with pytest.raises(BenchError, match="has no other view"):
        every_pooling(resolved(tmp_path).recipe)
    checkpoints.write_json(tmp_path / "lora" / "adapter_config.json", {"peft_type": "LORA"})
    with pytest.raises(BenchError, match="language-model head fits no adapter"):
        resolve_model(card, adapter=str(tmp_path / "lora"))
    with pytest.raises(BenchError, match="no stages after it, and no normalize"):
        resolved(tmp_path, normalize=True)
