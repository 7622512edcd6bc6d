"""The length that a server reads, for real servers that cut, split or refuse long texts."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import transformers

from bench.gate.server import ServedLength, find_length
from retrievers.encoders.endpoint import EndpointEncoder
from retrievers.models.card import Card, Recipe
from retrievers.models.resolve import Model, resolve_model
from tests.support.embedding_server import EmbeddingServer, Reply, serving
from tests.support.tiny_checkpoints import write_bert, write_card

pytest.importorskip("openai", reason="needs openai: pip install openai")
STATED = 24
Encode = Callable[[list[str]], np.ndarray]
Pieces = Callable[[list[int]], list[list[int]]]  # of a text's tokens, whose vectors are averaged


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    folder = tmp_path_factory.mktemp("length")
    write_bert(folder / "bert")
    fields = {"pooling": "mean", "max_query_tokens": STATED, "max_document_tokens": STATED}
    return resolve_model(str(write_card(folder / "tiny.toml", checkpoint="bert", **fields)))


def encode(model: Model, pieces: Pieces) -> Encode:
    """Vectors of a tiny BERT by transformers, with mean pooling."""
    folder = model.checkpoint.folder
    network = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def vector(ids: list[int]) -> np.ndarray:
        around = [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]
        with torch.inference_mode():
            return network(torch.tensor([around])).last_hidden_state[0].mean(dim=0).numpy()

    def encode(texts: list[str]) -> np.ndarray:
        each = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        return np.stack([np.mean([vector(p) for p in pieces(ids)], axis=0) for ids in each])

    return encode


def split(ids: list[int], most: int) -> list[list[int]]:
    return [ids[start : start + most] for start in range(0, len(ids), most)]


def find(model: Model, encode: Encode, **fields) -> tuple[ServedLength | None, EmbeddingServer]:
    with serving(encode, **fields) as (url, app):
        recipe = Recipe(model="m", kind="endpoint", dim=32, options={"endpoint_model": "m"})
        card = Card(name="m", title="m", kind="endpoint", endpoint_model="m", url=url)
        return find_length(EndpointEncoder(recipe, card), model), app


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        (lambda ids: [ids[:22]], (24, "lose their end")),
        (lambda ids: [ids[:9]], (11, "lose their end")),
        (lambda ids: [ids[:23]], (25, "lose their end")),
        (lambda ids: [ids[-18:]], (20, "lose their beginning")),
        (lambda ids: split(ids, 28)[-1:], (30, "lose their beginning")),
    ],
)
def test_the_length_is_exact_also_for_the_last_piece_of_a_text(model, pieces, found):
    length, app = find(model, encode(model, pieces))
    assert (length.tokens, length.longer) == found
    assert length.agrees == (length.tokens == STATED)
    same = f"--set max_query_tokens={found[0]} max_document_tokens={found[0]}"
    assert (length.note.apply == same) == (found[1] == "lose their end" and not length.agrees)
    assert len(app.requests) <= 13 * 4


def test_a_server_that_refuses_longer_texts_has_the_length_of_the_longest(model):
    def refuse(request):
        long = max(len(text.split()) for text in request.texts) > 15
        return Reply(413, {"message": "too long"}) if long else None

    length, _ = find(model, encode(model, lambda ids: [ids]), before=refuse)
    assert (length.tokens, length.longer) == (17, "are refused")


def test_a_server_that_averages_pieces_reads_everything(model, monkeypatch):
    monkeypatch.setattr("bench.gate.server.MOST_TOKENS", 64)
    length, _ = find(model, encode(model, lambda ids: split(ids, 22)))
    assert (length.tokens, length.longer, length.agrees) == (64, "", False)
    assert length.note.name == "the server reads texts of 64 tokens, not 24"


def test_vectors_that_depend_on_more_than_the_text_have_no_length(model):
    random = np.random.default_rng(0)
    length, _ = find(model, lambda texts: random.normal(size=(len(texts), 32)))
    assert length is None
