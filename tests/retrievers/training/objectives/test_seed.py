"""SEED: the loss against loops, and what the weak decoder may see."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foundation.errors import BenchError
from retrievers.training.objectives.objective import read_objective
from retrievers.training.objectives.seed import SEED, window
from tests.support import slow_transformer as slow
from tests.support import tiny_encoders as tiny

Batch = dict[str, Tensor]


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    collate = SEED(mask=0.3).collator(tiny.tokenizer(tmp_path), 14)
    return collate(tiny.examples(tiny.TEXTS[:3]))


def slow_decoder_loss(heads: Any, batch: Batch, span: int) -> float:
    """One token at a time: place 0 of the context is the sentence embedding."""
    states = heads.encoder(batch["input_ids"], batch["attention_mask"])[-1]
    embedded = heads.encoder.embed(batch["decoder_input_ids"])
    decoded = []
    for text, tokens in zip(states.tolist(), embedded.tolist(), strict=True):
        stream = tokens
        for layer in heads.decoder:
            seen = [[], *([0, *range(max(1, i + 1 - span), i + 1)] for i in range(1, 14))]
            both = [text[0], *stream]
            stream = slow.transformer_layer(layer, both, [[0], *seen[1 : len(both)]])[1:]
        decoded.append(stream)
    return slow.masked_lm_loss(heads.encoder.model, decoded, batch["decoder_labels"])


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
@pytest.mark.parametrize(("layers", "span"), [(3, 2), (1, 8), (1, 1)])
def test_the_loss_is_that_of_both_ends(
    architecture: str, layers: int, span: int, batch: Batch
) -> None:
    settings = SEED(decoder_layers=layers, span=span)
    heads = settings.build_module(tiny.encoder(architecture)).double()
    with torch.no_grad():
        losses = {name: loss.item() for name, loss in heads(**batch).items()}
        states = heads.encoder(batch["input_ids"], batch["attention_mask"])[-1]
        mlm = slow.masked_lm_loss(heads.encoder.model, states.tolist(), batch["labels"])
        decoder = slow_decoder_loss(heads, batch, span)
    expected = {"loss": mlm + decoder, "encoder_mlm": mlm, "decoder": decoder}
    assert losses == pytest.approx(expected, abs=1e-8)


def test_the_decoder_has_a_gradient_at_cls_only(batch: Batch) -> None:
    heads = SEED().build_module(tiny.encoder()).double()
    states = heads.encoder(batch["input_ids"], batch["attention_mask"])[-1].detach()
    states.requires_grad_()
    stream = heads.decode(states[:, :1], batch["decoder_input_ids"])
    heads.encoder.loss(stream, batch["decoder_labels"]).backward()
    assert states.grad is not None
    assert states.grad[:, 0].any(dim=1).all()
    assert not states.grad[:, 1:].any()


@pytest.mark.parametrize(("layers", "span", "reach"), [(1, 1, 1), (1, 3, 3), (3, 2, 4)])
def test_a_token_is_said_from_the_few_before_it(layers: int, span: int, reach: int) -> None:
    heads = SEED(decoder_layers=layers, span=span).build_module(tiny.encoder()).double()
    ids = torch.arange(5, 15)[None]
    cls = torch.zeros(1, 1, 16).double()
    plain = heads.decode(cls, ids)
    for place in range(10):
        other = ids.clone()
        other[0, place] = 30
        moved = (heads.decode(cls, other) - plain).abs().amax(dim=2)[0] > 1e-9
        assert moved.nonzero().flatten().tolist() == list(range(place, min(10, place + reach)))


def test_each_label_is_the_token_that_follows(batch: Batch) -> None:
    ids, labels = batch["decoder_input_ids"], batch["decoder_labels"]
    said = labels[:, :-1] != -100
    assert torch.equal(labels[:, :-1][said], ids[:, 1:][said])
    assert (ids[:, 0] == 2).all()
    assert (labels != 3).all()
    assert (said.sum(dim=1) >= 8).all()


def test_the_window_shows_the_sentence_embedding_to_all() -> None:
    assert window(3, 2, torch.device("cpu")).int().tolist() == [
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 0, 1, 1],
    ]


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_a_tiny_batch_is_learnt_by_heart(architecture: str, batch: Batch) -> None:
    encoder = tiny.encoder(architecture, initializer_range=0.1)
    losses = tiny.train(SEED().build_module(encoder).double(), batch, steps=120, lr=0.01)
    assert losses[-1] < 0.2 < 6 < losses[0]


def test_settings_are_read_strictly() -> None:
    assert read_objective({"name": "seed", "span": 8}) == SEED(span=8)
    with pytest.raises(BenchError, match="decoder_layers"):
        read_objective({"name": "seed", "decoder_layers": 0})
