"""MLM, RetroMAE, DupMAE and CoT-MAE: the losses against loops, what may leak, what is learnt."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foundation.errors import BenchError
from retrievers.training.objectives.mlm import MLM
from retrievers.training.objectives.retromae import CoTMAE, DupMAE, RetroMAE
from tests.support import slow_transformer as slow
from tests.support import tiny_encoders as tiny

Batch = dict[str, Tensor]
BASIC = [RetroMAE(decoding="basic", decoder_layers=layers) for layers in (1, 2, 3)]
OBJECTIVES = [RetroMAE(), *BASIC]
NAMES = ["enhanced", "basic-1", "basic-2", "basic-3"]
BLIND = [RetroMAE(decoding=decoding, decoder_reads="zero") for decoding in ("enhanced", "basic")]
BLIND_NAMES = ["enhanced-zero", "basic-zero"]
OTHER = [RetroMAE(decoding=decoding, decoder_reads="other") for decoding in ("enhanced", "basic")]
OTHER_NAMES = ["enhanced-other", "basic-other"]
PAIRS = [CoTMAE(decoder_layers=layers) for layers in (1, 2)]
EXCHANGED = [1, 0, 3, 2]


def batch_of(objective: Any, folder: Path, texts: int = 2) -> Batch:
    return objective.collator(tiny.tokenizer(folder), 14)(tiny.examples(tiny.TEXTS[:texts]))


def training(objective: Any, architecture: str = "bert") -> Any:
    return objective.build_module(tiny.encoder(architecture)).double()


def states_of(heads: Any, batch: Batch) -> list[list[slow.Vector]]:
    return heads.encoder(batch["input_ids"], batch["attention_mask"])[-1].tolist()


def slow_decoder_loss(heads: Any, batch: Batch, normalised: bool = False) -> float:
    """Basic or enhanced decoding, one token at a time; DupMAE normalises its queries."""
    embeddings = heads.encoder.encoder.embeddings
    kind = embeddings.token_type_embeddings.weight[0].tolist()
    embedded = heads.encoder.embed(batch["decoder_input_ids"]).tolist()
    positions = heads.encoder.positions(len(embedded[0])).tolist()
    decoded = []
    all_states = states_of(heads, batch)
    for text, words in enumerate(embedded):
        read = {"cls": all_states[text][0], "other": all_states[text - 1][0]}
        cls = read.get(heads.reads, [0.0] * len(words[0]))
        context = [cls, *words[1:]]
        seen = batch["decoder_context"][text].tolist()
        if isinstance(seen[0], list):
            queries = [slow.add(cls, place) for place in positions]
            if normalised:
                queries = [slow.norm(embeddings.LayerNorm, slow.add(kind, one)) for one in queries]
            decoded.append(slow.two_streams(heads.decoder, queries, context, seen))
            continue
        real = [j for j, here in enumerate(seen) if here]
        for layer in heads.decoder:
            context = slow.transformer_layer(layer, context, [real] * len(context))
        decoded.append(context)
    return slow.masked_lm_loss(heads.encoder.model, decoded, batch["decoder_labels"])


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_mlm_is_the_cross_entropy_of_the_masked_tokens(architecture, tmp_path) -> None:
    batch = batch_of(MLM(mask=0.3), tmp_path)
    heads = training(MLM(), architecture)
    with torch.no_grad():
        found = heads(**batch)
        model, states = heads.encoder.model, states_of(heads, batch)
        expected = slow.masked_lm_loss(model, states, batch["labels"])
    assert {name: float(loss) for name, loss in found.items()} == {
        "loss": pytest.approx(expected, abs=1e-8)
    }


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
@pytest.mark.parametrize(
    "objective",
    [*OBJECTIVES, *BLIND, *OTHER, *PAIRS],
    ids=[*NAMES, *BLIND_NAMES, *OTHER_NAMES, "cotmae-1", "cotmae-2"],
)
def test_the_loss_is_the_sum_of_encoder_and_decoder_loss(objective, architecture, tmp_path) -> None:
    batch = batch_of(objective, tmp_path)
    heads = training(objective, architecture)
    with torch.no_grad():
        found = {name: float(loss) for name, loss in heads(**batch).items()}
        model, states = heads.encoder.model, states_of(heads, batch)
        encoder = slow.masked_lm_loss(model, states, batch["labels"])
        decoder = slow_decoder_loss(heads, batch)
    expected = {"loss": encoder + decoder, "encoder_mlm": encoder, "decoder_mlm": decoder}
    assert found == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("objective", OTHER, ids=OTHER_NAMES)
def test_a_decoder_that_reads_another_text_needs_two(objective, tmp_path) -> None:
    with pytest.raises(BenchError, match="needs two texts"):
        training(objective)(**batch_of(objective, tmp_path, texts=1))


def test_enhanced_decoding_predicts_every_token_but_the_special_ones(tmp_path) -> None:
    batch = batch_of(RetroMAE(), tmp_path, texts=3)
    special = torch.isin(batch["decoder_input_ids"], torch.tensor([0, 2, 3]))
    assert torch.equal(batch["decoder_labels"] != -100, ~special)
    masked = (batch["labels"] != -100).sum() / (~special).sum()
    assert float(masked) == pytest.approx(0.3, abs=0.1)


def test_basic_decoding_has_a_masked_copy_of_its_own(tmp_path) -> None:
    batch = batch_of(BASIC[0], tmp_path, texts=6)
    assert not torch.equal(batch["labels"], batch["decoder_labels"])
    share = (batch["decoder_labels"] != -100).sum() / batch["attention_mask"].sum()
    assert float(share) == pytest.approx(0.5, abs=0.12)


def slow_bag_of_words(model: Any, states: Any, batch: Batch) -> float:
    """The sum over texts and their distinct tokens, one logit at a time."""
    total = 0.0
    for i, text in enumerate(states):
        real = batch["attention_mask"][i].tolist()
        scores = [slow.logits(model, text[j]) for j in range(1, len(text)) if real[j]]
        highest = [max(column) for column in zip(*scores, strict=True)]
        below = math.log(sum(math.exp(score) for score in highest))
        tokens = [token for token in batch["decoder_labels"][i].tolist() if token != -100]
        total -= sum(highest[token] - below for token in set(tokens)) / len(tokens)
    return total / len(states)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_dupmae_adds_the_bag_of_words_and_embeds_its_queries(architecture, tmp_path) -> None:
    batch = batch_of(DupMAE(), tmp_path)
    heads, retromae = (
        training(DupMAE(bow_weight=0.5), architecture),
        training(RetroMAE(), architecture),
    )
    retromae.load_state_dict(heads.state_dict())
    with torch.no_grad():
        losses = {name: loss.item() for name, loss in heads(**batch).items()}
        expected = {name: loss.item() for name, loss in retromae(**batch).items()}
        bow = 0.5 * slow_bag_of_words(heads.encoder.model, states_of(heads, batch), batch)
        decoder = slow_decoder_loss(heads, batch, normalised=True)
    assert abs(expected["decoder_mlm"] - decoder) > 1e-4
    parts = {"encoder_mlm": expected["encoder_mlm"], "decoder_mlm": decoder, "bow": bow}
    assert losses == pytest.approx({**parts, "loss": sum(parts.values())}, abs=1e-8)


def test_both_spans_of_a_pair_are_read_and_counted(tmp_path) -> None:
    batch = batch_of(CoTMAE(), tmp_path)
    read = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    decoder_labels = batch["decoder_labels"]
    decoded = torch.where(decoder_labels == -100, batch["decoder_input_ids"], decoder_labels)
    assert torch.equal(decoded, read[EXCHANGED])
    assert torch.equal(batch["decoder_context"], batch["attention_mask"][EXCHANGED])
    assert not torch.equal(decoder_labels, batch["labels"][EXCHANGED])


@pytest.mark.parametrize("text", ["", "alpha", "alpha beta", "\u200b \u200b \u200b \u200b"])
def test_texts_that_are_too_short_for_spans_are_read(text: str, tmp_path: Path) -> None:
    batch = CoTMAE().collator(tiny.tokenizer(tmp_path), 10)(tiny.examples([text] * 8))
    assert torch.isfinite(training(CoTMAE())(**batch)["loss"])
