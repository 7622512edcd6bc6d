"""DupMAE: the bag of words against loops, beside RetroMAE's own losses."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from retrievers.training.objectives.retromae import DupMAE, RetroMAE
from tests.support import slow_transformer as slow
from tests.support import tiny_encoders as tiny

Batch = dict[str, Tensor]


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    collate = DupMAE().collator(tiny.tokenizer(tmp_path), 16)
    return collate(tiny.examples(tiny.TEXTS[:4]))


def slow_bag_of_words(model: Any, states: Tensor, batch: Batch) -> float:
    """The sum over texts and their distinct tokens, one logit at a time."""
    total = 0.0
    for i, text in enumerate(states.tolist()):
        real = batch["attention_mask"][i].tolist()
        scores = [slow.logits(model, text[j]) for j in range(1, len(text)) if real[j]]
        highest = [max(column) for column in zip(*scores, strict=True)]
        below = math.log(sum(math.exp(score) for score in highest))
        tokens = [token for token in batch["decoder_labels"][i].tolist() if token != -100]
        total -= sum(highest[token] - below for token in set(tokens)) / len(tokens)
    return total / len(states)


def slow_decoder_loss(heads: Any, states: Tensor, batch: Batch) -> float:
    """One token at a time; queries are normalised, and RetroMAE's are not."""
    embeddings = heads.encoder.encoder.embeddings
    kind = embeddings.token_type_embeddings.weight[0].tolist()
    positions = heads.encoder.positions(states.shape[1]).tolist()
    embedded = heads.encoder.embed(batch["decoder_input_ids"]).tolist()
    decoded = []
    for text, (own, words) in enumerate(zip(states.tolist(), embedded, strict=True)):
        queries = [
            slow.norm(embeddings.LayerNorm, slow.add(slow.add(own[0], kind), place))
            for place in positions
        ]
        seen = batch["decoder_context"][text].tolist()
        decoded.append(slow.two_streams(heads.decoder, queries, [own[0], *words[1:]], seen))
    return slow.masked_lm_loss(heads.encoder.model, decoded, batch["decoder_labels"])


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_queries_of_the_decoder_pass_through_the_embedding_layer(
    architecture: str, batch: Batch
) -> None:
    heads = DupMAE().build_module(tiny.encoder(architecture)).double()
    with torch.no_grad():
        states = heads.encoder(batch["input_ids"], batch["attention_mask"])[-1]
        expected = slow_decoder_loss(heads, states, batch)
        assert heads(**batch)["decoder_mlm"].item() == pytest.approx(expected, abs=1e-8)
        retromae = RetroMAE().build_module(tiny.encoder(architecture)).double()
        retromae.load_state_dict(heads.state_dict())
        assert abs(retromae(**batch)["decoder_mlm"].item() - expected) > 1e-4


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_the_dupmae_loss_adds_the_bag_of_words_to_retromae(architecture: str, batch: Batch) -> None:
    heads = DupMAE(bow_weight=0.5).build_module(tiny.encoder(architecture)).double()
    retromae = RetroMAE().build_module(tiny.encoder(architecture)).double()
    retromae.load_state_dict(heads.state_dict())
    with torch.no_grad():
        losses = {name: loss.item() for name, loss in heads(**batch).items()}
        encoder_mlm = retromae(**batch)["encoder_mlm"].item()
        states = heads.encoder(batch["input_ids"], batch["attention_mask"])[-1]
        bow = 0.5 * slow_bag_of_words(heads.encoder.model, states, batch)
        decoder_mlm = slow_decoder_loss(heads, states, batch)
    parts = {"encoder_mlm": encoder_mlm, "decoder_mlm": decoder_mlm, "bow": bow}
    assert losses == pytest.approx({**parts, "loss": sum(parts.values())}, abs=1e-8)


def test_the_bag_of_words_is_read_from_the_ordinary_tokens_alone(batch: Batch) -> None:
    heads = DupMAE().build_module(tiny.encoder()).double()
    states = heads.encoder(batch["input_ids"], batch["attention_mask"])[-1].detach()
    states.requires_grad_()
    heads.bag_loss(states, batch["attention_mask"], batch["decoder_labels"]).backward()
    assert states.grad is not None
    assert not states.grad[:, 0].any()
    assert not states.grad[~batch["attention_mask"]].any()
    assert states.grad.any()
